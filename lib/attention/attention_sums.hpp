// How much attention tokens get of the last queries of a prompt, and which get most: tokens that Self-Indexing
// KVCache keeps whole and always attends to, chosen as by SnapKV (Li et al., "SnapKV: LLM Knows What You are Looking
// for Before Generation", 2024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// SnapKV's: weights of the last so many queries, averaged over so many neighbouring tokens.
inline constexpr size_t kObservedQueries = 32;
inline constexpr size_t kPooledTokens = 5;

/// Softmax weights that some queries of one head give to tokens, summed over the queries: the first pass
/// finds the sums of exponentials, the second the weights. Token by token, so that pieces do not matter.
class AttentionSums {
 public:
  /// queries: (n, dims); query_tokens: the token of each, which sees none behind it.
  AttentionSums(Matrix<float> queries, std::vector<uint64_t> query_tokens);

  /// The keys of tokens from `first` on, (any, dims); each pass in the order of the tokens.
  void first_pass(uint64_t first, MatrixView<const float> keys);
  void second_pass(uint64_t first, MatrixView<const float> keys);
  /// Of the tokens so far; after both passes.
  const std::vector<double>& weights() const { return weights_; }

 private:
  template <class Body>
  void for_each_score(uint64_t first, MatrixView<const float> keys, const Body& body) const;

  Matrix<float> queries_;
  std::vector<uint64_t> query_tokens_;
  std::vector<double> largest_, sums_, weights_;
};

/// The `count` tokens of the largest weights, each summed over `pooled` (odd) neighbours, rising; all if there are fewer.
std::vector<uint32_t> heaviest_tokens(std::span<const double> weights, size_t count,
                                      size_t pooled = kPooledTokens);

}  // namespace kvcodec
