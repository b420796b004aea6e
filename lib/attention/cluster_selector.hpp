// Selection by semantic clusters (ClusterKV), behind the interface of all selectors.
#pragma once

#include "lib/attention/selector.hpp"
#include "lib/cluster/cluster_index.hpp"

namespace kvcodec {

/// Tokens that a selection keeps whatever they score.
struct KeptAnyway {
  uint64_t first = 0;   ///< tokens [0, first): of the sink
  uint64_t newest = 0;  ///< and the last so many: those that wait for a cluster, or were asked for

  bool operator==(const KeptAnyway&) const = default;
};

/// The one rule where `budget` may be too small for all of them: the sink first, since nearly every query
/// looks at it, then the newest of the `newest` last tokens, the oldest of them left out. Scored tokens get
/// what the budget has left. Sink and newest tokens may overlap, or be more than `tokens`.
KeptAnyway kept_anyway(uint64_t tokens, uint64_t sink, uint64_t newest, uint64_t budget);

/// The score of a token that waits for its cluster, of `tokens`: beyond any product of vectors within
/// kLargestNorm, higher the newer (of the newest 2^20; those before are equal), the same for all queries.
float waiting_score(uint64_t tokens, uint64_t token);

/// A token's score is the product of the query with its cluster's centroid, so the best tokens are those of
/// the best clusters, the last one trimmed. Tokens of the sink, and those behind the index's end, which wait
/// for their cluster, come before all of them, by the rule of kept_anyway().
///
/// Up to m - 1 tokens wait (ClusterOptions::batch). With the default m = 320 they can use up a small budget:
/// of 335 tokens or less, sink included, nothing may be left for clusters until the batch is full.
class ClusterSelector final : public Selector {
 public:
  /// index must outlive it. tokens: of the document, at least index.end().
  ClusterSelector(const ClusterIndex& index, uint64_t tokens);
  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return index_.dims(); }
  /// Scores are infinite for the sink, and waiting_score() for tokens that wait.
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;
  std::vector<Scored> select(std::span<const float> query, size_t budget,
                             Order order = Order::by_score) const override;
  std::vector<Scored> select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                    Order order = Order::by_score) const override;

 private:
  uint64_t waiting() const;
  std::vector<Scored> take(std::span<const float> centroid_scores, size_t budget, Order order) const;

  const ClusterIndex& index_;
  size_t tokens_;
};

}  // namespace kvcodec
