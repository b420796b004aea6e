"""Reading: kv files and codes files as sequences of documents."""
import ctypes
import json
import operator
import os
import threading
from typing import NamedTuple

import numpy as np

from .library import SIDES, TYPES, CDocument, CLayer, CModel, CTensor, Error, call, library, path_bytes, require, text

ARRAY_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
STATE_TYPES = {**ARRAY_TYPES, "f64": np.float64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "i32": np.int32,
               "i64": np.int64}
LARGEST_F16 = 65504.0


class Model(NamedTuple):
    """The model of a cache. rope_theta 0, and empty texts, mean: unknown or none. scores: JSON, what the model does to scores of attention
    (FORMAT.md, "Scores")."""
    name: str
    layers: int
    query_heads: int
    rope_theta: float
    rope_scaling: str
    key_state: str
    source: str
    scores: str


class LayerShape(NamedTuple):
    """A layer's heads, and the dimensions of their keys and values. values_in_keys: a value is the first value_dims dimensions of its key.
    source: of a layer without heads, the layer whose keys and values it uses; -1 if there is none."""
    heads: int
    key_dims: int
    value_dims: int
    values_in_keys: bool
    source: int


def open(name, book=None):
    """Opens a kv file or a codes file, by its name or URL. book: the file of the dictionary, codebooks or transform that codes need, if it is
    not inside."""
    return File(name, book)


class File:
    """A sequence of documents: len(file), file[0], file[-1], file["name"]. path; codec ("" of a kv file); dtype ("bf16", "f16" or "f32") of
    the cache that was stored; model; layers: the numbers of those whose keys and values are there."""

    def __init__(self, name, book=None):
        self._handle, self._lock, self._numbers = None, threading.Lock(), None
        self.path = os.fspath(name)
        handle = ctypes.c_void_p()
        call("open", path_bytes(self.path), None if book is None else path_bytes(book), ctypes.byref(handle))
        self._handle = handle
        try:
            self.codec = text(library()["codec"](handle))
            self.dtype = {number: kind for kind, number in TYPES.items()}[library()["stored_type"](handle)]
            self._has_ids = bool(library()["has_ids"](handle))
            self._count = library()["documents"](handle)
            self.model, self._shapes, self.layers = self._read_model(), [], []
            for layer in range(self.model.layers):
                shape, stored = CLayer(), ctypes.c_int()
                self._call("get_layer", layer, ctypes.byref(shape), ctypes.byref(stored))
                self._shapes.append(LayerShape(shape.heads, shape.key_dims, shape.value_dims, bool(shape.values_in_keys), shape.source))
                if stored.value:
                    self.layers.append(layer)
            self._stored = frozenset(self.layers)
        except BaseException:
            self.close()
            raise

    def _call(self, function, *arguments):
        with self._lock:  # a handle takes one call at a time
            require(self._handle is not None, f"{self.path}: is closed")
            call(function, self._handle, *arguments)

    def _read_model(self):
        own = CModel()
        self._call("get_model", ctypes.byref(own))
        return Model(text(own.name), own.layers, own.query_heads, own.rope_theta, text(own.rope_scaling), text(own.key_state), text(own.source), text(own.scores))

    def _facts(self, number):
        own = CDocument()
        with self._lock:  # the strings live until the next call
            require(self._handle is not None, f"{self.path}: is closed")
            call("get_document", self._handle, number, ctypes.byref(own))
            return text(own.name), own.tokens, own.time, text(own.metadata)

    def shape(self, layer):
        """The LayerShape of a layer."""
        require(0 <= layer < self.model.layers, f"{self.path}: there is no layer {layer}; the model has {self.model.layers}")
        return self._shapes[layer]

    @property
    def names(self):
        """The names of all documents."""
        return [self._facts(number)[0] for number in range(self._count)]

    def __len__(self):
        return self._count

    def __getitem__(self, document):
        if isinstance(document, str):
            return Document(self, self._number_of(document))
        number = operator.index(document)
        if not -self._count <= number < self._count:
            raise IndexError(f"{self.path}: there is no document {number}; the file holds {self._count}")
        return Document(self, number % self._count)

    def _number_of(self, name):
        if self._numbers is None:
            numbers = {}
            for number, own in enumerate(self.names):
                numbers.setdefault(own, []).append(number)
            self._numbers = numbers
        found = self._numbers.get(name, [])
        require(found, f"{self.path}: there is no document '{name}'")
        require(len(found) == 1, f"{self.path}: {len(found)} documents are called '{name}'; choose one by its number")
        return found[0]

    def __iter__(self):
        return (Document(self, number) for number in range(self._count))

    def close(self):
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                library()["close"](handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self):
        return f"<kvfiles.File {self.path}: {self._count} documents, {self.codec or 'kv'}>"


