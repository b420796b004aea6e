// What errors of keys and values do to attention: per layer and query head, the error of
// the logits, the divergence of the weights, the error of the output, and how many of the tokens with the
// largest logits stay among them. Causal: a query sees the tokens up to its own.
//
// Products are floats, softmax and sums double.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

struct AttentionErrorSums {
  uint64_t queries = 0;
  uint64_t logits = 0;      ///< tokens that the queries see, together
  double logit_error = 0;   ///< sum of squares of the differences of q . k / sqrt(d)
  double divergence = 0;    ///< sum over queries of sum p (log p - log p'), in nats
  double output_error = 0;  ///< sum over queries of |o - o'| / |o|
  double overlap = 0;       ///< sum over queries of the share of the top tokens that stays

  void add(const AttentionErrorSums& other);
  double logit_rms() const;
  double mean_divergence() const { return per_query(divergence); }
  double mean_output_error() const { return per_query(output_error); }
  double mean_overlap() const { return per_query(overlap); }

 private:
  double per_query(double sum) const { return queries == 0 ? 0 : sum / static_cast<double>(queries); }
};

class AttentionErrorMeter {
 public:
  /// top: how many of the largest logits are compared; fewer where a query sees fewer.
  AttentionErrorMeter(int layers, int query_heads, size_t top);

  /// A document's rows of one layer, original and rebuilt: keys (tokens, heads * dimensions), values (tokens, heads *
  /// dimensions of theirs); and its queries, (n, query_heads * dimensions of keys). Query i sees the first visible[i]
  /// tokens, at least 1. Threaded, with the same result for any number of threads. Throws Error(failed) for shapes that
  /// do not fit.
  struct Rows {
    MatrixView<const float> keys, values, other_keys, other_values, queries;
    std::span<const uint64_t> visible;
    int heads = 0;  ///< of keys and values; a divisor of the query heads
  };
  void add(int layer, const Rows& rows);

  /// Over everything, a layer, a query head of every layer or of one.
  AttentionErrorSums sums(std::optional<int> layer = {}, std::optional<int> head = {}) const;
  int layers() const { return layers_; }
  int query_heads() const { return query_heads_; }
  size_t top() const { return top_; }

 private:
  int layers_, query_heads_;
  size_t top_;
  std::vector<AttentionErrorSums> sums_;  // [layer][query head]
};

}  // namespace kvcodec
