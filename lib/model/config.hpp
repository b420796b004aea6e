// Description of a decoder-only model: sizes, rotary embedding, and the parts in which families differ. A family
// fills this in (formats/models/families/); the forward pass only knows the parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"

namespace kvcodec {

/// Stretching of rotary frequencies for contexts longer than those the model was first trained on.
struct RopeScaling {
  enum class Kind {
    none,
    linear,  ///< all frequencies divided by `factor` (Chen et al. 2023, position interpolation)
    llama3,  ///< long wavelengths divided by `factor`, short ones kept, a blend between (Llama 3.1's
             ///< reference code)
    yarn,    ///< the same by how often a frequency turns within original_positions (Peng et al. 2023)
    longrope,  ///< each frequency by a number of its own, of one list for documents up to original_positions and
               ///< of another for longer ones (Ding et al. 2024)
    divided,       ///< each frequency by a number of its own (the form of llama3 in GGUF files)
    proportional,  ///< those of the first pairs divided by `factor`; the others are 0 (Gemma 4)
  };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;   ///< llama3: wavelengths above original_positions / this are divided
  double high_frequency_factor = 4;  ///< llama3: wavelengths below original_positions / this are kept
  double original_positions = 8192;  ///< llama3, yarn, longrope: context length of the first training
  double fast_turns = 32;            ///< yarn: frequencies that turn at least so often are kept
  double slow_turns = 1;             ///< yarn: frequencies that turn at most so often are divided
  bool whole_bounds = true;          ///< yarn: the blend begins and ends at whole frequencies
  double attention_factor = 1;       ///< yarn, longrope: factor of turned dimensions
  std::vector<float> divisors = {};  ///< divided, and longrope's of short documents: one for each frequency
  std::vector<float> long_divisors = {};  ///< longrope: of longer ones
  double share = 1;                       ///< proportional: of the pairs that turn
};

/// A rotary embedding.
struct Rope {
  double theta = 10000;
  int dims = 0;   ///< number of dimensions of a head that are turned, even; 0 = all
  int first = 0;  ///< the first of them
  RopeScaling scaling;
};

/// Arithmetic of products with weights.
enum class Compute : uint8_t {
  f32,
  bf16,  ///< both factors rounded to bf16, sums in float (lib/linalg/packed_gemm.hpp)
};
constexpr auto names_of(Compute) { return std::to_array<std::string_view>({"f32", "bf16"}); }

/// The weight matrices that are laid out once for all products, and kept so beside their stored form.
struct KeepWeights {
  uint64_t bytes = 0;  ///< those below, if all of them together take no more than this; else none
  int layers = 0;      ///< of so many first layers; 0 = of all
  bool head = true;    ///< and the output matrix
};

/// The rotary embedding of a layer.
enum class LayerRope : uint8_t {
  none,
  usual,  ///< ModelConfig::rope
  local,  ///< ModelConfig::local_rope
};
inline constexpr size_t kLayerRopes = 3;

enum class NormKind : uint8_t {
  rms,    ///< x / sqrt(mean(x^2) + epsilon) * weight
  layer,  ///< the same with x - mean(x), + bias
};

/// The elements over which the query and key of a token are normalised before the rotary embedding.
enum class QkNorm : uint8_t {
  none,
  heads,  ///< each head alone, all with the same weights
  whole,  ///< all heads together
};

enum class Activation : uint8_t {
  silu,
  gelu,
  gelu_tanh,
  clamped_swiglu,  ///< of a gate and what it gates (gpt-oss; lib/model/row_ops.hpp)
};

/// Multi-head latent attention (DeepSeek-V2, section 2.1). All query heads use the same key of a token: its latent
/// vector, normalised, and behind it dimensions that are turned; the token's value is the latent vector. The matrices
/// that would make each head's keys and values from the latent vector are applied to queries and to attention's result
/// instead (section 2.1.2: absorbed), so that the cache holds latent vectors, as in practice.
/// config.json calls the numbers kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim and
/// v_head_dim.
struct LatentAttention {
  int rank = 0;        ///< dimensions of the latent vector; 0: attention is the usual one
  int query_rank = 0;  ///< dimensions of the normalised vector that queries are made from; 0: there is none
  int plain_dim = 0;   ///< dimensions of a query head that key_up maps to those of the latent vector …
  int turned_dim = 0;  ///< … and those behind them that are turned
  int value_dim = 0;   ///< dimensions of a head's value, made from the latent vector that attention gives
  bool interleaved = true;     ///< pairs that are turned together lie side by side in the weights' outputs
  double norm_epsilon = 1e-6;  ///< of the two norms
  int query_dim() const { return plain_dim + turned_dim; }  ///< of a head, as weights make it
};

enum class RouterScores : uint8_t {
  softmax,
  sigmoid,  ///< of each expert by itself
};

/// A mixture of experts in the place of the MLP.
struct Mixture {
  int experts = 0;         ///< 0: there is none
  int chosen = 0;          ///< experts per token: those with the largest scores
  int width = 0;           ///< intermediate size of each
  bool normalised = true;  ///< the chosen ones' scores are divided by their sum
  bool biases = false;     ///< on the router and the experts' projections
  RouterScores scores = RouterScores::softmax;
  /// Experts lie in `groups` of one size, and a token's experts come from `chosen_groups` of them: those with the largest
  /// sums of their `group_best` largest scores (DeepSeek-V2, section 2.2.2).
  int groups = 1, chosen_groups = 1, group_best = 1;
  double scale = 1;  ///< factor of the chosen experts' output
  /// The MLP is there too: both read the same states, each with norms of its own (Gemma 4).
  bool beside_mlp = false;
  int shared_width = 0;  ///< intermediate size of an MLP beside the experts, for all tokens; 0: there is none
  /// Layers with a mixture; the others have an MLP. One entry per layer if there are experts.
  std::vector<bool> layers = {};
};

/// Layers without attention, which mix tokens by the gated delta rule (Yang et al., "Gated Delta Networks", 2025) and keep no keys and
/// values: of each value head a matrix of key_dim times value_dim, which every token decays and corrects, and of queries, keys and values
/// the last kernel - 1 tokens, which a convolution over tokens reads. config.json has the numbers as linear_num_key_heads and others.
/// A key_dim of 0 leaves the convolution alone, of one head with the model's width: one part of what the layer makes of its input
/// multiplies what the convolution reads, another what it gives (LFM2).
struct DeltaLayers {
  std::vector<bool> layers = {};  ///< one entry per layer; empty: there are none
  int key_heads = 0;              ///< of queries and keys; a divisor of value_heads
  int value_heads = 0;
  int key_dim = 0, value_dim = 0;  ///< of each head
  int kernel = 0;                  ///< tokens that the convolution reads
  bool biases = false;             ///< on the convolution and its projections, where key_dim is 0
  /// Value head h reads key head h % key_heads, as in GGUF files; else those of one key head lie together.
  bool tiled = false;
  bool only_convolve() const { return key_dim == 0; }
  int key_head_of(int head) const { return tiled ? head % key_heads : head / (value_heads / key_heads); }
  int key_width() const { return key_heads * key_dim; }
  int value_width() const { return value_heads * value_dim; }
  int mixed_width() const { return 2 * key_width() + value_width(); }
  /// Numbers that a document's state has in a layer: the tokens of the convolution, oldest first, then the matrices.
  size_t state_size() const {
    return static_cast<size_t>(kernel - 1) * static_cast<size_t>(mixed_width()) +
           static_cast<size_t>(value_width()) * static_cast<size_t>(key_dim);
  }
};

/// Rows of a tensor that holds those of queries, keys and values.
enum class FusedQkv {
  parts,  ///< all of the query, then all of the key, then all of the value
  heads,  ///< of each head query, key and value, head by head
};

/// Numbers that every layer has of a token: its part of a row of a table, and what it makes of the token's embedding. They gate a
/// narrow MLP at the layer's end (Gemma 4).
struct TokenInputs {
  int width = 0;       ///< in each layer; 0: there are none
  int vocabulary = 0;  ///< rows of the table
};

/// Names of the tensors of a layer of DeltaLayers, behind their beginning, TensorNames::delta.
struct DeltaNames {
  std::string_view mixed = "in_proj_qkv", gate = "in_proj_z", beta = "in_proj_b", decay = "in_proj_a";
  std::string_view fused = {};    ///< in the place of `mixed` and `gate`, key head by key head
  std::string_view numbers = {};  ///< in the place of `beta` and `decay`, likewise
  std::string_view kernel = "conv1d", decay_bias = "dt_bias", norm = "norm", output = "out_proj";
  std::string_view rate_log = "A_log";  ///< logarithm of the rate of decay
  std::string_view negative_rate = {};  ///< in its place: the rate, negative
  bool flat_kernel = false;             ///< the kernel has two dimensions, as in GGUF files
};

/// Names of the tensors of the forward pass in the files of a family, without ".weight" and ".bias". An empty name says that the
/// model has no such part. The defaults are those of the Llama family's checkpoints.
struct TensorNames {
  std::string_view prefix = "model.";  ///< of all but `head`; checkpoints of the bare model lack it
  std::string_view embedding = "embed_tokens", final_norm = "norm";
  std::string_view positions;  ///< of vectors that are added to embeddings, one for each of max_positions
  std::string_view head = "lm_head";  ///< the output matrix, unless it is the embedding
  bool transposed = false;            ///< matrices of layers are stored so
  // Tensors of a layer, behind "`layers`.N.".
  std::string_view layers = "layers";
  std::string_view attention_norm = "input_layernorm";  ///< of the input of attention
  std::string_view attention_out_norm;                  ///< of its output
  std::string_view mlp_norm = "post_attention_layernorm", mlp_out_norm;
  std::string_view query = "self_attn.q_proj", key = "self_attn.k_proj", value = "self_attn.v_proj";
  std::string_view query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm";  ///< with a QkNorm
  std::string_view output = "self_attn.o_proj";
  // Latent attention: `query` is made from query_down where there is one, and `key` gives the latent vector and
  // the dimensions that are turned; latent_up makes keys and values from latent vectors, head by head.
  std::string_view query_down, query_down_norm, latent_norm, latent_up;
  std::string_view gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string_view fused_qkv;  ///< in the place of query, key and value
  FusedQkv fused_qkv_order = FusedQkv::parts;
  std::string_view fused_gate_up;  ///< in the place of gate and up: all of gate, then all of up
  // Mixture of experts: the router, and the tensors of each expert, behind "`experts`.N."; if `experts` is empty, three
  // tensors of all experts' matrices, one behind the other.
  std::string_view router, experts;
  std::string_view expert_gate, expert_up, expert_down;
  std::string_view router_correction;  ///< added to scores where experts are chosen; no ".weight"
  std::string_view shared_expert;  ///< an MLP beside the experts, with gate, up and down as they have them
  std::string_view shared_suffix;  ///< if not empty: its tensors are `gate`, `up` and `down` with that behind
  std::string_view shared_expert_gate;  ///< makes the number whose sigmoid multiplies its output
  std::string_view delta;               ///< of DeltaLayers: the beginning of the names of their tensors
  DeltaNames of_delta;
  /// In the place of the experts' three: two tensors of all experts behind "`experts`.", without ".weight", each matrix
  /// stored transposed; in this one, the outputs of gate and up alternate. Biases are behind "_bias".
  std::string_view stacked_gate_up;
  bool stacked_halves = false;  ///< they are not transposed, and the outputs of up follow those of gate
  /// With Mixture::beside_mlp: norms of the MLP's output, of the experts' input and output; factors of the router's input, which is
  /// normalised, and of each expert's output, no ".weight".
  std::string_view beside_out_norm, expert_norm, expert_out_norm, router_scale, expert_scales;
  std::string_view layer_scale;  ///< the factor of hidden states behind a layer; no ".weight"
  // TokenInputs: tensors of the model, of which a layer uses its rows or columns, and those of each layer.
  std::string_view token_table = "embed_tokens_per_layer", token_projection = "per_layer_model_projection",
                   token_norm = "per_layer_projection_norm";
  std::string_view token_gate = "per_layer_input_gate", token_output = "per_layer_projection",
                   token_output_norm = "post_per_layer_input_norm";
  /// Scores that every query has beside those of keys, one per head; no ".weight".
  std::string_view sinks;
};

/// More than any model of these families has; a larger number is taken for damage.
inline constexpr int kMaxLayers = 4096;

struct ModelConfig {
  std::string family = "llama";  ///< as config.json's model_type names it
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;  ///< width of the MLP
  int num_q_heads = 0;
  int num_kv_heads = 0;  ///< a divisor of num_q_heads; query head h reads h / (num_q_heads / num_kv_heads)
  int head_dim = 0;  ///< even; not always hidden_size / num_q_heads. Of latent attention: that of the one key
  int vocabulary_size = 0;
  int max_positions = 0;  ///< context length that the model was made for; longer documents are computed too

