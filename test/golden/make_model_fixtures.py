#!/usr/bin/env python3
"""Makes test/golden/model/: small random-weight models of all families and what transformers computes with them.

Each folder holds a model as transformers saves it (config.json, *.safetensors), documents.json (token ids, one list per
document) and reference.safetensors (float32, rows of all documents one behind the other):
  key.<layer>, value.<layer>   (tokens, num_kv_heads * head_dim), keys after the rotary embedding
  key_before_rope.<layer>      the same keys after q/k normalisation and before the rotary embedding
  query.<last layer>           (tokens, num_q_heads * head_dim), after the rotary embedding, multiplied so that
                               q k / sqrt(head_dim) is the model's score
  logits                       (tokens, vocabulary), or of each document's last token in the long cases
Of latent attention (DeepSeek) there are no values: key is what the cache holds, the latent vector and behind it the turned
dimensions, the first of each pair before the others; query is multiplied by what makes keys of latent vectors.
Weights stored in 16 bits are widened, and everything is computed in float32, each document alone.
test/golden/model/rope-*: cosines and sines of transformers' rotary embedding at positions up to 131071.

Made with torch 2.15.0, transformers 5.23.0 (phi-*, starcoder2-*, qwen3_next-*, qwen3_5-*, gemma4-*, lfm2-*, gpt2-*: 5.24.0; gemma4-*: torch 2.9.0), safetensors 0.8.0; run it with a Python that has them:
make_model_fixtures.py [NAME ...]   only these; all, and nothing else is left, without names
"""
import importlib
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parent / "model"
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "gemma4": (transformers.Gemma4TextConfig, transformers.Gemma4ForCausalLM),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "phi": (transformers.PhiConfig, transformers.PhiForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
    "qwen3_5": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
    "starcoder2": (transformers.Starcoder2Config, transformers.Starcoder2ForCausalLM),
    "lfm2": (transformers.Lfm2Config, transformers.Lfm2ForCausalLM),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
}
SHORT = [31, 1, 42]  # lengths of the documents
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def sizes(layers, hidden, intermediate, q_heads, kv_heads, head_dim=None):
    given = dict(head_dim=head_dim) if head_dim else {}
    return dict(num_hidden_layers=layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=q_heads,
                num_key_value_heads=kv_heads, **given)


def latent(rank, query_rank, plain, turned, value):
    return dict(kv_lora_rank=rank, q_lora_rank=query_rank, qk_nope_head_dim=plain, qk_rope_head_dim=turned, v_head_dim=value)


def experts(count, chosen, width, shared, dense, groups=None, chosen_groups=None, scale=1.0):
    return dict(n_routed_experts=count, num_experts_per_tok=chosen, moe_intermediate_size=width, n_shared_experts=shared,
                first_k_dense_replace=dense, n_group=groups, topk_group=chosen_groups, routed_scaling_factor=scale)


def delta(key_heads, value_heads, key_dim, value_dim, kernel):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=key_dim,
                linear_value_head_dim=value_dim, linear_conv_kernel_dim=kernel)


def rope(theta, **scaling):
    return {"rope_theta": theta, "rope_type": "default", **scaling}


