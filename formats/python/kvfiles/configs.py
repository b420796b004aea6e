"""Facts that configs of transformers hold about a model's caches."""
import json
import math

# Models that turn the first dimensions of a head in pairs of j and j + n/2; of others the rotary embedding is not told.
_TURNED_IN_HALVES = {"gemma", "gemma2", "gpt_neox", "llama", "mistral", "mixtral", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
                     "stablelm", "starcoder2"}
# Models whose attention is a softmax over scores of earlier tokens, of all or of a window's, with at most a cap and sinks; and those of
# them whose layers all have the window that there is. Of others that is not told.
_SOFTMAX = _TURNED_IN_HALVES | {"deepseek_v2", "deepseek_v3", "gemma3_text", "gpt_oss"}
_WINDOW_EVERYWHERE = {"mistral", "mixtral", "phi3", "qwen3_moe", "starcoder2"}


def value_of(config, name, usual=None):
    value = getattr(text_config(config), name, None)
    return usual if value is None else value


def text_config(config):
    """The config of a model's text part; takes a config or a model."""
    config = config.config if hasattr(config, "named_parameters") else config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def query_heads(config, heads):
    """The model's query heads, which must be a multiple of all layers' heads."""
    number = value_of(config, "num_attention_heads", max(heads))
    return math.lcm(*heads) if any(number % own for own in heads) else number


def rope_of(config, shapes):
    """(base, description in JSON) of the rotary embedding; (0, "") where it is not known for sure. shapes: (heads, dimensions of keys, of
    values) of layers."""
    dims = {dims for _, *sides in shapes for dims in sides}
    if value_of(config, "model_type") not in _TURNED_IN_HALVES or len(dims) != 1:
        return 0.0, ""
    rope = value_of(config, "rope_parameters") or value_of(config, "rope_scaling") or {}
    theta = rope.get("rope_theta") or value_of(config, "rope_theta", 0.0)
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default" or any(isinstance(value, dict) for value in rope.values())
    if scaled or not theta:
        return 0.0, ""
    dims = dims.pop()
    part = rope.get("partial_rotary_factor") or value_of(config, "partial_rotary_factor") or value_of(config, "rotary_pct") or 1.0
    turned = int(dims * part)
    return float(theta), "" if turned == dims else json.dumps({"rotary_dims": turned})


def scores_of(config, layers):
    """What the model does to scores of attention, in JSON (FORMAT.md, "Scores"); "" where that is not known for sure. layers: how many there
    are."""
    model = value_of(config, "model_type")
    # Sinks are weights, of each layer and query head; a config does not have them.
    weights = config.named_parameters() if hasattr(config, "named_parameters") else ()
    sinks = [own.detach().float().tolist() for name, own in weights if name.endswith("self_attn.sinks")]
    if model not in _SOFTMAX or len(sinks) != (layers if model == "gpt_oss" else 0) or value_of(config, "use_bidirectional_attention"):
        return ""
    cap, window, kinds = (value_of(config, name) for name in ("attn_logit_softcapping", "sliding_window", "layer_types"))
    if not kinds:
        if window and model not in _WINDOW_EVERYWHERE:
            return ""
        kinds = ["sliding_attention" if window else "full_attention"] * layers
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        return ""
    windows = [int(window or 0) if kind == "sliding_attention" else 0 for kind in kinds]
    return json.dumps({**({"cap": cap} if cap else {}), **({"windows": windows} if any(windows) else {}), **({"sinks": sinks} if sinks else {})})


def sources(config, held, count):
    """For each layer the one whose keys and values it uses, -1 if it has its own or none. held: numbers of layers with keys and values; count:
    layers of the cache. The last layers of some models share with the last one of their kind before (Gemma 3n)."""
    shared = value_of(config, "num_kv_shared_layers", 0)
    total = max(count, value_of(config, "num_hidden_layers", count)) if shared else count
    kinds = value_of(config, "layer_types") or ["full_attention"] * total
    found = [-1] * total
    for layer in set(range(total - shared, total)) - set(held):
        found[layer] = max((other for other in held if kinds[other] == kinds[layer]), default=-1)
    return found
