// How well a model predicts the next token, and how far its distribution is from that of another run: what
// compressing a cache does to the model.
//
// All in nats. Exponentials are floats (relative error 1e-7), sums doubles.
#pragma once

#include <cstdint>
#include <span>

#include "lib/metrics/interval.hpp"

namespace kvcodec {

/// The next-token distribution of one position, softmax of its logits.
class NextToken {
 public:
  /// logits: one per token of the vocabulary, at least one. They must outlive this.
  explicit NextToken(std::span<const float> logits);

  std::span<const float> logits() const { return logits_; }
  /// log of the sum of exp(logit).
  double log_sum() const { return log_sum_; }
  /// The likeliest token; of equal ones the lowest.
  uint32_t best() const { return best_; }
  /// -log of the token's probability. Throws Error(failed) for a token beyond the vocabulary. Not finite
  /// where logits are not.
  double surprise(uint32_t token) const;

 private:
  std::span<const float> logits_;
  double log_sum_ = 0;
  uint32_t best_ = 0;
};

/// The distribution that several others are held against: what they all need of it is made once.
class ReferenceToken {
 public:
  /// weights: memory for the probabilities, up to a common factor, as many as `next` has logits. It may be
  /// the memory of these logits: they are then overwritten, and `next` must not be used any more. It must
  /// outlive this. Throws Error(failed) for another number.
  ReferenceToken(const NextToken& next, std::span<float> weights);

  uint32_t best() const { return best_; }
  /// Kullback-Leibler divergence of `other` from this: sum of p (log p - log q), p of this; at least 0. Throws
  /// Error(failed) for vocabularies of different sizes.
  double divergence(const NextToken& other) const;

 private:
  std::span<const float> weights_;
  double weight_sum_ = 0;
  double mean_log_ = 0;  ///< the mean of log p over p
  uint32_t best_ = 0;
};

/// Sums over positions.
struct PredictionSums {
  uint64_t tokens = 0;
  double surprise = 0;     ///< negative log-likelihood of what came
  double divergence = 0;   ///< from the reference
  uint64_t same_best = 0;  ///< positions whose likeliest token is that of the reference
  uint64_t right = 0;      ///< positions whose likeliest token is what came

  void add(const PredictionSums& other);
};

/// Means per token of all documents together, and their 95% intervals by document (mean_by_document).
struct PredictionEstimates {
  Estimate surprise, divergence;
  Estimate rise;              ///< of the surprise over the reference's
  Estimate same_best, right;  ///< shares of positions
};

/// documents, references: the sums of each document, under a setting and in the run that it is held against,
/// of the same positions. Throws Error(failed) where their numbers of documents or positions differ.
PredictionEstimates estimate_predictions(std::span<const PredictionSums> documents,
                                         std::span<const PredictionSums> references);

}  // namespace kvcodec
