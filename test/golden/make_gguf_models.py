#!/usr/bin/env python3
"""Makes the models of gguf_test.cpp in test/golden/gguf: models of test/golden/model as GGUF files, the way llama.cpp stores them. Needs
numpy and gguf (made with 0.19.0).

    make_gguf_models.py [CASE...]       only these

Names of tensors and what is done to them: rows of q and k of llama, granite and smollm3 are permuted; 1 is added to the norms of Gemma;
experts are stacked; the fused q, k and v of GPT-NeoX come part by part; those of GPT-2 are transposed. Tensors of one dimension and routers are F32, the others as they
are.
"""
import json
import math
import pathlib
import sys

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS, OUT = ROOT / "test/golden/model", ROOT / "test/golden/gguf"
BF16 = gguf.GGMLQuantizationType.BF16

CASES = {"llama-2": "llama", "llama-4": "llama", "qwen2-1": "qwen2", "qwen3-1": "qwen3",
         "gemma2-1": "gemma2", "gemma3-1": "gemma3", "gemma3-2": "gemma3", "phi3-1": "phi3", "phi3-2": "phi3",
         "olmo2-2": "olmo2", "granite-2": "granite", "smollm3-2": "smollm3", "mixtral-1": "llama", "qwen3_moe-1": "qwen3moe",
         "qwen3_next-1": "qwen3next", "qwen3_5-1": "qwen35", "qwen3_5-2": "qwen35", "gpt_neox-1": "gptneox", "gpt_oss-1": "gpt-oss", "starcoder2-1": "starcoder2", "phi-1": "phi2", "lfm2-1": "lfm2", "gpt2-1": "gpt2"}
PERMUTED = ("llama", "granite", "smollm3")

USUAL = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.sinks": "attn_sinks", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
         "mlp.router": "ffn_gate_inp", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
         "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
         "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "linear_attn.in_proj_qkv": "attn_qkv",
         "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
         "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.in_proj": "shortconv.in_proj",
         "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj", "self_attn.out_proj": "attn_output",
         "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate",
         "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
         "attn.c_proj": "attn_output"}
BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
          "pre_feedforward_layernorm": "ffn_norm"}
NORM_BEHIND = {"post_attention_layernorm": "post_attention_norm"}
LAYER_NAMES = {"qwen3next": NORM_BEHIND, "qwen35": NORM_BEHIND, "gemma2": BEHIND, "gemma3": BEHIND, "olmo2": BEHIND, "gpt-oss": NORM_BEHIND}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.final_layernorm": "output_norm", "gpt_neox.embed_in": "token_embd",
               "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output", "model.embedding_norm": "token_embd_norm",
               "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
EXPERTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


class Array:
    """Values and the type that they are written in; bf16 as its bits."""
    def __init__(self, kind, values):
        self.kind, self.values = kind, values

    def floats(self):
        if self.kind == "BF16":
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        return self.values.astype(np.float32)

    def as_f32(self):
        return Array("F32", self.floats())

    def map(self, change):
        return Array(self.kind, change(self.values))


