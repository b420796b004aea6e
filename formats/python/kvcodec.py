"""kvcodec's files in Python: caches of transformers into kv files, kv and codes files back into arrays and caches.

One file that needs h5py and NumPy; transformers and torch only where their caches are given or wanted. Codes of the codecs none,
lossless, q4, kivi and fp8 are decoded here, all others by the program kvcodec: that of $KVCODEC, of the wheel that this file came in, or of
the PATH.

    import kvcodec
    kvcodec.from_cache(past_key_values, ids, "kv.h5", config=model.config)      # then: kvcodec encode kv.h5 --codec q4 -o codes.h5
    past_key_values = kvcodec.to_cache("codes.h5", 0, config=model.config)      # a DynamicCache, ready to generate with

    document = kvcodec.open("codes.h5")[0]
    document.tokens, document.positions, document.key(3), document.value(3)     # [tokens], [tokens], [tokens, heads, dimensions]

    with kvcodec.Queries(model, last=32) as queries:                            # what a codec may want beside keys and values
        past_key_values = model(ids, use_cache=True).past_key_values
    kvcodec.from_cache(past_key_values, ids, "kv.h5", config=model.config, queries=queries)

FORMAT.md describes the files, kvcodec-interop(7) how they go with other programs.
"""
import builtins
import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import struct
import subprocess
import tempfile

import h5py
import numpy as np

__all__ = ["Error", "Queries", "from_cache", "open", "to_cache"]
__version__ = "0.1.0"

_PIECE = 65536
_TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i32": "<i4", "i64": "<i8", "f32": "<f4", "f64": "<f8"}
_DECODED_HERE = ("none", "lossless", "q4", "kivi", "fp8")


class Error(Exception):
    """What is wrong with a file, or with what was asked for."""


def _require(condition, message):
    if not condition:
        raise Error(message)


def _text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Writing ---------------------------------------------------------------------------------------------------------------------------

def _bf16_type():
    """1 sign, 8 exponent and 7 mantissa bits, as FORMAT.md has it."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def _array(tensor):
    """A tensor of torch, or an array, as (bits or floats, name of its type)."""
    if hasattr(tensor, "detach"):
        import torch
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(np.uint16), "bf16"
        tensor = tensor.numpy()
    tensor = np.asarray(tensor)
    if tensor.dtype.name == "bfloat16":
        return tensor.view(np.uint16), "bf16"
    if tensor.dtype == np.float16:
        return tensor, "f16"
    return tensor.astype(np.float32), "f32"


def _floats(array, kind):
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else array.astype(np.float32)


def _layers_of(cache):
    """(keys, values) of each layer: of a Cache, of one of older versions, of tuples, or of a list of pairs."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    if hasattr(cache, "key_cache"):
        return list(zip(cache.key_cache, cache.value_cache))
    return [(layer[0], layer[1]) for layer in cache]


