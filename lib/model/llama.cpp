#include "lib/model/llama.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/cpu_steps.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec {
namespace {

// Logits are handed out in chunks of about this size.
constexpr size_t kLogitBytes = size_t{64} << 20;

int layers_to_run(const ModelConfig& config, const PrefillOptions& options) {
  return options.layers > 0 ? options.layers : config.num_layers;
}

size_t logit_rows(const ModelConfig& config, const PrefillOptions& options) {
  if (options.logits == LogitRows::none || options.logits == LogitRows::later) return 0;
  if (options.logits == LogitRows::last) return 1;
  return std::clamp<size_t>(kLogitBytes / (as_size(config.vocabulary_size) * sizeof(float)), 1,
                            options.chunk);
}

/// Bytes that do not depend on the batch; that every token takes; that every position of the longest document
/// takes.
struct Costs {
  uint64_t fixed, per_token, per_position;
};
Costs costs(const ModelConfig& config, const PrefillOptions& options, uint64_t chunk, int threads) {
  const uint64_t hidden = as_size(config.hidden_size);
  uint64_t floats = chunk * floats_per_chunk_row(config, options);
  floats += static_cast<uint64_t>(threads) * floats_per_thread(config);
  floats += logit_rows(config, options) * (hidden + as_size(config.vocabulary_size));
  return {floats * sizeof(float), floats_per_token(config) * sizeof(float),
          floats_per_position(config) * sizeof(float)};
}

void check_options(const ModelConfig& config, const PrefillOptions& options) {
  if (options.chunk < 1) throw usage_error("a chunk of 0 tokens; it must have at least 1");
  if (options.layers < 0 || options.layers > config.num_layers)
    throw usage_error("{} layers asked for; the model has {}", options.layers, config.num_layers);
  if (options.logits != LogitRows::none && layers_to_run(config, options) < config.num_layers)
    throw usage_error("logits need all {} layers, not {}", config.num_layers, options.layers);
}

/// Products of an MLP, or of the router and the experts of a token, for each token and hidden dimension.
double mlp_products(const ModelConfig& config, int layer) {
  const Mixture& mixture = config.mixture;
  if (config.has_mixture(layer))
    return mixture.experts + 3.0 * mixture.chosen * mixture.width + 3.0 * mixture.shared_width;
  return (config.gated_mlp ? 3.0 : 2.0) * config.intermediate_size;
}

/// Products of queries, keys and values of a token.
double projection_products(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  const double hidden = config.hidden_size, key = config.key_width(), heads = config.num_q_heads;
  if (!config.is_latent()) return hidden * (config.query_width() + 2 * key);
  const double queries = heads * latent.query_dim();
  const double made = latent.query_rank > 0 ? latent.query_rank * (hidden + queries) : hidden * queries;
  return made + hidden * key + heads * latent.plain_dim * latent.rank;
}

/// Products of what a token makes of what attention gives.
double output_products(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  const double hidden = config.hidden_size, heads = config.num_q_heads;
  if (!config.is_latent()) return hidden * config.query_width();
  return heads * latent.value_dim * (latent.rank + hidden);
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
    : impl_(std::make_unique<Impl>(Impl{load_weights(config, weights), nullptr})) {}

LlamaModel::~LlamaModel() = default;
LlamaModel::LlamaModel(LlamaModel&&) noexcept = default;
LlamaModel& LlamaModel::operator=(LlamaModel&&) noexcept = default;

const ModelConfig& LlamaModel::config() const { return impl_->weights.config; }
const LlamaWeights& LlamaModel::weights() const { return impl_->weights; }
void LlamaModel::compute_in(Compute compute, const KeepWeights& keep) {
  if (const std::string reason = why_no_bf16(); compute == Compute::bf16 && !reason.empty())
    throw usage_error("products cannot be made in bf16: {}", reason);
  kvcodec::compute_in(impl_->weights, compute, keep);
}

void LlamaModel::use(std::shared_ptr<PrefillEngine> engine) { impl_->engine = std::move(engine); }
bool LlamaModel::uses_engine() const { return impl_->engine != nullptr; }

void LlamaModel::prefill(const PrefillBatch& batch, const PrefillOptions& options, PrefillSink& sink,
                         const Progress& progress) const {
  const LlamaWeights& weights = impl_->weights;
  const ModelConfig& config = weights.config;
  check_options(config, options);
  check_batch(config, batch);
  if (options.logits != LogitRows::none) head_of(weights);
  if (batch.tokens.empty()) return;

  PrefillPlan plan = plan_of(batch, options);
  plan.logit_rows = std::min(logit_rows(config, options), batch.tokens.size());
  std::unique_ptr<PrefillSteps> steps;
  if (impl_->engine) steps = impl_->engine->start(plan);
  if (!steps) steps = start_on_cpu(weights, plan);
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
  const Linear& head = head_of(weights);
  if (hidden.cols() != as_size(config.hidden_size) || out.cols() != as_size(config.vocabulary_size) ||
      hidden.rows() != out.rows())
    throw failed("logits ({}, {}) of ({}, {}) for a model of {} and {}", out.rows(), out.cols(),
                 hidden.rows(), hidden.cols(), config.hidden_size, config.vocabulary_size);
  if (impl_->engine && impl_->engine->logits(hidden, out)) return;
  WorkerScratch scratch;
  const LinearOutput output{&head, out};
  apply(hidden, {&output, 1}, Write::replace, scratch);
  finish_logits(config, out);
}

uint64_t prefill_bytes(const ModelConfig& config, const PrefillOptions& options, uint64_t tokens,
                       uint64_t longest, int threads, uint64_t past) {
  const Costs cost = costs(config, options, std::min<uint64_t>(options.chunk, tokens), threads);
  // A position, a row and a document are kept as words for each token beside the floats.
  const uint64_t per_past = as_size(config.cache_width()) * sizeof(float);
  return checked_add(checked_add(cost.fixed, checked_mul(past, per_past)),
                     checked_add(checked_mul(tokens, cost.per_token + 3 * sizeof(size_t)),
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
  const double hidden = config.hidden_size;
  const double tokens = static_cast<double>(offsets.back());
  const int layers = layers_to_run(config, options);
  const int whole_layers = options.logits == LogitRows::none ? layers - 1 : layers;
  double multiplications = layers * tokens * projection_products(config);
  multiplications += whole_layers * tokens * output_products(config);
  for (int layer = 0; layer < whole_layers; ++layer)
    multiplications += tokens * hidden * mlp_products(config, layer);
  for (int layer = 0; layer < whole_layers; ++layer)
    for (size_t i = 1; i < offsets.size(); ++i)
      multiplications += (config.query_width() + config.attended_width()) *
                         visible_pairs(static_cast<double>(offsets[i] - offsets[i - 1]),
                                       static_cast<double>(config.window[as_size(layer)]));
  const double heads = options.logits == LogitRows::all    ? tokens
                       : options.logits == LogitRows::last ? static_cast<double>(offsets.size() - 1)
                                                           : 0;
  return 2 * (multiplications + heads * hidden * config.vocabulary_size);
}

}  // namespace kvcodec
