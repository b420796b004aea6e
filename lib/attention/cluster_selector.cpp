#include "lib/attention/cluster_selector.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr float kOfSink = std::numeric_limits<float>::infinity();

/// Scores of waiting tokens are multiples of it, from 1 to kMostWaiting: above kLargestNorm squared, and of
/// so few bits that sums over 16 queries are exact, and finite over 127.
constexpr float kWaitingUnit = 0x1p100f;
constexpr uint64_t kMostWaiting = uint64_t{1} << 20;
static_assert(double{kWaitingUnit} > kLargestNorm * kLargestNorm);

}  // namespace

KeptAnyway kept_anyway(uint64_t tokens, uint64_t sink, uint64_t newest, uint64_t budget) {
  const uint64_t first = std::min({sink, budget, tokens});
  return {first, std::min({newest, budget - first, tokens - first})};
}

float waiting_score(uint64_t tokens, uint64_t token) {
  const uint64_t newer = tokens - 1 - token;
  return kWaitingUnit * static_cast<float>(kMostWaiting - std::min(newer, kMostWaiting - 1));
}

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
    const uint64_t first_waiting = tokens_ - waiting();
    for (size_t token = 0; token < tokens_; ++token)
      out(q, token) = token >= first_waiting ? waiting_score(tokens_, token) : kOfSink;
    for (size_t c = 0; c < of_clusters.size(); ++c)
      for (const uint32_t token : index_.tokens_of(c)) out(q, token) = of_clusters[c];
  }
}

/// Tokens behind both the sink and the clusters.
uint64_t ClusterSelector::waiting() const {
  return tokens_ - std::min<uint64_t>(tokens_, std::max(index_.sink(), index_.end()));
}

std::vector<Scored> ClusterSelector::take(std::span<const float> centroid_scores, size_t budget,
                                          Order order) const {
  std::vector<Scored> chosen;
  const KeptAnyway kept = kept_anyway(tokens_, index_.sink(), waiting(), budget);
  for (uint64_t token = 0; token < kept.first; ++token)
    chosen.push_back({kOfSink, static_cast<uint32_t>(token)});
  for (uint64_t newer = 0; newer < kept.newest; ++newer) {
    const uint64_t token = tokens_ - 1 - newer;
    chosen.push_back({waiting_score(tokens_, token), static_cast<uint32_t>(token)});
  }
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

std::vector<Scored> ClusterSelector::select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                                   Order order) const {
  check_group(queries, by);
  std::vector<float> shared(index_.clusters()), own = shared;
  index_.centroid_scores(queries.row(0), shared);
  for (size_t q = 1; q < queries.rows(); ++q) {
    index_.centroid_scores(queries.row(q), own);
    for (size_t c = 0; c < own.size(); ++c)
      shared[c] = by == Share::max ? std::max(shared[c], own[c]) : shared[c] + own[c];
  }
  if (by == Share::mean)
    for (float& score : shared) score /= static_cast<float>(queries.rows());
  return take(shared, budget, order);
}

}  // namespace kvcodec
