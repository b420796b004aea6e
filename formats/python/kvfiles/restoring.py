"""Documents of files as caches of transformers."""
from .arrays import tensor_of, tensor_of_state
from .configs import text_config
from .files import File, open
from .library import require


def to_cache(file, document=0, *, config=None, dtype=None, device=None, book=None):
    """A document of a kv or codes file as a DynamicCache of transformers, of a batch of one, which generation goes on with.

    file: its name, or what open() gave. document: its number or name. config: the model's, which says where layers have sliding windows or
    share keys and values; needed only then. dtype: of torch; by default that of the cache that was stored. Refused are documents that the
    model would go on with at wrong positions: those of a DynamicCache count from 0, without gaps.
    """
    if not isinstance(file, File):
        with open(file, book) as opened:
            return to_cache(opened, document, config=config, dtype=dtype, device=device)
    import torch
    from transformers.cache_utils import DynamicCache
    own = file[document]
    where = f"{file.path}: document '{own.name}'"
    require(file.model.key_state != "pre-rope", f"{file.path}: its keys are from before the rotary embedding; a model's cache has them behind it")
    dtype = dtype or {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[file.dtype]
    cache = DynamicCache(config=config) if config is not None else DynamicCache()
    if config is None:
        require(own.layers == list(range(file.model.layers)), f"{file.path}: not every layer has keys and values; give the model's config")
    else:
        _check_layers(file, cache)
        kinds = getattr(text_config(config), "layer_types", None) or [""] * len(cache.layers)
        # Layers of these kinds keep nothing, though their place in a cache is one for states.
        empty = [number for number, kind in enumerate(kinds) if kind in ("moe", "mlp")]
        _fill_state(cache, own.state, empty, where, device)
    windows = {layer: getattr(cache.layers[layer], "sliding_window", None) if config is not None else None for layer in own.layers}
    seen = _tokens_seen(own, where, windows)
    for layer in own.layers:
        require(not file.shape(layer).values_in_keys, f"{file.path}: values lie in keys in layer {layer}; transformers' caches have both")
        window = windows[layer]
        needed = min(seen, len(own) if window is None else window - 1)
        require(own.kept(layer) >= needed, f"{where}: layer {layer} holds the last {own.kept(layer)} tokens, and the model goes on with {needed}"
                + ("; give the model's config" if config is None else ""))
        _fill(cache, layer, [_tensor(own, layer, side, needed, dtype, device) for side in ("key", "value")], None if window is None else seen)
    return cache


_KNOWN = ("DynamicLayer", "DynamicSlidingWindowLayer", "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")


def _check_layers(file, cache):
    from transformers.cache_utils import DynamicLayer
    wanted = [number for number, layer in enumerate(cache.layers) if isinstance(layer, DynamicLayer)]
    require(wanted == file.layers, f"{file.path}: it holds {len(file.layers)} layers (the last is {file.layers[-1]}); the model keeps {len(wanted)} "
            f"(the last is {wanted[-1] if wanted else 'none'})")
    other = [number for number in wanted if type(cache.layers[number]).__name__ not in _KNOWN]
    require(not other, f"layers {', '.join(map(str, other))} of the model keep more than keys and values ({type(cache.layers[other[0]]).__name__})"
            if other else "")


def _fill_state(cache, state, empty, where, device):
    """Gives layers of linear attention their states. Every state must have a layer, and every such layer a state, those in empty aside."""
    given = {}
    for name, (kind, array) in state.items():
        words = name.split(".")
        known = len(words) == 4 and words[0] == "layers" and words[1].isdigit() and words[3].isdigit() and int(words[1]) < len(cache.layers)
        layer = cache.layers[int(words[1])] if known else None
        require(hasattr(layer, words[2] if known else "?") and words[2] in ("conv_states", "recurrent_states") and int(words[3]) < layer.number_of_states,
                f"{where}: the model's cache has no place for its {name}")
        given[int(words[1]), words[2], int(words[3])] = tensor_of_state(kind, array, device)
    for number, layer in enumerate(cache.layers):
        if not type(layer).__name__.startswith("LinearAttention") or number in empty:
            continue
        for index in range(layer.number_of_states):
            convolution, matrices = (given.get((number, name, index)) for name in ("conv_states", "recurrent_states"))
            require(convolution is not None or matrices is not None, f"{where}: layer {number} of the model goes on with a state, and has none here")
            if convolution is not None:
                layer.update_conv_state(convolution, index)
            if matrices is not None:
                layer.update_recurrent_state(matrices, index)


def _tokens_seen(document, where, windows):
    """The position at which the model goes on. Layers with windows are told it; all others count their rows."""
    positions = document.positions
    require(len(positions) > 0, f"{where}: has no tokens")
    first, last = int(positions[0]), int(positions[-1])
    require(last - first + 1 == len(positions), f"{where}: its positions, {first} to {last}, have gaps; the model would go on at {len(positions)}")
    whole = [layer for layer, window in windows.items() if window is None]
    require(first == 0 or not whole, f"{where}: its positions are {first} to {last}; a model whose layers attend to all tokens would go on at "
            f"{len(positions)} instead of {last + 1}")
    return last + 1


def _tensor(document, layer, side, count, dtype, device):
    import torch
    kind = "bf16" if dtype == torch.bfloat16 and document.file.dtype == "bf16" else "f16" if dtype == torch.float16 else "f32"
    read = document.key if side == "key" else document.value
    tensor = tensor_of(read(layer, kind, document.kept(layer) - count, count), kind)
    return tensor.to(device=device, dtype=dtype).contiguous()


def _fill(cache, layer, sides, seen):
    """seen: of a layer with a sliding window, how many tokens it has seen."""
    if layer >= len(cache.layers):
        cache.update(*sides, layer)
        return
    own = cache.layers[layer]
    own.lazy_initialization(*sides)
    own.keys, own.values = sides
    if seen is not None:
        own.cumulative_length = seen