class _Writer:
    def __init__(self, path):
        self.path = os.fspath(path)
        journal = _journal(self.path)
        _require(_is_journal(journal) or not os.path.lexists(journal),
                 f"{journal}: is no journal of kvcodec, but readers would take it for that of {self.path}; move it, or name another output")
        self.temporary = f"{self.path}.{os.getpid()}.tmp"
        self.file = h5py.File(self.temporary, "w")

    def text(self, name, value):
        data = value.encode()
        self.file.attrs.create(name, np.bytes_(data) if data else np.bytes_(b"\0"))

    def dataset(self, path, array, kind=None):
        """kind: bf16 for bits of such; otherwise the array says it."""
        file_type = _bf16_type() if kind == "bf16" else h5py.h5t.py_create(array.dtype)
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        if array.size:
            row = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
            creation.set_chunk((min(len(array), max(1, (1 << 20) // max(row, 1))),) + array.shape[1:])
            creation.set_fletcher32()
        space = h5py.h5s.create_simple(array.shape)
        dataset = h5py.h5d.create(self.file.id, path.encode(), file_type, space, creation, links)
        if array.size:
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array), mtype=file_type)

    def close(self):
        self.file.close()
        os.replace(self.temporary, self.path)
        if _is_journal(_journal(self.path)):  # of the file that was there
            os.unlink(_journal(self.path))

    def discard(self):
        self.file.close()
        if os.path.exists(self.temporary):
            os.unlink(self.temporary)


def _runs(mask, batch, tokens):
    """First and last token + 1 of each document of a batch."""
    if mask is None:
        return [(0, tokens)] * batch
    mask = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask)
    _require(mask.shape == (batch, tokens), f"attention_mask has the shape {mask.shape}; {(batch, tokens)} goes with the cache")
    runs = []
    for row in mask:
        ones = np.flatnonzero(row)
        _require(len(ones) > 0 and ones[-1] - ones[0] + 1 == len(ones), "attention_mask: a row is no run of ones")
        runs.append((int(ones[0]), int(ones[-1]) + 1))
    return runs


def _config_value(config, name, usual):
    if config is None:
        return usual
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    value = getattr(config, name, None)
    return usual if value is None else value


def from_cache(past_key_values, ids, path, *, attention_mask=None, queries=None, config=None, model=None, names=None):
    """Writes a cache as a kv file and returns its name.

    past_key_values: a Cache of transformers, tuples, or pairs of arrays [batch, heads, tokens, dimensions] of keys and values, of all
    layers; layers with a sliding window may have fewer tokens, the last ones. ids: [batch, tokens], or None. attention_mask: which of
    them are padding; each row of the batch becomes a document without it. queries: a Queries that saw the same run, without padding.
    config: the model's, for its query heads and rotary embedding. model: its name. names: of the documents.
    """
    layers = [(i, _array(keys), _array(values)) for i, (keys, values) in enumerate(_layers_of(past_key_values)) if keys is not None]
    _require(layers, "the cache has no layers with keys and values")
    kinds = {kind for _, keys, values in layers for _, kind in (keys, values)}
    kind = kinds.pop() if len(kinds) == 1 else "f32"
    batch, tokens = layers[0][1][0].shape[0], max(keys[0].shape[2] for _, keys, _ in layers)
    if ids is not None:
        ids = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids).reshape(batch, -1)
        tokens = max(tokens, ids.shape[1] if attention_mask is not None or ids.shape[1] <= tokens else tokens)
    if ids is not None and ids.shape[1] != tokens:  # the last token of a prompt may not be in the cache yet
        _require(ids.shape[1] > tokens, f"there are {ids.shape[1]} ids and {tokens} tokens in the cache")
        ids = ids[:, :tokens]
    runs = _runs(attention_mask, batch, tokens)
    offset = np.cumsum([0] + [end - first for first, end in runs]).astype(np.uint64)
    count = max(i for i, _, _ in layers) + 1
    heads, key_dim, value_dim = (np.zeros(count, np.uint64) for _ in range(3))
    left_out = np.zeros((batch, count), np.uint64)
    for i, (keys, _), (values, _) in layers:
        heads[i], key_dim[i], value_dim[i] = keys.shape[1], keys.shape[3], values.shape[3]
        # Of the columns of a batch the layer has the last ones.
        left_out[:, i] = [min(end - first, max(0, tokens - keys.shape[2] - first)) for first, end in runs]
    shaped = len({(h, k, v) for h, k, v in zip(heads, key_dim, value_dim)}) > 1 or (key_dim != value_dim).any()
    out = _Writer(path)
    try:
        out.text("kvcodec_type", "kv")
        out.file.attrs["kvcodec_version"] = np.int64(1)
        out.text("generator", f"kvcodec.py {__version__}")
        out.text("created", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
        out.file.attrs["history"] = np.array([b"kvcodec.py from_cache"])
        out.text("model", model or _config_value(config, "_name_or_path", "") or _config_value(config, "model_type", "unknown"))
        rope = _config_value(config, "rope_parameters", None) or _config_value(config, "rope_scaling", None) or {}
        theta = rope.get("rope_theta", _config_value(config, "rope_theta", 0.0)) if isinstance(rope, dict) else 0.0
        scaling = {k: v for k, v in rope.items() if k != "rope_theta"} if isinstance(rope, dict) else {}
        plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
        # Heads of another dimension than the embedding is described for, and layers with other bases, are not told of.
        usual = plain and not any(isinstance(v, dict) for v in scaling.values()) and not shaped
        query_heads = _config_value(config, "num_attention_heads", int(heads.max()))
        if any(h and query_heads % h for h in heads):
            query_heads = math.lcm(*(int(h) for h in heads if h))
        for name, value in (("num_layers", count), ("num_q_heads", query_heads), ("num_kv_heads", heads.max()), ("head_dim", key_dim.max())):
            out.file.attrs[name] = np.int64(value)
        out.file.attrs["rope_theta"] = float(theta or 0.0) if usual else 0.0
        out.text("rope_scaling", "")
        out.text("key_state", "post-rope")
        out.text("source", "transformers")
        if shaped:
            for name, values in (("layer_heads", heads), ("layer_key_dim", key_dim), ("layer_value_dim", value_dim),
                                 ("layer_values_in_keys", np.zeros(count, np.uint64)), ("layer_source", np.arange(count, dtype=np.uint64))):
                out.file.attrs[name] = values
        for i, *sides in layers:
            for side, (array, own) in zip(("key", "value"), sides):
                _require(array.shape[0] == batch, f"layer {i} holds {array.shape[0]} documents; the first one holds {batch}")
                forgotten, rows = tokens - array.shape[2], []
                array = array if own == kind else _floats(array, own)
                for b, (first, end) in enumerate(runs):
                    rows.append(array[b, :, max(0, first - forgotten):max(0, end - forgotten)].transpose(1, 0, 2))
                rows = np.concatenate(rows)
                _require(np.isfinite(_floats(rows, kind)).all(), f"layer {i}: a {side} is not finite")
                out.dataset(f"/layers/{i}/{side}", rows, kind)
        if queries is not None:
            _require(batch == 1, "queries of batches are not stored")
            queries._write(out, {i: keys[0].shape[3] for i, keys, _ in layers}, tokens, kind)
        names = names or [f"document {b}" for b in range(batch)]
        width = max(len(name.encode()) for name in names)
        out.dataset("/documents/name", np.array([name.encode() for name in names], f"S{max(width, 1)}"))
        out.dataset("/documents/offset", offset)
        if left_out.any():
            out.dataset("/documents/left_out", left_out)
        out.dataset("/positions", np.concatenate([np.arange(end - first, dtype=np.uint32) for first, end in runs]))
        if ids is not None:
            out.dataset("/tokens", np.concatenate([ids[b, first:end] for b, (first, end) in enumerate(runs)]).astype(np.uint32))
        out.close()
    except BaseException:
        out.discard()
        raise
    return out.path


class Queries:
    """Keeps the queries of the last tokens while a model of transformers runs, as attention uses them. last: how many tokens."""

    def __init__(self, model, last=32):
        self.model, self.last, self.layers = model, last, {}

    def __enter__(self):
        from transformers import AttentionInterface
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        self.before = self.model.config._attn_implementation
        _require(self.before in ALL_ATTENTION_FUNCTIONS, f"attention of the kind '{self.before}' tells nobody of its queries; load the model "
                 "with attn_implementation='sdpa'")
        attend = ALL_ATTENTION_FUNCTIONS[self.before]

        def keep(module, query, key, value, mask, **options):
            scale = options.get("scaling")
            scale = 1.0 if scale is None else scale * math.sqrt(query.shape[-1])  # scores are q · k / sqrt(dimensions)
            self.layers[module.layer_idx] = (query[:, :, -self.last:].detach().float() * scale).cpu().numpy()
            return attend(module, query, key, value, mask, **options)

        self.name = f"kvcodec_{self.before}"
        AttentionInterface.register(self.name, keep)
        # Masks are made for the kind of attention there was.
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
        AttentionMaskInterface.register(self.name, ALL_MASK_ATTENTION_FUNCTIONS[self.before])
        self.model.set_attn_implementation(self.name)
        return self

    def __exit__(self, *_):
        self.model.set_attn_implementation(self.before)

    def _write(self, out, layers, tokens, kind):
        """layers: numbers of those in the file, with the dimensions of their keys."""
        _require(set(layers) <= set(self.layers), "the queries of some layers were not seen")
        for i, dim in layers.items():
            found = self.layers[i].shape[3]
            _require(found == dim, f"layer {i}: queries have {found} dimensions and the keys of the cache {dim}, so they cannot be kept")
        count = min(self.layers[i].shape[2] for i in layers)
        for i in layers:
            rows = self.layers[i][0, :, -count:].transpose(1, 0, 2)
            if kind == "f16":
                rows = rows.astype(np.float16)
            elif kind == "bf16":
                bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
                rows = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)
            out.dataset(f"/layers/{i}/query", np.ascontiguousarray(rows), kind)
        out.dataset("/query_position", np.arange(tokens - count, tokens, dtype=np.uint64))


