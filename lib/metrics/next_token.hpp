// Quality of a model's predictions of the next token, and the distance of its distribution from that of
// another run: the effect of compressing a cache on the model.
//
// All in nats. Exponentials are floats (relative error 1e-7), sums doubles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

// Confidence intervals of means over documents. Documents count as independent; tokens of one document are
// not, so an interval computed from single tokens could be too narrow.

/// A mean and half the width of its 95% interval.
struct Estimate {
  double mean = 0;
  double half_width = 0;  ///< infinite for fewer than two documents
};

/// The mean per token of all documents together, sum of sums over sum of counts, and its interval by the
/// usual approximation for a ratio (Cochran, "Sampling Techniques", section 2.11): the spread of sums[i] -
/// mean * counts[i] over the documents, times Student's t. Documents with a count of 0 are left out; NaN
/// without any. Throws Error(failed) for spans of different sizes.
Estimate mean_by_document(std::span<const double> sums, std::span<const double> counts);

/// The share of successes of independent trials, and its 95% interval by Wilson's score (1927), which holds
/// for shares near 0 and 1 too. 0 to 1 without trials. Trials that succeed in part vary less, so that it is wide enough for them.
struct ShareEstimate {
  double share = 0, low = 0, high = 1;
};
ShareEstimate share_of(double successes, uint64_t trials);

/// The value at `fraction` (0..1) of the sorted values, linear between neighbours. Reorders them; there is at
/// least one.
double quantile(std::vector<float>& values, double fraction);

/// The 97.5% point of Student's t distribution, to 0.2%: exact for 1 and 2 degrees of freedom, by the
/// expansion in their inverse (Fisher 1941; Abramowitz and Stegun 26.7.5) for more. Infinite for 0.
double student_975(uint64_t degrees);

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

/// The reference distribution for several others: the data that all comparisons need is computed once.
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
  double surprise = 0;     ///< negative log-likelihood of the actual tokens
  double divergence = 0;   ///< from the reference
  uint64_t same_best = 0;  ///< positions whose likeliest token is that of the reference
  uint64_t right = 0;      ///< positions whose likeliest token is the actual one

  void add(const PredictionSums& other) {
    tokens += other.tokens;
    surprise += other.surprise;
    divergence += other.divergence;
    same_best += other.same_best;
    right += other.right;
  }
};

/// Means per token of all documents together, and their 95% intervals by document (mean_by_document).
struct PredictionEstimates {
  Estimate surprise, divergence;
  Estimate rise;              ///< of the surprise over the reference's
  Estimate same_best, right;  ///< shares of positions
};

/// documents, references: the sums of each document, under a setting and in the reference run, of the same
/// positions. Throws Error(failed) if their numbers of documents or positions differ.
PredictionEstimates estimate_predictions(std::span<const PredictionSums> documents,
                                         std::span<const PredictionSums> references);

}  // namespace kvcodec
