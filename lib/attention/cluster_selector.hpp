// Selection by semantic clusters (ClusterKV), behind the interface of all selectors.
#pragma once

#include "lib/attention/selector.hpp"
#include "lib/cluster/cluster_index.hpp"

namespace kvcodec {

/// A token's score is the product of the query with its cluster's centroid, so the best tokens are those of
/// the best clusters, the last one trimmed. Tokens of the sink, and those behind the index's end, which wait
/// for their cluster, have infinite scores: they are always kept, within the budget.
class ClusterSelector final : public Selector {
 public:
  /// index must outlive it. tokens: of the document, at least index.end().
  ClusterSelector(const ClusterIndex& index, uint64_t tokens);
  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return index_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;
  std::vector<Scored> select(std::span<const float> query, size_t budget,
                             Order order = Order::by_score) const override;
  std::vector<Scored> select_shared(MatrixView<const float> queries, SharedBy by, size_t budget,
                                    Order order = Order::by_score) const override;

 private:
  std::vector<Scored> take(std::span<const float> centroid_scores, size_t budget, Order order) const;

  const ClusterIndex& index_;
  size_t tokens_;
};

}  // namespace kvcodec
