"""Small random models: cache -> import -> encode -> export -> generate, and the same through kvfiles.

What is printed must be so with any version of the libraries; how often 4 bits choose the same token goes to agreement.txt.
"""
import copy
import subprocess

import torch
from models import FAMILIES, HYBRIDS, made, prompt
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DynamicCache

import kvfiles

STEPS = 32


def run(*words):
    subprocess.run(["kvcodec", *words, "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)


def restored(path, config):
    """As INTEROP.md says."""
    tensors = load_file(path)
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if f"layers.{i}.conv_states.0" in tensors:
            layer.update_conv_state(tensors[f"layers.{i}.conv_states.0"])
            layer.update_recurrent_state(tensors[f"layers.{i}.recurrent_states.0"])
            continue
        keys, values = tensors[f"layers.{i}.keys"], tensors[f"layers.{i}.values"]
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = tensors["position_ids"].shape[1]
    return cache


@torch.no_grad()
def generate(model, cache, given=None):
    """The most probable tokens; each is fed back, or one of those given is."""
    token, tokens = 7, []
    for i in range(STEPS):
        tokens.append(int(model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1].argmax()))
        token = tokens[-1] if given is None else given[i]
    return tokens


torch.set_num_threads(1)
with open("agreement.txt", "w") as agreement:
    for name in ("Llama", "Qwen3", "Gemma 3", "DeepSeek-V2", "DeepSeek-V3", "Qwen3.5"):
        model = made({**FAMILIES, **HYBRIDS}[name], torch.bfloat16)
        ids = prompt(200)
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, past_key_values=cache)
        if name.startswith("DeepSeek"):
            assert all(layer.keys.shape[3] != layer.values.shape[3] for layer in cache.layers), "keys and values are as wide"
        tensors = {"input_ids": ids}
        for i, layer in enumerate(cache.layers):
            if hasattr(layer, "conv_states"):
                tensors[f"layers.{i}.conv_states.0"] = layer.conv_states[0].contiguous()
                tensors[f"layers.{i}.recurrent_states.0"] = layer.recurrent_states[0].contiguous()
                continue
            tensors[f"layers.{i}.keys"], tensors[f"layers.{i}.values"] = layer.keys.contiguous(), layer.values.contiguous()
        save_file(tensors, "cache.safetensors")
        wanted = generate(model, copy.deepcopy(cache))
        run("import", "cache.safetensors", "-o", "kv.h5")
        kvfiles.from_cache(cache, ids, "own.h5", config=model.config, overwrite=True)
        for kv in ("kv.h5", "own.h5"):
            run("encode", kv, "--codec", "lossless", "-o", "codes.h5")
            run("export", "codes.h5", "--to", "transformers", "-o", "out.safetensors")
            out = load_file("out.safetensors")
            assert all(torch.equal(out[key], tensors[key]) for key in tensors), name
            assert generate(model, restored("out.safetensors", model.config)) == wanted, name
            assert generate(model, kvfiles.to_cache("codes.h5", config=model.config)) == wanted, name
        print(f"{name}: lossless, the same {STEPS} tokens")
        run("encode", "kv.h5", "--codec", "q4", "--bits", "4", "-o", "codes.h5")
        run("export", "codes.h5", "--to", "transformers", "-o", "out.safetensors")
        for one, other in zip(restored("out.safetensors", model.config).layers, kvfiles.to_cache("codes.h5", config=model.config).layers):
            if hasattr(one, "conv_states"):
                assert torch.equal(one.conv_states[0], other.conv_states[0]) and torch.equal(one.recurrent_states[0], other.recurrent_states[0])
                continue
            assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values), f"{name}: program and package differ"
        free = generate(model, restored("out.safetensors", model.config))
        led = generate(model, restored("out.safetensors", model.config), wanted)
        same = [sum(a == b for a, b in zip(wanted, tokens)) for tokens in (free, led)]
        agreement.write(f"{name}: q4 with 4 bits, {same[0]} of {STEPS} tokens, {same[1]} where the right ones are fed back\n")