def read_safetensors(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        for name, about in json.loads(raw[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + at for at in about["data_offsets"])
            dtype = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[about["dtype"]]
            tensors[name] = Array(about["dtype"], np.frombuffer(raw[begin:end], dtype=dtype).reshape(about["shape"]))
    return tensors


def permute(rows, heads):
    """Halves of each head next to each other, as llama.cpp turns them."""
    per_head = rows.shape[0] // heads
    return rows.reshape(heads, 2, per_head // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def part_by_part(rows, heads):
    """All of q, all of k, all of v, where each head had its own of the three."""
    return rows.reshape(heads, 3, rows.shape[0] // heads // 3, -1).swapaxes(0, 1).reshape(rows.shape)


def frequency_divisors(rope, theta, head_dim):
    """What Llama 3's scaling divides each frequency by."""
    frequencies = 1 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / rope["factor"] + kept)).astype(np.float32)


class Model:
    def __init__(self, case, arch):
        self.arch = arch
        self.config = json.loads((MODELS / case / "config.json").read_text())
        for usual, own in (("num_hidden_layers", "n_layer"), ("hidden_size", "n_embd"), ("num_attention_heads", "n_head"),
                           ("max_position_embeddings", "n_positions")):
            self.config.setdefault(usual, self.config.get(own))
        self.tensors = read_safetensors(MODELS / case)
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config.get("num_key_value_heads") or self.heads
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if "full_attention" in self.rope:
            self.rope = self.rope["full_attention"]
        self.stacks = {}

    # Keys ------------------------------------------------------------------------------------------

    def write_keys(self, writer):
        config = self.config
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(self.width())
        writer.add_head_count(self.heads)
        writer.add_head_count_kv([0 if kind == "conv" else self.kv_heads for kind in config["layer_types"]] if self.arch == "lfm2" else self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        if "rms_norm_eps" in config or "norm_eps" in config:
            writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
        else:
            writer.add_layer_norm_eps(config.get("layer_norm_eps") or config.get("norm_epsilon") or config["layer_norm_epsilon"])
        if "use_parallel_residual" in config:
            writer.add_parallel_residual(config["use_parallel_residual"])
        self.write_rope(writer)
        self.write_windows(writer)
        self.write_experts(writer)
        self.write_recurrence(writer)
        for name, add in (("attn_logit_softcapping", writer.add_attn_logit_softcapping),
                          ("final_logit_softcapping", writer.add_final_logit_softcapping),
                          ("attention_multiplier", writer.add_attention_scale), ("embedding_multiplier", writer.add_embedding_scale),
                          ("residual_multiplier", writer.add_residual_scale), ("logits_scaling", writer.add_logit_scale)):
            if config.get(name):
                add(config[name])

    def width(self):
        """The width of the MLP, which LFM2 makes of the one that config.json has."""
        said, config = self.config.get("intermediate_size") or 4 * self.config["hidden_size"], self.config
        if not config.get("block_auto_adjust_ff_dim"):
            return said
        adjusted, multiple = int(config["block_ffn_dim_multiplier"] * int(2 * said / 3)), config["block_multiple_of"]
        return (adjusted + multiple - 1) // multiple * multiple

    def write_rope(self, writer):
        config, rope = self.config, self.rope
        theta = rope.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")
        if not theta:
            return
        writer.add_rope_freq_base(theta)
        partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or config.get("rotary_pct") or 1
        dims = int(self.head_dim * partial)
        if partial != 1:
            writer.add_rope_dimension_count(dims)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        if kind in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR if kind == "linear" else gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
        if kind in ("longrope", "yarn"):
            writer.add_rope_scaling_orig_ctx_len(original)
        if kind == "longrope":
            stretch = config["max_position_embeddings"] / original
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
            for name in ("long", "short"):
                writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32))
        if kind == "llama3":
            writer.add_tensor("rope_freqs.weight", frequency_divisors(rope, theta, dims))

    def write_windows(self, writer):
        config = self.config
        if self.arch.startswith("qwen") or self.arch in ("smollm3", "starcoder2") or not config.get("sliding_window"):
            return
        writer.add_sliding_window(config["sliding_window"])
        if self.arch == "gemma3" and "layer_types" in config:
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])

    def write_experts(self, writer):
        experts = self.experts()
        if not experts:
            return
        writer.add_expert_count(experts)
        writer.add_expert_used_count(self.config["num_experts_per_tok"])
        if self.arch != "llama":
            writer.add_expert_feed_forward_length(self.config.get("moe_intermediate_size") or self.config["intermediate_size"])

    def experts(self):
        return self.config.get("num_local_experts") or self.config.get("num_experts")

    def write_recurrence(self, writer):
        config = self.config
        if "conv_L_cache" in config:
            writer.add_shortconv_l_cache(config["conv_L_cache"])
        if "linear_num_key_heads" not in config:
            return
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])

    # Tensors ---------------------------------------------------------------------------------------

    def own(self, name, tensor):
        """(name, tensor) pairs that a tensor of the checkpoint becomes."""
        if ".experts." in name:
            yield from self.own_experts(name, tensor)
            return
        if name.endswith(".conv.conv.weight"):
            tensor = tensor.map(lambda values: values[:, 0])
        if ".linear_attn." in name:
            name, tensor = self.recurrent(name, tensor)
        if name.endswith((".A_log", ".dt_bias")):
            layer = name.split(".")[2]
            yield (f"blk.{layer}.ssm_a", Array("F32", -np.exp(tensor.floats()))) if name.endswith("A_log") else (f"blk.{layer}.ssm_dt.bias", tensor.as_f32())
            return
        if name.endswith("in_proj_qkvz.weight"):
            for own_name, part in zip(("attn_qkv", "attn_gate"), self.of_key_heads(tensor)):
                yield f"blk.{name.split('.')[2]}.{own_name}.weight", part
            return
        name, kind = (name, "weight") if name.endswith(".sinks") else name.rsplit(".", 1)
        layered = name not in MODEL_NAMES
        if not layered:
            own_name = MODEL_NAMES[name]
        else:
            _, _, layer, tail = name.split(".", 3)
            own_name = f"blk.{layer}." + (LAYER_NAMES.get(self.arch, {}).get(tail) or USUAL[tail])
        if self.arch in PERMUTED and own_name.endswith(("attn_q", "attn_k")):
            heads = self.heads if own_name.endswith("q") else self.kv_heads
            tensor = tensor.map(lambda rows: permute(rows, heads))
        if self.arch == "gpt2" and kind == "weight" and tensor.values.ndim == 2 and layered:
            tensor = tensor.map(lambda values: values.T)
        if self.arch == "gptneox" and own_name.endswith("attn_qkv"):
            tensor = tensor.map(lambda rows: part_by_part(rows, self.heads))
        if self.arch.startswith(("gemma", "qwen3next", "qwen35")) and own_name.endswith("norm") and not own_name.endswith("ssm_norm"):
            tensor = Array("F32", tensor.floats() + np.float32(1))
        if tensor.values.ndim == 1 or own_name.endswith(("ffn_gate_inp", "ssm_conv1d", "shortconv.conv")):
            tensor = tensor.as_f32()
        yield f"{own_name}.{kind}", tensor

    def recurrent(self, name, tensor):
        """Value heads of Qwen3.5 in turns of key heads; convolutions of two dimensions."""
        config, tail = self.config, name.split(".linear_attn.")[1]
        if tail == "conv1d.weight":
            tensor = tensor.map(lambda values: values[:, 0])
        if self.arch != "qwen35":
            return name, tensor
        keys, dim = config["linear_num_key_heads"], config["linear_value_head_dim"]
        first = 2 * keys * config["linear_key_head_dim"] if tail in ("in_proj_qkv.weight", "conv1d.weight") else 0
        size = 1 if tail in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight") else dim

        def turns(rows):
            return rows.reshape(keys, -1, size, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)
        if tail == "norm.weight":
            return name, tensor
        if tail == "out_proj.weight":
            return name, tensor.map(lambda values: turns(values.T).T)
        return name, tensor.map(lambda values: np.concatenate([values[:first], turns(values[first:])]))

    def of_key_heads(self, tensor):
        """Queries, keys and values one behind the other, and gates, of a tensor that has them key head by key head."""
        config, heads = self.config, self.config["linear_num_key_heads"]
        key = config["linear_key_head_dim"]
        value = config["linear_value_head_dim"] * config["linear_num_value_heads"] // heads
        rows = tensor.values.reshape(heads, 2 * (key + value), -1)
        parts = [rows[:, begin:end].reshape(-1, rows.shape[2]) for begin, end in
                 ((0, key), (key, 2 * key), (2 * key, 2 * key + value), (2 * key + value, rows.shape[1]))]
        return Array(tensor.kind, np.concatenate(parts[:3])), Array(tensor.kind, parts[3])

    def own_experts(self, name, tensor):
        before, tail = name.split(".experts.")
        layer = before.split(".")[2]
        if self.arch == "gpt-oss":  # stacked, the other way round, outputs of gate and up in turns
            part, kind = (tail[:-len("_bias")], "bias") if tail.endswith("_bias") else (tail, "weight")
            if kind == "weight":
                tensor = tensor.map(lambda values: values.swapaxes(1, 2))
            else:
                tensor = tensor.as_f32()
            parts = {"gate": 0, "up": 1} if part == "gate_up_proj" else {"down": None}
            for own_part, first in parts.items():
                yield f"blk.{layer}.ffn_{own_part}_exps.{kind}", tensor if first is None else tensor.map(lambda values: values[:, first::2])
            return
        index, part, _ = tail.split(".")
        stack = self.stacks.setdefault((layer, part), {})
        stack[int(index)] = tensor
        if len(stack) == self.experts():
            stacked = np.stack([stack[i].values for i in range(len(stack))])
            yield f"blk.{layer}.ffn_{EXPERTS[part]}_exps.weight", Array(tensor.kind, stacked)

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.arch)
        self.write_keys(writer)
        for name, tensor in self.tensors.items():
            for own_name, own in self.own(name, tensor):
                values = np.ascontiguousarray(own.values)
                if own.kind == "BF16":
                    writer.add_tensor(own_name, values.view(np.uint8), raw_dtype=BF16)
                else:
                    writer.add_tensor(own_name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main():
    OUT.mkdir(exist_ok=True)
    for case in sys.argv[1:] or CASES:
        Model(case, CASES[case]).write(OUT / f"{case}.gguf")


main()
