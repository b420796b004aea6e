#!/usr/bin/env python3
"""A reader of kvcodec's files, written from formats/FORMAT.md alone. Needs h5py, numpy
and libxxhash, knows nothing of kvcodec.

    independent_reader.py check FILE...                        reads all and checks the conditions of the format
    independent_reader.py decode [--book BOOK] CODES KV ...    decodes CODES and compares with KV, decoded by kvcodec
    independent_reader.py part WHOLE PART                      the tokens of a kv file that are in another one are the same there
"""
import copy
import ctypes
import json
import sys

import h5py
import numpy as np

BOOKS = ("dictionary", "codebooks", "transform")
# Of caches whose layers, and keys and values, have one shape; of others; of those whose layers leave out tokens.
FILE_TYPES = ("kv", "dictionary", "codebooks", "transform", "codes", "index", "outputs", "selection", "sensitivity")
CATEGORIES = ["payload", "ids", "scales", "tables", "offsets", "exempt"]
PIECE = 65536
TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i32": "<i4", "i64": "<i8", "f32": "<f4", "f64": "<f8"}


def require(condition, message):
    if not condition:
        raise SystemExit(f"independent_reader: {message}")


def text(value):
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def type_name(dataset):
    """u8 ... f64, f16 or bf16, from the HDF5 type itself."""
    kind = dataset.id.get_type()
    if isinstance(kind, h5py.h5t.TypeFloatID):
        fields = (kind.get_size(), kind.get_fields(), kind.get_ebias())
        known = {(2, (15, 10, 5, 0, 10), 15): "f16", (2, (15, 7, 8, 0, 7), 127): "bf16",
                 (4, (31, 23, 8, 0, 23), 127): "f32", (8, (63, 52, 11, 0, 52), 1023): "f64"}
        require(fields in known, f"{dataset.name}: unknown float type {fields}")
        return known[fields]
    if isinstance(kind, h5py.h5t.TypeIntegerID):
        return ("i" if kind.get_sign() == h5py.h5t.SGN_2 else "u") + str(8 * kind.get_size())
    return "string"


def floats(dataset, rows=slice(None)):
    require(type_name(dataset) in ("f16", "bf16", "f32"), f"{dataset.name}: is {type_name(dataset)}")
    values = dataset.astype("<f4")[rows]
    require(np.isfinite(values).all(), f"{dataset.name}: not finite")
    return values


class Hash128(ctypes.Structure):
    _fields_ = [("low64", ctypes.c_uint64), ("high64", ctypes.c_uint64)]


def xxh3_128(data):
    """32 hexadecimal digits, from the xxHash library itself."""
    digest = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    digest.restype, digest.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    found = digest(bytes(data), len(data))
    return f"{found.high64:016x}{found.low64:016x}"


def number(n):
    return int(n).to_bytes(8, "little")


def string(s):
    return number(len(s.encode())) + s.encode()


def stored_bytes(dataset, rows):
    """Elements as they are stored, row-major and little-endian."""
    if type_name(dataset) == "bf16":
        return (dataset.astype("<f4")[rows].view("<u4") >> 16).astype("<u2").tobytes()
    return dataset[rows].tobytes()