# name: (family, configuration, dtype of the weights, special properties)
# old: config.json in the form before rope_parameters, with that name for the scaling's type
# shards: several files; lengths: other documents
# New ones go to the end: a model's index here is the seed of its weights.
CASES = {
    "llama-1": ("llama", dict(sizes(2, 48, 72, 4, 4), rope_parameters=rope(10000.0)), "float32", {}),
    "llama-2": ("llama", dict(sizes(3, 32, 100, 4, 2), rope_parameters=rope(10000.0, rope_type="linear", factor=4.0),
                              tie_word_embeddings=True), "bfloat16", dict(old="type")),
    "llama-4": ("llama", dict(sizes(2, 48, 80, 8, 2, 32), rope_parameters=rope(500000.0, **LLAMA3)), "float16",
                dict(old="rope_type", shards=True)),
    "llama-8": ("llama", dict(sizes(2, 48, 60, 8, 1), rope_parameters=rope(5000.0), attention_bias=True, mlp_bias=True,
                              rms_norm_eps=1e-5), "float32", {}),
    "llama-long": ("llama", dict(sizes(2, 16, 24, 4, 2, 8), rope_parameters=rope(10000.0, **LLAMA3)), "float32",
                   dict(lengths=[1100, 5])),
    "mistral-1": ("mistral", dict(sizes(2, 48, 64, 3, 3), rope_parameters=rope(10000.0), sliding_window=16), "float16",
                  dict(old="type")),
    "mistral-2": ("mistral", dict(sizes(2, 48, 56, 4, 2, 20), rope_parameters=rope(1000000.0), sliding_window=None), "float32",
                  dict(shards=True)),
    "mistral-4": ("mistral", dict(sizes(3, 32, 72, 4, 1, 16), rope_parameters=rope(10000.0), sliding_window=7), "bfloat16", {}),
    "mistral-8": ("mistral", dict(sizes(2, 48, 64, 16, 2, 8), rope_parameters=rope(10000.0, rope_type="linear", factor=2.0),
                                  sliding_window=33, tie_word_embeddings=True), "float32", {}),
    "mistral-long": ("mistral", dict(sizes(2, 16, 24, 2, 1, 8), rope_parameters=rope(10000.0), sliding_window=300), "bfloat16",
                     dict(lengths=[3, 1000])),
    "qwen2-1": ("qwen2", dict(sizes(2, 32, 64, 2, 2), rope_parameters=rope(1000000.0), tie_word_embeddings=True), "bfloat16",
                dict(old="type")),
    "qwen2-2": ("qwen2", dict(sizes(3, 32, 44, 4, 2), rope_parameters=rope(10000.0), use_sliding_window=True, sliding_window=12,
                              max_window_layers=1), "float32", dict(old="type")),
    "qwen2-4": ("qwen2", dict(sizes(2, 64, 64, 4, 1), rope_parameters=rope(1000000.0, **LLAMA3)), "float16", dict(shards=True)),
    "qwen2-8": ("qwen2", dict(sizes(2, 64, 72, 8, 1), rope_parameters=rope(1000000.0), use_sliding_window=True,
                              sliding_window=20, layer_types=["sliding_attention", "full_attention"]), "bfloat16", {}),
    "qwen3-1": ("qwen3", dict(sizes(2, 32, 64, 2, 2, 32), rope_parameters=rope(1000000.0)), "float32", dict(shards=True)),
    "qwen3-2": ("qwen3", dict(sizes(3, 32, 80, 4, 2, 16), rope_parameters=rope(1000000.0), tie_word_embeddings=True), "bfloat16",
                dict(old="rope_type")),
    "qwen3-4": ("qwen3", dict(sizes(2, 48, 64, 8, 2, 16), rope_parameters=rope(10000.0, rope_type="linear", factor=3.0),
                              use_sliding_window=True, sliding_window=25, max_window_layers=0), "float16", {}),
    "qwen3-8": ("qwen3", dict(sizes(2, 40, 64, 8, 1, 12), rope_parameters=rope(1000000.0), attention_bias=True), "float32", {}),
    "llama-yarn": ("llama", dict(sizes(2, 32, 48, 4, 2, 16), rope_parameters=rope(
        10000.0, **YARN, truncate=False, beta_fast=16, beta_slow=2, mscale=1.2, mscale_all_dim=0.7)), "bfloat16", {}),
    "qwen3-yarn": ("qwen3", dict(sizes(2, 32, 48, 4, 2, 16), rope_parameters=rope(1000000.0, **YARN)), "float32",
                   dict(old="rope_type")),
    "smollm3-1": ("smollm3", dict(sizes(3, 32, 48, 4, 2), rope_parameters=rope(2000000.0), no_rope_layers=[1, 0, 1],
                                  use_sliding_window=True, sliding_window=10, pad_token_id=0), "bfloat16", {}),
    "smollm3-2": ("smollm3", dict(sizes(5, 32, 40, 4, 4), rope_parameters=rope(10000.0, **YARN), attention_bias=True,
                                  mlp_bias=True, tie_word_embeddings=False, pad_token_id=0), "bfloat16", dict(old="type")),
    "granite-1": ("granite", dict(sizes(2, 48, 72, 4, 2), rope_parameters=rope(10000.0), embedding_multiplier=6.0,
                                  attention_multiplier=0.2, residual_multiplier=0.22, logits_scaling=3.0), "float16",
                  dict(old="type")),
    "granite-2": ("granite", dict(sizes(2, 32, 48, 4, 1), rope_parameters=rope(5000000.0), embedding_multiplier=1.5,
                                  attention_multiplier=0.5, residual_multiplier=0.7, attention_bias=True, mlp_bias=True,
                                  tie_word_embeddings=True), "bfloat16", {}),
    "olmo2-1": ("olmo2", dict(sizes(2, 48, 64, 4, 4), rope_parameters=rope(500000.0), pad_token_id=0), "bfloat16", {}),
    "olmo2-2": ("olmo2", dict(sizes(2, 40, 48, 4, 2), rope_parameters=rope(10000.0), attention_bias=True, pad_token_id=0),
                "float16", dict(old="type")),
    "phi3-1": ("phi3", dict(sizes(2, 48, 64, 4, 2), rope_parameters=rope(10000.0), sliding_window=20, pad_token_id=0),
               "bfloat16", {}),
    # Documents of 31 and 1 tokens have one list of divisors, that of 42 the other.
    "phi3-2": ("phi3", dict(sizes(2, 64, 48, 4, 4), original_max_position_embeddings=40, rope_parameters=rope(
        10000.0, rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3, 1.5, 2.0, 2.5],
        long_factor=[1.5, 2.0, 4.0, 8.0, 20.0, 40.0]), tie_word_embeddings=True, pad_token_id=0), "bfloat16", dict(old="type")),
    "gemma2-1": ("gemma2", dict(sizes(3, 32, 48, 4, 2, 12), rope_parameters=rope(10000.0), sliding_window=9,
                                query_pre_attn_scalar=5, attn_logit_softcapping=6.0, final_logit_softcapping=9.0), "bfloat16", {}),
    "gemma2-2": ("gemma2", dict(sizes(2, 40, 32, 4, 4, 8), rope_parameters=rope(10000.0), query_pre_attn_scalar=144,
                                attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True), "float16",
                 dict(old="type")),
    "gemma3-1": ("gemma3", dict(sizes(4, 32, 48, 4, 1, 12), layer_types=["sliding_attention", "full_attention"] * 2,
                                sliding_window=10, query_pre_attn_scalar=20, final_logit_softcapping=7.0, rope_parameters={
        "full_attention": rope(1000000.0, rope_type="linear", factor=8.0), "sliding_attention": rope(10000.0)}), "bfloat16", {}),
    "gemma3-2": ("gemma3", dict(sizes(7, 16, 24, 2, 2, 8), sliding_window=12, query_pre_attn_scalar=8), "float32",
                 dict(old="rope_type")),
    "gpt_neox-1": ("gpt_neox", dict(sizes(2, 64, 80, 4, 4), rope_parameters=rope(10000.0, partial_rotary_factor=0.25)),
                   "bfloat16", {}),
    "gpt_neox-2": ("gpt_neox", dict(sizes(2, 48, 64, 3, 3), rope_parameters=rope(5000.0, partial_rotary_factor=0.5),
                                    use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new"), "float16",
                   dict(old="neox")),
    "mixtral-1": ("mixtral", dict(sizes(2, 32, 24, 4, 2), rope_parameters=rope(1000000.0), num_local_experts=5,
                                  num_experts_per_tok=2, sliding_window=14), "bfloat16", {}),
    "qwen3_moe-1": ("qwen3_moe", dict(sizes(3, 32, 40, 4, 2, 12), rope_parameters=rope(1000000.0), num_experts=6,
                                      num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True,
                                      mlp_only_layers=[1]), "bfloat16", {}),
    "qwen3_moe-2": ("qwen3_moe", dict(sizes(2, 32, 40, 4, 4, 8), rope_parameters=rope(10000.0), num_experts=7,
                                      num_experts_per_tok=2, moe_intermediate_size=12, decoder_sparse_step=2), "bfloat16",
                    dict(old="rope_type")),
    "gpt_oss-1": ("gpt_oss", dict(sizes(3, 32, 20, 4, 2, 16), rope_parameters=rope(150000.0, **YARN, truncate=False),
                                  num_local_experts=5, num_experts_per_tok=2, sliding_window=12), "bfloat16", {}),
    "gpt_oss-long": ("gpt_oss", dict(sizes(2, 16, 12, 2, 1, 8), rope_parameters=rope(150000.0, **YARN), num_local_experts=3,
                                     num_experts_per_tok=1, sliding_window=300), "bfloat16",
                     dict(old="rope_type", lengths=[1100, 3])),
    "deepseek_v2-1": ("deepseek_v2", dict(sizes(3, 32, 40, 4, 4), **latent(12, None, 8, 6, 10), **experts(6, 2, 20, 2, 1, scale=1.5),
                                          rope_parameters=rope(10000.0)), "bfloat16", {}),
    "deepseek_v2-2": ("deepseek_v2", dict(sizes(2, 48, 40, 4, 4), **latent(16, 20, 10, 8, 6), **experts(8, 3, 12, 1, 0, 4, 2, 3.0),
                                          topk_method="group_limited_greedy", attention_bias=True, rope_parameters=rope(
        10000.0, **YARN, mscale=0.9, mscale_all_dim=0.7)), "bfloat16", dict(old="type")),
    "deepseek_v3-1": ("deepseek_v3", dict(sizes(3, 32, 48, 4, 4), **latent(20, 24, 6, 8, 12), **experts(8, 3, 16, 1, 1, 4, 2, 2.5),
                                          rope_parameters=rope(10000.0, **YARN, mscale=1.0, mscale_all_dim=1.0)), "bfloat16", {}),
    "deepseek_v3-2": ("deepseek_v3", dict(sizes(2, 32, 40, 2, 2), **latent(14, None, 12, 4, 8), **experts(5, 2, 12, 2, 1, 1, 1, 1.5),
                                          norm_topk_prob=False, rope_interleave=False, attention_bias=True,
                                          rope_parameters=rope(50000.0)), "float16", dict(old="rope_type")),
    "deepseek_v3-long": ("deepseek_v3", dict(sizes(2, 16, 24, 2, 2), **latent(8, 6, 4, 4, 4), **experts(4, 2, 8, 1, 1, 2, 1, 2.0),
                                             rope_parameters=rope(10000.0, **YARN, mscale=1.0, mscale_all_dim=1.0)), "bfloat16",
                         dict(lengths=[1100, 3])),
    "starcoder2-1": ("starcoder2", dict(sizes(2, 48, 64, 4, 2), rope_parameters=rope(1000000.0), sliding_window=4096), "bfloat16", {}),
    "starcoder2-2": ("starcoder2", dict(sizes(3, 32, 56, 4, 1), rope_parameters=rope(10000.0, rope_type="linear", factor=2.0),
                                        use_bias=False, sliding_window=11, hidden_act="gelu", norm_epsilon=1e-3,
                                        tie_word_embeddings=False), "float16", dict(old="type")),
    "phi-1": ("phi", dict(sizes(2, 60, 80, 3, 3), rope_parameters=rope(10000.0, partial_rotary_factor=0.4)), "bfloat16", {}),
    "phi-2": ("phi", dict(sizes(3, 48, 56, 4, 2), rope_parameters=rope(5000.0, partial_rotary_factor=0.5), qk_layernorm=True,
                          hidden_act="gelu", tie_word_embeddings=True), "float16", dict(old="type")),
    "qwen3_next-1": ("qwen3_next", dict(sizes(4, 32, 40, 4, 2, 16), **delta(2, 4, 8, 6, 4), num_experts=6, num_experts_per_tok=2,
                                        moe_intermediate_size=12, shared_expert_intermediate_size=20, mlp_only_layers=[1],
                                        rope_parameters=rope(1000000.0, partial_rotary_factor=0.25)), "bfloat16", {}),
    "qwen3_next-long": ("qwen3_next", dict(sizes(3, 16, 24, 2, 1, 8), **delta(1, 2, 4, 8, 3), num_experts=3, num_experts_per_tok=1,
                                           norm_topk_prob=False, moe_intermediate_size=8, shared_expert_intermediate_size=12,
                                           layer_types=["linear_attention", "full_attention", "full_attention"],
                                           rope_parameters=rope(10000.0, partial_rotary_factor=0.5)), "bfloat16",
                        dict(lengths=[1100, 3])),
    "qwen3_5-1": ("qwen3_5", dict(sizes(5, 48, 64, 4, 1, 24), **delta(3, 3, 6, 10, 4), attention_bias=True,
                                  layer_types=["full_attention", "linear_attention", "linear_attention", "linear_attention",
                                               "full_attention"],
                                  rope_parameters=rope(10000.0, partial_rotary_factor=0.25)), "bfloat16", {}),
    "qwen3_5-2": ("qwen3_5", dict(sizes(3, 32, 40, 4, 2, 16), **delta(2, 6, 4, 5, 3), tie_word_embeddings=True,
                                  layer_types=["linear_attention", "linear_attention", "full_attention"],
                                  rope_parameters=rope(1000000.0, partial_rotary_factor=0.5)), "bfloat16", {}),
    "qwen3-fp8": ("qwen3", dict(sizes(1, 160, 96, 3, 1, 64), rope_parameters=rope(1000000.0)), "float32", dict(packed="fp8")),
    "gpt_oss-mxfp4": ("gpt_oss", dict(sizes(2, 64, 32, 4, 2, 16), rope_parameters=rope(150000.0, **YARN), num_local_experts=3,
                                      num_experts_per_tok=2, sliding_window=9), "bfloat16", dict(packed="mxfp4")),
    "gemma4-1": ("gemma4", dict(sizes(7, 32, 48, 4, 2, 8), layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2 +
                                ["full_attention"], sliding_window=10, global_head_dim=16, num_global_key_value_heads=1,
                                attention_k_eq_v=True, num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=7.0,
                                vocab_size_per_layer_input=70, hidden_size_per_layer_input=6), "bfloat16", {}),
    "gemma4-2": ("gemma4", dict(sizes(7, 16, 24, 4, 1, 12), sliding_window=12, hidden_size_per_layer_input=0, attention_bias=True,
                                num_kv_shared_layers=0, global_head_dim=8, rope_parameters={
        "full_attention": rope(1000000.0, rope_type="proportional", partial_rotary_factor=0.75, factor=2.0),
        "sliding_attention": rope(5000.0)}), "float32", dict(old="gemma4")),
    "gemma4-3": ("gemma4", dict(sizes(3, 32, 48, 4, 2, 8), layer_types=["sliding_attention", "full_attention", "full_attention"],
                                sliding_window=14, global_head_dim=16, hidden_size_per_layer_input=0, enable_moe_block=True,
                                num_experts=5, top_k_experts=2, moe_intermediate_size=20), "bfloat16", dict(wrapped=True)),
    "lfm2-1": ("lfm2", dict(sizes(4, 32, 70, 4, 2), rope_parameters=rope(1000000.0), block_multiple_of=8, conv_L_cache=4,
                            layer_types=["conv", "full_attention", "conv", "full_attention"]), "bfloat16", {}),
    "lfm2-2": ("lfm2", dict(sizes(3, 48, 60, 6, 3), rope_parameters=rope(10000.0), conv_bias=True, full_attn_idxs=[2],
                            block_multiple_of=10, block_ffn_dim_multiplier=1.3, norm_eps=1e-3, tie_word_embeddings=False), "float16",
               dict(old="lfm2")),
    "lfm2-long": ("lfm2", dict(sizes(2, 16, 24, 2, 1), rope_parameters=rope(10000.0), block_auto_adjust_ff_dim=False,
                               layer_types=["conv", "full_attention"]), "bfloat16", dict(lengths=[1100, 3])),
    "gpt2-1": ("gpt2", dict(n_layer=2, n_embd=48, n_head=4, tie_word_embeddings=True), "bfloat16", {}),
    "gpt2-2": ("gpt2", dict(n_layer=3, n_embd=32, n_head=2, n_inner=40, scale_attn_weights=False, activation_function="gelu",
                            layer_norm_epsilon=1e-3, tie_word_embeddings=False), "float16", {}),
}
VOCABULARY = 64


