#include "lib/metrics/next_token.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

/// Logits turned to probabilities at a time, on the stack.
constexpr size_t kTokensAtOnce = 1024;

/// Calls body(first, exp(logit - largest)) for all logits, block by block.
template <class Body>
static void for_each_exponential(std::span<const float> logits, float largest, const Body& body) {
  std::array<float, kTokensAtOnce> buffer;
  for (size_t first = 0; first < logits.size(); first += kTokensAtOnce) {
    const std::span<float> block(buffer.data(), std::min(kTokensAtOnce, logits.size() - first));
    for (size_t i = 0; i < block.size(); ++i) block[i] = logits[first + i] - largest;
    exp_nonpositive(block);
    body(first, std::span<const float>(block));
  }
}

NextToken::NextToken(std::span<const float> logits) : logits_(logits) {
  if (logits.empty()) throw failed("a distribution over no tokens");
  best_ = static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
  double total = 0;
  for_each_exponential(logits, logits[best_],
                       [&](size_t, std::span<const float> block) { total += sum(block); });
  log_sum_ = static_cast<double>(logits[best_]) + std::log(total);
}

double NextToken::surprise(uint32_t token) const {
  if (token >= logits_.size()) throw failed("token {} of a vocabulary of {}", token, logits_.size());
  return log_sum_ - static_cast<double>(logits_[token]);
}

ReferenceToken::ReferenceToken(const NextToken& next, std::span<float> weights)
    : weights_(weights), best_(next.best()) {
  const std::span<const float> logits = next.logits();
  if (logits.size() != weights.size())
    throw failed("{} places for the weights of {} tokens", weights.size(), logits.size());
  double weighted = 0;
  for_each_exponential(logits, logits[best_], [&](size_t first, std::span<const float> block) {
    weighted += dot(block, logits.subspan(first, block.size()));
    weight_sum_ += sum(block);
    std::ranges::copy(block, weights.begin() + static_cast<std::ptrdiff_t>(first));
  });
  mean_log_ = weighted / weight_sum_ - next.log_sum();
}

double ReferenceToken::divergence(const NextToken& other) const {
  const std::span<const float> logits = other.logits();
  if (logits.size() != weights_.size())
    throw failed("vocabularies of {} and {} tokens", weights_.size(), logits.size());
  const double mean_log = dot(weights_, logits) / weight_sum_ - other.log_sum();
  // In this order a NaN stays one.
  return std::max(mean_log_ - mean_log, 0.0);
}

PredictionEstimates estimate_predictions(std::span<const PredictionSums> documents,
                                         std::span<const PredictionSums> references) {
  if (documents.size() != references.size())
    throw failed("predictions of {} documents against {}", documents.size(), references.size());
  std::vector<double> counts, surprise, rise, divergence, same, right;
  for (size_t i = 0; i < documents.size(); ++i) {
    const PredictionSums& own = documents[i];
    if (own.tokens != references[i].tokens)
      throw failed("document {}: {} predictions against {}", i, own.tokens, references[i].tokens);
    counts.push_back(static_cast<double>(own.tokens));
    surprise.push_back(own.surprise);
    rise.push_back(own.surprise - references[i].surprise);
    divergence.push_back(own.divergence);
    same.push_back(static_cast<double>(own.same_best));
    right.push_back(static_cast<double>(own.right));
  }
  return {.surprise = mean_by_document(surprise, counts),
          .divergence = mean_by_document(divergence, counts),
          .rise = mean_by_document(rise, counts),
          .same_best = mean_by_document(same, counts),
          .right = mean_by_document(right, counts)};
}

/// The 97.5% point of the normal distribution.
constexpr double kNormal = 1.959963984540054;

double student_975(uint64_t degrees) {
  if (degrees == 0) return std::numeric_limits<double>::infinity();
  if (degrees == 1) return 12.706204736174707;
  if (degrees == 2) return 4.302652729749464;
  const double z = kNormal, n = static_cast<double>(degrees);
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, z9 = z7 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * n * n * n * n);
}

Estimate mean_by_document(std::span<const double> sums, std::span<const double> counts) {
  if (sums.size() != counts.size()) throw failed("{} sums of {} documents", sums.size(), counts.size());
  double sum = 0, count = 0;
  uint64_t documents = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] == 0) continue;
    sum += sums[i];
    count += counts[i];
    ++documents;
  }
  Estimate result{sum / count, std::numeric_limits<double>::infinity()};
  if (documents < 2) return result;
  double spread = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double residual = sums[i] - result.mean * counts[i];
    spread += counts[i] == 0 ? 0 : residual * residual;
  }
  const auto n = static_cast<double>(documents);
  result.half_width = student_975(documents - 1) * std::sqrt(spread * n / (n - 1)) / count;
  return result;
}

ShareEstimate share_of(double successes, uint64_t trials) {
  if (trials == 0) return {};
  const double n = static_cast<double>(trials), p = successes / n, z2 = kNormal * kNormal;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
  return {p, std::fmax(0, center - half), std::fmin(1, center + half)};
}

double quantile(std::vector<float>& values, double fraction) {
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto lower = values.begin() + static_cast<ptrdiff_t>(place);
  std::nth_element(values.begin(), lower, values.end());
  const double share = place - std::floor(place);
  if (share == 0) return *lower;
  const double next = *std::min_element(lower + 1, values.end());
  return *lower + share * (next - *lower);
}

}  // namespace kvcodec
