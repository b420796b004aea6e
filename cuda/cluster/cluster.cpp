#include "cuda/cluster/cluster.hpp"

#include <algorithm>
#include <limits>

#include "cuda/cluster/cluster.cuh"
#include "cuda/runtime/device_work.hpp"
#include "lib/cluster/cluster_index.hpp"

namespace kvcodec::cuda {

DeviceClusterIndex::DeviceClusterIndex(const kvcodec::ClusterIndex& index)
    : dims(index.dims()), clusters(index.clusters()), sink(index.sink()), end(index.end()) {
  std::vector<uint32_t> label_of(end);
  for (size_t c = 0; c < clusters; ++c)
    for (const uint32_t token : index.tokens_of(c)) label_of[token] = static_cast<uint32_t>(c);
  const Stream stream;
  centroids = DeviceBuffer<float>({index.centroids().data(), clusters * dims}, stream);
  offsets = DeviceBuffer<uint64_t>(index.offsets(), stream);
  ids = DeviceBuffer<uint32_t>(index.ids(), stream);
  labels = DeviceBuffer<uint32_t>(label_of, stream);
  stream.synchronize();
}

namespace {

/// Selections at a time, of as many bits each as there are tokens, twice; a grid has a row of blocks for each.
constexpr size_t kAtOnce = 4096;
static_assert(kAtOnce <= kMaxGridRows);

/// Data that the choices of a call share.
struct Document {
  const DeviceClusterIndex& index;
  uint64_t tokens;
  bool largest;

  /// Tokens from here on wait for a cluster.
  uint64_t clustered() const { return std::max(index.sink, index.end); }
};

ClusterSearch search_of(const Document& document, const TokenChoice& choice) {
  const DeviceClusterIndex& index = document.index;
  if (choice.queries.rows() == 0 || choice.queries.cols() != index.dims || choice.visible > UINT32_MAX)
    throw failed("{} queries of {} dimensions for {} tokens and an index of {} of {}", choice.queries.rows(),
                 choice.queries.cols(), choice.visible, index.end, index.dims);
  const uint64_t waiting = choice.visible - std::min(choice.visible, document.clustered());
  const KeptAnyway kept =
      kept_anyway(choice.visible, index.sink, std::max(waiting, choice.newest), choice.budget);
  return {.centroids = index.centroids.data(),
          .offsets = index.offsets.data(),
          .ids = index.ids.data(),
          .labels = index.labels.data(),
          .clusters = static_cast<uint32_t>(index.clusters),
          .dims = static_cast<uint32_t>(index.dims),
          .query_count = static_cast<uint32_t>(choice.queries.rows()),
          .largest = document.largest,
          .tokens = static_cast<uint32_t>(choice.visible),
          .end = static_cast<uint32_t>(index.end),
          .first = static_cast<uint32_t>(kept.first),
          .newest = static_cast<uint32_t>(kept.newest),
          .budget = static_cast<uint32_t>(
              std::min<uint64_t>(choice.budget - kept.first - kept.newest, UINT32_MAX))};
}

/// The score of a token whose cluster does not say it, for so many queries.
float score_apart(const Document& document, size_t queries, uint32_t token) {
  if (token < document.index.sink) return std::numeric_limits<float>::infinity();
  const float one = waiting_score(document.tokens, token);
  float score = one;
  for (size_t q = 1; q < queries && !document.largest; ++q) score += one;
  return score;
}

/// Appends what at most kAtOnce choices come to.
void select_some(const Document& document, std::span<const TokenChoice> choices,
                 std::vector<std::vector<Scored>>& selected) {
  const Stream stream;
  std::vector<ClusterSearch> searches;
  std::vector<float> vectors;
  ClusterSearches all;
  uint64_t max_tokens = 0;
  for (const TokenChoice& choice : choices) {
    searches.push_back(search_of(document, choice));
    all.room = std::max<size_t>(all.room, std::min<uint64_t>(choice.budget, choice.visible));
    max_tokens = std::max(max_tokens, choice.visible);
    for (size_t i = 0; i < choice.queries.rows(); ++i)
      vectors.insert(vectors.end(), choice.queries.row(i).begin(), choice.queries.row(i).end());
  }
  all.max_clusters = static_cast<uint32_t>(document.index.clusters);
  const DeviceBuffer<float> device_vectors(vectors, stream);
  size_t at = 0;
  for (ClusterSearch& search : searches) {
    search.queries = device_vectors.data() + at;
    at += size_t{search.query_count} * search.dims;
  }
  const DeviceBuffer<ClusterSearch> each(searches, stream);
  const size_t count = searches.size(), words = (max_tokens + 31) / 32;
  DeviceBuffer<float> scores(checked_mul(count, all.max_clusters)),
      token_scores(checked_mul(count, all.room));
  DeviceBuffer<uint32_t> limits(2 * count), bits(checked_mul(2 * count, words)), ids(token_scores.size()),
      counts(count), nan(1);
  bits.fill(0, stream), nan.fill(0, stream);
  all.each = each.data(), all.count = static_cast<uint32_t>(count);
  all.scores = scores.data(), all.stride = all.max_clusters;
  all.limits = limits.data();
  all.bits = bits.data(), all.words = static_cast<uint32_t>(words);
  all.ids = ids.data(), all.token_scores = token_scores.data();
  all.counts = counts.data(), all.nan = nan.data();
  stream.run("selecting clusters", run_select_clusters, all);
  const auto host_counts = downloaded(counts, stream), host_ids = downloaded(ids, stream);
  const auto host_scores = downloaded(token_scores, stream);
  if (downloaded(nan, stream)[0] != 0) throw bad_input("a query's score of a cluster is not a number");
  for (size_t q = 0; q < count; ++q) {
    std::vector<Scored>& tokens = selected.emplace_back();
    for (size_t i = q * all.room; i < q * all.room + host_counts[q]; ++i) {
      const uint32_t token = host_ids[i];
      const bool apart = token < document.index.sink || token >= document.clustered();
      tokens.push_back(
          {apart ? score_apart(document, choices[q].queries.rows(), token) : host_scores[i], token});
    }
    rank(tokens);
    if (!document.largest)
      for (Scored& token : tokens) token.score /= static_cast<float>(choices[q].queries.rows());
  }
}

}  // namespace

std::vector<std::vector<Scored>> select_tokens(const DeviceClusterIndex& index, uint64_t document,
                                               std::span<const TokenChoice> choices, bool largest) {
  std::vector<std::vector<Scored>> selected;
  for (size_t first = 0; first < choices.size(); first += kAtOnce)
    select_some({index, document, largest}, choices.subspan(first, std::min(kAtOnce, choices.size() - first)),
                selected);
  return selected;
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies the index there, once, and queries; tokens and their scores come back.
static TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index,
                                    uint64_t tokens) {
  return [&device, tokens, on_device = device.share(DeviceClusterIndex(index))](
             std::span<const TokenChoice> choices, bool largest, std::span<std::vector<Scored>> chosen) {
    const auto run = [&] {
      std::ranges::move(select_tokens(*on_device, tokens, choices, largest), chosen.begin());
    };
    return device.try_run(run);
  };
}

void add_cluster_choice(const DeviceWork& device) {
  device.offer<ClusterChoice>("selection by clusters", cluster_chooser);
}

}  // namespace kvcodec::cuda
