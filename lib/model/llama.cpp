#include "lib/model/llama.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/causal_attention.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// Tokens per piece where single rows are worked on: tens of microseconds, well above the cost of starting
// threads.
constexpr size_t kRowGrain = 32;
// Logits are handed out in chunks of about this size.
constexpr size_t kLogitBytes = size_t{64} << 20;

/// Looks tensors up and checks their shapes.
class Loader {
 public:
  Loader(const WeightSource& weights) : weights_(weights) {
    // Checkpoints of the bare model (without the output matrix) lack the prefix.
    if (!weights.find("model.embed_tokens.weight") && weights.find("embed_tokens.weight")) prefix_ = "";
  }

  std::string name(const std::string& tail) const { return prefix_ + tail; }

  std::vector<float> vector(const std::string& tail, int size) const {
    return read_floats(get_tensor(weights_, name(tail), {as_size(size)}));
  }
  const TensorView& matrix(const std::string& tail, int rows, int cols) const {
    return get_tensor(weights_, name(tail), {as_size(rows), as_size(cols)});
  }
  Linear linear(const std::string& tail, int outputs, int inputs, bool bias) const {
    Linear layer{&matrix(tail + ".weight", outputs, inputs), {}};
    if (bias) layer.bias = vector(tail + ".bias", outputs);
    return layer;
  }

 private:
  const WeightSource& weights_;
  std::string prefix_ = "model.";
};

LlamaLayer load_layer(const Loader& load, const ModelConfig& config, int index) {
  const std::string at = fmt::format("layers.{}.", index), attention = at + "self_attn.", mlp = at + "mlp.";
  LlamaLayer layer;
  layer.attention_norm = load.vector(at + "input_layernorm.weight", config.hidden_size);
  layer.query = load.linear(attention + "q_proj", config.query_width(), config.hidden_size, config.qkv_bias);
  layer.key = load.linear(attention + "k_proj", config.key_width(), config.hidden_size, config.qkv_bias);
  layer.value = load.linear(attention + "v_proj", config.key_width(), config.hidden_size, config.qkv_bias);
  layer.output =
      load.linear(attention + "o_proj", config.hidden_size, config.query_width(), config.output_bias);
  if (config.qk_norm) {
    layer.query_norm = load.vector(attention + "q_norm.weight", config.head_dim);
    layer.key_norm = load.vector(attention + "k_norm.weight", config.head_dim);
  }
  layer.mlp_norm = load.vector(at + "post_attention_layernorm.weight", config.hidden_size);
  layer.gate = load.linear(mlp + "gate_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
  layer.up = load.linear(mlp + "up_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
  layer.down = load.linear(mlp + "down_proj", config.hidden_size, config.intermediate_size, config.mlp_bias);
  return layer;
}

int layers_to_run(const ModelConfig& config, const PrefillOptions& options) {
  return options.layers > 0 ? options.layers : config.num_layers;
}

size_t logit_rows(const ModelConfig& config, const PrefillOptions& options) {
  if (options.logits == LogitRows::none || options.logits == LogitRows::later) return 0;
  if (options.logits == LogitRows::last) return 1;
  return std::clamp<size_t>(kLogitBytes / (as_size(config.vocabulary_size) * sizeof(float)), 1,
                            options.chunk);
}

size_t scratch_floats(const ModelConfig& config) {
  return std::max(linear_scratch_floats(), attention_scratch_floats(config));
}

/// Bytes that do not depend on the batch; that every token takes; that every position of the longest document
/// takes.
struct Costs {
  uint64_t fixed, per_token, per_position;
};
Costs costs(const ModelConfig& config, const PrefillOptions& options, uint64_t chunk, int threads) {
  const uint64_t hidden = as_size(config.hidden_size), query = as_size(config.query_width()),
                 key = as_size(config.key_width());
  const uint64_t before_rope = options.before_rope ? query + key : 0;
  uint64_t floats = chunk * (hidden + 2 * query + 2 * key + as_size(config.intermediate_size) + before_rope);
  floats += static_cast<uint64_t>(threads) * scratch_floats(config);
  floats += logit_rows(config, options) * (hidden + as_size(config.vocabulary_size));
  return {floats * sizeof(float), (hidden + 2 * key) * sizeof(float),
          as_size(config.head_dim) * sizeof(float)};
}

void check_options(const ModelConfig& config, const PrefillOptions& options) {
  if (options.chunk < 1) throw usage_error("a chunk of 0 tokens; it must have at least 1");
  if (options.layers < 0 || options.layers > config.num_layers)
    throw usage_error("{} layers asked for; the model has {}", options.layers, config.num_layers);
  if (options.logits != LogitRows::none && layers_to_run(config, options) < config.num_layers)
    throw usage_error("logits need all {} layers, not {}", config.num_layers, options.layers);
}

void check_offsets(std::span<const uint64_t> offsets, uint64_t tokens) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != tokens ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    throw failed("document offsets [{}] do not cover {} tokens", fmt::join(offsets, ", "), tokens);
}

std::vector<DocumentPlace> places_of(const PrefillBatch& batch) {
  const std::span<const uint64_t> offsets = batch.offsets;
  if (!batch.past.empty() && (batch.past.size() + 1 != offsets.size() || batch.cache == nullptr))
    throw failed("{} lengths of caches for {} documents", batch.past.size(), offsets.size() - 1);
  std::vector<DocumentPlace> places;
  size_t key_first = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const uint64_t past = batch.past.empty() ? 0 : batch.past[i];
    places.push_back({offsets[i], offsets[i + 1] - offsets[i], past, key_first});
    key_first += past + places.back().tokens;
  }
  return places;
}