def randomise(model, generator):
    """Weights that spread the attention and keep activations near 1; every bias and norm matters."""
    with torch.no_grad():
        corrections = [(name, tensor) for name, tensor in model.named_buffers() if name.endswith(("correction_bias", "layer_scalar"))]
        for name, weight in [*model.named_parameters(), *corrections]:
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("A_log"):
                weight.copy_(0.7 * noise - 1)
            elif name.endswith(("bias", "sinks")):
                weight.copy_(0.3 * noise)
            elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
                weight.copy_(1 + 0.2 * noise)
            elif "norm" in name or ".ln_" in name:
                weight.copy_(weight.mean().round() + 0.3 * noise)  # around 1, or 0 where the model adds 1
                if name.endswith("q_norm.weight") and model.config.model_type == "gemma4_text":
                    weight.mul_(0.4)  # scores are not divided by the root of the head dimension
            elif name.endswith(("wte.weight", "wpe.weight")) or "embed" in name and "embed_out" not in name:
                weight.copy_(noise)
            else:
                inputs = 1 if weight.dim() == 3 and model.config.model_type == "gpt_oss" else 0 if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else -1
                weight.copy_((3 if inputs == 1 else 1.2) * noise / weight.shape[inputs] ** 0.5)


def make_old(folder, type_key):
    """Rewrites config.json as older versions of transformers had it, the scaling's type under that name."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    if type_key == "gemma4":
        config["global_head_dim"] = config.pop("per_layer_config")["5"]["head_dim"]
        del config["layer_types"]
        file.write_text(json.dumps(config, indent=2) + "\n")
        return
    parameters = config.pop("rope_parameters")
    if "sliding_attention" in parameters:  # Gemma 3
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
        parameters = parameters["full_attention"]
    if type_key == "neox":
        config["rotary_pct"] = parameters.pop("partial_rotary_factor")
    config["rotary_emb_base" if type_key == "neox" else "rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    if "original_max_position_embeddings" in config:
        parameters.pop("original_max_position_embeddings", None)
    if type_key == "lfm2":
        config["block_ff_dim"], config["tie_embedding"] = config.pop("intermediate_size"), config.pop("tie_word_embeddings")
    config["rope_scaling"] = None if kind == "default" else {type_key: kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    # This does not hold for families with another default: add yours here if it has one.
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"] and config["model_type"] not in (
            "qwen3", "gpt_oss", "gemma2", "gemma3_text"):
        del config["head_dim"]
    if config["num_key_value_heads"] == config["num_attention_heads"] and config["model_type"] == "llama":
        del config["num_key_value_heads"]
    file.write_text(json.dumps(config, indent=2) + "\n")


class Recorder:
    """Notes what the rotary embedding of a model's module gets and gives, layer by layer."""

    def __init__(self, model):
        self.module = sys.modules[type(model).__module__]
        names = ("apply_rotary_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb")
        self.originals = {name: getattr(self.module, name) for name in names if hasattr(self.module, name)}
        self.calls = []
        self.heads = model.config.num_attention_heads if model.config.model_type == "gemma4_text" else None

    def __enter__(self):
        def recorder(original):
            def recorded(query, key, *rest, **named):
                turned_query, turned_key = original(query, key, *rest, **named)
                self.calls.append((key, turned_query, turned_key))
                return turned_query, turned_key
            return recorded

        def one_by_one(original):
            def recorded(states, *rest, **named):  # queries, and then keys where the layer has its own
                turned = original(states, *rest, **named)
                before, after = states.transpose(1, 2), turned.transpose(1, 2)
                if after.shape[1] == self.heads:
                    self.calls.append((None, after, None))
                else:
                    self.calls[-1] = (before, self.calls[-1][1], after)
                return turned
            return recorded
        recorder = one_by_one if self.heads else recorder
        for name, original in self.originals.items():
            setattr(self.module, name, recorder(original))
        return self

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(self.module, name, original)


