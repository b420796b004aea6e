"""Small random models: cache -> import -> encode -> export -> generate, and the same through kvcodec.py.

What is printed must be so with any version of the libraries; how often 4 bits choose the same token goes to agreement.txt.
"""
import copy
import subprocess

import torch
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM,
                          Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM)
from transformers.cache_utils import DynamicCache

import kvcodec

USUAL = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512)
LATENT = {**USUAL, **dict(num_key_value_heads=4, moe_intermediate_size=32, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16,
                          qk_nope_head_dim=32, v_head_dim=24, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                          first_k_dense_replace=1)}
MODELS = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**USUAL)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**USUAL, head_dim=32)),
    "Gemma 3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**{**USUAL, "num_hidden_layers": 7}, head_dim=32, sliding_window=12,
                                                          query_pre_attn_scalar=32)),
    "DeepSeek-V2": lambda: DeepseekV2ForCausalLM(DeepseekV2Config(**LATENT)),
    "DeepSeek-V3": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**LATENT)),
}
STEPS = 32


def run(*words):
    subprocess.run(["kvcodec", *words, "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)


def restored(path, config):
    """As INTEROP.md says."""
    tensors = load_file(path)
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
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
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make().to(torch.bfloat16).eval()
        ids = torch.randint(5, 250, (1, 200))
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, past_key_values=cache)
        if name.startswith("DeepSeek"):
            assert all(layer.keys.shape[3] != layer.values.shape[3] for layer in cache.layers), "keys and values are as wide"
        tensors = {"input_ids": ids}
        for i, layer in enumerate(cache.layers):
            tensors[f"layers.{i}.keys"], tensors[f"layers.{i}.values"] = layer.keys.contiguous(), layer.values.contiguous()
        save_file(tensors, "cache.safetensors")
        wanted = generate(model, copy.deepcopy(cache))
        run("import", "cache.safetensors", "-o", "kv.h5")
        kvcodec.from_cache(cache, ids, "own.h5", config=model.config)
        for kv in ("kv.h5", "own.h5"):
            run("encode", kv, "--codec", "lossless", "-o", "codes.h5")
            run("export", "codes.h5", "--to", "transformers", "-o", "out.safetensors")
            out = load_file("out.safetensors")
            assert all(torch.equal(out[key], tensors[key]) for key in tensors), name
            assert generate(model, restored("out.safetensors", model.config)) == wanted, name
            assert generate(model, kvcodec.to_cache("codes.h5", config=model.config)) == wanted, name
        print(f"{name}: lossless, the same {STEPS} tokens")
        run("encode", "kv.h5", "--codec", "q4", "--bits", "4", "-o", "codes.h5")
        run("export", "codes.h5", "--to", "transformers", "-o", "out.safetensors")
        for one, other in zip(restored("out.safetensors", model.config).layers, kvcodec.to_cache("codes.h5", config=model.config).layers):
            assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values), f"{name}: program and module differ"
        free = generate(model, restored("out.safetensors", model.config))
        led = generate(model, restored("out.safetensors", model.config), wanted)
        same = [sum(a == b for a, b in zip(wanted, tokens)) for tokens in (free, led)]
        agreement.write(f"{name}: q4 with 4 bits, {same[0]} of {STEPS} tokens, {same[1]} where the right ones are fed back\n")