PrefillPlan plan_of(const PrefillBatch& batch, const PrefillOptions& options) {
  PrefillPlan plan;
  plan.batch = &batch, plan.options = &options;
  plan.documents = places_of(batch);
  plan.chunk = std::min(options.chunk, batch.tokens.size());
  for (const DocumentPlace& document : plan.documents) {
    const size_t tokens = document.past + document.tokens;
    plan.key_rows = document.key_first + tokens;
    plan.longest = std::max(plan.longest, tokens);
    for (size_t position = document.past; position < tokens; ++position) {
      plan.positions.push_back(position);
      plan.key_row.push_back(document.key_first + position);
    }
  }
  return plan;
}

/// Pairs (token, attended token) of a document.
double visible_pairs(double length, double window) {
  if (window <= 0 || window >= length) return length * (length + 1) / 2;
  return window * (window + 1) / 2 + (length - window) * window;
}

}  // namespace

struct LlamaModel::Impl {
  LlamaWeights weights;
  std::shared_ptr<PrefillEngine> engine;
};

namespace {

/// The steps on the CPU.
class CpuSteps final : public PrefillSteps {
 public:
  CpuSteps(const LlamaWeights& weights, const PrefillPlan& plan)
      : weights_(weights),
        config_(weights.config),
        plan_(plan),
        rope_(config_, plan.longest),
        hidden_(plan.batch->tokens.size(), as_size(config_.hidden_size)),
        key_(plan.key_rows, as_size(config_.key_width())),
        value_(plan.key_rows, as_size(config_.key_width())),
        new_key_(plan.chunk, as_size(config_.key_width())),
        new_value_(plan.chunk, as_size(config_.key_width())),
        normed_(plan.chunk, as_size(config_.hidden_size)),
        query_(plan.chunk, as_size(config_.query_width())),
        attended_(plan.chunk, as_size(config_.query_width())),
        gated_(plan.chunk, as_size(config_.intermediate_size)) {
    if (plan.options->before_rope) {
      query_before_rope_ = Matrix<float>(plan.chunk, query_.cols());
      key_before_rope_ = Matrix<float>(plan.chunk, key_.cols());
    }
  }

  void embed() override {
    parallel_for(hidden_.rows(), kRowGrain, [&](size_t begin, size_t end, int) {
      for (size_t row = begin; row < end; ++row)
        read_floats(*weights_.embedding, plan_.batch->tokens[row] * hidden_.cols(), hidden_.row(row));
    });
  }

  PastRows past_rows(size_t document) override {
    const DocumentPlace& place = plan_.documents[document];
    return {key_.view().rows(place.key_first, place.past), value_.view().rows(place.key_first, place.past)};
  }
  void place_past(size_t) override {}  // they are written where they belong