def check_digests(file):
    """Verifies all digests of all datasets."""
    def visit(name, dataset):
        if not isinstance(dataset, h5py.Dataset) or name == "digests":
            return
        if text(file.attrs["kvcodec_type"]) == "codes" and name in ("data", "parts"):
            require("digests" not in dataset.attrs, f"{name}: has digests")
            return
        rows, first, high, low = (int(n) for n in dataset.attrs["digests"])
        row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype="i8"))
        if type_name(dataset) == "bf16":
            row_bytes //= dataset.dtype.itemsize // 2
        require(rows == 1 or rows * row_bytes <= 16 << 20 or dataset.shape[0] == 0, f"{name}: pieces of {rows} rows")
        count = -(-dataset.shape[0] // rows) if row_bytes else 0
        table = file["digests"][first:first + count] if count else np.zeros((0, 16), "u1")
        require(table.shape == (count, 16) and table.dtype == np.uint8, "/digests")
        for piece in range(count):
            found = xxh3_128(stored_bytes(dataset, slice(piece * rows, (piece + 1) * rows)))
            require(found == table[piece].tobytes().hex(), f"{name}: piece {piece} has the digest {found}")
        kind = type_name(dataset)
        if kind == "string":
            kind += str(dataset.id.get_type().get_size())
        words = string("/" + name) + string(kind) + number(len(dataset.shape)) + b"".join(map(number, dataset.shape)) + number(rows)
        require(xxh3_128(words + table.tobytes()) == f"{high:016x}{low:016x}", f"{name}: digest of the dataset")
    file.visititems(visit)


class File:
    def __init__(self, path, wanted=None):
        self.file = h5py.File(path, "r")
        check_digests(self.file)
        a = self.file.attrs
        self.type, version = text(a["kvcodec_type"]), int(a["kvcodec_version"])
        require(self.type in FILE_TYPES and version == 1, f"{path}: {self.type} version {version}")
        shaped, partial = "layer_heads" in a, "/documents/left_out" in self.file
        require(wanted in (None, self.type), f"{path}: is a {self.type} file")
        require(len(a["history"]) >= 1 and text(a["generator"]) and text(a["created"]).endswith("Z"), "header")
        for name in ("model", "rope_scaling", "source"):
            text(a[name])
        require(text(a["key_state"]) in ("post-rope", "pre-rope"), "key_state")
        self.num_layers, self.q_heads, self.heads, self.dim = (
            int(a[name]) for name in ("num_layers", "num_q_heads", "num_kv_heads", "head_dim"))
        require(max(self.num_layers, self.q_heads, self.heads, self.dim) <= 2**20, "shape")
        require(self.q_heads % self.heads == 0, "num_q_heads")
        # Of each layer: heads, dimensions of keys, of values, and of what is stored of values; and whose cache it uses.
        self.shapes = [(self.heads, self.dim, self.dim, self.dim)] * self.num_layers
        self.sources = list(range(self.num_layers))
        if shaped:
            self.read_shapes(a)
            require(any(shape != (self.heads, self.dim, self.dim, self.dim) for shape in self.shapes), "shapes that need not be told")
        self.read_scores(json.loads(text(a["scores"])) if "scores" in a else {})
        # Of each document and layer, how many of the first tokens the layer does not hold.
        self.left_out = None
        if partial:
            self.read_left_out()

    def read_scores(self, scores):
        """Soft cap, windows and sinks of attention's scores."""
        self.cap, windows, sinks = scores.get("cap"), scores.get("windows"), scores.get("sinks")
        require(self.cap is None or self.cap > 0, "cap of scores")
        require(windows is None or (len(windows) == self.num_layers and all(w == int(w) >= 0 for w in windows)), "windows")
        self.windows = windows or [0] * self.num_layers
        require(sinks is None or np.isfinite(np.array(sinks)).all() and np.shape(sinks) == (self.num_layers, self.q_heads), "sinks")
        self.sinks = sinks

    def read_left_out(self):
        length, dataset = np.diff(self.names_and_offsets()[1]), self.file["/documents/left_out"]
        require(type_name(dataset) == "u64" and dataset.shape == (len(length), self.num_layers), dataset.name)
        self.left_out = dataset[:].astype("i8")
        require((self.left_out <= length[:, None]).all() and self.left_out.any(), dataset.name)
        require(all(shape[0] > 0 or not self.left_out[:, layer].any() for layer, shape in enumerate(self.shapes)), dataset.name)

    def held(self, layer):
        """Of all tokens, whether the layer holds them."""
        _, offset = self.names_and_offsets()
        held = np.ones(int(offset[-1]), dtype=bool)
        for document, first in enumerate(offset[:-1] if self.left_out is not None else []):
            held[first:first + self.left_out[document, layer]] = False
        return held

    def read_shapes(self, a):
        count, keys, values, inside, self.sources = (
            [int(n) for n in a[name]] for name in ("layer_heads", "layer_key_dim", "layer_value_dim", "layer_values_in_keys", "layer_source"))
        require(all(len(list_) == self.num_layers for list_ in (count, keys, values, inside, self.sources)), "layer_…")
        self.shapes = [(h, k, v, 0 if i else v) for h, k, v, i in zip(count, keys, values, inside)]
        for layer, ((h, k, v, _), i, source) in enumerate(zip(self.shapes, inside, self.sources)):
            if h == 0:
                require(k == v == i == 0 and (source == layer or count[source] > 0), f"layer {layer} without heads")
            else:
                require(source == layer and h <= self.heads and self.q_heads % h == 0, f"heads of layer {layer}")
                require(1 <= k <= self.dim and v >= 1 and i in (0, 1) and (i == 0 or v <= k), f"dimensions of layer {layer}")

    def stored(self, layer, side):
        """Heads of a layer, and dimensions that are stored of them; 0: none."""
        heads, keys, _, values = self.shapes[layer]
        return heads, keys if side != "value" else values

    def names_and_offsets(self):
        offset = self.file["/documents/offset"][:].astype("i8")
        names = [text(name) for name in self.file["/documents/name"][:]]
        require(len(offset) == len(names) + 1 and offset[0] == 0 and (np.diff(offset) >= 0).all(), "/documents/offset")
        return names, offset

    def documents(self, rising=True):
        names, offset = self.names_and_offsets()
        positions = self.file["/positions"][:].astype("i8")
        require(positions.shape == (offset[-1],), "/positions")
        for first, end in zip(offset[:-1], offset[1:]):
            require(not rising or (np.diff(positions[first:end]) > 0).all(), "/positions do not rise")
        if "/tokens" in self.file:
            require(self.file["/tokens"].shape == (offset[-1],), "/tokens")
            self.file["/tokens"][:]
        return names, offset

    def layers(self):
        return sorted(int(name) for name in self.file["/layers"] if name.isdigit())


STATE = ("/state/data", "/state/tensors", "/state/tensors_end")


def check_state(file):
    """Tensors of documents: places, shapes and digests."""
    if STATE[0] not in file.file:
        return
    data, texts, ends = (file.file[name][:] for name in STATE)
    require(data.dtype == texts.dtype == np.uint8 and ends.dtype == np.uint64, "types of state")
    ends = [0, *map(int, ends)]
    require(len(ends) == len(file.names_and_offsets()[1]) and ends == sorted(ends) and ends[-1] == len(texts), STATE[2])
    places = []
    for first, end in zip(ends, ends[1:]):
        for name, tensor in json.loads(texts[first:end].tobytes() or b"{}").items():
            require(0 < len(name) <= 200 and all(c.isascii() and (c.isalnum() or c in "_-.") for c in name), f"name {name}")
            require(set(tensor) == {"type", "shape", "begin", "digest"} and len(tensor["shape"]) <= 32, f"{name}: {tensor}")
            size = {"f16": 2, "bf16": 2}.get(tensor["type"]) or np.dtype(TYPES[tensor["type"]]).itemsize
            begin, size = tensor["begin"], size * int(np.prod(tensor["shape"], dtype="i8"))
            require(begin + size <= len(data), f"{name}: lies outside")
            require(xxh3_128(data[begin:begin + size].tobytes()) == tensor["digest"], f"{name}: digest")
            places += [(begin, begin + size)] if size else []
    places.sort()
    require(all(a[1] <= b[0] for a, b in zip(places, places[1:])), "tensors overlap")
    require(places, "there is no state")


def check_kv(kv):
    _, offset = kv.documents()
    total = int(offset[-1])
    types = set()
    for layer in kv.layers():
        require(layer < kv.num_layers, "layer number")
        for side in ("key", "value"):
            heads, dim = kv.stored(layer, side)
            if heads == 0 or dim == 0:
                continue
            dataset = kv.file[f"/layers/{layer}/{side}"]
            require(dataset.shape == (kv.held(layer).sum(), heads, dim), f"{dataset.name}: {dataset.shape}")
            types.add(type_name(dataset))
            floats(dataset)
        if "query" in kv.file[f"/layers/{layer}"]:
            query, rows = kv.file[f"/layers/{layer}/query"], kv.file["/query_position"][:]
            require(query.shape == (len(rows), kv.q_heads, kv.shapes[kv.sources[layer]][1]), query.name)
            require(len(rows) == 0 or (rows < total).all(), "/query_position")
            require((np.diff(rows.astype("i8")) > 0).all(), "/query_position does not rise")
            floats(query)
    require(len(types) == 1, f"types {types}")


def check_index(index):
    """The clusters of every document and head are a partition of its tokens, batch by batch."""
    _, offset = index.documents()
    total = int(offset[-1])
    sink = int(index.file.attrs["sink"])
    require(index.file["/positions"].shape == (total,), "/positions")
    batch_offset, batch_end = index.file["/batches/offset"][:], index.file["/batches/end"][:]
    require(len(batch_offset) == len(offset) and batch_offset[0] == 0 and batch_offset[-1] == len(batch_end), "/batches")
    for layer in index.layers():
        group = index.file[f"/layers/{layer}"]
        counts, size, end, token = (group[name][:].astype(np.int64) for name in ("clusters", "size", "end", "token"))
        require(type_name(group["centroid"]) == "f32" and group["centroid"].shape == (counts.sum(), index.dim), "centroid")
        require(np.isfinite(group["centroid"][:]).all() and (size >= 1).all() and (np.cumsum(size) == end).all(), "size, end")
        cluster = begin = 0
        for document in range(len(offset) - 1):
            ends = batch_end[batch_offset[document]:batch_offset[document + 1]].astype(np.int64)
            length = int(offset[document + 1] - offset[document])
            require((np.diff(ends) > 0).all() and (int(ends[-1]) if len(ends) else 0) == length, "/batches/end")
            for head in range(index.heads):
                seen, last_batch = [], 0
                for c in range(cluster, cluster + counts[document * index.heads + head]):
                    own = token[begin:begin + size[c]]
                    batches = np.searchsorted(ends, own, side="right")
                    require((np.diff(own) > 0).all() and (batches == batches[0]).all() and batches[0] >= last_batch, f"cluster {c}")
                    last_batch = batches[0]
                    seen.extend(own)
                    begin += size[c]
                cluster += counts[document * index.heads + head]
                require(sorted(seen) == list(range(min(sink, length), length)), f"document {document}, head {head}: no partition")
        require(cluster == len(size) and begin == len(token), "clusters")


def check_outputs(outputs):
    _, offset = outputs.documents(rising=False)
    total = int(offset[-1])
    text(outputs.file.attrs["codec"])
    require(outputs.file["/query_position"].shape == (total,), "/query_position")
    outputs.file["/query_position"][:]
    require(len(outputs.layers()) > 0 and max(outputs.layers()) < outputs.num_layers, "layers")
    for layer in outputs.layers():
        dataset = outputs.file[f"/layers/{layer}/output"]
        require(type_name(dataset) == "f32" and dataset.shape == (total, outputs.q_heads, outputs.shapes[0][2]), dataset.name)
        floats(dataset)


def check_sensitivity(sensitivity):
    """Numbers by layer and side, and symmetric matrices without negative eigenvalues."""
    file, layers = sensitivity.file, sensitivity.num_layers
    sink = json.loads(text(file.attrs["parameters"]))["sink"]
    require(sink >= 0, "parameters")
    by_noise = "/fisher" not in file or "/nats" in file
    for name, shape in () if not by_noise else (
            ("variance", ()), ("deviation", (2,)), ("divergence", (2,)), ("divergence_half_width", (2,)),
            ("nats", ()), ("nats_half_width", ())):
        dataset = file[f"/{name}"]
        require(type_name(dataset) == "f64" and dataset.shape == (layers, 2, *shape), name)
        values = dataset[:]
        require((values >= 0).all() and (name.endswith("half_width") or np.isfinite(values).all()), name)
    if by_noise:
        deviation, divergence = file["/deviation"][:], file["/divergence"][:]
        require(np.allclose(deviation[..., 1], 2 * deviation[..., 0]), "deviation")
        require(np.allclose(file["/nats"][:], divergence[..., 0] / deviation[..., 0] ** 2), "nats")
    if "/fisher" not in file:
        return
    require(text(file["/fisher"].attrs["key_state"]) in ("post-rope", "pre-rope"), "key_state of /fisher")
    for name in ("key", "value"):
        dataset = file[f"/fisher/{name}"]
        require(type_name(dataset) == "f32" and dataset.shape == (layers, sensitivity.heads, sensitivity.dim, sensitivity.dim),
                dataset.name)
        matrices = floats(dataset).astype("f8")
        require((matrices == matrices.swapaxes(2, 3)).all(), f"{dataset.name}: not symmetric")
        eigenvalues = np.linalg.eigvalsh(matrices)
        require((eigenvalues[..., 0] >= -1e-6 * eigenvalues[..., -1]).all(), f"{dataset.name}: not semidefinite")


def check_book(group, kind):
    json.loads(text(group.attrs["parameters"]))
    for name in group.attrs["arrays"]:
        group[text(name)][:]
    digest = text(group.attrs["digest"])
    require(len(digest) == 32, "digest")
    data = bytearray(string(kind))
    for name in map(text, group.attrs["arrays"]):
        if name.startswith("training/"):
            continue
        dataset = group[name]
        data += string(name) + string(type_name(dataset)) + number(len(dataset.shape)) + b"".join(map(number, dataset.shape))
        data += stored_bytes(dataset, slice(None))
    require(xxh3_128(data) == digest, f"digest {xxh3_128(data)}, stored {digest}")
    return digest


def unpack(data, count, bits):
    """count numbers of `bits` bits, most significant bit first."""
    stream = np.unpackbits(data, bitorder="big")
    require(not stream[count * bits:].any(), "padding bits are not zero")
    numbers = stream[:count * bits].reshape(count, bits).astype("u8")
    return numbers @ (np.uint64(1) << np.arange(bits - 1, -1, -1, dtype="u8"))


class Stream:
    """A stream as a layout describes it."""

    def __init__(self, description, packed_file, index):
        self.name, self.type, self.category = description["name"], description["type"], description["category"]
        self.shape, self.bound = tuple(description["row"]), description.get("index_bound", 0)
        self.shared, self.bits = description.get("shared", False), description.get("packed_bits", 0)
        allowed = set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        require(self.name and set(self.name) <= allowed, f"stream {self.name!r}")
        require(self.type in TYPES or self.type in ("f16", "bf16"), f"{self.name}: {self.type}")
        require(self.category in (["index"] if index else CATEGORIES), f"{self.name}: {self.category}")
        self.elements = int(np.prod(self.shape, dtype="i8"))
        self.element_size = int(self.type.lstrip("uibf")) // 8
        require(self.elements >= 1, f"{self.name}: rows of nothing")
        width = (self.bound - 1).bit_length() if self.bound else 0
        packable = self.bound and not self.shared and self.type in ("u8", "u16", "u32") and 1 <= width < 8 * self.element_size
        require(self.bits == (width if packed_file and packable else 0), f"{self.name}: packed to {self.bits} bits")

    def bytes(self, rows):
        return -(-rows * self.elements * self.bits // 8) if self.bits else rows * self.elements * self.element_size

    def values(self, data, rows):
        """The array of so many rows that are stored in these bytes."""
        if self.bits:
            values = unpack(data, rows * self.elements, self.bits).astype(TYPES[self.type])
        elif self.type in ("f16", "bf16"):
            values = floats_of_bits(data.view("<u2"), self.type)
        else:
            values = data.view(TYPES[self.type])
        require(self.type not in ("f16", "bf16", "f32") or np.isfinite(values).all(), f"{self.name}: not finite")
        require(self.bound == 0 or values.size == 0 or int(values.max()) < self.bound, f"{self.name}: bound")
        return values.reshape((rows,) + self.shape)


class Part:
    """The streams of a document (row = its number + 1) or of all of them (row 0), of a column of /parts."""

    def __init__(self, codes, row, column):
        where = f"row {row}, column {column} of /parts"
        begin, size = (int(n) for n in codes.parts[row, column])
        require(24 <= size <= codes.data.shape[0] - begin, where)
        everything = codes.data[begin:begin + size]
        require(bytes(everything[-20:-16]) == b"part", f"{where}: no part")
        footer = bytes(everything[-int.from_bytes(bytes(everything[-24:-20]), "little"):])
        self.body, self.footer_size = everything[:size - len(footer)], len(footer)
        require(digest_holds(footer[:-16], footer[-16:]), f"{where}: digest of the footer")
        place = 0

        def number():
            nonlocal place
            value = shift = 0
            while True:
                byte = footer[place]
                place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
                if byte < 128:
                    return value

        self.streams = [stream for stream in codes.layout(column) if stream.shared == (row == 0)]
        require((number(), number(), number()) == (row, column, len(self.streams)), f"{where}: another part")
        self.rows = [number() for _ in self.streams]
        pieces = -(-len(self.body) // PIECE)
        require(place + 16 * pieces + 24 == len(footer), f"{where}: size of the footer")
        for i in range(pieces):
            require(digest_holds(self.body[PIECE * i:PIECE * (i + 1)], footer[place + 16 * i:place + 16 * (i + 1)]),
                    f"{where}: digest of piece {i}")
        require(sum(stream.bytes(rows) for stream, rows in zip(self.streams, self.rows)) == len(self.body), f"{where}: rows")

    def arrays(self):
        found, place = {}, 0
        for stream, rows in zip(self.streams, self.rows):
            size = stream.bytes(rows)
            found[stream.name] = stream.values(self.body[place:place + size], rows)
            place += size
        return found


def digest_holds(data, stored):
    """True too where there is no xxHash library: digests are then not verified, which is said once."""
    if not xxhash_there():
        return True
    return xxh3_128(data) == bytes(stored).hex()


def xxhash_there():
    if "there" not in xxhash_there.__dict__:
        try:
            ctypes.CDLL("libxxhash.so.0")
            xxhash_there.there = True
        except OSError:
            xxhash_there.there = False
            print("no libxxhash here: digests of parts are not verified")
    return xxhash_there.there


class Codes(File):
    def __init__(self, path):
        super().__init__(path, "codes")
        a = self.file.attrs
        self.codec, self.parameters = text(a["codec"]), json.loads(text(a["parameters"]))
        self.group, self.packed = int(a["layer_group"]), int(a["packed"]) == 1
        self.storage = text(a["storage"])
        exact = set(text(a["codec"]).split("+")) <= {"none", "lossless"}
        require(self.storage in ("bf16", "f16", *(["f32"] if exact else [])) and text(a["source_dtype"]) in ("bf16", "f16", "f32"), "types")
        self.names, self.offset = self.names_and_offsets()
        self.groups = [int(n) for n in a["groups"]]
        self.members = {first: list(range(first, first + self.group)) for first in self.groups}
        if "group_of_layer" in a:
            groups = [int(n) for n in a["group_of_layer"]]
            require(len(groups) == self.num_layers, "group_of_layer")
            self.members = {first: [layer for layer, group in enumerate(groups) if group == first] for first in self.groups}
            require(max(len(layers) for layers in self.members.values()) == self.group, "layer_group")
        for first, following in zip(self.groups, self.groups[1:] + [self.num_layers]):
            layers = self.members[first]
            require(layers[0] == first < following and layers[-1] < self.num_layers, "groups")
            require("group_of_layer" in a or layers[-1] < following, "groups overlap")
            require(self.shapes[first][0] > 0, "a group of nothing")
            require(len({self.shapes[layer] for layer in layers}) == 1, "shapes in a group")
            require(self.left_out is None or (self.left_out[:, layers] == self.left_out[:, [first]]).all(), "tokens in a group")
        self.read_layouts()
        self.data, self.parts = self.file["/data"], self.file["/parts"][:].astype("i8")
        require(self.data.ndim == 1 and type_name(self.data) == "u8", "/data")
        require(self.parts.shape == (len(self.names) + 1, len(self.sides()) + 1, 2), "/parts")
        places = self.parts.reshape(-1, 2)
        places = places[places[:, 1] > 0]
        places = places[np.argsort(places[:, 0])]
        require((places[1:, 0] >= places[:-1].sum(axis=1)).all(), "parts overlap")
        for column in range(self.parts.shape[1]):
            shared = any(stream.shared for stream in self.layout(column))
            require((self.parts[1:, column, 1] > 0).all() and (self.parts[0, column] == 0).all() != shared, "/parts: which there are")
        self.index = [Part(self, document + 1, len(self.numbers) - 1).arrays() for document in range(len(self.names))]
        for length, index in zip(np.diff(self.offset), self.index):
            require(all(values.shape == (length,) for values in index.values()), "tokens and positions")
            require((np.diff(index["positions"].astype("i8")) > 0).all(), "positions do not rise")
        self.count()
        if "/book" in self.file:
            require(check_book(self.file["/book"], text(a["book_type"])) == text(a["book_digest"]), "digest of /book")

    def read_layouts(self):
        a = self.file.attrs
        self.numbers = [int(n) for n in a["side_layout"]]
        self.joint = int(a.get("joint", 0)) == 1
        require(len(self.numbers) == len(self.sides()) + 1 and self.numbers.count(self.numbers[-1]) == 1, "side_layout")
        require(set(self.numbers) == set(range(len(a["layouts"]))), "layouts")
        self.layouts = [[Stream(stream, self.packed, i == self.numbers[-1]) for stream in json.loads(text(layout))]
                        for i, layout in enumerate(a["layouts"])]
        for layout in self.layouts:
            require(len({stream.name for stream in layout}) == len(layout), "a stream twice")
        names = [(stream.name, stream.type) for stream in self.layout(-1)]
        require(names[-1] in (("positions", "u32"), ("positions", "u64")) and names[:-1] in ([], [("tokens", "u32")]), "layout of tokens")

    def layout(self, column):
        return self.layouts[self.numbers[column]]

    def sides(self):
        return [(layer, side) for layer in self.groups for side in (("both",) if self.joint else ("key", "value")) if self.stored(layer, side)[1]]

    def positions(self):
        return np.concatenate([np.zeros(0, "i8")] + [index["positions"].astype("i8") for index in self.index])

    def streams(self, layer, side, document):
        """All streams of a document as arrays."""
        column = self.sides().index((layer, side))
        shared = Part(self, 0, column).arrays() if self.parts[0, column, 1] else {}
        return {**shared, **Part(self, document + 1, column).arrays()}

    def count(self):
        """Totals and ledger are what is in the parts."""
        counted, totals = dict.fromkeys(CATEGORIES + ["index"], 0), []
        for column in range(self.parts.shape[1]):
            of_stream = {stream.name: [0, 0] for stream in self.layout(column)}
            for row in range(self.parts.shape[0]):
                if self.parts[row, column, 1] == 0:
                    continue
                part = Part(self, row, column)
                counted["index"] += part.footer_size
                for stream, rows in zip(part.streams, part.rows):
                    of_stream[stream.name][0] += rows
                    of_stream[stream.name][1] += stream.bytes(rows)
                    counted[stream.category] += stream.bytes(rows)
            totals += of_stream.values()
        require(self.file["/totals"][:].tolist() == totals, "/totals")

        def size(dataset):
            return dataset.size * dataset.id.get_type().get_size()

        optional = ["/documents/" + name for name in ("digest", "time", "metadata", "metadata_end")]
        tables = ["/parts", "/totals", "/documents/name", "/documents/offset"] + ["/documents/left_out"] * (self.left_out is not None)
        tables += [name for name in optional if name in self.file]
        counted["index"] += sum(size(self.file[name]) for name in tables)
        counted["embedded_book"] = sum(size(self.file["/book/" + text(n)]) for n in self.file["/book"].attrs["arrays"]) \
            if "/book" in self.file else 0
        if STATE[0] in self.file:
            counted["state"] = sum(size(self.file[name]) for name in STATE)
        counted["values"] = sum(
            len(self.members[layer]) * int(self.held(layer).sum()) * self.stored(layer, own)[0] * self.stored(layer, own)[1]
            for layer, side in self.sides() for own in (("key", "value") if side == "both" else (side,)))
        stored = json.loads(text(self.file.attrs["ledger"]))
        require(stored == counted, f"ledger {stored}, counted {counted}")


# Codecs: (codes, book, layer, side, streams of a document as arrays, tokens) -> [tokens, L, H, d] -------------


def decode_none(codes, book, layer, side, rows, tokens):
    require(codes.group == 1 and not codes.parameters.keys() - {"rope"}, "none")
    return rows["values"].reshape(tokens, 1, codes.heads, codes.dim)


def bits_of(codes, layer, side):
    """Bits of codes that may differ from layer to layer."""
    own = codes.parameters.get("layer-bits", "").split()
    require(not own or len(own) % 2 == 0, "layer-bits")
    return int(own[layer + (len(own) // 2 if side == "value" else 0)]) if own else codes.parameters["bits"]


def decode_kivi(codes, book, layer, side, rows, tokens):
    p, heads, dim = codes.parameters, codes.group * codes.heads, codes.dim
    bits, group, value_group = bits_of(codes, layer, side), p["key-group"], p["value-group"]
    head_bytes = -(-dim * bits // 8)
    quantized = len(rows["codes"])
    if p["window"] == -1:
        expected = group * min(-(-(tokens - min(128, tokens // 64)) // group), tokens // group)
    else:
        expected = max(0, (tokens - p["window"]) // group * group)
    require(quantized in (0, expected), "kivi: quantized tokens")
    require(rows["codes"].shape[1:] == (heads, head_bytes) and len(rows["tail"]) == tokens - quantized, "kivi: shapes")
    stream = np.unpackbits(rows["codes"].reshape(-1, head_bytes), axis=1)[:, :dim * bits]
    levels = (stream.reshape(-1, dim, bits).astype("u4") @ (1 << np.arange(bits - 1, -1, -1)).astype("u4"))
    levels = levels.reshape(quantized, heads, dim).astype("<f4")
    if side == "key":
        scale, zero = (np.repeat(rows[name], group, axis=0) for name in ("scales", "zeros"))
    else:
        scale, zero = (np.repeat(rows[name], value_group, axis=2)[:, :, :dim] for name in ("scales", "zeros"))
    require((scale >= 0).all(), "kivi: scales")
    values = zero + levels * scale
    tail = rows["tail"].reshape(tokens - quantized, heads, dim)
    return np.concatenate([values, tail]).reshape(tokens, codes.group, codes.heads, dim)


def fused_multiply_add(a, b, c):
    """a * b + c for floats of 32 bits, rounded once to such. In double the product is exact; the sum is rounded to odd, so that
    rounding it again is as good as rounding once (Boldo and Melquiond, 2008)."""
    product, c = a.astype("f8") * b.astype("f8"), c.astype("f8")
    total = product + c
    of_c = total - product
    lost = (product - (total - of_c)) + (c - of_c)
    bits = total.view("i8")
    inexact = (lost != 0) & (bits & 1 == 0)
    bits[inexact] += np.where((lost > 0) == (total > 0), 1, -1)[inexact]
    return total.astype("<f4")


def sorted_symbols(data, pairs):
    """Symbols at the beginning of the bytes, and what follows them."""
    bits = Bits(data)
    require(bits.take(17) == 256 and bits.take(6) == 0, "sorted codes: book of another alphabet")
    lengths = []
    while len(lengths) < 256:
        token = bits.take(4)
        if token <= 12:
            lengths.append(token)
        elif token == 13:
            require(lengths, "sorted codes: book repeats nothing")
            lengths += [lengths[-1]] * (bits.take(4) + 3)
        else:
            lengths += [0] * (bits.take(4) + 2 if token == 14 else bits.take(12) + 18)
    require(len(lengths) == 256 and bits.take(bits.left % 8) == 0, "sorted codes: book")
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length > 0):
        code <<= length - before
        codes[length, code] = symbol
        code, before = code + 1, length
    runs = 8 if pairs >= 1024 else 1
    at = len(data) - bits.left // 8
    run_bits = [int.from_bytes(bytes(data[at + 4 * i:at + 4 * i + 4]), "little") for i in range(runs)]
    at += 4 * runs
    coded = Bits(data[at:at + -(-sum(run_bits) // 8)])
    symbols = []
    for length_of_run in run_bits:
        end = coded.left - length_of_run
        for _ in range(-(-pairs // runs)):
            length, code = 0, 0
            while (length, code) not in codes:
                length, code = length + 1, code << 1 | coded.take(1)
                require(length <= 12, "sorted codes: no such code")
            symbols.append(codes[length, code])
        require(coded.left == end, "sorted codes: a run of other bits")
    require(coded.take(coded.left) == 0, "sorted codes: padding")
    return symbols[:pairs], data[at + -(-sum(run_bits) // 8):]


def sorted_block(ids, words, atoms, width, counts):
    """Ids and bits of coefficients of a block."""
    pairs = int(counts.sum())

    def plain(data, bits_each):
        require(len(data) == -(-pairs * bits_each // 8), "sorted codes: plain bytes")
        bits = Bits(data)
        return [bits.take(bits_each) for _ in range(pairs)]

    require(ids[0] <= 1 and words[0] <= 1, "sorted codes: how they are stored")
    if ids[0] == 0:
        out_ids = plain(ids[1:], max(atoms - 1, 0).bit_length())
    else:
        symbols, rest = sorted_symbols(ids[1:], pairs)
        extra, out_ids, k = Bits(rest), [], 0
        for count in counts:
            before = 0
            for symbol in symbols[k:k + count]:
                bits = 0 if symbol < 16 else (symbol - 16) // 8 + 1
                before += (symbol if symbol < 16 else (8 + (symbol - 16) % 8) << bits) + extra.take(bits)
                out_ids.append(before)
            k += count
        require(extra.left < 8 and extra.take(extra.left) == 0, "sorted codes: extra bits")
    if words[0] == 0:
        out_words = plain(words[1:], width)
    else:
        out_words, rest = sorted_symbols(words[1:], pairs)
        require(len(rest) == (pairs if width == 16 else 0), "sorted codes: lower bytes")
        if width == 16:
            out_words = [symbol << 8 | int(low) for symbol, low in zip(out_words, rest)]
    k = 0
    for count in counts:
        require(all(a <= b for a, b in zip(out_ids[k:k + count], out_ids[k + 1:k + count])), "sorted codes: ids fall")
        k += count
    return out_ids, out_words


def unsorted(rows, p, counts, tokens, signals):
    """Ids and bits of coefficients of all tokens of a document in sorted blocks."""
    blocks = rows["block"]
    require(blocks.shape[1:] == (3,) and blocks[:, 0].sum() == tokens and (blocks[:-1, 0] == 256).all(), "sorted codes: blocks")
    require(len(blocks) == -(-tokens // 256), "sorted codes: number of blocks")
    require(blocks[:, 1].sum() == len(rows["ids"]) and blocks[:, 2].sum() == len(rows["coefficients"]), "sorted codes: bytes")
    full = blocks[:tokens // 256]
    check_places(rows, 256, full[:, 1], full[:, 2])
    width = 16 if p["coefficients"] == "f16" else 8
    ids, words, first, at_ids, at_words = [], [], 0, 0, 0
    for here, id_bytes, word_bytes in blocks.astype("i8"):
        block = sorted_block(rows["ids"][at_ids:at_ids + id_bytes], rows["coefficients"][at_words:at_words + word_bytes],
                             p["atoms"], width, counts[first * signals:(first + here) * signals])
        ids += block[0]
        words += block[1]
        first, at_ids, at_words = first + here, at_ids + id_bytes, at_words + word_bytes
    return np.array(ids, dtype="i8"), np.array(words, dtype="<u2")


places_seen = 0


def check_places(rows, tokens_of_unit, *sizes):
    """`places` of complete units that take sizes[i][unit] rows of stream i."""
    global places_seen
    interval = max(1, 4096 // tokens_of_unit)
    ends = np.cumsum(np.stack([np.asarray(size, dtype="i8") for size in sizes], axis=1), axis=0)
    require(rows["places"].shape == (len(ends) // interval, len(sizes)), "number of places")
    require((rows["places"].astype("i8") == ends[interval - 1::interval]).all(), "places")
    places_seen += len(rows["places"])


def decode_sparse(codes, book, layer, side, rows, tokens):
    require(book is not None, "sparse needs a book")
    p, b = codes.parameters, json.loads(text(book.attrs["parameters"]))
    require(text(book.attrs["digest"]) == text(codes.file.attrs["book_digest"]), "another book")
    in_bytes = b.get("atom-type", "f32") == "i8"
    require(b["dict-scope"] in ("global", "group", "layer") and (b["dict-scope"] != "layer" or codes.group == 1), "scope")
    part = side if b["dict-scope"] == "global" else f"{side}/{layer}"
    atoms = book[f"{part}/atoms"][:]
    if in_bytes:
        require(atoms.dtype == np.uint8 and (atoms > 0).all(), "levels of atoms")
        levels, scales = atoms.astype("i8") - 128, book[f"{part}/atom_scale"][:]
        require(scales.shape == (len(levels),) and (scales > 0).all(), "scales of atoms")
        atoms = levels.astype("<f4") * scales[:, None]
    heads, dim, group, s = codes.heads, codes.dim, codes.group, p["sparsity"]
    signals = heads if b["signal"] == "head" else 1
    require(b["layer-group"] == group and atoms.shape == (b["atoms"], group * heads * dim // signals), "book")
    require(np.allclose(np.linalg.norm(atoms.astype("f8"), axis=1), 1, atol=1e-3), "norms of atoms")
    in_order = not p.get("sort-ids", False)
    if p["error-target"] > 0:
        counts = rows["count"].reshape(-1).astype("i8")
        require(not in_order or counts.sum() == len(rows["ids"]) == len(rows["coefficients"]), "sparse: pairs")
        require((counts <= s).all() and len(counts) == tokens * signals, "sparse: counts")
        if in_order:
            check_places(rows, 1, counts.reshape(tokens, signals).sum(axis=1))
    else:
        counts = np.full(tokens * signals, s, dtype="i8")
    if in_order:
        ids, coefficients = rows["ids"].reshape(-1), rows["coefficients"].reshape(-1)
    else:
        require((p["atoms"], p["signals"], p["per-head"]) == (b["atoms"], signals, b["signal"] == "head"), "sparse: parameters")
        ids, coefficients = unsorted(rows, p, counts, tokens, signals)
        if p["coefficients"] == "f16":
            coefficients = coefficients.view("<f2").astype("<f4")
    require((ids < b["atoms"]).all(), "sparse: ids")
    if p["coefficients"] != "f16":
        codes8 = coefficients.astype("i8")
        require((codes8 > 0).all(), "sparse: levels")
        number = (codes8 - 128).astype("f8")
        u = rows["scale"].reshape(-1).astype("i8")
        require(len(u) == tokens * signals, "sparse: scales")
        coefficients = (number * np.repeat(np.ldexp(8.0 + u % 8, u // 8 - 23), counts)).astype("<f4")
    require(np.isfinite(coefficients).all(), "sparse: coefficients")
    first = np.cumsum(counts) - counts
    signal = np.zeros((tokens * signals, atoms.shape[1]), dtype="<f4")
    if in_bytes:
        weights = coefficients.astype("<f4") * scales[ids]
        for i, (begin, count) in enumerate(zip(first, counts)):
            w, pairs = weights[begin:begin + count], ids[begin:begin + count]
            largest = np.abs(w).max(initial=np.float32(0))
            if largest >= 2.0 ** -100:
                q = np.rint(w * (np.float32(32639) / largest)).astype("i8")
                signal[i] = (q @ levels[pairs]).astype("<f4") * (largest / np.float32(32639))
    for k in range(0 if in_bytes else int(counts.max(initial=0))):  # pair k of each signal that has one
        having = np.flatnonzero(counts > k)
        pair = first[having] + k
        signal[having] = fused_multiply_add(coefficients[pair][:, None], atoms[ids[pair]], signal[having])
    if b["normalize"] == "signal":
        signal *= rows["gain"].reshape(-1, 1)
    if b["signal"] == "head":  # [tokens, H, L, d] -> [tokens, L, H, d]
        values = signal.reshape(tokens, heads, group, dim).transpose(0, 2, 1, 3)
    else:
        values = signal.reshape(tokens, group, heads, dim)
    if b["normalize"] in ("layer", "weights"):
        values = values * book[f"{side}/layer_scale"][layer:layer + group].reshape(group, 1, 1)
    if b["center"] == "channel":
        values = values + book[f"{side}/channel_mean"][layer:layer + group]
    return values


class Bits:
    """Numbers of a few bits, most significant bit first, one after the other."""

    def __init__(self, data):
        self.number, self.left = int.from_bytes(bytes(data), "big"), 8 * len(data)

    def take(self, count):
        require(count <= self.left, "bits end early")
        self.left -= count
        return (self.number >> self.left) & ((1 << count) - 1)


def kvcomp_book(data):
    """("huffman", symbol [4096], length [4096] by the next 12 bits) or ("rans", scale, frequencies, starts, symbol by slot)."""
    require(len(data) > 0 and data[0] in (0, 1), "kvcomp: book")
    bits, rans = Bits(data[1:]), data[0] == 1
    require(bits.take(17) == 255 and bits.take(6) == 16, "kvcomp: book of another alphabet")
    scale = bits.take(5) if rans else 0
    entries = []
    while len(entries) < 256:
        token = bits.take(5 if rans else 4)
        if rans and 1 <= token <= 16:
            entries.append(1 << (token - 1) | bits.take(token - 1))
        elif token <= (0 if rans else 12):
            entries.append(token)
        elif not rans and token == 13:
            require(entries, "kvcomp: book repeats nothing")
            entries += [entries[-1]] * (bits.take(4) + 3)
        else:
            require(token < (19 if rans else 16), "kvcomp: book")
            short = token == (17 if rans else 14)
            entries += [0] * (bits.take(4) + 2 if short else bits.take(12) + 18)
    require(len(entries) == 256 and bits.left < 8 and bits.take(bits.left) == 0 and entries[255] > 0, "kvcomp: book")
    if rans:
        require(8 <= scale <= 16 and sum(entries) == 1 << scale, "kvcomp: frequencies")
        frequencies = np.array(entries, dtype="i8")
        return "rans", scale, frequencies, np.cumsum(frequencies) - frequencies, np.repeat(np.arange(256), frequencies)
    symbol, length, end, last = np.zeros(4096, dtype="i8"), np.zeros(4096, dtype="i8"), 0, 0
    for bits_of_code, s in sorted((n, s) for s, n in enumerate(entries) if n > 0):
        code = end >> (12 - bits_of_code)  # codes so far, as an interval of 12-bit windows, end on a whole code
        first, end = code << (12 - bits_of_code), (code + 1) << (12 - bits_of_code)
        require(bits_of_code >= last and end <= 4096, "kvcomp: more codes than fit")
        symbol[first:end], length[first:end], last = s, bits_of_code, bits_of_code
    return "huffman", symbol, length


def bits_at(data, position, count):
    """`count` bits, 16 at most, at each bit position; zeros follow the data."""
    padded = np.concatenate([data, np.zeros(4, dtype="u1")]).astype("i8")
    byte = position >> 3
    window = padded[byte] << 16 | padded[byte + 1] << 8 | padded[byte + 2]
    return window >> (24 - count - (position & 7)) & ((1 << count) - 1)


def huffman_runs(book, data, start, lengths, symbols):
    """Runs of `symbols` symbols at bits start [n], of `lengths` [n] bits: symbols [n, symbols] and the values of the 255s."""
    _, symbol, length = book
    found, position, end = np.zeros((len(start), symbols), dtype="i8"), start.copy(), start + lengths
    for i in range(symbols):
        window = bits_at(data, position, 12)
        found[:, i] = symbol[window]
        position += length[window]
        require((length[window] > 0).all() and (position <= end).all(), "kvcomp: not a code")
    run, _ = np.nonzero(found == 255)
    exact_of_run = np.bincount(run, minlength=len(start))
    require((position + 16 * exact_of_run == end).all(), "kvcomp: count of a run")
    before = np.arange(len(run)) - np.repeat(np.cumsum(exact_of_run) - exact_of_run, exact_of_run)
    return found, bits_at(data, position[run] + 16 * before, 16)


def rans_blocks(book, data, start, sizes, symbols):
    """Segments at bytes start [n], of `sizes` [n] bytes, each of `symbols` symbols: the same as of huffman_runs."""
    _, scale, frequencies, first_slot, symbol_of_slot = book
    require((sizes >= 32).all(), "kvcomp: a segment without states")
    padded = np.concatenate([data, np.zeros(2, dtype="u1")]).astype("i8")
    place = (start[:, None] + 4 * np.arange(8))
    state = sum(padded[place + i] << (8 * i) for i in range(4))
    word, end = start + 32, start + sizes
    found = np.zeros((len(start), -(-symbols // 8) * 8), dtype="i8")
    for i in range(0, symbols, 8):
        slot = state & ((1 << scale) - 1)
        s = symbol_of_slot[slot]
        following = frequencies[s] * (state >> scale) + slot - first_slot[s]
        used = np.arange(8) < symbols - i
        found[:, i:i + 8], state = s, np.where(used, following, state)
        needs = state < 1 << 16
        place = np.minimum(word[:, None] + 2 * (np.cumsum(needs, axis=1) - needs), len(data) - 2)
        state = np.where(needs, state << 16 | padded[place] | padded[place + 1] << 8, state)
        word = word + 2 * needs.sum(axis=1)
        require((word <= end).all(), "kvcomp: a segment ends early")
    require((state == 1 << 16).all(), "kvcomp: states at the end")
    found = found[:, :symbols]
    block, _ = np.nonzero(found == 255)
    exact_of_block = np.bincount(block, minlength=len(start))
    require((word + 2 * exact_of_block == end).all(), "kvcomp: size of a segment")
    before = np.arange(len(block)) - np.repeat(np.cumsum(exact_of_block) - exact_of_block, exact_of_block)
    return found, bits_at(data, 8 * (word[block] + 2 * before), 16)


def floats_of_bits(bits, kind):
    """16-bit floats of that type as f32."""
    if kind == "f16":
        return bits.astype("<u2").view("<f2").astype("<f4")
    return (bits.astype("<u4") << 16).view("<f4")


def packed_parts(data, widths, count):
    """Parts one behind the other, each 2 bytes (as unsigned) and `count` numbers of its width: [n], [n, count]."""
    base, more, byte = np.zeros(len(widths), dtype="i8"), np.zeros((len(widths), count), dtype="i8"), 0
    for i, width in enumerate(widths):
        end = byte + 2 + -(-count * int(width) // 8)
        require(width <= 16 and end <= len(data), "kvcomp: counts or origins")
        base[i] = int(data[byte]) | int(data[byte + 1]) << 8
        more[i] = unpack(data[byte + 2:end], count, int(width))
        byte = end
    require(byte == len(data), "kvcomp: counts or origins")
    return base, more


kvcomp_seen = {"raw blocks": 0, "coded ones": 0, "exact values": 0}


def decode_kvcomp(codes, book, layer, side, rows, tokens):
    p, heads, dim, key = codes.parameters, codes.heads, codes.dim, side == "key"
    block, has_origins = p["block"], key and p.get("key-origins", True)
    block_rows = max(0, tokens - p.get("window", 0)) // block if block * dim >= 64 else 0
    modes = rows["modes"]
    require(codes.group == 1 and modes.shape == (block_rows, heads), "kvcomp: modes")
    require(set(rows) == {"book", "modes", "sizes", "counts", "payload", "steps", "places", "tail"} |
            ({"origin_bits", "origins"} if has_origins else set()) |
            ({"limits"} if key and p["max-logit-error"] > 0 else set()), "kvcomp: streams")
    tail = rows["tail"].reshape(-1, heads, dim)
    require(len(tail) == tokens - block_rows * block, "kvcomp: tail")
    if block_rows == 0:
        require(all(len(rows[name]) == 0 for name in rows if name not in ("book", "tail")), "kvcomp: no blocks")
        return tail.reshape(tokens, 1, heads, dim)
    coded = modes.reshape(-1) != 255
    blocks, runs, symbols = int(coded.sum()), block if key else dim, dim if key else block
    data, values = rows["payload"], np.zeros((len(coded), block, dim), dtype="<f4")
    require(len(rows["sizes"]) == blocks, "kvcomp: sizes")
    size = np.full(len(coded), 2 * block * dim, dtype="i8")
    size[coded] = rows["sizes"]
    start = np.cumsum(size) - size
    require(start[-1] + size[-1] == len(data), "kvcomp: payload")
    for i in np.flatnonzero(~coded):
        values[i] = floats_of_bits(data[start[i]:start[i] + size[i]].view("<u2"), codes.storage).reshape(block, dim)

    coder = kvcomp_book(rows["book"])
    if coder[0] == "rans":
        require((modes.reshape(-1)[coded] == 0).all() and len(rows["counts"]) == 0, "kvcomp: counts with rANS")
        found, exact = rans_blocks(coder, data, start[coded], size[coded], runs * symbols)
    else:
        least, more = packed_parts(rows["counts"], modes.reshape(-1)[coded], runs)
        count = least[:, None] + more
        require((-(-count.sum(axis=1) // 8) == size[coded]).all(), "kvcomp: counts and sizes")
        first = 8 * start[coded][:, None] + np.cumsum(count, axis=1) - count
        found, exact = huffman_runs(coder, data, first.reshape(-1), count.reshape(-1), symbols)
    found = found.reshape(blocks, runs, symbols)

    steps_of_block = (dim if p["key-quant"] == "channel" else 1) if key else block
    shared = p["unit-heads"] and not (key and p["key-quant"] == "channel")
    of_row = coded.reshape(block_rows, heads)
    has_steps = np.repeat(of_row.any(axis=1, keepdims=True), heads, axis=1) if shared else of_row
    stored = has_steps[:, :1] if shared else has_steps
    steps = rows["steps"]
    require(len(steps) == stored.sum() * steps_of_block and (steps >= 0).all(), "kvcomp: steps")
    step = np.zeros(stored.shape + (steps_of_block,), dtype="<f4")
    step[stored] = steps.reshape(-1, steps_of_block)
    step = np.broadcast_to(step, (block_rows, heads, steps_of_block))[of_row]
    if has_origins:
        require(len(rows["origin_bits"]) == blocks, "kvcomp: origin_bits")
        least, more = packed_parts(rows["origins"], rows["origin_bits"], dim)
        origin = np.where(least < 1 << 15, least, least - (1 << 16))[:, None] + more
        of_block = step[:, None, :] * (found - 127 + origin[:, None, :]).astype("<f4")
    else:
        of_block = step[:, None, :] * (found - 127).astype("<f4")
    # What each block row takes of the streams whose places are stored.
    count_bytes = np.zeros(len(coded), dtype="i8")
    if coder[0] != "rans":
        count_bytes[coded] = 2 - (-runs * modes.reshape(-1)[coded].astype("i8") // 8)
    taken = [of_row.sum(axis=1), count_bytes.reshape(of_row.shape).sum(axis=1), size.reshape(of_row.shape).sum(axis=1),
             stored.sum(axis=1) * steps_of_block]
    if has_origins:
        origin_bytes = np.zeros(len(coded), dtype="i8")
        origin_bytes[coded] = 2 - (-dim * rows["origin_bits"].astype("i8") // 8)
        taken.append(origin_bytes.reshape(of_row.shape).sum(axis=1))
    check_places(rows, block, *taken)
    of_block[found == 255] = floats_of_bits(exact, codes.storage)
    values[coded] = of_block if key else of_block.transpose(0, 2, 1)
    require(np.isfinite(values).all(), "kvcomp: not finite")
    for name, count in zip(kvcomp_seen, (len(coded) - blocks, blocks, len(exact))):
        kvcomp_seen[name] += count
    values = values.reshape(block_rows, heads, block, dim).transpose(0, 2, 1, 3).reshape(-1, heads, dim)
    return np.concatenate([values, tail]).reshape(tokens, 1, heads, dim)


def decode_selfindex(codes, book, layer, side, rows, tokens):
    p, heads, dim, key = codes.parameters, codes.heads, codes.dim, side == "key"
    levels_there, has_choice = p["store"] == "2bit", p["store"] == "2bit" or key
    require(codes.group == 1 and dim % 4 == 0, "selfindex")
    require(set(rows) == ({"coded"} if has_choice else set()) | {"exact"} |
            ({"center", "alpha", "codebooks", "signs"} if key else set()) |
            ({"levels", "scales", "zeros", "exact_ids"} if levels_there else set()), "selfindex: streams")
    coded = has_choice and len(rows["coded"]) == 1
    exact = rows["exact"].reshape(-1, dim)
    if key and coded:
        require(rows["center"].shape == rows["alpha"].shape == (1, heads, dim), "selfindex: tables")
        require((rows["alpha"] > 0).all() and np.isfinite(rows["center"]).all(), "selfindex: tables")
        require(rows["codebooks"].shape == (1, heads, dim // 4, 16, 4), "selfindex: codebooks")
        require(np.isfinite(rows["codebooks"]).all(), "selfindex: codebooks")
        signs = np.unpackbits(rows["signs"], axis=2)[:, :, :dim]
        require(signs.shape == (tokens, heads, dim), "selfindex: signs")
    if not coded or not levels_there:
        others = set(rows) - {"exact"} - ({"coded", "center", "alpha", "codebooks", "signs"} if coded else set())
        require(all(len(rows[name]) == 0 for name in others), "selfindex: nothing else")
        return exact.reshape(tokens, 1, heads, dim)
    packed = rows["levels"]
    require(packed.shape == (tokens, heads, -(-dim // 4)), "selfindex: levels")
    bits = np.unpackbits(packed, axis=2)[:, :, :2 * dim].reshape(tokens, heads, dim, 2)
    level = (2 * bits[..., 0] + bits[..., 1]).astype("<f4")
    scale, zero = (np.repeat(rows[name], 32, axis=2)[:, :, :dim] for name in ("scales", "zeros"))
    values = zero + level * scale
    if key:
        part = rows["alpha"] * values
        plus = rows["center"] + part
        values = plus if p["key-levels"] == "signed" else np.where(signs == 1, plus, rows["center"] - part)
    ids = rows["exact_ids"].reshape(-1, heads).astype("i8")
    require((np.diff(ids, axis=0) > 0).all(), "selfindex: exact tokens rise")
    places = sorted((int(ids[i, h]), h) for i in range(len(ids)) for h in range(heads) if ids[i, h] < tokens)
    require(len(places) == len(exact), "selfindex: exact tokens")
    for row, (token, head) in zip(exact, places):
        values[token, head] = row
    return values.reshape(tokens, 1, heads, dim)


def decode_q4(codes, book, layer, side, rows, tokens):
    p, heads, dim = codes.parameters, codes.heads, codes.dim
    bits, group = bits_of(codes, layer, side), p["group"]
    head_bytes, head_scales = -(-dim * bits // 8), -(-dim // group)
    require(codes.group == 1, "q4")
    if head_bytes + 2 * head_scales >= 2 * dim:
        require(set(rows) == {"exact"}, "q4: streams")
        return rows["exact"].reshape(tokens, 1, heads, dim)
    ends = {"sink", "tail"} if p.get("sink", 0) or p.get("window", 0) else set()
    require(set(rows) == {"codes", "scales"} | ends, "q4: streams")
    quantized = max(0, tokens - p.get("sink", 0) - p.get("window", 0))
    if ends:
        sinks = min(tokens, p["sink"])
        require(len(rows["sink"]) == sinks and len(rows["tail"]) == tokens - sinks - quantized, "q4: exact tokens")
    all_tokens, tokens = tokens, quantized
    require(rows["codes"].shape == (tokens, heads, head_bytes) and rows["scales"].shape == (tokens, heads, head_scales), "q4: shapes")
    stream = np.unpackbits(rows["codes"], axis=2)
    require(not stream[:, :, dim * bits:].any(), "q4: padding")
    levels = stream[:, :, :dim * bits].reshape(-1, dim, bits).astype("i8") @ (1 << np.arange(bits - 1, -1, -1))
    levels = (levels - (1 << (bits - 1))).reshape(tokens, heads, dim).astype("<f4")
    values = levels * np.repeat(rows["scales"], group, axis=2)[:, :, :dim]
    if p["rotate"] == "hadamard":
        n, h = dim & -dim, 1
        while h < n:
            pairs = values.reshape(-1, 2, h)
            values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            h *= 2
        values = values.reshape(tokens, heads, dim) * (np.float32(1) / np.sqrt(np.float32(n)))
    values = values.reshape(tokens, 1, heads, dim)
    if ends:
        exact = [rows[name].reshape(-1, 1, heads, dim) for name in ("sink", "tail")]
        values = np.concatenate([exact[0], values, exact[1]])
    return values.reshape(all_tokens, 1, heads, dim)


def decode_fp8(codes, book, layer, side, rows, tokens):
    heads, dim = codes.heads, codes.dim
    require(codes.group == 1 and set(rows) == {"codes", "scales"}, "fp8: streams")
    require(rows["codes"].shape == (tokens, heads, dim), "fp8: codes")
    if tokens == 0:
        return np.zeros((0, 1, heads, dim), dtype="<f4")
    scales = rows["scales"]
    require(scales.shape == (1, heads) and (scales > 0).all() and (scales < 2.0 ** 119).all(), "fp8: scales")
    code = rows["codes"].astype("i8")
    require((code & 127 != 127).all(), "fp8: NaN")
    e, m = code >> 3 & 15, code & 7
    value = np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10)).astype("<f4")
    value = np.where(code & 128, -value, value)
    return (value * scales.reshape(heads, 1)).reshape(tokens, 1, heads, dim)


class RansModel:
    """A rANS model, read from where `bits` stands. Symbols of that alphabet, then the escape, of values of `width` bits."""

    def __init__(self, bits, alphabet, width):
        require(bits.take(17) == alphabet and bits.take(6) == width, "rANS: alphabet")
        self.scale, self.frequencies = bits.take(5), []
        while len(self.frequencies) < alphabet + 1:
            token = bits.take(5)
            require(token < 19, "rANS: model")
            if token == 0:
                self.frequencies.append(0)
            elif token <= 16:
                self.frequencies.append(1 << (token - 1) | bits.take(token - 1))
            else:
                self.frequencies += [0] * (bits.take(4) + 2 if token == 17 else bits.take(12) + 18)
        require(len(self.frequencies) == alphabet + 1 and self.frequencies[-1] > 0, "rANS: model")
        require(8 <= self.scale <= 16 and sum(self.frequencies) == 1 << self.scale, "rANS: frequencies")
        self.escape, self.width = alphabet, width
        self.starts, self.slots = [0], []
        for symbol, frequency in enumerate(self.frequencies):
            self.starts.append(self.starts[-1] + frequency)
            self.slots += [symbol] * frequency


def rans_segment(data, runs):
    """Symbols of the runs, each (model, how many), and the values of their escapes in order."""
    require(len(data) >= 32, "rANS: a segment without states")
    data = bytes(data)
    states = [int.from_bytes(data[4 * k:4 * k + 4], "little") for k in range(8)]
    require(min(states) >= 1 << 16, "rANS: states at the beginning")
    place, found = 32, []
    for model, count in runs:
        scale, mask, frequencies, starts, slots = model.scale, (1 << model.scale) - 1, model.frequencies, model.starts, model.slots
        for first in range(0, count, 8):
            lanes = range(min(8, count - first))
            for k in lanes:
                slot = states[k] & mask
                symbol = slots[slot]
                found.append(symbol)
                states[k] = frequencies[symbol] * (states[k] >> scale) + slot - starts[symbol]
            for k in lanes:
                if states[k] < 1 << 16:
                    require(place + 2 <= len(data), "rANS: a segment ends early")
                    states[k] = states[k] << 16 | data[place] | data[place + 1] << 8
                    place += 2
    require(states == [1 << 16] * 8, "rANS: states at the end")
    raw = Bits(data[place:])
    escape, width = (runs[0][0].escape, runs[0][0].width) if runs else (0, 0)
    values = [raw.take(width) for symbol in found if symbol == escape]
    require(raw.left < 8 and raw.take(raw.left) == 0, "rANS: end of a segment")
    return found, values


# Bytes of a quantized block of 32 values, where its levels begin, and their bits. A block with fifth bits has them there, before the others.
QUANTIZED = {"q8_0": (34, 2, 8), "q4_0": (18, 2, 4), "iq4_nl": (18, 2, 4), "q4_1": (20, 4, 4), "q5_0": (22, 2, 5), "q5_1": (24, 4, 5)}
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype="<f4")


def mlx_of(kind):
    """Bits, values of a group, and type of scales, as in mlx-4-64-bf16."""
    _, bits, values, stored = kind.split("-")
    require(int(bits) in (2, 3, 4, 5, 6, 8) and int(values) in (32, 64, 128) and stored in FLOAT_PARTS, "lossless: mlx")
    return int(bits), int(values), stored


# The parts of a float, from its highest bits to the lowest.
FLOAT_PARTS = {"bf16": (("exponents", 9), ("mantissas", 7)), "f16": (("exponents", 6), ("mantissas", 10)),
               "f32": (("exponents", 9), ("mantissas", 7), ("middles", 8), ("lows", 8))}


def of_parts(stored, parts):
    """Floats of arrays of their parts."""
    bits = parts[0].astype("<u4")
    for part, (_, width) in zip(parts[1:], FLOAT_PARTS[stored][1:]):
        bits = bits << width | part.astype("<u4")
    return bits.view("<f4") if stored == "f32" else floats_of_bits(bits.astype("<u2"), stored)


def of_levels(kind, scales, least, levels):
    """Values (blocks, 32) of quantized blocks."""
    scales, levels = scales.astype("<f4")[:, None], levels.astype("i4")
    if kind == "q8_0":
        return scales * levels.astype("u1").view("i1").reshape(levels.shape).astype("<f4")
    if kind == "iq4_nl":
        return scales * IQ4_NL[levels]
    if kind in ("q4_0", "q5_0"):
        return scales * (levels - (8 if kind == "q4_0" else 16)).astype("<f4")
    return scales * levels.astype("<f4") + least.astype("<f4")[:, None]


def of_blocks(kind, data):
    """Values (blocks, 32) of the bytes of quantized blocks."""
    if kind.startswith("mlx-"):
        bits, values, stored = mlx_of(kind)
        start = 8 if stored == "f32" else 4
        data = np.ascontiguousarray(data.reshape(-1, start + values * bits // 8))
        grid = data[:, :start].copy()
        grid = grid.view("<f4") if stored == "f32" else floats_of_bits(grid.view("<u2"), stored)
        levels = np.unpackbits(data[:, start:], axis=1, bitorder="little").reshape(len(data), values, bits) @ (1 << np.arange(bits))
        return of_levels(kind, grid[:, 0], grid[:, 1], levels)
    size, start, bits = QUANTIZED[kind]
    data = data.reshape(-1, size)
    halves = np.ascontiguousarray(data[:, :start]).view("<f2")
    if bits == 8:
        return of_levels(kind, halves[:, 0], halves[:, -1], data[:, start:])
    nibbles = data[:, start + (4 if bits == 5 else 0):]
    levels = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)
    if bits == 5:
        fifth = np.unpackbits(np.ascontiguousarray(data[:, start:start + 4]), axis=1, bitorder="little")
        levels = levels | fifth << 4
    return of_levels(kind, halves[:, 0], halves[:, -1], levels)


def decode_lossless(codes, book, layer, side, rows, tokens):
    block, heads, dim = codes.parameters["block"], codes.heads, codes.dim
    kind, n = codes.parameters[f"{side}-blocks"], block * heads * dim
    blocks = tokens // block if n >= 1024 else 0
    if kind != "none":
        level_bits, per_block, stored = mlx_of(kind) if kind.startswith("mlx-") else (QUANTIZED[kind][2], 32, "f16")
        require(codes.storage == "f32" and heads * dim % per_block == 0, "lossless: quantized")
        least = kind.startswith("mlx-") or QUANTIZED[kind][1] == 4
        parts = [(name, width, per_block) for name, width in FLOAT_PARTS[stored]]
        parts += [(f"least_{name}", width, count) for name, width, count in parts] if least else []
        parts += [("levels", level_bits, 1)]
    else:
        parts = [(name, width, 1) for name, width in FLOAT_PARTS[codes.storage]]
    names = [name for name, _, _ in parts]
    require(codes.group == 1 and set(rows) == {"book", "sizes", "places", "tail", *names}, "lossless: streams")
    require(rows["sizes"].shape == (blocks, len(parts)) and len(rows["tail"]) == tokens - blocks * block, "lossless: blocks")
    check_places(rows, block, *rows["sizes"].T)
    tail = (of_blocks(kind, rows["tail"]) if kind != "none" else rows["tail"]).reshape(-1, heads, dim)
    pairs = codes.parameters.get("key-pairs", "halves")
    require(pairs in ("halves", "neighbours"), "lossless: pairs")
    if kind != "none" and side != "value" and pairs == "neighbours":
        as_here = lambda values: np.concatenate([values[..., 0:dim // 2 * 2:2], values[..., 1::2], values[..., dim // 2 * 2:]], axis=-1)
    else:
        as_here = lambda values: values
    tail = as_here(tail)
    if blocks == 0:
        return tail.reshape(tokens, 1, heads, dim)
    bits, found = Bits(rows["book"]), {}
    models = [RansModel(bits, 1 << width, width) for _, width, _ in parts]
    require(bits.left < 8 and bits.take(bits.left) == 0, "lossless: book")
    for part, (name, width, values) in enumerate(parts):
        model, place, count, symbols = models[part], 0, n // values, []
        for size in rows["sizes"][:, part].astype("i8"):
            data = rows[name][place:place + size]
            place += size
            if size == -(-count * width // 8):
                symbols.append(unpack(data, count, width))
            else:
                of_segment, escaped = (np.array(some, dtype="i8") for some in rans_segment(data, [(model, count)]))
                of_segment[of_segment == model.escape] = escaped
                symbols.append(of_segment)
        require(place == len(rows[name]), f"lossless: {name}")
        found[name] = np.concatenate(symbols).astype("<u4")
    if kind != "none":
        floats = lambda begin: of_parts(stored, [found[begin + name] for name, _ in FLOAT_PARTS[stored]])
        scales = floats("")
        values = of_levels(kind, scales, floats("least_") if least else scales, found["levels"].reshape(-1, per_block))
    else:
        values = of_parts(codes.storage, [found[name] for name in names])
    values = as_here(values.reshape(-1, heads, dim))
    require(np.isfinite(values).all(), "lossless: not finite")
    return np.concatenate([values, tail]).reshape(tokens, 1, heads, dim)


def decode_rvq(codes, book, layer, side, rows, tokens):
    require(book is not None, "rvq needs a book")
    p, b = codes.parameters, json.loads(text(book.attrs["parameters"]))
    require(text(book.attrs["digest"]) == text(codes.file.attrs["book_digest"]), "another book")
    heads, dim = codes.heads, codes.dim
    require(codes.group == 1 and b["head-dim"] == dim, "rvq: heads")
    parts = [("ids", "value")] if side == "value" else [("low_ids", "key_low"), ("high_ids", "key_high")]
    parts = [(stream, part) for stream, part in parts if f"{part}/entries" in book]
    books = [floats(book[f"{part}/entries"], slice(None)).astype("<f4") for _, part in parts]
    dimensions = [np.arange(dim) if side == "value" else book[f"{part}/dimensions"][:] for _, part in parts]
    require(sorted(np.concatenate(dimensions)) == list(range(dim)), "rvq: dimensions")
    width = {256: 1, 65536: 2}
    bytes_of_ids = sum(len(e) * next((w for n, w in width.items() if e.shape[1] <= n), 4) for e in books)
    pays = bytes_of_ids < 2 * dim
    sinks = min(tokens, p["sink"]) if pays else 0
    window = min(1024, tokens // 64) if p["window"] == -1 else p["window"]
    quantized = max(0, tokens - p["sink"] - window) if pays else 0
    require(len(rows["sink"]) == sinks and len(rows["tail"]) == tokens - sinks - quantized, "rvq: exact tokens")
    scales = b.get("error-scales", "").split()
    require(not scales or len(scales) % 2 == 0, "rvq: scales")
    scale = np.float32(scales[layer + (len(scales) // 2 if side == "value" else 0)]) if scales else np.float32(1)
    values = np.zeros((tokens, heads, dim), dtype="<f4")
    values[:sinks] = rows["sink"].reshape(sinks, heads, dim)
    values[sinks + quantized:] = rows["tail"].reshape(-1, heads, dim)
    for (stream, _), entries, where in zip(parts, books, dimensions):
        ids = rows[stream]
        require(ids.shape == (quantized, heads, len(entries)) and entries.shape[2] == len(where), "rvq: shapes")
        require((ids < entries.shape[1]).all(), "rvq: ids")
        total = np.zeros((quantized, heads, len(where)), dtype="<f4")
        for stage in range(len(entries)):
            total = total + entries[stage][ids[:, :, stage]]
        middle = values[sinks:sinks + quantized]
        middle[:, :, where] = total * scale
    return values.reshape(tokens, 1, heads, dim)


LEVEL_CLASSES, DEAD, LARGEST_SYMBOL, ESCAPED_BITS = 40, 255, 15, 24
transform_seen = {"escaped levels": 0, "low bits": 0, "exact tokens": 0, "predicted tokens": 0, "first tokens": 0, "adapted components": 0, "tokens of other rungs": 0}


def shift_of(level_class):
    """Low bits of a class's levels that are stored as they are."""
    return (level_class - 19) // 2 if level_class > 20 else 0


def transform_book(book):
    """(parameters, steps, models of the classes, their shrinks), checked."""
    p, steps = json.loads(text(book.attrs["parameters"])), book["steps"][:]
    require(1 <= len(steps) <= 1024 and type_name(book["steps"]) == "f32", "transform: steps")
    require((steps > 0).all() and np.isfinite(steps).all(), "transform: steps")
    for name in ("bits", "errors"):
        require(book[name].shape == steps.shape and type_name(book[name]) == "f64", f"transform: {name}")
    require((book["bits"][:] > 0).all() and np.isfinite(book["bits"][:]).all(), "transform: bits")
    tables = Bits(book["tables"][:])
    models = [RansModel(tables, 2 * LARGEST_SYMBOL + 1, ESCAPED_BITS) for _ in range(LEVEL_CLASSES)]
    require(tables.left < 8 and tables.take(tables.left) == 0, "transform: tables")
    shrinks = book["shrinks"][:]
    require(shrinks.shape == (LEVEL_CLASSES, 3) and type_name(book["shrinks"]) == "f32", "transform: shrinks")
    require(((shrinks >= 0) & (shrinks <= 0.5)).all(), "transform: shrinks")
    require(p["num-layers"] % p["layer-group"] == 0, "transform: layer-group")
    require(p["sides"] in ("joint", "apart"), "transform: sides")
    return p, steps, models, shrinks


def layers_of(side, group):
    """Of a row; where a row is of both sides the layers of the values follow those of the keys."""
    return 2 * group if side == "both" else group


def transform_part(book, p, side, first, steps):
    """(mean, inverse roots, vectors, classes, gains) of a part, checked."""
    part = book[f"{side}/{first}"]
    width = layers_of(side, p["layer-group"]) * p["heads"] * p["head-dim"]
    names = ("mean", "inverse_roots", "vectors", "vector_bits", "vector_scales", "classes", "gains")
    mean, roots, packed, bits, scales, classes, gains = (part[name][:] for name in names)
    types = ("f32", "f32", "u8", "u8", "f32", "u8", "f16")
    require(all(type_name(part[name]) == kind for name, kind in zip(names, types)), "transform: types")
    n = len(scales)
    require(mean.shape == (width,) and bits.shape == (n,) and n <= width, "transform: shapes")
    require(roots.ndim == 2 and len(roots) > 0 and width % len(roots) == 0, "transform: inverse_roots")
    b = width // len(roots)
    require(roots.shape[1] == b * (b + 1) // 2, "transform: inverse_roots")
    blocks = np.zeros((len(roots), b, b), "<f4")
    lower = np.tril_indices(b)
    blocks[:, lower[0], lower[1]] = blocks[:, lower[1], lower[0]] = roots
    require((np.linalg.eigvalsh(blocks.astype("f8")) > 0).all(), "transform: inverse_roots")
    require(((bits >= 1) & (bits <= 15)).all(), "transform: vector_bits")
    row_bytes = (width * bits.astype("i8") + 7) // 8
    require(packed.shape == (row_bytes.sum(),), "transform: vectors")
    levels = np.zeros((n, width), "i8")
    begins = np.cumsum(row_bytes) - row_bytes
    for own in np.unique(bits).astype(int):
        rows = np.flatnonzero(bits == own)
        taken = np.unpackbits(packed[begins[rows, None] + np.arange((width * own + 7) // 8)], axis=1)
        require(not taken[:, width * own :].any(), "transform: vectors")
        codes = taken[:, : width * own].reshape(len(rows), width, own) @ (1 << np.arange(own)[::-1])
        levels[rows] = 2 * codes + 1 - (1 << own) if own <= 4 else codes - (1 << own - 1)
    require(classes.shape == gains.shape == (len(steps), n), "transform: shapes")
    for values in (scales, gains):
        require((values > 0).all() and np.isfinite(values).all(), "transform: not positive")
    require(np.isfinite(mean).all(), "transform: mean")
    require(((classes < LEVEL_CLASSES) | (classes == DEAD)).all(), "transform: classes")
    vectors = levels.astype("<f4") * scales[:, None]
    return mean, blocks, vectors, classes, gains


def transform_first(book, p, side, first, width, steps):
    """(mean, classes of heads at each step) of first tokens, checked; None where the book has none."""
    part = book[f"{side}/{first}"]
    if "first_mean" not in part:
        return None
    mean, classes = part["first_mean"][:], part["first_classes"][:]
    require(type_name(part["first_mean"]) == "f32" and type_name(part["first_classes"]) == "u8", "transform: types")
    require(mean.shape == (width,) and np.isfinite(mean).all(), "transform: first_mean")
    require(classes.shape == (len(steps), width // p["head-dim"]) and (classes < LEVEL_CLASSES).all(), "transform: first_classes")
    require(0 < p["first-finer"] <= 4096, "transform: first-finer")
    return mean, classes


def byte_rows(group, levels, scales, width=None):
    """Rows of levels times their scales."""
    rows, scale = group[levels][:], group[scales][:]
    require(type_name(group[levels]) == "u8" and type_name(group[scales]) == "f32", f"transform: {levels}")
    require(rows.ndim == 2 and scale.shape == rows.shape[:1] and width in (None, rows.shape[1]), f"transform: {levels}")
    require((rows > 0).all() and (scale > 0).all() and np.isfinite(scale).all(), f"transform: {levels}")
    return (rows.astype("i8") - 128).astype("<f4") * scale[:, None]


def transform_prediction(book, p, side, first, width):
    """(features of ids, scores, loadings) of a part, checked; None where nothing is predicted."""
    lags = p.get("predict-tokens", 0)
    require(0 <= lags <= 64, "transform: predict-tokens")
    if lags == 0:
        return None
    features, part = byte_rows(book, "features", "feature_scales"), book[f"{side}/{first}"]
    require(features.size > 0, "transform: features")
    scores = byte_rows(part, "scores", "score_scales", lags * features.shape[1])
    loadings = byte_rows(part, "loadings", "loading_scales", width)
    require(len(scores) == len(loadings) <= scores.shape[1], "transform: scores")
    return features.astype("f8"), scores.astype("f8"), loadings.astype("f8")


def predicted(prediction, lags, ids):
    """What is predicted of tokens with these ids, and the sum of the magnitudes of its terms."""
    features, scores, loadings = prediction
    behind = np.maximum(np.arange(len(ids))[:, None] - np.arange(lags), 0)
    require((ids < len(features)).all(), "transform: an id that the book does not know")
    z = features[ids[behind]].reshape(len(ids), -1)
    transform_seen["predicted tokens"] += len(ids)
    return (z @ scores.T) @ loadings, (np.abs(z) @ np.abs(scores).T) @ np.abs(loadings)


def check_transform(book):
    p, steps, _, _ = transform_book(book)
    parts, firsts = 0, set()
    for side in ("both",) if p["sides"] == "joint" else ("key", "value"):
        for first in range(0, p["num-layers"], p["layer-group"]):
            if f"{side}/{first}" in book:
                mean = transform_part(book, p, side, first, steps)[0]
                transform_prediction(book, p, side, first, len(mean))
                firsts.add(transform_first(book, p, side, first, len(mean), steps) is None)
                parts += 1
    require(parts > 0, "transform: no part")
    require(len(firsts) == 1, "transform: first tokens of some parts")


def transform_levels(data, tokens, classes, models):
    """The levels of a coded block, [components, tokens]."""
    shifts = [shift_of(int(c)) for c in classes]
    coded = len(data) - -(-sum(shifts) * tokens // 8)
    require(coded >= 0, "transform: a block without low bits")
    symbols, escaped = (np.array(found, dtype="i8") for found in rans_segment(data[:coded], [(models[c], tokens) for c in classes]))
    high = symbols - LARGEST_SYMBOL
    high[high == LARGEST_SYMBOL + 1] = np.where(escaped % 2, -(escaped + 1) // 2, escaped // 2)
    levels, low = high.reshape(len(classes), tokens), np.unpackbits(data[coded:]).astype("i8")
    for component, shift in enumerate(shifts):
        bits, low = low[:tokens * shift].reshape(tokens, shift), low[tokens * shift:]
        levels[component] = levels[component] * 2 ** shift + bits @ (1 << np.arange(shift - 1, -1, -1))
    require(len(low) < 8 and not low.any(), "transform: low bits")
    require((np.abs(levels) < 1 << (ESCAPED_BITS - 1)).all(), "transform: levels")
    transform_seen["escaped levels"] += len(escaped)
    transform_seen["low bits"] += sum(shifts) * tokens
    return levels


def adapted_classes(data, classes, gains, models):
    """Classes of components as the file has them, their offsets and gains."""
    if len(data) == 0:
        return classes, np.zeros(len(classes), "i8"), gains
    require(len(data) >= 3 and (data[:3] < LEVEL_CLASSES).all(), "transform: adapted")
    changes, offsets, gain_changes = transform_levels(data[3:], len(classes), data[:3], models)
    require((np.abs(gain_changes) <= 64).all(), "transform: adapted gains")
    gains = gains + gain_changes.astype("<f4") / np.float32(32)
    require(gains.dtype == np.dtype("<f4") and (gains > 0).all(), "transform: adapted gains")
    numbers = np.where(classes == DEAD, -1, classes.astype("i8")) + changes
    require((numbers >= -1).all() and (numbers < LEVEL_CLASSES).all(), "transform: adapted classes")
    transform_seen["adapted components"] += int(((changes != 0) | (offsets != 0)).sum())
    return np.where(numbers == -1, DEAD, numbers).astype("u1"), offsets, gains


def changed_alike(classes, gains, of_base, adapted, data, models):
    """Classes and gains of another rung, which change as those of the codes' rung did."""
    number = lambda some: np.where(some == DEAD, -1, some.astype("i8"))
    sums = number(classes) + number(adapted) - number(of_base)
    sums = np.clip(sums, np.where((classes != DEAD) & (adapted != DEAD), 0, -1), LEVEL_CLASSES - 1)
    changes = transform_levels(data[3:], len(classes), data[:3], models)[2] if len(data) else np.zeros(len(classes), "i8")
    gains = np.maximum(gains + changes.astype("<f4") / np.float32(32), np.float32(1) / np.float32(32))
    return np.where(sums == -1, DEAD, sums).astype("u1"), gains


def rung_components(data, rungs, of_rung, steps, models, shrinks):
    """The components of a block's tokens, which have rungs of their own: [tokens, all components]."""
    components = np.zeros((len(rungs), len(next(iter(of_rung.values()))[0])))
    there = np.unique(rungs)
    sizes = data[:4 * (len(there) - 1)].view("<u4").astype("i8")
    require(len(sizes) == len(there) - 1, "transform: sizes of rungs")
    place = 4 * len(sizes)
    for at, rung in enumerate(there):
        size = sizes[at] if at < len(sizes) else len(data) - place
        require(0 <= size <= len(data) - place, "transform: sizes of rungs")
        classes, gains = of_rung[rung]
        live, tokens = np.flatnonzero(classes != DEAD), np.flatnonzero(rungs == rung)
        levels = transform_levels(data[place:place + size], len(tokens), classes[live], models)
        components[np.ix_(tokens, live)] = step_values(levels, classes[live], shrinks, steps[rung] * gains[live]).T
        place += size
    return components


def step_values(levels, classes, shrinks, units):
    """What levels stand for: classes and units of each row."""
    shrink = shrinks[classes[:, None], np.clip(np.abs(levels), 1, 3) - 1]
    magnitudes = np.where(levels == 0, np.float32(0), np.abs(levels).astype("<f4") - shrink) * units[:, None]
    require(magnitudes.dtype == np.dtype("<f4"), "transform: not computed in f32")
    return (np.sign(levels) * magnitudes).astype("f8")


def first_token(data, mean, classes, roots, step, dim, models, shrinks):
    """A document's first token and the slack of its values: a head's values are the tokens of a block."""
    levels = transform_levels(data, dim, classes, models)
    coded = step_values(levels, classes, shrinks, np.full(len(classes), step, "<f4")).reshape(len(roots), -1)
    roots = roots.astype("f8")
    transform_seen["first tokens"] += 1
    terms = np.abs(mean) + np.einsum("bi,bij->bj", np.abs(coded), np.abs(roots)).reshape(-1)
    return mean + np.einsum("bi,bij->bj", coded, roots).reshape(-1), (roots.shape[1] + 3) * 2.0 ** -24 * terms


def decode_transform(codes, book, layer, side, rows, tokens, ids_of_tokens=None):
    """Values, and how far from them others may be that were added up in another order."""
    require(book is not None, "transform needs a book")
    require(text(book.attrs["digest"]) == text(codes.file.attrs["book_digest"]), "another book")
    p, (b, steps, models, shrinks) = codes.parameters, transform_book(book)
    heads, dim, group, block = codes.heads, codes.dim, codes.group, p["block"]
    require((b["num-layers"], b["heads"], b["head-dim"], b["layer-group"]) == (codes.num_layers, heads, dim, group), "transform: shape")
    require(codes.joint == (b["sides"] == "joint"), "transform: sides")
    require(0 <= p["rung"] < len(steps) and layer % group == 0, "transform: rung")
    mean, roots, vectors, book_classes, book_gains = transform_part(book, b, side, layer, steps)
    k, book_gains, adapted = p["rung"], book_gains.astype("<f4"), rows["adapted"] if p["adapt"] else []
    classes, offsets, gains = adapted_classes(adapted, book_classes[k], book_gains[k], models)
    of_rung = {k: (classes, gains)}
    if "importance" in p:
        require(p["importance"] == "queries", "transform: importance")
        of_rung.update({r: changed_alike(book_classes[r], book_gains[r], book_classes[k], classes, adapted, models)
                        for r in range(max(0, k - 8), min(len(steps), k + 8)) if r != k})
    layers = layers_of(side, group)
    live = np.flatnonzero(np.any([some != DEAD for some, _ in of_rung.values()], axis=0))
    width = layers * heads * dim
    block_size = roots.shape[1]
    blocked = vectors[live].reshape(len(live), width // block_size, block_size).transpose(1, 0, 2).astype("f8")
    synthesis, magnitude = ((a @ v).transpose(1, 0, 2).reshape(len(live), width)
                            for a, v in ((blocked, roots.astype("f8")), (np.abs(blocked), np.abs(roots.astype("f8")))))
    # The mean of what is coded in blocks.
    moved = np.flatnonzero(offsets)
    shifts = (offsets[moved] * (steps[p["rung"]].astype("f8") / 4))[:, None] * vectors[moved].astype("f8")
    shift, shift_terms = ((v.reshape(-1, width // block_size, block_size).sum(0)[:, None] @ r).reshape(width)
                          for v, r in ((shifts, roots.astype("f8")), (np.abs(shifts), np.abs(roots.astype("f8")))))

    own = transform_first(book, b, side, layer, width, steps) if p["sink"] == 0 else None
    leading = 1 if own and tokens > 0 else 0
    sinks, quantized = min(tokens, p["sink"]), max(0, tokens - leading - p["sink"] - p["window"])
    require(set(rows) == ({"first"} if own else set()) | ({"adapted"} if p["adapt"] else set()) | ({"rungs"} if "importance" in p else set())
            | {"sink", "blocks", "codes", "places", "exact_ids", "exact", "tail"}, "transform: streams")
    rungs = rows["rungs"].astype("i8") + max(0, k - 8) if "importance" in p else np.full(quantized, k)
    require(len(rungs) == quantized and np.isin(rungs, list(of_rung)).all(), "transform: rungs")
    transform_seen["tokens of other rungs"] += int((rungs != k).sum())
    require(len(rows["sink"]) == sinks and len(rows["tail"]) == tokens - leading - sinks - quantized, "transform: exact tokens")
    blocks = rows["blocks"].astype("i8")
    require(len(blocks) == -(-quantized // block) and blocks[:, 0].sum() == quantized, "transform: blocks")
    require((blocks[:-1, 0] == block).all() and blocks[:, 1].sum() == len(rows["codes"]), "transform: blocks")
    check_places(rows, block, blocks[:quantized // block, 1])
    values, slack = np.zeros((tokens, width)), np.zeros((tokens, width))
    values[:sinks] = rows["sink"].reshape(sinks, width)
    if own:
        require((len(rows["first"]) > 0) == (leading == 1), "transform: first token")
    if leading:
        sinks = 1  # from here on: tokens before those in blocks
        values[0], slack[0] = first_token(rows["first"], own[0], own[1][p["rung"]], roots,
                                          np.float32(np.float64(steps[p["rung"]]) / b["first-finer"]), dim, models, shrinks)
    values[sinks + quantized:] = rows["tail"].reshape(-1, width)
    prediction, explained, terms, more = transform_prediction(book, b, side, layer, width), 0, 0, 0
    if prediction:
        require(ids_of_tokens is not None, "transform: no ids to predict from")
        lags = b["predict-tokens"]
        explained, terms = (a[sinks:] for a in predicted(prediction, lags, ids_of_tokens))
        more = len(prediction[1]) + prediction[1].shape[1] + 1
    place, first = 0, sinks
    for count, size in blocks:
        components = rung_components(rows["codes"][place:place + size], rungs[first - sinks:first - sinks + count],
                                     of_rung, steps, models, shrinks)[:, live]
        # All of this is the same in every reader; the sums are not. Here they are of doubles. In floats of 32 bits, with the mean
        # n + 1 terms in any order, one is off by at most (n + 1) 2^-24 of the sum of their magnitudes: a term takes part in n
        # roundings of sums and one of its product (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1). A
        # row of the synthesis is a sum of a block's terms itself, off by as many roundings as it has. Some more pay for what
        # this neglects, squares of 2^-24 and the roundings of doubles.
        values[first:first + count] = mean + shift + components @ synthesis
        terms_in_all = np.abs(mean) + shift_terms + np.abs(components) @ magnitude
        slack[first:first + count] = (len(live) + len(moved) + block_size + more + 3) * 2.0 ** -24 * terms_in_all
        if prediction:
            here = slice(first - sinks, first - sinks + count)
            values[first:first + count] += explained[here]
            slack[first:first + count] += (len(live) + len(moved) + block_size + more + 3) * 2.0 ** -24 * terms[here]
        place, first = place + size, first + count
    ids = rows["exact_ids"].astype("i8")
    require((np.diff(ids) > 0).all() and (len(ids) == 0 or ids[-1] < quantized), "transform: exact tokens rise")
    require(len(rows["exact"]) == len(ids), "transform: exact tokens")
    values[sinks + ids], slack[sinks + ids] = rows["exact"].reshape(-1, width), 0
    transform_seen["exact tokens"] += len(ids)
    shape = (tokens, layers, heads, dim)
    return values.reshape(shape), slack.reshape(shape)


def turned_keys(codes, values):
    """The same of rows in which values may stand behind the keys."""
    pair = values if isinstance(values, tuple) else (values,)
    keys = turned(codes, tuple(array[:, :codes.group] for array in pair) if pair is values else values[:, :codes.group])
    both = tuple(np.concatenate([a, b[:, codes.group:]], axis=1) for a, b in zip(keys if pair is values else (keys,), pair))
    return both if pair is values else both[0]


def turned(codes, values):
    """Keys that were stored as they are before the rotary embedding, turned by their index in the document. Of a pair
    (values, slack), what the slack of two values that are turned together comes to, and the rounding of both sums."""
    if isinstance(values, tuple):
        values, slack = values
        half = codes.dim // 2
        both = slack[..., :half] + slack[..., half:] + (np.abs(values[..., :half]) + np.abs(values[..., half:])) * 2.0 ** -22
        return turned(codes, values.astype("<f4")), np.concatenate([both, both], axis=-1)
    theta, scaling = np.float32(codes.file.attrs["rope_theta"]), text(codes.file.attrs["rope_scaling"])
    scaling = json.loads(scaling) if scaling else {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    require(theta > 0 and text(codes.file.attrs["key_state"]) == "post-rope", "keys that nothing turns")
    require(kind in ("default", "linear"), f"rope of type {kind}")
    half = codes.dim // 2
    exponents = (2 * np.arange(half)).astype("<f4") / np.float32(codes.dim)
    frequencies = np.float32(1) / np.power(np.float64(theta), exponents.astype("f8")).astype("<f4")
    if kind == "linear":
        frequencies = frequencies / np.float32(scaling["factor"])
    angles = (np.arange(len(values), dtype="<f4")[:, None] * frequencies).astype("f8")[:, None, None]
    cosines, sines = np.cos(angles).astype("<f4"), np.sin(angles).astype("<f4")
    first, second = values[..., :half], values[..., half:]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


DECODERS = {"transform": decode_transform, "rvq": decode_rvq, "none": decode_none, "selfindex": decode_selfindex, "kivi": decode_kivi, "kvcomp": decode_kvcomp, "sparse": decode_sparse, "q4": decode_q4,
            "fp8": decode_fp8, "lossless": decode_lossless}


class OfKind:
    """A book of several kinds of layers, or a group of it, as the book of one of them."""

    def __init__(self, book, kind, path=""):
        self.book, self.kind, self.path = book, kind, path
        self.attrs = book.attrs
        if path == "":
            own = {name.removeprefix(f"{kind}/"): value for name, value in json.loads(text(book.attrs["parameters"])).items()
                   if not name.partition("/")[0].isdigit() or name.startswith(f"{kind}/")}
            self.attrs = {**book.attrs, "parameters": json.dumps(own)}

    def names(self, name):
        own = f"{self.path}{name}"
        return [path for path in (f"{self.kind}/{own}", own) if path in self.book]

    def __contains__(self, name):
        return bool(self.names(name))

    def __getitem__(self, name):
        found = self.book[self.names(name)[0]]
        return OfKind(self.book, self.kind, f"{self.path}{name}/") if isinstance(found, h5py.Group) else found


def kinds_of(book):
    """The layers of each kind that a book names; none if they are alike."""
    named = json.loads(text(book.attrs["parameters"])).get("kinds")
    kinds = [[int(layer) for layer in kind.split(",")] for kind in named.split(";")] if named else []
    require(len(set(sum(kinds, []))) == len(sum(kinds, [])) and all(kind == sorted(kind) for kind in kinds), "kinds")
    require([kind[0] for kind in kinds] == sorted(kind[0] for kind in kinds), "the order of kinds")
    return kinds


def in_kind(codes, book, layer):
    """Codes, book and layer as the codec of the layer's kind knows them."""
    kinds = kinds_of(book) if book is not None else []
    codes = copy.copy(codes)
    codes.group = len(codes.members[layer])
    for number, layers in enumerate(kinds):
        if layer in layers:
            require(len({codes.shapes[other] for other in layers}) == 1, "a kind of several shapes")
            codes.num_layers = len(layers)
            places = [layers.index(other) for other in codes.members[layer]]
            require(places == list(range(places[0], places[0] + codes.group)), "a group with gaps")
            return codes, OfKind(book, number), places[0]
    require(not kinds, "a layer of no kind")
    return codes, book, layer


def of_side(codes, side):
    """Codes as the codec of a side knows them: of a pair of codecs its name and its parameters."""
    if "+" not in codes.codec:
        return codes
    keys, values = codes.codec.split("+")
    own, prefix = copy.copy(codes), side + "."
    own.codec = keys if side == "key" else values
    own.parameters = {name.removeprefix(prefix): value for name, value in codes.parameters.items() if name.startswith(prefix) or "." not in name}
    return own


def decode_document(codes, book, layer, side, rows, tokens, *ids):
    """A document's values. What channels of some codecs have lost is added to all but the first tokens that are kept exactly."""
    center = codes.parameters.get("center", "none") if codes.codec != "selfindex" else "none"
    require(center in ("none", "keys", "both"), f"center is {center}")
    if center == "none" or (center == "keys" and side != "key"):
        return decode_behind_first(codes, book, layer, side, rows, tokens, *ids)
    means = rows.pop("means").reshape(1, codes.heads, codes.dim).astype("<f4")
    require(np.isfinite(means).all(), "means")
    values = decode_behind_first(codes, book, layer, side, rows, tokens, *ids).astype("<f4")
    sink = codes.parameters.get("sink", 0)
    return np.concatenate([values[:sink], values[sink:] + means])


def decode_behind_first(codes, book, layer, side, rows, tokens, *ids):
    """The same without means. All codecs but three have first tokens beside, and in their place may hold copies of a later one."""
    sink = codes.parameters.get("sink", 0) if codes.codec not in ("transform", "rvq", "q4") else 0
    if sink == 0:
        return DECODERS[codes.codec](codes, book, layer, side, rows, tokens, *ids)
    kept = rows.pop("sink").reshape(-1, codes.group, codes.heads, codes.dim)
    require(len(kept) == min(sink, tokens), "first tokens")
    values = DECODERS[codes.codec](codes, book, layer, side, rows, tokens if tokens > sink else 0, *ids)
    return np.concatenate([kept, values[sink:]])



def rounded(values, kind):
    """Floats of 32 bits as the type `kind` holds them: the nearest, ties to even."""
    values = np.ascontiguousarray(values)
    if kind == "f16":
        return values.astype("<f2").astype("<f4")
    if kind == "bf16":
        bits = values.view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).view("<f4")
    return values


decoded = {}  # of the codes read last: they are often held against several caches


def decode(path, kv_path, book_path=None):
    global places_seen
    places_seen = 0
    if any(key[0] != path for key in decoded):
        decoded.clear()
    codes, kv = Codes(path), File(kv_path, "kv")
    check_kv(kv)
    book = codes.file.get("/book")
    if book_path:
        book_file = File(book_path)
        require(book_file.type in BOOKS, f"{book_path}: is a {book_file.type} file, not a book")
        check_book(book_file.file, book_file.type)
        book = book_file.file
    require(kv.documents()[0] == codes.names and (kv.documents()[1] == codes.offset).all(), "documents differ")
    require((kv.file["/positions"][:] == codes.positions()).all(), "positions differ")
    require("/tokens" not in kv.file or (kv.file["/tokens"][:] == np.concatenate(
        [np.zeros(0, "u4")] + [index["tokens"] for index in codes.index])).all(), "tokens differ")
    kind = type_name(kv.file[f"/layers/{kv.layers()[0]}/key"])
    seen_of_codec = {"kvcomp": kvcomp_seen, "transform": transform_seen}.get(codes.codec, {})
    seen_of_codec.update(dict.fromkeys(seen_of_codec, 0))
    for layer, side in codes.sides():
        for document, (first, end) in enumerate(zip(codes.offset[:-1], codes.offset[1:])):
            key = (path, book_path, layer, side, document)
            if key not in decoded:
                rows = codes.streams(layer, side, document)
                codes.heads, codes.dim = codes.stored(layer, side)
                own, own_book, place = in_kind(of_side(codes, side), book, layer)
                ids = (codes.index[document]["tokens"],) if own.codec == "transform" and "tokens" in codes.index[document] else ()
                decoded[key] = decode_document(own, own_book, place, side, rows, int(codes.held(layer)[first:end].sum()), *ids)
                rope = codes.parameters.get("rope", "keep")
                require(rope in ("keep", "undo"), f"rope is {rope}")
                if rope == "undo" and side != "value":
                    decoded[key] = turned_keys(codes, decoded[key])
            members = codes.members[layer]
            for i in range(layers_of(side, len(members))):
                own, number = ("key", "value")[i // len(members)] if side == "both" else side, members[i % len(members)]
                begins, ends = (int(kv.held(number)[:token].sum()) for token in (first, end))
                expected = floats(kv.file[f"/layers/{number}/{own}"], slice(begins, ends))
                if isinstance(decoded[key], tuple):
                    values, slack = (array[:, i] for array in decoded[key])
                    least, most = (rounded((values + sign * slack).astype("<f4"), kind) for sign in (-1, 1))
                    require(least.shape == expected.shape, "shapes differ")
                    differ = np.count_nonzero((expected < least) | (expected > most))
                else:
                    require(decoded[key].dtype == np.dtype("<f4"), "not computed in f32")
                    found = rounded(decoded[key][:, i], kind)
                    require(found.shape == expected.shape, "shapes differ")
                    differ = np.count_nonzero(found.view("<u4") != expected.view("<u4"))
                require(differ == 0, f"layer {number} {own}, document {document}: {differ} values differ")
    seen = "".join(f", {count} {name}" for name, count in seen_of_codec.items())
    seen += f", {places_seen} rows of places" if places_seen > 0 else ""
    print(f"{path}: {codes.codec}, {len(codes.names)} documents, {int(codes.offset[-1])} tokens{seen}: as decoded by kvcodec, "
          + ("but for the rounding of sums" if codes.codec == "transform" else "bit for bit"))


def part(whole_path, part_path):
    """Every token of the part has the keys and values it has in the whole, found by document and position."""
    whole, some = File(whole_path, "kv"), File(part_path, "kv")
    names, offset = whole.documents()
    positions = whole.file["/positions"][:]
    part_names, part_offset = some.documents()
    rows = []
    for name, first, end in zip(part_names, part_offset[:-1], part_offset[1:]):
        document = names.index(name)
        own = positions[offset[document]:offset[document + 1]]
        wanted = some.file["/positions"][first:end]
        place = np.searchsorted(own, wanted)
        require((own[place] == wanted).all(), f"{name}: other positions")
        rows.extend(offset[document] + place)
    require(0 < len(rows) < offset[-1], "no part")
    for layer in some.layers():
        for side in ("key", "value"):
            if not some.stored(layer, side)[1]:
                continue
            path = f"/layers/{layer}/{side}"
            held, own = np.flatnonzero(whole.held(layer)), np.array(rows)[some.held(layer)]
            require(np.isin(own, held).all(), f"{path}: tokens that the whole leaves out")
            require((floats(whole.file[path], slice(None))[np.searchsorted(held, own)] == floats(some.file[path], slice(None))).all(), path)
    print(f"{part_path}: {len(rows)} tokens, as in {whole_path}")


def check(path):
    file = File(path)
    if file.type in ("kv", "codes"):
        check_state(file)
    if file.type == "kv":
        check_kv(file)
    elif file.type in BOOKS:
        check_book(file.file, file.type)
        for number in range(len(kinds_of(file.file)) or 1):
            if file.type == "transform":
                check_transform(OfKind(file.file, number) if kinds_of(file.file) else file.file)
    elif file.type == "index":
        check_index(file)
    elif file.type == "outputs":
        check_outputs(file)
    elif file.type == "sensitivity":
        check_sensitivity(file)
    else:
        codes = Codes(path)
        for layer, side in codes.sides():
            for document in range(len(codes.names)):
                codes.streams(layer, side, document)
    print(f"{path}: {file.type}: as FORMAT.md says")


if __name__ == "__main__":
    require(len(sys.argv) >= 3, __doc__)
    command, arguments = sys.argv[1], sys.argv[2:]
    require(command in ("check", "decode", "part"), __doc__)
    if command == "part":
        part(*arguments)
    elif command == "check":
        for name in arguments:
            check(name)
    else:
        dictionary = None
        if arguments[0] == "--book":
            _, dictionary, *arguments = arguments
        for pair in zip(arguments[::2], arguments[1::2]):
            decode(*pair, dictionary)