# Reading ---------------------------------------------------------------------------------------------------------------------------

def _unpack(data, bits):
    """Numbers of so many bits, most significant bit first, that fill the last axis of bytes."""
    stream = np.unpackbits(data, axis=-1)
    count = stream.shape[-1] // bits
    numbers = stream[..., :count * bits].reshape(*data.shape[:-1], count, bits)
    return numbers.astype(np.uint32) @ (np.uint32(1) << np.arange(bits - 1, -1, -1, dtype=np.uint32))


def _half(bits, kind):
    return bits.view("<f2").astype(np.float32) if kind == "f16" else (bits.astype(np.uint32) << 16).view(np.float32)


def _digest(data):
    try:
        import xxhash
    except ImportError:
        return None  # then nothing is verified
    return xxhash.xxh3_128_digest(bytes(data))


class Document:
    """A document of a file. Keys and values of a layer are [tokens, heads, dimensions], f32, of the last kept(layer) tokens."""

    def __init__(self, file, number):
        self.file, self.number, self.name = file, number, file.names[number]
        self.first, self.end = int(file.offset[number]), int(file.offset[number + 1])

    def __len__(self):
        return self.end - self.first

    @property
    def layers(self):
        return self.file.layers

    @property
    def tokens(self):
        """Ids, or None."""
        return self.file._tokens(self)

    @property
    def positions(self):
        return self.file._positions(self)

    def key(self, layer):
        return self._side(layer, "key")

    def value(self, layer):
        heads, _, value_dim, inside = self.file.shape(layer)
        return self.key(layer)[:, :, :value_dim] if inside else self._side(layer, "value")

    def kept(self, layer):
        """How many of the last tokens the layer holds: all but for layers with a sliding window."""
        return len(self) - int(self.file.left_out[self.number, layer])

    def _side(self, layer, side):
        _require(layer in self.file.layers, f"{self.file.path}: there is no layer {layer}")
        return self.file._rows(self, layer, side)