  void project(int index, size_t first, size_t count) override {
    const LlamaLayer& layer = weights_.layers[as_size(index)];
    norm_rows(first, count, layer.attention_norm, normed_);
    const std::array outputs = {LinearOutput{&layer.query, query_.view().rows(0, count)},
                                LinearOutput{&layer.key, new_key_.view().rows(0, count)},
                                LinearOutput{&layer.value, new_value_.view().rows(0, count)}};
    apply(normed_.view().rows(0, count), outputs, Write::replace, scratch_);
    parallel_for(count, kRowGrain, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) {
        norm_heads(query_.row(i), layer.query_norm);
        norm_heads(new_key_.row(i), layer.key_norm);
        if (plan_.options->before_rope) {
          std::ranges::copy(query_.row(i), query_before_rope_.row(i).begin());
          std::ranges::copy(new_key_.row(i), key_before_rope_.row(i).begin());
        }
        turn_heads(query_.row(i), plan_.positions[first + i]);
        turn_heads(new_key_.row(i), plan_.positions[first + i]);
        std::ranges::copy(new_key_.row(i), key_.row(plan_.key_row[first + i]).begin());
        std::ranges::copy(new_value_.row(i), value_.row(plan_.key_row[first + i]).begin());
      }
    });
  }

  void finish(int layer, size_t first, size_t count) override {
    attend(weights_.layers[as_size(layer)], layer, first, count);
    mix(weights_.layers[as_size(layer)], first, count);
  }

  LayerChunk projected(int layer, size_t first, size_t count) override {
    LayerChunk chunk;
    chunk.layer = layer;
    chunk.first = first;
    chunk.key = new_key_.view().rows(0, count);
    chunk.value = new_value_.view().rows(0, count);
    chunk.query = query_.view().rows(0, count);
    if (plan_.options->before_rope) {
      chunk.key_before_rope = key_before_rope_.view().rows(0, count);
      chunk.query_before_rope = query_before_rope_.view().rows(0, count);
    }
    return chunk;
  }

  MatrixView<const float> logits(size_t first, size_t count) override {
    if (logits_.rows() < count) {
      final_normed_ = Matrix<float>(count, hidden_.cols());
      logits_ = Matrix<float>(count, weights_.head->outputs());
    }
    norm_rows(first, count, weights_.final_norm, final_normed_);
    const LinearOutput output{&*weights_.head, logits_.view().rows(0, count)};
    apply(final_normed_.view().rows(0, count), {&output, 1}, Write::replace, scratch_);
    return output.out;
  }

  MatrixView<const float> hidden() override {
    norm_rows(0, hidden_.rows(), weights_.final_norm, hidden_);
    return hidden_;
  }

 private:
  void norm_rows(size_t first, size_t count, std::span<const float> weight, Matrix<float>& out) {
    parallel_for(count, kRowGrain, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i)
        rms_norm(hidden_.row(first + i), weight, config_.norm_epsilon, out.row(i));
    });
  }

  void norm_heads(std::span<float> heads, std::span<const float> weight) {
    if (weight.empty()) return;
    for (size_t at = 0; at < heads.size(); at += weight.size()) {
      const std::span<float> head = heads.subspan(at, weight.size());
      rms_norm(head, weight, config_.norm_epsilon, head);
    }
  }

  void turn_heads(std::span<float> heads, size_t position) {
    const size_t dim = as_size(config_.head_dim);
    for (size_t at = 0; at < heads.size(); at += dim)
      turn_pairs(heads.subspan(at, dim), rope_.cosines(position), rope_.sines(position));
  }

  void attend(const LlamaLayer& layer, int index, size_t first, size_t count) {
    const MatrixView<float> attended = attended_.view().rows(0, count);
    if (plan_.options->attention)
      attend_otherwise(index, first, count, attended);
    else
      causal_attention(config_, config_.window[as_size(index)], plan_.documents, first,
                       query_.view().rows(0, count), key_, value_, attended, scratch_);
    const LinearOutput output{&layer.output, hidden_.view().rows(first, count)};
    apply(attended, {&output, 1}, Write::add, scratch_);
  }

  void attend_otherwise(int index, size_t first, size_t count, MatrixView<float> attended) {
    for (size_t i = 0; i < plan_.documents.size(); ++i) {
      const DocumentPlace& document = plan_.documents[i];
      const size_t begin = std::max(first, document.first);
      const size_t end = std::min(first + count, document.first + document.tokens);
      if (begin >= end) continue;
      const size_t position = plan_.positions[begin], seen = position + end - begin;
      plan_.options->attention->attend({.layer = index,
                                        .document = i,
                                        .past = document.past,
                                        .position = position,
                                        .query = query_.view().rows(begin - first, end - begin),
                                        .key = key_.view().rows(document.key_first, seen),
                                        .value = value_.view().rows(document.key_first, seen),
                                        .out = attended.rows(begin - first, end - begin)});
    }
  }

  /// The gated MLP.
  void mix(const LlamaLayer& layer, size_t first, size_t count) {
    norm_rows(first, count, layer.mlp_norm, normed_);
    const MatrixView<float> gated = gated_.view().rows(0, count);
    apply_gated(normed_.view().rows(0, count), layer.gate, layer.up, gated, scratch_);
    const LinearOutput output{&layer.down, hidden_.view().rows(first, count)};
    apply(gated, {&output, 1}, Write::add, scratch_);
  }

  const LlamaWeights& weights_;
  const ModelConfig& config_;
  const PrefillPlan& plan_;
  RopeTable rope_;
  Matrix<float> hidden_;                             // all tokens of the batch
  Matrix<float> key_, value_;                        // of the present layer, caches and new tokens
  Matrix<float> new_key_, new_value_;                // of the present chunk
  Matrix<float> normed_, query_, attended_, gated_;  // of the present chunk
  Matrix<float> query_before_rope_, key_before_rope_;
  Matrix<float> final_normed_, logits_;  // of the rows handed out
  WorkerScratch scratch_;
};

