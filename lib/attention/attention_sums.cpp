#include "lib/attention/attention_sums.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/attention/attention.hpp"
#include "lib/linalg/topk.hpp"

namespace kvcodec {

AttentionSums::AttentionSums(Matrix<float> queries, std::vector<uint64_t> query_tokens)
    : queries_(std::move(queries)),
      query_tokens_(std::move(query_tokens)),
      largest_(queries_.rows(), -std::numeric_limits<double>::infinity()),
      sums_(queries_.rows()) {}

template <class Body>
void AttentionSums::for_each_score(uint64_t first, MatrixView<const float> keys, const Body& body) const {
  Matrix<float> scores(queries_.rows(), keys.rows());
  dot_products(queries_, CacheRows(keys, keys), scores);
  const double scale = 1 / std::sqrt(static_cast<double>(keys.cols()));
  for (size_t t = 0; t < keys.rows(); ++t)
    for (size_t q = 0; q < queries_.rows(); ++q)
      if (first + t <= query_tokens_[q]) body(q, first + t, static_cast<double>(scores(q, t)) * scale);
}

void AttentionSums::first_pass(uint64_t first, MatrixView<const float> keys) {
  for_each_score(first, keys, [&](size_t q, uint64_t, double score) {
    if (score > largest_[q]) {
      sums_[q] = sums_[q] * std::exp(largest_[q] - score) + 1;
      largest_[q] = score;
    } else {
      sums_[q] += std::exp(score - largest_[q]);
    }
  });
}

void AttentionSums::second_pass(uint64_t first, MatrixView<const float> keys) {
  weights_.resize(first + keys.rows());
  for_each_score(first, keys, [&](size_t q, uint64_t token, double score) {
    weights_[token] += std::exp(score - largest_[q]) / sums_[q];
  });
}

std::vector<uint32_t> heaviest_tokens(std::span<const double> weights, size_t count, size_t pooled) {
  const size_t reach = pooled / 2;
  std::vector<float> sums(weights.size());
  for (size_t t = 0; t < weights.size(); ++t) {
    double sum = 0;
    for (size_t i = t - std::min(t, reach); i < std::min(t + reach + 1, weights.size()); ++i)
      sum += weights[i];
    sums[t] = static_cast<float>(sum);
  }
  std::vector<uint32_t> chosen;
  for (const Scored& scored : top_k(sums, count, Order::by_id)) chosen.push_back(scored.id);
  return chosen;
}

}  // namespace kvcodec
