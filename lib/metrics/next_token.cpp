#include "lib/metrics/next_token.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// Logits turned to probabilities at a time, on the stack.
constexpr size_t kBlock = 1024;

/// Calls body(first, exp(logit - largest)) for all logits, block by block.
template <class Body>
void for_each_exponential(std::span<const float> logits, float largest, const Body& body) {
  std::array<float, kBlock> buffer;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const std::span<float> block(buffer.data(), std::min(kBlock, logits.size() - first));
    for (size_t i = 0; i < block.size(); ++i) block[i] = logits[first + i] - largest;
    exp_nonpositive(block);
    body(first, std::span<const float>(block));
  }
}

}  // namespace

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

void PredictionSums::add(const PredictionSums& other) {
  tokens += other.tokens;
  surprise += other.surprise;
  divergence += other.divergence;
  same_best += other.same_best;
  right += other.right;
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

}  // namespace kvcodec