void read_past(PrefillSteps& steps, const PrefillPlan& plan, int layer) {
  for (size_t i = 0; i < plan.documents.size(); ++i) {
    if (plan.documents[i].past == 0) continue;
    const PastRows rows = steps.past_rows(i);
    plan.batch->cache->read(layer, i, rows.keys, rows.values);
    steps.place_past(i);
  }
}

/// The whole layer, or without the part that only later layers and logits need.
void run_layer(PrefillSteps& steps, const PrefillPlan& plan, int layer, bool projections_only,
               PrefillSink& sink, const std::function<void(size_t tokens)>& done) {
  const size_t tokens = plan.batch->tokens.size();
  if (!projections_only) read_past(steps, plan, layer);
  for (size_t first = 0; first < tokens; first += plan.chunk) {
    const size_t count = std::min(plan.chunk, tokens - first);
    steps.project(layer, first, count);
    // Handed out afterwards: a device computes while the host stores.
    if (!projections_only) steps.finish(layer, first, count);
    sink.layer(steps.projected(layer, first, count));
    done(first + count);
  }
}

void hand_out_logits(PrefillSteps& steps, const PrefillPlan& plan, PrefillSink& sink) {
  const auto compute = [&](size_t first, size_t count) { sink.logits(first, steps.logits(first, count)); };
  const PrefillOptions& options = *plan.options;
  const size_t tokens = plan.batch->tokens.size(), rows = plan.logit_rows;
  if (options.logits == LogitRows::all && options.logits_from == 0)
    for (size_t first = 0; first < tokens; first += rows) compute(first, std::min(rows, tokens - first));
  else if (options.logits == LogitRows::all)
    for (const DocumentPlace& document : plan.documents) {
      const size_t end = document.first + document.tokens;
      for (size_t first = document.first + options.logits_from; first < end; first += rows)
        compute(first, std::min(rows, end - first));
    }
  else
    for (const DocumentPlace& document : plan.documents)
      if (document.tokens > 0) compute(document.first + document.tokens - 1, 1);
}

}  // namespace

LlamaModel::LlamaModel(const ModelConfig& config, const WeightSource& weights)
    : impl_(std::make_unique<Impl>()) {
  check(config);
  LlamaWeights& own = impl_->weights;
  own.config = config;
  own.source = weights.name();
  const Loader load(weights);
  own.embedding = &load.matrix("embed_tokens.weight", config.vocabulary_size, config.hidden_size);
  for (int layer = 0; layer < config.num_layers; ++layer)
    own.layers.push_back(load_layer(load, config, layer));
  own.final_norm = load.vector("norm.weight", config.hidden_size);
  if (config.tied_embeddings)
    own.head = Linear{own.embedding, {}};
  else if (weights.find("lm_head.weight"))
    own.head = Linear{&get_tensor(weights, "lm_head.weight",
                                  {as_size(config.vocabulary_size), as_size(config.hidden_size)}),
                      {}};
}

LlamaModel::~LlamaModel() = default;
LlamaModel::LlamaModel(LlamaModel&&) noexcept = default;
LlamaModel& LlamaModel::operator=(LlamaModel&&) noexcept = default;

const ModelConfig& LlamaModel::config() const { return impl_->weights.config; }
const LlamaWeights& LlamaModel::weights() const { return impl_->weights; }
void LlamaModel::use(std::shared_ptr<PrefillEngine> engine) { impl_->engine = std::move(engine); }