def rows(tensor):
    """(1, heads, tokens, head_dim) -> (tokens, heads * head_dim)"""
    return tensor[0].transpose(0, 1).flatten(1)


def query_factor(config):
    """What makes the usual scale of scores, 1 / sqrt(head_dim), the model's."""
    if config.model_type == "gemma4_text":  # of the last layer
        return config.per_layer_config["full_attention"].head_dim ** 0.5
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if not getattr(config, "scale_attn_weights", True):
        return head_dim ** 0.5
    if hasattr(config, "attention_multiplier"):
        return config.attention_multiplier * head_dim ** 0.5
    if hasattr(config, "query_pre_attn_scalar"):
        return (head_dim / config.query_pre_attn_scalar) ** 0.5
    return 1.0


def apart(pairs):
    """The first of each pair, then the others."""
    return torch.cat((pairs[..., 0::2], pairs[..., 1::2]), dim=-1)


def latent_of_document(model, cache, calls, made_queries):
    """What latent attention keeps of a document, and the last layer's queries as they meet it."""
    config, found = model.config, {}
    old_pairs = getattr(config, "rope_interleave", True)
    for layer, (before, query, turned) in enumerate(calls):
        held, beside = cache.layers[layer].keys, cache.layers[layer].values
        assert torch.equal(beside, turned)
        still_pairs = config.model_type == "deepseek_v2"
        found[f"key.{layer}"] = torch.cat((held, apart(turned) if still_pairs else turned), dim=-1)[0, 0]
        found[f"key_before_rope.{layer}"] = torch.cat((held, apart(before) if old_pairs else before), dim=-1)[0, 0]
    attention = model.model.layers[-1].self_attn
    heads, plain = config.num_attention_heads, config.qk_nope_head_dim
    made = made_queries[-1].view(-1, heads, plain + config.qk_rope_head_dim)[..., :plain]
    up = attention.kv_b_proj.weight.view(heads, plain + config.v_head_dim, config.kv_lora_rank)[:, :plain]
    query = (apart(query) if still_pairs else query)[0].transpose(0, 1)
    absorbed = torch.cat((torch.einsum("thp,hpr->thr", made, up), query), dim=-1)
    factor = attention.scaling * (config.kv_lora_rank + config.qk_rope_head_dim) ** 0.5
    found[f"query.{layer}"] = absorbed.flatten(1) * factor
    return found


