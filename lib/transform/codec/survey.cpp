#include "lib/transform/codec/survey.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr size_t kTile = TransformPart::kTile;
constexpr size_t kBatch = 16 * kTile;
constexpr uint64_t kRun = 64, kWholeRuns = 16;

std::vector<uint32_t> first_components(size_t count) {
  std::vector<uint32_t> components(count);
  std::iota(components.begin(), components.end(), 0u);
  return components;
}

/// One in so many of the runs around this one is looked at.
uint64_t apart_at(uint64_t run) { return run < kWholeRuns ? 1 : 2 * std::bit_floor(run / kWholeRuns); }

}  // namespace

TransformSurvey::TransformSurvey(const TransformPart& part, std::string_view stream, uint64_t lead,
                                 double unbias)
    : part_(part),
      stream_(stream),
      lead_(lead),
      analysis_(part.basis(), first_components(part.surveyed())),
      scores_(part.basis().prediction),
      survey_(part.tables(), part.rung(), part.surveyed(), part.width(), unbias),
      rows_(kBatch, part.width()),
      features_(kBatch, part.features() ? part.features()->width() : 0) {}

/// How many tokens the next one stands for; 0: it is not looked at.
uint32_t TransformSurvey::weight_of_next() const {
  if (token_ < lead_) return 0;
  const uint64_t run = seen_ / kRun, apart = std::max<uint64_t>(apart_at(run), 1);
  return run % apart == 0 ? static_cast<uint32_t>(apart) : 0;
}

void TransformSurvey::pass() {
  if (token_++ >= lead_) ++seen_;
}

Survey::Look TransformSurvey::look(uint64_t left) {
  Look look;
  for (; look.skipped < left && weight_of_next() == 0; ++look.skipped) pass();
  const uint64_t token = token_, seen = seen_;
  for (; look.skipped + look.shown < left && weight_of_next() > 0; ++look.shown) pass();
  token_ = token, seen_ = seen;
  return look;
}

void TransformSurvey::observe(MatrixView<const float> rows) {
  for (size_t i = 0; i < rows.rows(); ++i, pass())
    if (const uint32_t weight = weight_of_next(); weight > 0) keep(rows.row(i), weight);
}

void TransformSurvey::end_document() {
  token_ = 0;
  ids_.clear();
}

void TransformSurvey::finish(StreamStore& document) {
  count_batch();
  if (const auto adaptation = survey_.finish())
    document.append_values<uint8_t>(stream_,
                                    write_adaptation(*adaptation, part_.tables(), part_.rung().classes));
}

void TransformSurvey::keep(std::span<const float> row, uint32_t weight) {
  const size_t at = weights_.size();
  for (size_t c = 0; c < row.size(); ++c) rows_(at, c) = row[c] - part_.mean()[c];
  if (const TokenFeatures* const features = part_.features()) {
    const auto read = [&](uint64_t first, uint64_t count) { return ids_within(ids_, first, count); };
    features->gather(ids_with_lags(read, token_, 1, features->lags()), features_.view().rows(at, 1));
  }
  weights_.push_back(weight);
  if (weights_.size() == kBatch) count_batch();
}

/// Components are computed in whole tiles, so that they do not depend on how observe() was given the tokens.
void TransformSurvey::count_batch() {
  const size_t tokens = weights_.size(), tiles = (tokens + kTile - 1) / kTile;
  if (tokens == 0) return;
  for (size_t t = tokens; t < tiles * kTile; ++t) std::ranges::fill(rows_.row(t), 0.0f);
  Matrix<float> components(part_.surveyed(), tiles * kTile);
  parallel_for(tiles, 1, [&](size_t begin, size_t end, int) {
    for (size_t tile = begin; tile < end; ++tile)
      analysis_.apply(0, rows_.view().rows(tile * kTile, kTile),
                      scores_.of(features_.view().rows(tile * kTile, kTile)),
                      components.view().columns(tile * kTile, kTile));
  });
  survey_.add(components.view().columns(0, tokens), weights_);
  weights_.clear();
}

}  // namespace kvcodec
