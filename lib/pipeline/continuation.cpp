#include "lib/pipeline/continuation.hpp"

#include <algorithm>
#include <optional>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Logits are computed for kLogitBytes at a time, but for at least kMinLogitRows tokens: each time the whole output
/// matrix is read, and converted to floats where it is quantized. With a vocabulary of 49,152 tokens, 128 rows take
/// 25 MB and 4% less of the total time than 64; 256 gain nothing more.
constexpr size_t kLogitBytes = size_t{2} << 20, kMinLogitRows = 128;

size_t logit_rows(const ModelConfig& config, size_t judged) {
  const size_t row = as_size(config.vocabulary_size) * sizeof(float);
  return std::min(judged, std::max(kMinLogitRows, kLogitBytes / row));
}

/// Keeps the prefix's cache of a run, and the hidden states of the tokens behind it, for logits.
class ReferenceSink final : public PrefillSink {
 public:
  /// judged: tokens behind the prefix.
  ReferenceSink(const ModelConfig& config, size_t prefix, size_t judged, size_t queries)
      : prefix_{LayerRows(config, prefix), {}, {}}, hidden_(judged, as_size(config.hidden_size)) {
    prefix_.states.resize(as_size(config.num_layers));
    for (size_t t = prefix - std::min(prefix, queries); t < prefix; ++t) prefix_.query_tokens.push_back(t);
    for (int layer = 0; layer < config.num_layers; ++layer)
      prefix_.queries.emplace_back(prefix_.query_tokens.size(),
                                   as_size(config.of_layer(layer).query_width()));
  }

  void layer(const LayerChunk& chunk) override {
    const size_t layer = as_size(chunk.layer), prefix = prefix_.rows.keys.front().rows();
    for (size_t i = 0; i < chunk.key.rows() && chunk.first + i < prefix; ++i) {
      const size_t token = chunk.first + i;
      std::ranges::copy(chunk.key.row(i), prefix_.rows.keys[layer].row(token).begin());
      std::ranges::copy(chunk.value.row(i), prefix_.rows.values[layer].row(token).begin());
      if (const size_t first = prefix - prefix_.query_tokens.size(); token >= first)
        std::ranges::copy(chunk.query.row(i), prefix_.queries[layer].row(token - first).begin());
    }
  }

  void state(int layer, size_t, std::span<const float> state) override {
    prefix_.states[as_size(layer)].assign(state.begin(), state.end());
  }

  void hidden(MatrixView<const float> rows) override {
    const size_t prefix = prefix_.rows.keys.front().rows();
    for (size_t i = 0; i < hidden_.rows(); ++i)
      std::ranges::copy(rows.row(prefix + i), hidden_.row(i).begin());
  }

  Prefix& prefix() { return prefix_; }
  Matrix<float>& hidden() { return hidden_; }

 private:
  Prefix prefix_;
  Matrix<float> hidden_;
};

PrefillOptions judged_options() {
  PrefillOptions prefill;
  prefill.logits = LogitRows::later;
  return prefill;
}

}  // namespace

size_t LoopDocument::size() const {
  size_t asking = 0;
  for (const LoopQuestion& question : questions)
    asking = std::max(asking, question.tokens.size() + question.written);
  return tokens.size() + asking;
}

void check_document(const LoopDocument& document) {
  if (document.prefix < 1 || document.tokens.size() < document.prefix + 2)
    throw failed("a document of {} tokens with a prefix of {}; there must be two tokens behind at least one",
                 document.tokens.size(), document.prefix);
}

LayerRows::LayerRows(const ModelConfig& config, size_t tokens) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool cached = config.has_cache(layer);
    const ModelConfig own = config.of_layer(layer);
    keys.emplace_back(tokens, cached ? as_size(own.key_width()) : 0);
    values.emplace_back(tokens, cached ? as_size(own.cached_value_width()) : 0);
  }
}

Prefix run_prefix(const LlamaModel& model, const LoopDocument& document, size_t queries,
                  const Progress& progress) {
  ReferenceSink sink(model.config(), document.prefix, 0, queries);
  const uint64_t offsets[] = {0, document.prefix};
  model.prefill({.tokens = std::span(document.tokens).first(document.prefix), .offsets = offsets},
                {.queries = queries > 0}, sink, progress);
  return std::move(sink.prefix());
}

PredictionSums sums_of(std::span<const Judged> judged) {
  PredictionSums sums;
  for (const Judged& one : judged)
    sums.add({.tokens = 1,
              .surprise = one.surprise,
              .divergence = one.divergence,
              .same_best = one.same_best,
              .right = one.right});
  return sums;
}