def _journal(path):
    return f"{os.path.realpath(path)}.journal"


def _is_journal(path):
    """Whether what lies there begins as a journal does."""
    begin = b"kvcodec journal "
    try:
        with builtins.open(path, "rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def _held(path):
    """The file, locked as FORMAT.md has it ("Journals"): while it is open nobody copies changed pages into it."""
    file = builtins.open(path, "rb", buffering=0)
    try:
        import fcntl
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW, struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 1, 1, 0))
    except (ImportError, AttributeError, OSError):
        pass  # a system, or a file system, without such locks
    return file


class _File:
    def __init__(self, path, file, held=None):
        self.path, self.file, self.held = path, file, held
        a = file.attrs
        self.model, self.num_layers = _text(a["model"]), int(a["num_layers"])
        self.heads, self.dim, self.query_heads = int(a["num_kv_heads"]), int(a["head_dim"]), int(a["num_q_heads"])
        self.names = [_text(name) for name in file["/documents/name"][:]]
        self.offset = file["/documents/offset"][:].astype(np.int64)
        _require(len(self.offset) == len(self.names) + 1 and (np.diff(self.offset) >= 0).all(), f"{path}: /documents/offset")
        self.shapes = None
        if "layer_heads" in a:
            self.shapes = [tuple(int(n) for n in row) for row in
                           zip(a["layer_heads"], a["layer_key_dim"], a["layer_value_dim"], a["layer_values_in_keys"])]
        self.left_out = np.zeros((len(self.names), self.num_layers), np.int64)
        if "left_out" in file["/documents"]:
            self.left_out = file["/documents/left_out"][:].astype(np.int64)
            length = np.diff(self.offset)[:, None]
            _require(self.left_out.shape == (len(self.names), self.num_layers) and (self.left_out <= length).all(), f"{path}: /documents/left_out")

    def shape(self, layer):
        """(heads, dimensions of keys, of values, whether values lie in keys)"""
        return self.shapes[layer] if self.shapes else (self.heads, self.dim, self.dim, 0)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, document):
        if isinstance(document, str):
            _require(document in self.names, f"{self.path}: there is no document '{document}'")
            document = self.names.index(document)
        if not -len(self) <= document < len(self):
            raise IndexError(f"{self.path}: has {len(self)} documents")
        return Document(self, document % len(self))

    def close(self):
        self.file.close()
        if self.held:
            self.held.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _KvFile(_File):
    def __init__(self, path, file, held=None):
        super().__init__(path, file, held)
        self.layers = sorted(int(name) for name in file["/layers"])

    def _tokens(self, document):
        return self.file["/tokens"][document.first:document.end] if "/tokens" in self.file else None

    def _positions(self, document):
        return self.file["/positions"][document.first:document.end]

    def _rows(self, document, layer, side):
        # HDF5 widens bf16 and f16 by itself.
        left_out = self.left_out[:, layer]
        first = document.first - int(left_out[:document.number].sum())
        return self.file[f"/layers/{layer}/{side}"].astype(np.float32)[first:first + document.kept(layer)]


