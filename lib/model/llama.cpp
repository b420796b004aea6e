#include "lib/model/llama.hpp"

#include <functional>

#include "lib/core/checked.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/cpu_steps.hpp"
#include "lib/model/linear.hpp"

namespace kvcodec {

// Logits are handed out in chunks of about this size.
constexpr size_t kLogitBytes = size_t{64} << 20;

static int layers_to_run(const ModelConfig& config, const PrefillOptions& options) {
  return options.layers > 0 ? options.layers : config.num_layers;
}

static size_t logit_rows(const ModelConfig& config, const PrefillOptions& options) {
  if (options.logits == LogitRows::none || options.logits == LogitRows::later) return 0;
  if (options.logits == LogitRows::last) return 1;
  return std::clamp<size_t>(kLogitBytes / (as_size(config.vocabulary_size) * sizeof(float)), 1,
                            options.chunk);
}

static void check_options(const ModelConfig& config, const PrefillOptions& options) {
  if (options.chunk < 1) throw usage_error("a chunk of 0 tokens; it must have at least 1");
  if (options.layers < 0 || options.layers > config.num_layers)
    throw usage_error("{} layers asked for; the model has {}", options.layers, config.num_layers);
  if (options.logits != LogitRows::none && layers_to_run(config, options) < config.num_layers)
    throw usage_error("logits need all {} layers, not {}", config.num_layers, options.layers);
}

/// The whole layer, or without the part that only later layers and logits need.
static void run_layer(PrefillSteps& steps, const PrefillPlan& plan, int layer, bool projections_only,
                      bool cached, PrefillSink& sink, const std::function<void(size_t tokens)>& done) {
  const size_t tokens = plan.batch->tokens.size();
  if (!projections_only && cached) read_past(steps, plan, layer);
  for (size_t first = 0; first < tokens; first += plan.chunk) {
    const size_t count = std::min(plan.chunk, tokens - first);
    steps.project(layer, first, count);
    // Handed out afterwards: a device computes while the host stores.
    if (!projections_only) steps.finish(layer, first, count);
    sink.layer(steps.projected(layer, first, count));
    done(first + count);
  }
}

/// A layer that keeps a state.
static void run_delta_layer(PrefillSteps& steps, const PrefillPlan& plan, int layer, PrefillSink& sink,
                            const std::function<void(size_t tokens)>& done) {
  const size_t tokens = plan.batch->tokens.size();
  for (size_t first = 0; first < tokens; first += plan.chunk) {
    const size_t count = std::min(plan.chunk, tokens - first);
    steps.project(layer, first, count);
    steps.finish(layer, first, count);
    done(first + count);
  }
  for (size_t document = 0; document < plan.documents.size(); ++document)
    sink.state(layer, document, steps.state(document));
}

static void hand_out_logits(PrefillSteps& steps, const PrefillPlan& plan, PrefillSink& sink) {
  const auto compute = [&](size_t first, size_t end) {
    for (size_t rows = plan.logit_rows; first < end; first += rows)
      sink.logits(first, steps.logits(first, std::min(rows, end - first)));
  };
  const PrefillOptions& options = *plan.options;
  const bool all = options.logits == LogitRows::all;
  if (all && options.logits_from == 0) return compute(0, plan.batch->tokens.size());
  for (const DocumentPlace& document : plan.documents) {
    const size_t end = document.first + document.tokens;
    compute(all ? document.first + options.logits_from : std::max(document.first, end - 1), end);
  }
}

static std::vector<DocumentPlace> places_of(const PrefillBatch& batch, const AttentionMethod* attention) {
  const std::span<const uint64_t> offsets = batch.offsets;
  if (!batch.past.empty() && (batch.past.size() + 1 != offsets.size() || batch.cache == nullptr))
    throw failed("{} lengths of caches for {} documents", batch.past.size(), offsets.size() - 1);
  std::vector<DocumentPlace> places;
  size_t key_first = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const uint64_t past = batch.past.empty() ? 0 : batch.past[i];
    places.push_back({.first = offsets[i],
                      .tokens = offsets[i + 1] - offsets[i],
                      .past = past,
                      .key_first = key_first,
                      .unread = attention && attention->has_past() ? past : 0});
    key_first += past - places.back().unread + places.back().tokens;
  }
  return places;
}

void check_batch(const ModelConfig& config, const PrefillBatch& batch) {
  const std::span<const uint64_t> offsets = batch.offsets;
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != batch.tokens.size() ||
      !std::ranges::is_sorted(offsets))
    throw failed("document offsets [{}] do not cover {} tokens", fmt::join(offsets, ", "),
                 batch.tokens.size());
  for (size_t row = 0; row < batch.tokens.size(); ++row)
    if (batch.tokens[row] >= static_cast<size_t>(config.vocabulary_size))
      throw bad_input("token {} has id {}; the model's vocabulary has {}", row, batch.tokens[row],
                      config.vocabulary_size);
  if (config.names.positions.empty()) return;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const uint64_t tokens = offsets[i + 1] - offsets[i] + (batch.past.empty() ? 0 : batch.past[i]);
    if (tokens > static_cast<uint64_t>(config.max_positions))
      throw bad_input("a document of {} tokens; the model has vectors for {} positions", tokens,
                      config.max_positions);
  }
}

