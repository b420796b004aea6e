"""Writing: caches into kv files, or into codes."""
import contextlib
import ctypes
import json
import os

import numpy as np

from . import configs
from .arrays import is_tensor, kind_of, pieces, state_of, whole_numbers
from .caches import read_cache
from .library import SIDES, TYPES, CDocument, CLayer, CModel, CTensor, Error, call, library, path_bytes, require, text_bytes, words


def from_cache(past_key_values, ids, path, *, attention_mask=None, positions=None, queries=None, config=None, model=None, names=None,
               metadata=None, overwrite=False):
    """Writes a cache as a kv file and returns its name.

    past_key_values: a Cache of transformers, tuples, or pairs of arrays [batch, heads, tokens, dimensions] of keys and values, of all
    layers; layers with a sliding window may have fewer tokens, the last ones. ids: [batch, tokens], or None; there may be one more, which
    the cache does not hold yet. attention_mask: which tokens are padding; each row of the batch becomes a document without it. positions:
    [batch, tokens], rising; by default those of each document count from 0, like those of generate(). queries: a Queries that saw the same
    run, of a batch of one. config: the model's, for its query heads, its rotary embedding, layers that share keys and values, and what it does
    to scores of attention; or the model, where these have sinks, which no config names. model: its name. names: of the documents. metadata: a
    dict of each document, or one dict for a batch of one. overwrite: whether a file of that name may be replaced.
    """
    path = _free(path, overwrite)
    with _written(past_key_values, ids, path_bytes(path), overwrite, attention_mask=attention_mask, positions=positions,
                  queries=queries, config=config, model=model, names=names, metadata=metadata) as writer:
        writer.end("finish", b"kvfiles.from_cache")
    return path


def encode(past_key_values, ids, path, arguments, *, overwrite=False, **facts):
    """Encodes a cache and returns the name of its codes. arguments: those of kvcodec encode, such as ["--codec", "q4"]; the others are those of
    from_cache(). Notes go to standard error, unless --quiet is among the arguments."""
    path = _free(path, overwrite)
    require(not isinstance(arguments, str), "arguments are a list of words")
    all_words = [*arguments, "-o", path, *(["--overwrite"] if overwrite else [])]
    with _written(past_key_values, ids, None, False, **facts) as writer:
        writer.end("encode", b"kvfiles.encode", *words(all_words))
    return path


def _free(path, overwrite):
    """The name of a file that may be written. The library looks again when the file gets its name."""
    path = os.fspath(path)
    require(overwrite or not os.path.isfile(path), f"{path}: exists already; overwrite=True replaces it")
    require(overwrite or os.path.exists(path) or not os.path.islink(path), f"{path}: is a symbolic link to a file that does not exist")
    return path


