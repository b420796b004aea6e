"""Small random models of families of transformers."""
import torch
import transformers as t

USUAL = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512)
LATENT = {**USUAL, **dict(num_key_value_heads=4, moe_intermediate_size=32, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16,
                          qk_nope_head_dim=32, v_head_dim=24, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                          first_k_dense_replace=1)}
FAMILIES = {
    "Llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**USUAL)),
    "Qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**USUAL)),
    "Qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**USUAL, head_dim=32)),
    "Gemma 3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**{**USUAL, "num_hidden_layers": 7}, head_dim=32, sliding_window=12,
                                                              query_pre_attn_scalar=32)),
    "Mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**USUAL, sliding_window=12)),
    "Phi-3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**USUAL, pad_token_id=0)),
    "GPT-NeoX": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**{k: v for k, v in USUAL.items() if k != "num_key_value_heads"})),
    "DeepSeek-V2": lambda: t.DeepseekV2ForCausalLM(t.DeepseekV2Config(**LATENT)),
    "DeepSeek-V3": lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**LATENT)),
}
SINKS = lambda: t.GptOssForCausalLM(t.GptOssConfig(**USUAL, head_dim=16, sliding_window=12, num_local_experts=4, num_experts_per_tok=2))  # noqa: E731
SHARING = lambda: t.Gemma3nForCausalLM(t.Gemma3nTextConfig(  # noqa: E731
    **{**USUAL, "num_hidden_layers": 6, "intermediate_size": [96] * 6}, head_dim=32, sliding_window=12, num_kv_shared_layers=2,
    vocab_size_per_layer_input=256, hidden_size_per_layer_input=16, laurel_rank=8, activation_sparsity_pattern=[0.0] * 6,
    layer_types=["sliding_attention", "full_attention"] * 3))
HYBRIDS = {
    "Falcon-H1": lambda: t.FalconH1ForCausalLM(t.FalconH1Config(**USUAL, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1,
                                                                mamba_d_state=16)),
    "Qwen3-Next": lambda: t.Qwen3NextForCausalLM(t.Qwen3NextConfig(
        **USUAL, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)),
    "Qwen3.5": lambda: t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(
        **USUAL, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4)),
    "LFM2": lambda: t.Lfm2ForCausalLM(t.Lfm2Config(**USUAL, layer_types=["conv", "full_attention", "conv", "full_attention"])),
}


def made(make, dtype=torch.float32):
    torch.manual_seed(0)
    return make().to(dtype).eval()


def prompt(tokens, batch=1):
    return torch.randint(5, 250, (batch, tokens), generator=torch.Generator().manual_seed(1))