ReferenceRun::ReferenceRun(const LlamaModel& model, const LoopDocument& document, size_t queries,
                           const Progress& progress)
    : model_(model),
      past_(document.prefix),
      prefix_{LayerRows(model.config(), 0), {}, {}},
      own_(document.tokens.size() - 1 - document.prefix) {
  const std::span<const uint32_t> tokens(document.tokens);
  inputs_ = tokens.subspan(past_, own_.size()), targets_ = tokens.subspan(past_ + 1, own_.size());
  ReferenceSink sink(model.config(), past_, own_.size(), queries);
  const uint64_t offsets[] = {0, tokens.size() - 1};
  PrefillOptions prefill = judged_options();
  prefill.queries = queries > 0;
  prefill.state_at = past_;
  model.prefill({.tokens = tokens.first(offsets[1]), .offsets = offsets}, prefill, sink, progress);
  prefix_ = std::move(sink.prefix());
  hidden_ = std::move(sink.hidden());
}

/// Judges `count` tokens from `first` on: of continuations, against the run that kept its cache, and of that run itself.
/// hidden: of the continuations' tokens, one continuation behind the other, (judged.size() * count,
/// hidden_size). Holds logits of few tokens at a time.
void ReferenceRun::judge(size_t first, size_t count, MatrixView<const float> hidden,
                         std::span<std::vector<Judged>* const> judged) {
  constexpr size_t kGrain = 16;  // rows: a fraction of a millisecond each
  const size_t rows = logit_rows(model_.config(), count);
  const auto vocabulary = as_size(model_.config().vocabulary_size);
  Matrix<float> kept(rows, vocabulary), other(judged.empty() ? 0 : rows, vocabulary);
  for (size_t begin = 0; begin < count; begin += rows) {
    const size_t now = std::min(rows, count - begin), place = first + begin;
    model_.logits(hidden_.view().rows(place, now), kept.view().rows(0, now));
    std::vector<std::optional<ReferenceToken>> references(now);
    parallel_each(now, kGrain, [&](size_t i) {
      const NextToken next(kept.row(i));
      const uint32_t target = targets_[place + i];
      own_[place + i] = {
          .surprise = next.surprise(target), .same_best = true, .right = next.best() == target};
      references[i].emplace(next, kept.row(i));
    });
    for (size_t member = 0; member < judged.size(); ++member) {
      model_.logits(hidden.rows(member * count + begin, now), other.view().rows(0, now));
      parallel_each(now, kGrain, [&](size_t i) {
        const NextToken next(other.row(i));
        const uint32_t target = targets_[place + i];
        (*judged[member])[place + i] = {.surprise = next.surprise(target),
                                        .divergence = references[i]->divergence(next),
                                        .same_best = next.best() == references[i]->best(),
                                        .right = next.best() == target};
      });
    }
  }
}

/// Judges a batch, and keeps the keys and values computed, if wanted.
class ReferenceRun::Sink final : public PrefillSink {
 public:
  Sink(ReferenceRun& run, const Batch& batch) : run_(run), batch_(batch) {}

  void layer(const LayerChunk& chunk) override {
    if (batch_.rows.empty()) return;
    for (size_t i = 0; i < chunk.key.rows(); ++i) {
      const size_t at = chunk.first + i;
      for (const Side side : kSides)
        std::ranges::copy(
            (side == Side::key ? chunk.key : chunk.value).row(i),
            batch_.rows[at / batch_.count].of(side)[as_size(chunk.layer)].row(at % batch_.count).begin());
    }
  }

  void hidden(MatrixView<const float> rows) override {
    run_.judge(batch_.first, batch_.count, rows, batch_.judged);
  }

 private:
  ReferenceRun& run_;
  const Batch& batch_;
};

void ReferenceRun::go_on(const Batch& batch, const Progress& progress) {
  const std::span<const uint32_t> piece = inputs_.subspan(batch.first, batch.count);
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> offsets = {0};
  for (size_t i = 0; i < batch.judged.size(); ++i) {
    tokens.insert(tokens.end(), piece.begin(), piece.end());
    offsets.push_back(tokens.size());
  }
  const std::vector<uint64_t> past(batch.judged.size(), past_ + batch.first);
  PrefillOptions prefill = judged_options();
  prefill.attention = batch.attention;
  Sink sink(*this, batch);
  model_.prefill({.tokens = tokens, .offsets = offsets, .past = past, .cache = &batch.cache}, prefill, sink,
                 progress);
}

uint64_t ReferenceRun::bytes(const ModelConfig& config, const LoopDocument& document, size_t continuations) {
  const uint64_t all = document.tokens.size(), rest = all - document.prefix;
  const uint64_t together =
      std::min<uint64_t>(continuations, std::max<uint64_t>(1, kContinuedTogether / rest));
  const uint64_t logits = 2 * logit_rows(config, rest) * as_size(config.vocabulary_size);
  const uint64_t cache = all * as_size(config.num_layers) * as_size(config.cache_width());
  return prefill_bytes(config, judged_options(), rest * together, all, num_threads(), all * together) +
         (logits + rest * as_size(config.hidden_size) + cache) * sizeof(float);
}

}  // namespace kvcodec