class _Writer:
    """A kvcodec_writer."""

    def __init__(self, *arguments):
        self.handle = ctypes.c_void_p()
        call("create", *arguments, ctypes.byref(self.handle))

    def call(self, function, *arguments):
        call(function, self.handle, *arguments)

    def end(self, function, *arguments):
        handle, self.handle = self.handle, None
        call(function, handle, *arguments)

    def discard(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            library()["discard"](handle)


@contextlib.contextmanager
def _written(past_key_values, ids, path, overwrite, *, attention_mask=None, positions=None, queries=None, config=None, model=None, names=None,
             metadata=None):
    """A writer that holds the whole cache."""
    cache = read_cache(past_key_values)
    held = [number for number, layer in enumerate(cache.layers) if layer is not None]
    ids, positions, runs = _tokens_of(cache, ids, positions, attention_mask)
    names, metadata = _names_of(names, cache.batch), _metadata_of(metadata, cache.batch)
    model, layers = _model_of(cache, held, config, model)
    if queries is not None:
        queries = _queries_of(queries, cache, held, model.query_heads, runs)
    kinds = {kind_of(array) for number in held for array in (cache.layers[number].keys, cache.layers[number].values)}
    kind = kinds.pop() if len(kinds) == 1 else "f32"
    writer = _Writer(path, int(overwrite), ctypes.byref(model), layers, TYPES[kind], int(queries is not None))
    try:
        for number, (first, end) in enumerate(runs):
            own = CDocument(names[number], end - first, 0, metadata[number])
            # A layer with a window has the last columns of a batch.
            begins = {layer: min(end, max(first, cache.tokens - cache.layers[layer].kept)) for layer in held}
            left_out = np.array([begins.get(layer, first) - first for layer in range(model.layers)], np.uint64)
            numbers = [None if array is None else np.ascontiguousarray(array[number, first:end]) for array in (ids, positions)]
            writer.call("add", ctypes.byref(own), *(None if array is None else array.ctypes.data for array in numbers), left_out.ctypes.data)
            require(not cache.state or end == cache.tokens, "the cache has a state behind its last tokens, which attention_mask leaves out")
            _set_state(writer, cache, number)
            for layer in held:
                _append(writer, cache, layer, number, begins[layer], end)
        for layer, (tokens, rows) in (queries or {}).items():
            writer.call("append_queries", layer, tokens.ctypes.data, TYPES["f32"], len(rows), rows.ctypes.data)
        yield writer
    finally:
        writer.discard()


def _set_state(writer, cache, document):
    if not cache.state:
        return
    tensors, places, kept = (CTensor * len(cache.state))(), (ctypes.c_void_p * len(cache.state))(), []
    for number, (name, array) in enumerate(cache.state.items()):
        kind, own = state_of(array[document])
        shape = (ctypes.c_uint64 * max(1, own.ndim))(*own.shape)
        kept.append((own, shape))
        tensors[number] = CTensor(name.encode(), kind.encode(), own.ndim, shape, own.nbytes)
        places[number] = own.ctypes.data
    writer.call("set_state", len(tensors), tensors, places)


def _append(writer, cache, layer, document, first, end):
    own = cache.layers[layer]
    before = cache.tokens - own.kept  # tokens that the layer does not hold
    for side, array in (("key", own.keys), ("value", own.values)):
        for rows in pieces(array[document], first - before, end - before):
            writer.call("append", layer, SIDES[side], TYPES[kind_of(array)], len(rows), rows.ctypes.data)


def _tokens_of(cache, ids, positions, mask):
    """(ids, positions, first and last token + 1 of each document): arrays [batch, tokens]; ids may be None."""
    width = cache.tokens
    if ids is not None:
        ids = _by_documents(whole_numbers(ids, "ids", 1 << 32), cache.batch, "ids")
        require(ids.shape[1] in (cache.tokens, cache.tokens + 1), f"there are {ids.shape[1]} ids, and the cache holds {cache.tokens} tokens; as many "
                "are wanted, or one more, which the cache does not hold yet")
        width = ids.shape[1]
        ids = ids[:, :cache.tokens].astype(np.uint32)
    runs = _runs(mask, cache, width)
    if positions is None:
        starts = np.array([[first] for first, _ in runs])
        return ids, np.maximum(np.arange(cache.tokens)[None] - starts, 0).astype(np.uint64), runs
    positions = _by_documents(whole_numbers(positions, "positions", 1 << 63), cache.batch, "positions")
    require(positions.shape[1] in (cache.tokens, width), f"there are {positions.shape[1]} positions, and the cache holds {cache.tokens} tokens")
    for row, (first, end) in zip(positions, runs):
        falling = np.flatnonzero(row[first + 1:end] <= row[first:end - 1])
        require(len(falling) == 0, "positions must rise within a document" + (f"; {row[first + falling[0] + 1]} follows {row[first + falling[0]]}"
                                                                             if len(falling) else ""))
    return ids, positions, runs


def _by_documents(array, batch, what):
    array = array.reshape(1, -1) if array.ndim == 1 and batch == 1 else array
    require(array.ndim == 2 and array.shape[0] == batch, f"{what} have the shape {array.shape}; [{batch}, tokens] goes with the cache")
    return array


def _runs(mask, cache, width):
    if mask is None:
        return [(0, cache.tokens)] * cache.batch
    mask = np.asarray(mask.detach().cpu() if is_tensor(mask) else mask)
    require(mask.shape in ((cache.batch, cache.tokens), (cache.batch, width)),
            f"attention_mask has the shape {mask.shape}; {(cache.batch, cache.tokens)} goes with the cache")
    runs = []
    for number, row in enumerate(mask[:, :cache.tokens]):
        ones = np.flatnonzero(row)
        require(len(ones) > 0 and ones[-1] - ones[0] + 1 == len(ones), f"attention_mask: row {number} is no run of ones")
        runs.append((int(ones[0]), int(ones[-1]) + 1))
    return runs


def _names_of(names, batch):
    names = [names] if isinstance(names, str) else [f"document {number}" for number in range(batch)] if names is None else list(names)
    require(len(names) == batch, f"there are {len(names)} names and {batch} documents")
    require(len(set(names)) == batch, "two documents have the same name")
    return [text_bytes(name, "the name") for name in names]


def _metadata_of(metadata, batch):
    metadata = [metadata] if isinstance(metadata, dict) else [None] * batch if metadata is None else list(metadata)
    require(len(metadata) == batch, f"there is metadata of {len(metadata)} documents; there are {batch}")
    require(all(own is None or isinstance(own, dict) for own in metadata), "metadata of a document is a dict, or None")
    try:
        return [b"" if own is None else json.dumps(own, allow_nan=False, ensure_ascii=False).encode() for own in metadata]
    except (TypeError, ValueError) as error:
        raise Error(f"metadata cannot be written as JSON: {error}") from None


def _model_of(cache, held, config, name):
    """The structures (model, layers) for the library."""
    shapes = [(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in (cache.layers[number] for number in held)]
    sources = configs.sources(config, held, len(cache.layers))
    layers = (CLayer * len(sources))()
    for number, source in enumerate(sources):
        layers[number] = CLayer(0, 0, 0, 0, source)
    for number, shape in zip(held, shapes):
        layers[number] = CLayer(*shape, 0, -1)
    name = name or configs.value_of(config, "_name_or_path") or configs.value_of(config, "model_type") or "unknown"
    theta, scaling = configs.rope_of(config, shapes)
    heads = configs.query_heads(config, [heads for heads, _, _ in shapes])
    scores = configs.scores_of(config, len(sources))
    return CModel(text_bytes(name, "the model"), len(sources), heads, theta, scaling.encode(), b"post-rope", b"transformers", scores.encode()), layers


def _queries_of(queries, cache, held, heads, runs):
    """For each layer (numbers of the tokens, rows [tokens, heads, dimensions])."""
    require(cache.batch == 1, "queries of batches cannot be stored")
    first, end = runs[0]
    require(end == cache.tokens, "queries are of the last tokens, which attention_mask leaves out")
    dims = {number: cache.layers[number].keys.shape[3] for number in held}
    found = queries.rows(dims, heads, end - first)
    return {number: (np.arange(end - first - len(rows), end - first, dtype=np.uint64), rows) for number, rows in found.items()}