PrefillPlan plan_of(const PrefillBatch& batch, const PrefillOptions& options) {
  PrefillPlan plan;
  plan.batch = &batch, plan.options = &options;
  plan.documents = places_of(batch, options.attention);
  plan.chunk = std::min(options.chunk, batch.tokens.size());
  for (const DocumentPlace& document : plan.documents) {
    const size_t tokens = document.past + document.tokens;
    plan.key_rows = document.key_first + tokens - document.unread;
    plan.longest = std::max(plan.longest, tokens);
    for (size_t position = document.past; position < tokens; ++position) {
      plan.positions.push_back(position);
      plan.key_row.push_back(document.key_first + position - document.unread);
    }
  }
  return plan;
}

std::span<const float> PastCache::state(int layer, size_t) const {
  throw usage_error("layer {} keeps a state instead of keys and values, and this cache has none", layer);
}

void read_past(PrefillSteps& steps, const PrefillPlan& plan, int layer) {
  for (size_t i = 0; i < plan.documents.size(); ++i) {
    if (plan.documents[i].past == plan.documents[i].unread) continue;
    const PastRows rows = steps.past_rows(layer, i);
    plan.batch->cache->read(layer, i, rows.keys, rows.values);
    steps.place_past(i);
  }
}

void LlamaModel::compute_in(Compute compute, const KeepWeights& keep) {
  if (const std::string reason = why_no_bf16(); compute == Compute::bf16 && !reason.empty())
    throw usage_error("products cannot be made in bf16: {}", reason);
  kvcodec::compute_in(*weights_, compute, keep);
}

void LlamaModel::prefill(const PrefillBatch& batch, const PrefillOptions& options, PrefillSink& sink,
                         const Progress& progress) const {
  const ModelConfig& config = weights_->config;
  check_options(config, options);
  check_batch(config, batch);
  if (options.logits != LogitRows::none) head_of(*weights_);
  if (batch.tokens.empty()) return;

  PrefillPlan plan = plan_of(batch, options);
  plan.logit_rows = std::min(logit_rows(config, options), batch.tokens.size());
  std::unique_ptr<PrefillSteps> steps;
  if (engine_) steps = engine_->start(plan);
  if (!steps) steps = start_on_cpu(*weights_, plan);
  steps->embed();
  const int layers = layers_to_run(config, options);
  const double total = static_cast<double>(batch.tokens.size());
  for (int layer = 0; layer < layers; ++layer) {
    const bool projections_only = layer + 1 == layers && options.logits == LogitRows::none;
    const auto done = [&](size_t tokens) {
      report(progress, (layer * total + static_cast<double>(tokens)) / layers, total);
    };
    config.is_delta(layer)
        ? run_delta_layer(*steps, plan, layer, sink, done)
        : run_layer(*steps, plan, layer, projections_only, config.has_cache(layer), sink, done);
  }
  if (options.logits == LogitRows::later)
    sink.hidden(steps->hidden());
  else if (options.logits != LogitRows::none)
    hand_out_logits(*steps, plan, sink);
}

void LlamaModel::logits(MatrixView<const float> hidden, MatrixView<float> out) const {
  const ModelConfig& config = weights_->config;
  const Linear& head = head_of(*weights_);
  if (hidden.cols() != as_size(config.hidden_size) || out.cols() != as_size(config.vocabulary_size) ||
      hidden.rows() != out.rows())
    throw failed("logits ({}, {}) of ({}, {}) for a model of {} and {}", out.rows(), out.cols(),
                 hidden.rows(), hidden.cols(), config.hidden_size, config.vocabulary_size);
  if (engine_ && engine_->logits(hidden, out)) return;
  WorkerScratch scratch;
  apply(hidden, {&head, out}, Write::replace, scratch);
  finish_logits(config, out);
}

uint64_t prefill_bytes(const ModelConfig& config, const PrefillOptions& options, uint64_t tokens,
                       uint64_t longest, int threads, uint64_t past) {
  uint64_t fixed = std::min<uint64_t>(options.chunk, tokens) * floats_per_chunk_row(config, options);
  fixed += static_cast<uint64_t>(threads) * floats_per_thread(config);
  fixed += logit_rows(config, options) * (as_size(config.hidden_size) + as_size(config.vocabulary_size));
  const uint64_t of_past = checked_mul(past, as_size(config.cache_width())),
                 of_longest = checked_mul(longest, floats_per_position(config));
  const uint64_t floats = checked_add(checked_add(fixed, of_past), of_longest);
  // A position, a row and a document are kept as words for each token beside the floats.
  const uint64_t per_token = floats_per_token(config) * sizeof(float) + 3 * sizeof(size_t);
  return checked_add(checked_mul(floats, sizeof(float)), checked_mul(tokens, per_token));
}

}  // namespace kvcodec