class Document:
    """A document of a file. name; time: when its cache was computed, in seconds since 1970, 0 if that is unknown; metadata: a dict or None."""

    def __init__(self, file, number):
        self.file, self.number = file, number
        self.name, self._tokens, self.time, metadata = file._facts(number)
        try:
            self.metadata = json.loads(metadata) if metadata else None
        except ValueError as error:
            raise Error(f"{file.path}: metadata of document {number}: {error}") from None

    def __len__(self):
        return self._tokens

    @property
    def layers(self):
        return self.file.layers

    @property
    def tokens(self):
        """The ids of the tokens, or None if they are not known."""
        return self._numbers("ids", np.uint32) if self.file._has_ids else None

    @property
    def positions(self):
        return self._numbers("positions", np.uint64)

    def _numbers(self, function, kind):
        numbers = np.empty(self._tokens, kind)
        self.file._call(function, self.number, 0, self._tokens, numbers.ctypes.data)
        return numbers

    @property
    def state(self):
        """What the model goes on with beside keys and values, behind the last token: {name: (type, array)}, such as ("f32", ...) of
        layers.0.recurrent_states.0. Arrays of the type "bf16" are their bits, as uint16."""
        count, found = ctypes.c_uint64(), {}
        self.file._call("state_count", self.number, ctypes.byref(count))
        for number in range(count.value):
            own = CTensor()
            with self.file._lock:  # name and shape live until the next call
                require(self.file._handle is not None, f"{self.file.path}: is closed")
                call("get_state", self.file._handle, self.number, number, ctypes.byref(own), None)
                name, kind, shape = text(own.name), text(own.type), [own.shape[i] for i in range(own.dims)]
                array = np.empty(shape, STATE_TYPES[kind])
                call("get_state", self.file._handle, self.number, number, ctypes.byref(own), array.ctypes.data)
            found[name] = (kind, array)
        return found

    def kept(self, layer):
        """How many tokens the layer holds: the last ones. Layers with a sliding window may hold fewer than all."""
        left_out = ctypes.c_uint64()
        self.file._call("left_out", self.number, layer, ctypes.byref(left_out))
        return self._tokens - left_out.value

    def key(self, layer, dtype="f32", first=0, count=None):
        """Keys as an array [tokens, heads, dimensions] of the tokens that the layer holds, or of count of them from the first-th on. dtype:
        "f32", "f16" (float16) or "bf16" (its bits, as uint16)."""
        return self._rows(layer, "key", dtype, first, count)

    def value(self, layer, dtype="f32", first=0, count=None):
        """Values, as key() gives keys."""
        shape = self.file.shape(layer)
        if shape.values_in_keys:
            return self._rows(layer, "key", dtype, first, count)[:, :, :shape.value_dims]
        return self._rows(layer, "value", dtype, first, count)

    def _rows(self, layer, side, dtype, first, count):
        file = self.file
        layer = operator.index(layer)
        require(dtype in TYPES, f"there is no type '{dtype}'; f32, f16 and bf16 are possible")
        require(layer in file._stored, f"{file.path}: there is no layer {layer} in it")
        kept, first = self.kept(layer), operator.index(first)
        count = kept - first if count is None else operator.index(count)
        require(first >= 0 and 0 <= count <= kept - first,
                f"{file.path}: layer {layer} holds {kept} tokens of document {self.number}; there are no {count} from {first} on")
        if dtype == "f16" and file.dtype != "f16":
            return self._narrowed(layer, side, first, count)
        shape = file.shape(layer)
        rows = np.empty((count, shape.heads, shape.key_dims if side == "key" else shape.value_dims), ARRAY_TYPES[dtype])
        file._call("decode", self.number, layer, SIDES[side], self._tokens - kept + first, count, TYPES[dtype], rows.ctypes.data)
        return rows

    def _narrowed(self, layer, side, first, count):
        """float16 of a cache of a wider type: values beyond it are an error, where the library would take its largest ones."""
        rows = self._rows(layer, side, "f32", first, count)
        largest = float(np.abs(rows).max(initial=0))
        require(largest <= LARGEST_F16, f"{self.file.path}: layer {layer}: a {side} of {largest:g} lies beyond float16; take f32 or bf16")
        return rows.astype(np.float16)

    def __repr__(self):
        return f"<kvfiles.Document {self.name!r} of {self.file.path}: {self._tokens} tokens>"