class _CodesFile(_File):
    def __init__(self, path, file, held, book):
        super().__init__(path, file, held)
        a = file.attrs
        self.codec, self.parameters = _text(a["codec"]), json.loads(_text(a["parameters"]))
        self.storage, self.source, self.book = _text(a["storage"]), _text(a["source_dtype"]), book
        self.group, self.joint = int(a["layer_group"]), bool(a.get("joint", 0))
        self.groups = [int(n) for n in a["groups"]]
        self.layers = [first + i for first in self.groups for i in range(self.group)]
        self.layouts, self.columns = [json.loads(_text(layout)) for layout in a["layouts"]], [int(n) for n in a["side_layout"]]
        self.sides = [(first, side) for first in self.groups for side in (("both",) if self.joint else ("key", "value"))
                      if side != "value" or not self.shape(first)[3]]
        self.parts = file["/parts"][:].astype(np.int64)
        self.here = (self.codec in _DECODED_HERE and self.parameters.get("rope", "keep") == "keep" and self.group == 1 and not self.joint and
                     self.parameters.get("rotate", "none") != "query" and not self.parameters.get("layer-bits"))
        self.decoded = {}  # of other codecs: what the program made of a document

    def _streams(self, row, column):
        begin, size = (int(n) for n in self.parts[row, column])
        where = f"{self.path}: row {row}, column {column} of /parts"
        _require(24 <= size and begin + size <= self.file["/data"].shape[0], where)
        part = self.file["/data"][begin:begin + size]
        footer_size = int.from_bytes(part[-24:-20].tobytes(), "little")
        _require(part[-20:-16].tobytes() == b"part" and 24 <= footer_size <= size, f"{where}: no part")
        footer, body, place = part[-footer_size:].tobytes(), part[:size - footer_size], 0
        _require(_digest(footer[:-16]) in (None, footer[-16:]), f"{where}: digest of the footer")

        def number():
            nonlocal place
            value = shift = 0
            while True:
                byte = footer[place]
                place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
                if byte < 128:
                    return value

        streams = [s for s in self.layouts[self.columns[column]] if s.get("shared", False) == (row == 0)]
        _require((number(), number(), number()) == (row, column, len(streams)), f"{where}: another part")
        rows = [number() for _ in streams]
        for i in range(-(-len(body) // _PIECE)):
            own = footer[place + 16 * i:place + 16 * (i + 1)]
            _require(_digest(body[_PIECE * i:_PIECE * (i + 1)]) in (None, own), f"{where}: digest of piece {i}")
        found, place = {}, 0
        for stream, count in zip(streams, rows):
            elements, kind, bits = int(np.prod(stream["row"], dtype=np.int64)), stream["type"], stream.get("packed_bits", 0)
            bytes_there = -(-count * elements * bits // 8) if bits else count * elements * int(kind.lstrip("uibf")) // 8
            data = body[place:place + bytes_there]
            _require(len(data) == bytes_there, f"{where}: stream {stream['name']}")
            if bits:
                values = _unpack(data, bits)[:count * elements]
            else:
                values = _half(data.view("<u2"), kind) if kind in ("f16", "bf16") else data.view(_TYPES[kind])
            found[stream["name"]] = values.reshape((count, *stream["row"]))
            place += bytes_there
        return found

    def _index(self, document):
        return self._streams(document.number + 1, len(self.columns) - 1)

    def _tokens(self, document):
        return self._index(document).get("tokens")

    def _positions(self, document):
        return self._index(document)["positions"]

    def _rows(self, document, layer, side):
        if not self.here:
            return self._by_program(document)._rows(Document(self._by_program(document), 0), layer, side)
        column = self.sides.index((layer, side))
        streams = self._streams(0, column) if self.parts[0, column, 1] else {}
        streams.update(self._streams(document.number + 1, column))
        heads, key_dim, value_dim, _ = self.shape(layer)
        dim = key_dim if side == "key" else value_dim
        tokens = document.kept(layer)
        values = globals()[f"_decode_{self.codec}"](self, streams, tokens, heads, dim, side)
        return self._rounded(np.ascontiguousarray(values.reshape(tokens, heads, dim), np.float32))

    def _rounded(self, values):
        """As a kv file of the cache's type has them."""
        if self.source == "f32":
            return values
        if self.source == "f16":
            return values.astype(np.float16).astype(np.float32)
        bits = values.view(np.uint32)
        return ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(np.float32)

    def _by_program(self, document):
        if document.number not in self.decoded:
            folder = tempfile.mkdtemp(prefix="kvcodec-")
            part = os.path.join(folder, "part.h5")
            program = _program()
            command = [program, "decode", self.path, "--documents", str(document.number), "--quiet", "-o", part]
            try:
                run = subprocess.run(command + (["--book", self.book] if self.book else []), capture_output=True, text=True)
                _require(run.returncode == 0, run.stderr.strip() or f"{program} decode failed")
                with builtins.open(part, "rb") as file:
                    image = file.read()
            except FileNotFoundError:
                raise Error(f"{self.path}: codes of the codec {self.codec} need the program kvcodec, on the PATH or as $KVCODEC") from None
            finally:
                if os.path.exists(part):
                    os.unlink(part)
                os.rmdir(folder)
            import io
            self.decoded[document.number] = _KvFile(self.path, h5py.File(io.BytesIO(image), "r"))
        return self.decoded[document.number]


def _program():
    """The program kvcodec, as the top of this file says."""
    if "KVCODEC" in os.environ:
        return os.environ["KVCODEC"]
    try:
        files = importlib.metadata.files("kvcodec") or []
    except importlib.metadata.PackageNotFoundError:
        return "kvcodec"
    places = {(file.parent.name, file.name): os.path.realpath(file.locate()) for file in files}
    here = places.get(("", "kvcodec.py")) == os.path.realpath(__file__)
    return places.get(("bin", "kvcodec"), "kvcodec") if here else "kvcodec"


def open(path, book=None):
    """A kv file or a codes file, as a sequence of documents; book: of codes that need one which is not inside."""
    path = os.fspath(path)
    with contextlib.ExitStack() as opened:
        try:
            held = opened.enter_context(_held(path))
            _require(not os.path.exists(_journal(path)),
                     f"{path}: its last change still lies in {_journal(path)}, which only the program reads; run kvcodec compact on it")
            file = opened.enter_context(h5py.File(path, "r"))
        except OSError as error:
            raise Error(f"{path}: {error}") from None
        kind, version = _text(file.attrs.get("kvcodec_type", "")), int(file.attrs.get("kvcodec_version", 0))
        if kind == "kv" and version == 1:
            found = _KvFile(path, file, held)
        elif kind == "codes" and version == 1:
            found = _CodesFile(path, file, held, book)
        else:
            raise Error(f"{path}: is {kind + f' of version {version}' if kind else 'no kvcodec file'}; a kv or a codes file is wanted")
        opened.pop_all()
        return found


# Codecs: (file, streams, tokens, heads, dimensions, side) -> values ------------------------------------------------------------------

def _decode_none(file, streams, tokens, heads, dim, side):
    return streams["values"]


def _decode_fp8(file, streams, tokens, heads, dim, side):
    if tokens == 0:
        return np.zeros((0, heads, dim), np.float32)
    codes = np.arange(256)
    e, m = codes >> 3 & 15, codes & 7
    table = np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10)).astype(np.float32)
    table = np.where(codes & 128, -table, table)
    return table[streams["codes"]] * streams["scales"].reshape(heads, 1)


def _decode_q4(file, streams, tokens, heads, dim, side):
    if "exact" in streams:
        return streams["exact"]
    bits, group = file.parameters["bits"], file.parameters["group"]
    levels = _unpack(streams["codes"], bits)[..., :dim].astype(np.int32) - (1 << (bits - 1))
    values = levels.astype(np.float32) * np.repeat(streams["scales"], group, axis=2)[:, :, :dim]
    if file.parameters["rotate"] == "hadamard":
        shape, n, h = values.shape, dim & -dim, 1
        while h < n:
            pairs = values.reshape(-1, 2, h)
            values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            h *= 2
        values = values.reshape(shape) * (np.float32(1) / np.sqrt(np.float32(n)))
    if "sink" in streams:
        values = np.concatenate([streams["sink"].reshape(-1, heads, dim), values, streams["tail"].reshape(-1, heads, dim)])
    return values


def _decode_kivi(file, streams, tokens, heads, dim, side):
    p = file.parameters
    first = streams.get("sink", np.zeros((0, heads, dim), np.float32)).reshape(-1, heads, dim)
    levels = _unpack(streams["codes"], p["bits"])[..., :dim].astype(np.float32)
    if side == "key":
        scale, zero = (np.repeat(streams[name], p["key-group"], axis=0) for name in ("scales", "zeros"))
    else:
        scale, zero = (np.repeat(streams[name], p["value-group"], axis=2)[:, :, :dim] for name in ("scales", "zeros"))
    values = np.concatenate([zero + levels * scale, streams["tail"].reshape(-1, heads, dim)])
    # First tokens that are kept exactly stand before the others, or in place of copies.
    return np.concatenate([first, values[len(first):]]) if len(values) == tokens else np.concatenate([first, values])


class _Bits:
    def __init__(self, data):
        self.stream, self.place = np.unpackbits(np.frombuffer(bytes(data), np.uint8)), 0

    def take(self, count):
        bits = self.stream[self.place:self.place + count]
        _require(len(bits) == count, "a book ends early")
        self.place += count
        return int("".join(map(str, bits)), 2) if count else 0


class _Model:
    """A rANS model: of each slot its symbol, of each symbol its frequency and first slot."""

    def __init__(self, bits, width):
        alphabet, self.width, self.scale = bits.take(17), bits.take(6), bits.take(5)
        _require(alphabet == 1 << width and 8 <= self.scale <= 16, "lossless: book")
        frequencies = []
        while len(frequencies) < alphabet + 1:
            token = bits.take(5)
            if token <= 16:
                frequencies.append(1 << (token - 1) | bits.take(token - 1) if token else 0)
            else:
                frequencies += [0] * (bits.take(4) + 2 if token == 17 else bits.take(12) + 18)
        _require(len(frequencies) == alphabet + 1 and sum(frequencies) == 1 << self.scale, "lossless: book")
        self.frequency, self.escape = np.array(frequencies, np.uint64), alphabet
        self.start = np.concatenate([[0], np.cumsum(frequencies)[:-1]]).astype(np.uint64)
        self.symbol = np.repeat(np.arange(alphabet + 1, dtype=np.uint32), frequencies)


def _rans(segments, model, count):
    """Symbols of segments, [segments, count], of all at once: 8 at a time of each."""
    longest = max(len(data) for data in segments)
    table = np.zeros((len(segments), longest + 32), np.uint8)
    for i, data in enumerate(segments):
        _require(len(data) >= 32, "lossless: a segment without states")
        table[i, :len(data)] = data
    states = table[:, :32].copy().view("<u4").astype(np.uint64)
    words = np.ascontiguousarray(table[:, 32:32 + (longest - 32) // 2 * 2 + 16]).view("<u2").astype(np.uint64)
    row, place = np.arange(len(segments))[:, None], np.zeros(len(segments), np.int64)
    found = np.empty((len(segments), count), np.uint32)
    mask, scale = np.uint64((1 << model.scale) - 1), np.uint64(model.scale)
    for first in range(0, count, 8):
        lanes = min(8, count - first)
        state = states[:, :lanes]
        slot = state & mask
        symbol = model.symbol[slot.astype(np.int64)]
        found[:, first:first + lanes] = symbol
        state = model.frequency[symbol] * (state >> scale) + slot - model.start[symbol]
        short = state < 1 << 16
        at = np.minimum(place[:, None] + np.cumsum(short, axis=1) - 1, words.shape[1] - 1)
        states[:, :lanes] = np.where(short, state << np.uint64(16) | words[row, np.maximum(at, 0)], state)
        place += short.sum(axis=1)
    _require((states == 1 << 16).all(), "lossless: a segment is damaged")
    for i, data in enumerate(segments):
        places = np.flatnonzero(found[i] == model.escape)
        if len(places):
            bits = _Bits(data[32 + 2 * place[i]:])
            found[i, places] = [bits.take(model.width) for _ in places]
    return found


def _decode_lossless(file, streams, tokens, heads, dim, side):
    block, widths = file.parameters["block"], (9, 7) if file.storage == "bf16" else (6, 10)
    count, tail = block * heads * dim, streams["tail"].reshape(-1, heads, dim)
    blocks = tokens // block if count >= 1024 else 0
    if blocks == 0:
        return tail
    bits, halves = _Bits(streams["book"]), np.zeros((blocks, count), np.uint16)
    models = [_Model(bits, width) for width in widths]
    for part, (name, width) in enumerate(zip(("exponents", "mantissas"), widths)):
        ends = np.cumsum(streams["sizes"][:, part].astype(np.int64))
        pieces = [streams[name][end - size:end].reshape(-1) for end, size in zip(ends, streams["sizes"][:, part].astype(np.int64))]
        plain = [len(piece) == -(-count * width // 8) for piece in pieces]
        symbols = np.empty((blocks, count), np.uint32)
        for i in np.flatnonzero(plain):
            symbols[i] = _unpack(pieces[i], width)[:count]
        coded = np.flatnonzero(~np.array(plain))
        if len(coded):
            symbols[coded] = _rans([pieces[i] for i in coded], models[part], count)
        halves |= (symbols << (widths[1] if part == 0 else 0)).astype(np.uint16)
    return np.concatenate([_half(halves.reshape(-1), file.storage).reshape(-1, heads, dim), tail])


# Caches ----------------------------------------------------------------------------------------------------------------------------

def to_cache(file, document=0, *, config=None, dtype=None, device=None, book=None):
    """A document of a kv or codes file as a DynamicCache of transformers, of a batch of one.

    file: its name, or what open() gave. config: the model's, which says where layers have sliding windows; needed only then. dtype: of
    torch; by default that of the cache that was stored.
    """
    import torch
    from transformers.cache_utils import DynamicCache
    opened = file if isinstance(file, _File) else open(file, book)
    own = opened[document]
    kind = opened.source if isinstance(opened, _CodesFile) else _kind_of(opened)
    dtype = dtype or {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind]
    cache = DynamicCache(config=config) if config is not None else DynamicCache()
    positions = own.positions
    seen = int(positions[-1]) + 1 if len(positions) else 0
    for i in own.layers:
        _require(not opened.shape(i)[3], f"{opened.path}: values lie in keys in layer {i}; transformers' caches have both")
        sides = [torch.from_numpy(np.ascontiguousarray(side.transpose(1, 0, 2)[None])).to(device=device, dtype=dtype)
                 for side in (own.key(i), own.value(i))]
        if config is None:
            _require(own.kept(i) == len(own), f"{opened.path}: layer {i} has a sliding window; give the model's config")
            cache.update(*sides, i)
            continue
        layer = cache.layers[i]
        layer.lazy_initialization(*sides)
        layer.keys, layer.values = sides
        if hasattr(layer, "cumulative_length"):
            window = layer.sliding_window - 1  # a layer keeps what the next token can still see
            layer.keys, layer.values = (side[:, :, -window:] for side in sides)
            layer.cumulative_length = seen
    if opened is not file:
        opened.close()
    return cache


def _kind_of(kv):
    kind = kv.file[f"/layers/{kv.layers[0]}/key"].id.get_type()
    return "f32" if kind.get_size() == 4 else "f16" if kind.get_fields()[2] == 5 else "bf16"