  /// num_kv_heads and head_dim of layers with LayerRope::local, where heads differ from those of the others; else 0.
  int local_kv_heads = 0, local_head_dim = 0;
  /// So many last layers make no keys and values: their queries meet those of the last layer before with the same rotary embedding.
  int shared_layers = 0;
  int shared_intermediate_size = 0;  ///< width of the MLP in these; 0: as in the others

  LatentAttention latent;
  DeltaLayers delta;
  TokenInputs token_inputs;
  bool output_gate =
      false;  ///< attention's output is gated by the sigmoid of what `query` makes beside each query

  Rope rope, local_rope;
  std::vector<LayerRope> layer_rope;  ///< one per layer, or empty: usual in all

  NormKind norm = NormKind::rms;
  double norm_epsilon = 1e-6;
  bool norm_adds_one = false;  ///< norms multiply by 1 + the stored weight (Gemma)
  QkNorm qk_norm = QkNorm::none;

  bool value_norm = false;  ///< the heads of values are normalised too, without weights
  /// Without LayerRope::local, values are what `key` makes, before norms and the rotary embedding.
  bool keys_make_values = false;

  bool qkv_bias = false;     ///< biases on the query, key and value projections
  bool output_bias = false;  ///< bias on the attention's output projection
  bool mlp_bias = false;     ///< biases on the MLP's projections
  bool head_bias = false;    ///< bias on the output matrix, added to logits
  bool gated_mlp = true;     ///< down(activation(gate(x)) * up(x)); otherwise down(activation(up(x)))
  Activation activation = Activation::silu;
  Mixture mixture;
  /// Attention and MLP of a layer both read its input; otherwise the MLP reads the sum of input and attention.
  bool parallel_residual = false;

