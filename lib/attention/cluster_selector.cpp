#include "lib/attention/cluster_selector.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr float kAlways = std::numeric_limits<float>::infinity();

}  // namespace

ClusterSelector::ClusterSelector(const ClusterIndex& index, uint64_t tokens)
    : index_(index), tokens_(tokens) {
  if (tokens < index.end()) throw failed("an index of {} tokens for {}", index.end(), tokens);
}

void ClusterSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (out.rows() != queries.rows() || out.cols() != tokens_)
    throw failed("{} x {} scores for {} queries and {} tokens", out.rows(), out.cols(), queries.rows(),
                 tokens_);
  std::vector<float> of_clusters(index_.clusters());
  for (size_t q = 0; q < queries.rows(); ++q) {
    index_.centroid_scores(queries.row(q), of_clusters);
    std::ranges::fill(out.row(q), kAlways);
    for (size_t c = 0; c < of_clusters.size(); ++c)
      for (const uint32_t token : index_.tokens_of(c)) out(q, token) = of_clusters[c];
  }
}

std::vector<Scored> ClusterSelector::take(std::span<const float> centroid_scores, size_t budget,
                                          Order order) const {
  std::vector<Scored> chosen;
  const auto keep = [&](size_t begin, size_t end) {
    for (size_t token = begin; token < end && chosen.size() < budget; ++token)
      chosen.push_back({kAlways, static_cast<uint32_t>(token)});
  };
  keep(0, std::min<uint64_t>(index_.sink(), index_.end()));
  keep(index_.end(), tokens_);
  index_.take_best(centroid_scores, budget, chosen);
  if (order == Order::by_id)
    std::sort(chosen.begin(), chosen.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
  return chosen;
}

std::vector<Scored> ClusterSelector::select(std::span<const float> query, size_t budget, Order order) const {
  std::vector<float> of_clusters(index_.clusters());
  index_.centroid_scores(query, of_clusters);
  return take(of_clusters, budget, order);
}

std::vector<Scored> ClusterSelector::select_shared(MatrixView<const float> queries, SharedBy by,
                                                   size_t budget, Order order) const {
  if (queries.rows() == 0) throw failed("a selection for a group of no queries");
  std::vector<float> shared(index_.clusters()), own = shared;
  index_.centroid_scores(queries.row(0), shared);
  for (size_t q = 1; q < queries.rows(); ++q) {
    index_.centroid_scores(queries.row(q), own);
    for (size_t c = 0; c < own.size(); ++c)
      shared[c] = by == SharedBy::max ? std::max(shared[c], own[c]) : shared[c] + own[c];
  }
  if (by == SharedBy::mean)
    for (float& score : shared) score /= static_cast<float>(queries.rows());
  return take(shared, budget, order);
}

}  // namespace kvcodec
