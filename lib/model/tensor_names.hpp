// What the files of a family call the tensors of the forward pass. A name that is empty says that the model has no such
// part.
#pragma once

#include <string_view>

namespace kvcodec {

/// Rows of a tensor that holds those of queries, keys and values.
enum class FusedQkv {
  parts,  ///< all of the query, then all of the key, then all of the value
  heads,  ///< of each head query, key and value, head by head
};

/// Without ".weight" and ".bias". The defaults are those of the Llama family's checkpoints.
struct TensorNames {
  std::string_view prefix = "model.";  ///< of all but `head`; checkpoints of the bare model lack it
  std::string_view embedding = "embed_tokens", final_norm = "norm";
  std::string_view head = "lm_head";  ///< the output matrix, unless it is the embedding
  // Of a layer, behind "`layers`.N.".
  std::string_view layers = "layers";
  std::string_view attention_norm = "input_layernorm";  ///< of what attention reads
  std::string_view attention_out_norm;                  ///< of what it adds
  std::string_view mlp_norm = "post_attention_layernorm", mlp_out_norm;
  std::string_view query = "self_attn.q_proj", key = "self_attn.k_proj", value = "self_attn.v_proj";
  std::string_view query_norm = "self_attn.q_norm",
                   key_norm = "self_attn.k_norm";  ///< where there is a QkNorm
  std::string_view output = "self_attn.o_proj";
  // Latent attention: `query` is made of query_down where there is one, and `key` is the latent vector and what is
  // turned; latent_up makes keys and values of latent vectors, head by head.
  std::string_view query_down, query_down_norm, latent_norm, latent_up;
  std::string_view gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string_view fused_qkv;  ///< in the place of query, key and value
  FusedQkv fused_qkv_order = FusedQkv::parts;
  std::string_view fused_gate_up;  ///< in the place of gate and up: all of gate, then all of up
  // Of a mixture of experts: the router, and of each expert, behind "`experts`.N."; if `experts` is empty, three tensors
  // of all experts' matrices, one behind the other.
  std::string_view router, experts;
  std::string_view expert_gate, expert_up, expert_down;
  std::string_view router_correction;  ///< added to scores where experts are chosen; no ".weight"
  std::string_view shared_expert;  ///< an MLP beside the experts, with gate, up and down as they have them
  /// In the place of the experts' three: two tensors of all of them behind "`experts`.", without ".weight", each matrix
  /// stored transposed; in this one, of gate and up, their outputs alternate. Biases are behind "_bias".
  std::string_view stacked_gate_up;
  /// Scores that every query sees beside those of keys, one per head; no ".weight".
  std::string_view sinks;
};

}  // namespace kvcodec