def query_maker(model):
    """The module that makes the last layer's queries, where the rotary embedding does not see all of them."""
    if hasattr(model.config, "kv_lora_rank"):
        attention = model.model.layers[-1].self_attn
        return attention.q_proj if attention.q_lora_rank is None else attention.q_b_proj
    if model.config.model_type == "phi":
        attention = model.model.layers[-1].self_attn
        return attention.q_layernorm if attention.qk_layernorm else attention.q_proj
    if model.config.model_type == "gpt2":
        return model.transformer.h[-1].attn.c_attn
    return None


def with_unturned(part, whole):
    """(1, heads, tokens, turned), and behind it what `whole` has there."""
    return torch.cat((part, whole[..., part.shape[-1]:]), dim=-1)


def run(model, documents, all_logits):
    parts = {}
    count = model.config.num_hidden_layers
    cached = [layer for layer in range(count) if (getattr(model.config, "layer_types", None) or [""] * count)[layer] not in ("linear_attention", "conv")]
    shared = getattr(model.config, "num_kv_shared_layers", 0)  # the last ones, which have queries only
    turned = [layer for layer in cached if getattr(model.config, "no_rope_layers", [1] * count)[layer]]
    learned = model.config.model_type == "gpt2"  # its positions; keys and queries are not turned
    turned = [] if learned else turned
    assert learned or turned[-1] == count - 1  # its queries are recorded
    made_queries = []
    is_latent = hasattr(model.config, "kv_lora_rank")
    if maker := query_maker(model):
        maker.register_forward_hook(lambda _, __, output: made_queries.append(output))
    for ids in documents:
        with Recorder(model) as recorder, torch.no_grad():
            # Without a configuration it keeps all keys, windows or not.
            cache = transformers.DynamicCache(config=model.config if len(cached) < count else None)
            result = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        assert len(recorder.calls) == len(turned)
        found = {"logits": result.logits[0] if all_logits else result.logits[0, -1:]}
        calls = dict(zip(turned, recorder.calls))
        if is_latent:
            with torch.no_grad():
                found.update(latent_of_document(model, cache, recorder.calls, made_queries))
        for layer in [] if is_latent else cached[:count - shared]:
            key = cache.layers[layer].keys
            key_before, query, turned_key = calls.get(layer, (key, None, key))
            if learned:
                query = made_queries[-1].chunk(3, -1)[0].unflatten(2, (-1, key.shape[-1])).transpose(1, 2)
            if turned_key.shape[-1] < key.shape[-1]:  # only what turns was given to the rotary embedding
                key_before, turned_key = with_unturned(key_before, key), with_unturned(turned_key, key)
                made = made_queries[-1]
                if made.dim() == 3:
                    made = made.unflatten(2, (-1, key.shape[-1])).transpose(1, 2)
                query = with_unturned(query, made)
            assert torch.equal(key, turned_key) and key.shape[2] == len(ids)
            found[f"key.{layer}"] = rows(key)
            found[f"key_before_rope.{layer}"] = rows(key_before)
            found[f"value.{layer}"] = rows(cache.layers[layer].values)
            if layer + 1 == count:
                found[f"query.{layer}"] = rows(query) * query_factor(model.config)
        if shared:
            found[f"query.{count - 1}"] = rows(calls[count - 1][1]) * query_factor(model.config)
        for name, tensor in found.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(list_).float().contiguous() for name, list_ in parts.items()}


