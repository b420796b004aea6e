"""Caches of transformers, and lists of keys and values, as layers of plain arrays."""
from typing import Any, NamedTuple

from .arrays import check_floats
from .library import Error, require

# Attributes of caches and their layers that hold keys and values, or say how many there are.
_KEYS_AND_VALUES = {"layers", "keys", "values", "key_cache", "value_cache", "_quantized_keys", "_quantized_values", "cumulative_length",
                    "_sliding_window_tensor",
                    "_pending_beam_idx"}

# Attributes of layers of linear attention: dicts of tensors.
_STATES = ("conv_states", "recurrent_states")


class Layer(NamedTuple):
    """keys, values: [batch, heads, tokens, dimensions]; the first `kept` of these tokens count, and are the last ones that it has seen."""
    keys: Any
    values: Any
    kept: int
    seen: int  # None of a list of arrays, which does not say it


class Cache(NamedTuple):
    """layers: a Layer, or None where a layer has no keys and values of its own. tokens: how many the cache has seen. state: arrays
    [batch, ...] by name (layers.0.conv_states.0), of layers that go on with more than keys and values."""
    layers: list
    batch: int
    tokens: int
    state: dict


def read_cache(cache):
    """Reads a Cache of transformers, or a sequence of (keys, values) of all layers."""
    require(not hasattr(cache, "cross_attention_cache"),
            "the cache also holds keys and values of an encoder, for which kv files have no place; give its self_attention_cache")
    _refuse_state(cache)
    if hasattr(cache, "layers"):
        layers = [_layer_of_cache(number, layer) for number, layer in enumerate(cache.layers)]
    else:
        require(hasattr(cache, "key_cache") or hasattr(cache, "__iter__"), f"{type(cache).__name__} is no cache that kvfiles knows")
        pairs = zip(cache.key_cache, cache.value_cache) if hasattr(cache, "key_cache") else cache
        layers = [_layer_of_pair(number, pair) for number, pair in enumerate(pairs)]
    held = [(number, layer) for number, layer in enumerate(layers) if layer is not None]
    require(held, "the cache has no layers with keys and values")
    first, one = held[0]
    tokens = max(layer.kept if layer.seen is None else layer.seen for _, layer in held)
    require(tokens > 0, "the cache holds no tokens")
    batch = one.keys.shape[0]
    for number, layer in held:
        require(layer.keys.shape[0] == batch, f"layer {number} holds {layer.keys.shape[0]} documents; layer {first} holds {batch}")
        require(layer.seen in (None, tokens), f"layer {number} has seen {layer.seen} tokens, and another one {tokens}")
    state = _state_of(cache)
    for name, array in state.items():
        require(array.shape[0] == batch, f"{name} has the shape {tuple(array.shape)}; layer {first} holds {batch} documents")
    return Cache(layers, batch, tokens, state)


def _state_of(cache):
    """Convolutions and recurrent states of layers of linear attention."""
    found = {}
    for number, layer in enumerate(getattr(cache, "layers", [])):
        require(not (getattr(layer, "record_past", False) and _holds_numbers(getattr(layer, "conv_states", None))),
                f"layer {number} records its past; crop the cache first")
        for name in _STATES:
            for index, array in (getattr(layer, name, None) or {}).items():
                if array is not None:
                    found[f"layers.{number}.{name}.{index}"] = array
    return found


def _refuse_state(cache):
    """Refuses caches that hold more than keys, values and the states that _state_of() finds: keys of an index."""
    found = {}
    for number, thing in [(None, cache), *enumerate(getattr(cache, "layers", []))]:
        for name, value in getattr(thing, "__dict__", {}).items():
            stored = number is not None and name in _STATES and isinstance(value, dict)
            if name not in _KEYS_AND_VALUES and not stored and _holds_numbers(value):
                found.setdefault(name, []).extend([] if number is None else [number])
    if found:
        numbers = sorted({number for some in found.values() for number in some})
        whose = f"layers {', '.join(map(str, numbers))} hold" if numbers else "it holds"
        raise Error(f"the cache cannot be stored: {whose} state beside keys and values ({', '.join(sorted(found))}) that kvfiles does not "
                    "know, and without which the model cannot go on")


def _holds_numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_numbers(one) for one in value)
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 1 and all(shape)


def _layer_of_cache(number, layer):
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if getattr(layer, "_quantized_keys", None) is not None:
        keys, values = _dequantized(number, layer)
    if keys is None or len(keys.shape) < 4:  # nothing was written yet, or never is
        return None
    seen = int(layer.get_seq_length())
    return _checked(number, Layer(keys, values, min(seen, keys.shape[2]), seen))


def _dequantized(number, layer):
    """Keys and values of a quantized layer: those that are quantized, and behind them those that are not yet."""
    import torch
    sides = []
    for quantized, rest in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
        side = layer._dequantize(quantized).to(rest.dtype)
        if getattr(layer, "_pending_beam_idx", None) is not None:  # a search by beams has reordered the others only
            side = side.index_select(0, layer._pending_beam_idx.to(side.device))
        sides.append(torch.cat([side, rest], dim=2) if rest.numel() > 0 else side)
    require(sides[0].shape[2] == layer.get_seq_length(),
            f"layer {number} is quantized and holds {sides[0].shape[2]} tokens, but has seen {layer.get_seq_length()}")
    return sides


def _layer_of_pair(number, pair):
    require(hasattr(pair, "__len__") and len(pair) >= 2, f"layer {number} is no pair of keys and values")
    keys, values = pair[0], pair[1]
    if keys is None or len(keys) == 0:
        return None
    require(hasattr(keys, "shape") and hasattr(values, "shape"), f"keys and values of layer {number} are no arrays")
    return _checked(number, Layer(keys, values, keys.shape[2] if len(keys.shape) == 4 else 0, None))


def _checked(number, layer):
    for what, array in (("keys", layer.keys), ("values", layer.values)):
        require(len(array.shape) == 4, f"{what} of layer {number} have the shape {tuple(array.shape)}; [batch, heads, tokens, dimensions] is wanted")
        require(array.shape[1] > 0 and array.shape[3] > 0, f"{what} of layer {number} have no heads or dimensions: {tuple(array.shape)}")
        check_floats(array, f"{what} of layer {number}")
    require(layer.keys.shape[:3] == layer.values.shape[:3],
            f"layer {number} has keys of the shape {tuple(layer.keys.shape)} and values of the shape {tuple(layer.values.shape)}; documents, heads "
            "and tokens must be as many")
    return layer
