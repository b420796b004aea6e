#include "lib/metrics/attention_error.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/metrics/selection.hpp"

namespace kvcodec {
namespace {

/// Turns logits to the logarithms of their softmax.
std::vector<double> log_weights(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  std::vector<double> weights;
  for (const float logit : logits) weights.push_back(static_cast<double>(logit) - log_sum);
  return weights;
}

std::vector<float> output_of(const std::vector<double>& log_weights, MatrixView<const float> values) {
  std::vector<double> sums(values.cols());
  for (size_t t = 0; t < log_weights.size(); ++t) {
    const double weight = std::exp(log_weights[t]);
    const auto row = values.row(t);
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += weight * static_cast<double>(row[c]);
  }
  return {sums.begin(), sums.end()};
}

std::vector<uint32_t> top_ids(std::span<const float> logits, size_t count) {
  std::vector<uint32_t> ids;
  for (const Scored& scored : top_k(logits, count)) ids.push_back(scored.id);
  return ids;
}

/// One query over the tokens it sees.
AttentionErrorSums compare(std::span<const float> logits, std::span<const float> other,
                           MatrixView<const float> values, MatrixView<const float> other_values, size_t top) {
  AttentionErrorSums sums;
  sums.queries = 1;
  sums.logits = logits.size();
  for (size_t t = 0; t < logits.size(); ++t) {
    const double difference = static_cast<double>(logits[t]) - static_cast<double>(other[t]);
    sums.logit_error += difference * difference;
  }
  const std::vector<double> p = log_weights(logits), q = log_weights(other);
  for (size_t t = 0; t < p.size(); ++t) sums.divergence += std::exp(p[t]) * (p[t] - q[t]);
  sums.divergence = std::max(sums.divergence, 0.0);  // in this order a NaN stays one
  sums.output_error = relative_error(output_of(q, other_values), output_of(p, values));
  const size_t count = std::min(top, logits.size());
  sums.overlap = selection_recall(top_ids(other, count), top_ids(logits, count));
  return sums;
}

}  // namespace

void AttentionErrorSums::add(const AttentionErrorSums& other) {
  queries += other.queries;
  logits += other.logits;
  logit_error += other.logit_error;
  divergence += other.divergence;
  output_error += other.output_error;
  overlap += other.overlap;
}

double AttentionErrorSums::logit_rms() const {
  return logits == 0 ? 0 : std::sqrt(logit_error / static_cast<double>(logits));
}

AttentionErrorMeter::AttentionErrorMeter(int layers, int query_heads, size_t top)
    : layers_(layers), query_heads_(query_heads), top_(top) {
  if (layers < 1 || query_heads < 1 || top < 1)
    throw failed("{} layers, {} query heads, {} top tokens do not fit", layers, query_heads, top);
  sums_.resize(as_size(layers) * as_size(query_heads));
}

void AttentionErrorMeter::add(int layer, const Rows& rows) {
  if (rows.heads < 1 || query_heads_ % rows.heads != 0)
    throw failed("layer {}: {} query heads and {} heads do not fit", layer, query_heads_, rows.heads);
  const size_t d = rows.keys.cols() / as_size(rows.heads), value_d = rows.values.cols() / as_size(rows.heads),
               n = rows.queries.rows();
  const auto fits = [&](MatrixView<const float> part, size_t dims) {
    return part.rows() == rows.keys.rows() && dims > 0 && part.cols() == as_size(rows.heads) * dims;
  };
  if (layer < 0 || layer >= layers_ || !fits(rows.keys, d) || !fits(rows.values, value_d) ||
      !fits(rows.other_keys, d) || !fits(rows.other_values, value_d) ||
      rows.queries.cols() != as_size(query_heads_) * d || rows.visible.size() != n)
    throw failed("layer {}: {} x {} keys and {} x {} queries do not fit", layer, rows.keys.rows(),
                 rows.keys.cols(), n, rows.queries.cols());
  for (const uint64_t visible : rows.visible)
    if (visible < 1 || visible > rows.keys.rows())
      throw failed("a query sees {} of {} tokens", visible, rows.keys.rows());
  const size_t group = as_size(query_heads_ / rows.heads);
  parallel_for(as_size(query_heads_), 1, [&](size_t begin, size_t end, int) {
    for (size_t head = begin; head < end; ++head) {
      const size_t first = head / group * d, first_value = head / group * value_d;
      const auto queries = rows.queries.columns(head * d, d);
      const auto values = rows.values.columns(first_value, value_d),
                 other_values = rows.other_values.columns(first_value, value_d);
      AttentionErrorSums& sums = sums_[as_size(layer) * as_size(query_heads_) + head];
      const float scale = 1 / std::sqrt(static_cast<float>(d));
      // Some at a time: their logits are to be few megabytes.
      constexpr size_t kQueries = 32;
      Matrix<float> logits(std::min(kQueries, n), rows.keys.rows()), other = logits;
      for (size_t i = 0; i < n; i += kQueries) {
        const size_t count = std::min(kQueries, n - i);
        gemm(scale, queries.rows(i, count), Transpose::no, rows.keys.columns(first, d), Transpose::yes, 0,
             logits.view().rows(0, count));
        gemm(scale, queries.rows(i, count), Transpose::no, rows.other_keys.columns(first, d), Transpose::yes,
             0, other.view().rows(0, count));
        for (size_t k = 0; k < count; ++k) {
          const size_t visible = rows.visible[i + k];
          sums.add(compare(std::as_const(logits).row(k).first(visible),
                           std::as_const(other).row(k).first(visible), values, other_values, top_));
        }
      }
    }
  });
}

AttentionErrorSums AttentionErrorMeter::sums(std::optional<int> layer, std::optional<int> head) const {
  AttentionErrorSums total;
  for (int l = layer.value_or(0); l <= layer.value_or(layers_ - 1); ++l)
    for (int h = head.value_or(0); h <= head.value_or(query_heads_ - 1); ++h)
      total.add(sums_.at(as_size(l) * as_size(query_heads_) + as_size(h)));
  return total;
}

}  // namespace kvcodec