def fp8_of(weight):
    """Codes, and a scale for each block of 128 rows and columns."""
    rows, columns = (-(-extent // 128) for extent in weight.shape)
    scales = torch.tensor([[weight[128 * r:128 * r + 128, 128 * c:128 * c + 128].abs().max() / 448 for c in range(columns)] for r in range(rows)])
    spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:weight.shape[0], :weight.shape[1]]
    return {"": (weight / spread).to(torch.float8_e4m3fn), "_scale_inv": scales}


def unpacked_fp8(folder):
    """The weights of a checkpoint of FP8. transformers 5.24 takes blocks of equal parts where the last one is cut short: it gives 160
    columns 80 and 80 in place of 128 and 32."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        weight = name.removesuffix("_scale_inv")
        spread = tensors.pop(name).repeat_interleave(128, 0).repeat_interleave(128, 1)
        tensors[weight] = tensors[weight].float() * spread[:tensors[weight].shape[0], :tensors[weight].shape[1]]
    return tensors


def mxfp4_of(weight):
    """Of matrices (experts, inputs, outputs) two codes a byte, the earlier one below, and the exponents of blocks of 32 inputs."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    blocks = weight.transpose(1, 2).float().unflatten(2, (-1, 32))
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    scaled = blocks / torch.exp2(exponents)[..., None]
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1) + 8 * (scaled < 0)
    return {"_blocks": (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), "_scales": (exponents + 127).to(torch.uint8)}