void LlamaModel::prefill(const PrefillBatch& batch, const PrefillOptions& options, PrefillSink& sink,
                         const Progress& progress) const {
  const LlamaWeights& weights = impl_->weights;
  const ModelConfig& config = weights.config;
  check_options(config, options);
  check_offsets(batch.offsets, batch.tokens.size());
  for (size_t row = 0; row < batch.tokens.size(); ++row)
    if (batch.tokens[row] >= as_size(config.vocabulary_size))
      throw bad_input("token {} has id {}; the model's vocabulary has {}", row, batch.tokens[row],
                      config.vocabulary_size);
  if (options.logits != LogitRows::none && !weights.head)
    throw bad_input("{}: tensor 'lm_head.weight' is missing; logits need it", weights.source);
  if (batch.tokens.empty()) return;

  PrefillPlan plan = plan_of(batch, options);
  plan.logit_rows = std::min(logit_rows(config, options), batch.tokens.size());
  std::unique_ptr<PrefillSteps> steps;
  if (impl_->engine) steps = impl_->engine->start(plan);
  if (!steps) steps = std::make_unique<CpuSteps>(weights, plan);
  steps->embed();
  const int layers = layers_to_run(config, options);
  const double total = static_cast<double>(batch.tokens.size());
  for (int layer = 0; layer < layers; ++layer) {
    const bool projections_only = layer + 1 == layers && options.logits == LogitRows::none;
    run_layer(*steps, plan, layer, projections_only, sink, [&](size_t tokens) {
      report(progress, (layer * total + static_cast<double>(tokens)) / layers, total);
    });
  }
  if (options.logits == LogitRows::later)
    sink.hidden(steps->hidden());
  else if (options.logits != LogitRows::none)
    hand_out_logits(*steps, plan, sink);
}

void LlamaModel::logits(MatrixView<const float> hidden, MatrixView<float> out) const {
  const LlamaWeights& weights = impl_->weights;
  const ModelConfig& config = weights.config;
  if (!weights.head)
    throw bad_input("{}: tensor 'lm_head.weight' is missing; logits need it", weights.source);
  if (hidden.cols() != as_size(config.hidden_size) || out.cols() != as_size(config.vocabulary_size) ||
      hidden.rows() != out.rows())
    throw failed("logits ({}, {}) of ({}, {}) for a model of {} and {}", out.rows(), out.cols(),
                 hidden.rows(), hidden.cols(), config.hidden_size, config.vocabulary_size);
  if (impl_->engine && impl_->engine->logits(hidden, out)) return;
  WorkerScratch scratch;
  const LinearOutput output{&*weights.head, out};
  apply(hidden, {&output, 1}, Write::replace, scratch);
}

uint64_t prefill_bytes(const ModelConfig& config, const PrefillOptions& options, uint64_t tokens,
                       uint64_t longest, int threads, uint64_t past) {
  const Costs cost = costs(config, options, std::min<uint64_t>(options.chunk, tokens), threads);
  // Positions and rows are kept as two words per token beside the floats.
  const uint64_t per_past = 2 * as_size(config.key_width()) * sizeof(float);
  return checked_add(checked_add(cost.fixed, checked_mul(past, per_past)),
                     checked_add(checked_mul(tokens, cost.per_token + 2 * sizeof(size_t)),
                                 checked_mul(longest, cost.per_position)));
}

uint64_t prefill_tokens_within(const ModelConfig& config, const PrefillOptions& options, uint64_t bytes,
                               int threads) {
  const auto fits = [&](uint64_t tokens) {
    return prefill_bytes(config, options, tokens, tokens, threads) <= bytes;
  };
  uint64_t low = 0, high = bytes;  // every token takes more than a byte
  while (low < high) {
    const uint64_t middle = high - (high - low) / 2;
    if (middle < (uint64_t{1} << 40) && fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

double prefill_flops(const ModelConfig& config, std::span<const uint64_t> offsets,
                     const PrefillOptions& options) {
  const double hidden = config.hidden_size, query = config.query_width(), key = config.key_width();
  const double tokens = static_cast<double>(offsets.back());
  const int layers = layers_to_run(config, options);
  const int whole_layers = options.logits == LogitRows::none ? layers - 1 : layers;
  double multiplications = layers * tokens * hidden * (query + 2 * key);
  multiplications += whole_layers * tokens * hidden * (query + 3.0 * config.intermediate_size);
  for (int layer = 0; layer < whole_layers; ++layer)
    for (size_t i = 1; i < offsets.size(); ++i)
      multiplications += 2 * query *
                         visible_pairs(static_cast<double>(offsets[i] - offsets[i - 1]),
                                       static_cast<double>(config.window[as_size(layer)]));
  const double heads = options.logits == LogitRows::all    ? tokens
                       : options.logits == LogitRows::last ? static_cast<double>(offsets.size() - 1)
                                                           : 0;
  return 2 * (multiplications + heads * hidden * config.vocabulary_size);
}

}  // namespace kvcodec