  double embedding_scale = 1;
  double attention_scale = 0;  ///< of scores; 0 = 1 / sqrt(head_dim)
  double residual_scale = 1;   ///< of the output of attention and MLP
  double logit_scale = 1;
  double attention_softcap = 0;  ///< scores s become cap * tanh(s / cap); 0 = no cap
  double logit_softcap = 0;      ///< the same of logits, after their scale

  bool tied_embeddings = false;  ///< logits use the embedding matrix
  /// Number of tokens, itself included, that a token of each layer attends to; 0 = all before it.
  std::vector<int64_t> window;

  TensorNames names;

  int group_size() const { return num_q_heads / num_kv_heads; }
  // Widths and numbers of heads: the largest of all layers; in of_layer() those of the layer.
  int query_width() const { return num_q_heads * max_head_dim(); }
  int key_width() const { return std::max(num_kv_heads * head_dim, local_kv_heads * local_head_dim); }
  int mlp_width() const { return std::max(intermediate_size, shared_intermediate_size); }
  int max_kv_heads() const { return std::max(num_kv_heads, local_kv_heads); }
  int max_head_dim() const { return std::max(head_dim, local_head_dim); }
  bool is_latent() const { return latent.rank > 0; }
  int value_dim() const { return is_latent() ? latent.rank : head_dim; }  ///< of a head that queries meet
  /// Values of attention's output.
  int attended_width() const { return is_latent() ? num_q_heads * latent.rank : query_width(); }
  /// Width of values of a layer in a cache: 0 where they lie in keys.
  int cached_value_width() const { return is_latent() ? 0 : key_width(); }
  int cache_width() const { return key_width() + cached_value_width(); }
  LayerRope rope_of(int layer) const {
    return layer_rope.empty() ? LayerRope::usual : layer_rope[static_cast<size_t>(layer)];
  }
  bool is_delta(int layer) const { return !delta.layers.empty() && delta.layers[static_cast<size_t>(layer)]; }
  int head_dim_of(LayerRope kind) const {
    return kind == LayerRope::local && local_head_dim > 0 ? local_head_dim : head_dim;
  }
  /// The layer whose keys and values the layer's queries meet: itself, or another; -1: there is none before.
  int source_of(int layer) const {
    int source = layer;
    const int own = num_layers - shared_layers;
    if (shared_layers > 0 && layer >= own)
      for (source = own - 1; source >= 0 && rope_of(source) != rope_of(layer);) --source;
    return source;
  }
  /// True if a cache has keys and values of the layer.
  bool has_cache(int layer) const { return !is_delta(layer) && source_of(layer) == layer; }
  /// The model with the heads and the MLP of that layer in all.
  ModelConfig of_layer(int layer) const;
  bool has_mixture(int layer) const {
    return mixture.experts > 0 && mixture.layers[static_cast<size_t>(layer)];
  }
  /// In any layer.
  bool has_mlp() const {
    return mixture.experts == 0 || mixture.beside_mlp ||
           std::find(mixture.layers.begin(), mixture.layers.end(), false) != mixture.layers.end();
  }
};

/// Dimensions of a head that are turned.
inline int turned_dims(const Rope& rope, int head_dim) { return rope.dims > 0 ? rope.dims : head_dim; }

/// Checks ranges, and that the sizes fit together; afterwards products of any four sizes fit 64 bits.
/// Throws Error(bad_input) naming the field as in config.json, its value and what would be right.
void check(const ModelConfig& config);

/// The same for the layers' rotary embeddings.
void check_ropes(const ModelConfig& config);

/// The part of the model that the Llama family (Llama, Mistral, Qwen 2 and 3) does not have, for messages;
/// empty: none. Code that computes only that family asks here.
std::string beyond_llama(const ModelConfig& config);

}  // namespace kvcodec