def pack(folder, method):
    """Rewrites the weights of a checkpoint as codes and scales, as published ones have them."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    for name in [*tensors]:
        if method == "fp8" and name.endswith("proj.weight") or method == "mxfp4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            made = (fp8_of if method == "fp8" else mxfp4_of)(tensors.pop(name))
            tensors.update({name + ending: tensor.contiguous() for ending, tensor in made.items()})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"] = {"quant_method": method, **(dict(weight_block_size=[128, 128], activation_scheme="dynamic")
                                                                if method == "fp8" else dict(modules_to_not_convert=["lm_head"]))}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_case(number, name, family, fields, dtype, special):
    folder = ROOT / name
    folder.mkdir(parents=True)
    config_class, model_class = FAMILIES[family]
    config = config_class(vocab_size=VOCABULARY, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, **fields)
    generator = torch.Generator().manual_seed(1000 + number)
    model = model_class(config)
    randomise(model, generator)
    if special.get("wrapped"):  # as the part for text of a model that reads pictures too
        text = model
        model = transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(text_config=config, vision_config=None, audio_config=None))
        model.model.language_model.load_state_dict(text.model.state_dict())
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="30KB" if special.get("shards") else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert (folder / "model.safetensors.index.json").exists() == bool(special.get("shards"))
    if "old" in special:
        make_old(folder, special["old"])
    source, unpacking = folder, {}
    if special.get("wrapped"):
        weights = load_file(folder / "model.safetensors")
        source, unpacking = None, dict(config=config, state_dict={name.replace("language_model.", ""): weights[name] for name in weights})
    if method := special.get("packed"):
        pack(folder, method)
        if method == "fp8":
            source, unpacking = None, dict(config=config, state_dict=unpacked_fp8(folder))
        else:
            unpacking = dict(quantization_config=transformers.Mxfp4Config(dequantize=True))
    # From here on only the files on disk count.
    model = model_class.from_pretrained(source, dtype=torch.float32, attn_implementation="eager", **unpacking).eval()
    lengths = special.get("lengths", SHORT)
    documents = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    (folder / "documents.json").write_text(json.dumps(documents, separators=(",", ":")) + "\n")
    save_file(run(model, documents, all_logits="lengths" not in special), folder / "reference.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)


def make_rope(name, fields):
    folder = ROOT / f"rope-{name}"
    folder.mkdir(parents=True)
    config = transformers.LlamaConfig(**fields)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    positions = [0, 1, 2, 3, 7, 100, 511, 1023, 4095, 8191, 32767, 65535, 131071]
    embedding = module.LlamaRotaryEmbedding(config)
    cosines, sines = embedding(torch.zeros(1), torch.tensor([positions]))
    half = config.head_dim // 2
    save_file({"position": torch.tensor(positions).float(), "frequency": embedding.inv_freq.float().contiguous(),
               "cosine": cosines[0, :, :half].contiguous(), "sine": sines[0, :, :half].contiguous()},
              folder / "reference.safetensors")
    (folder / "reference.safetensors").chmod(0o644)


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for folder in [ROOT / name for name in wanted] or [ROOT]:
        shutil.rmtree(folder, ignore_errors=True)
    for number, (name, case) in enumerate(CASES.items()):
        if not wanted or name in wanted:
            make_case(number, name, *case)
    llama31 = {**LLAMA3, "original_max_position_embeddings": 8192}
    yarn = {**YARN, "original_max_position_embeddings": 32768}
    ropes = {"default": dict(sizes(1, 8, 8, 1, 1, 128), rope_parameters=rope(1000000.0)),
             "linear": dict(sizes(1, 8, 8, 1, 1, 64), rope_parameters=rope(10000.0, rope_type="linear", factor=2.5)),
             "llama3": dict(sizes(1, 8, 8, 1, 1, 128), rope_parameters=rope(500000.0, **llama31)),
             "yarn": dict(sizes(1, 8, 8, 1, 1, 128), rope_parameters=rope(1000000.0, **yarn))}
    for name, fields in ropes.items():
        if not wanted or f"rope-{name}" in wanted:
            make_rope(name, fields)


if __name__ == "__main__":
    main()
