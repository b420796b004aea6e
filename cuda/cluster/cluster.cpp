#include "cuda/cluster/cluster.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "cuda/cluster/cluster.cuh"
#include "cuda/runtime/device_work.hpp"
#include "lib/attention/selector.hpp"
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

ClusterSearch search_of(const ClusterQuery& query) {
  const DeviceClusterIndex& index = *query.index;
  if (query.queries.rows() == 0 || query.queries.cols() != index.dims || query.tokens > UINT32_MAX)
    throw failed("{} queries of {} dimensions for {} tokens and an index of {} of {}", query.queries.rows(),
                 query.queries.cols(), query.tokens, index.end, index.dims);
  const uint64_t waiting = query.tokens - std::min(query.tokens, std::max(index.sink, index.end));
  const KeptAnyway kept =
      kept_anyway(query.tokens, index.sink, std::max(waiting, query.newest), query.budget);
  return {.centroids = index.centroids.data(),
          .offsets = index.offsets.data(),
          .ids = index.ids.data(),
          .labels = index.labels.data(),
          .clusters = static_cast<uint32_t>(index.clusters),
          .dims = static_cast<uint32_t>(index.dims),
          .query_count = static_cast<uint32_t>(query.queries.rows()),
          .largest = query.largest,
          .tokens = static_cast<uint32_t>(query.tokens),
          .end = static_cast<uint32_t>(index.end),
          .first = static_cast<uint32_t>(kept.first),
          .newest = static_cast<uint32_t>(kept.newest),
          .budget =
              static_cast<uint32_t>(std::min<uint64_t>(query.budget - kept.first - kept.newest, UINT32_MAX))};
}

/// The score of a token whose cluster does not say it.
float score_apart(const ClusterQuery& query, uint32_t token) {
  if (token < query.index->sink) return std::numeric_limits<float>::infinity();
  const float one = waiting_score(query.document, token);
  float score = one;
  for (size_t q = 1; q < query.queries.rows() && !query.largest; ++q) score += one;
  return score;
}

/// Appends what at most kAtOnce queries select.
void select_some(std::span<const ClusterQuery> queries, std::vector<std::vector<Scored>>& selected) {
  const Stream stream;
  std::vector<ClusterSearch> searches;
  std::vector<float> vectors;
  ClusterSearches all;
  uint64_t most_tokens = 0;
  for (const ClusterQuery& query : queries) {
    const ClusterSearch& search = searches.emplace_back(search_of(query));
    all.room = std::max<size_t>(all.room, std::min<uint64_t>(query.budget, query.tokens));
    most_tokens = std::max(most_tokens, query.tokens);
    all.most_clusters = std::max(all.most_clusters, search.clusters);
    for (size_t i = 0; i < query.queries.rows(); ++i)
      vectors.insert(vectors.end(), query.queries.row(i).begin(), query.queries.row(i).end());
  }
  const DeviceBuffer<float> device_vectors(vectors, stream);
  size_t at = 0;
  for (ClusterSearch& search : searches) {
    search.queries = device_vectors.data() + at;
    at += size_t{search.query_count} * search.dims;
  }
  const DeviceBuffer<ClusterSearch> each(searches, stream);
  const size_t count = searches.size(), words = (most_tokens + 31) / 32;
  DeviceBuffer<float> scores(checked_mul(count, all.most_clusters)),
      token_scores(checked_mul(count, all.room));
  DeviceBuffer<uint32_t> limits(2 * count), bits(checked_mul(2 * count, words)), ids(token_scores.size()),
      counts(count), nan(1);
  bits.fill(0, stream), nan.fill(0, stream);
  all.each = each.data(), all.count = static_cast<uint32_t>(count);
  all.scores = scores.data(), all.stride = all.most_clusters;
  all.limits = limits.data();
  all.bits = bits.data(), all.words = static_cast<uint32_t>(words);
  all.ids = ids.data(), all.token_scores = token_scores.data();
  all.counts = counts.data(), all.nan = nan.data();
  check(run_select_clusters(all, stream.handle()), "selecting clusters");
  uint32_t is_nan = 0;
  nan.download({&is_nan, 1}, stream);
  const auto host_counts = downloaded(counts, stream), host_ids = downloaded(ids, stream);
  const auto host_scores = downloaded(token_scores, stream);
  if (is_nan != 0) throw bad_input("a query's score of a cluster is not a number");
  for (size_t q = 0; q < count; ++q) {
    const uint64_t clustered = std::max(queries[q].index->sink, queries[q].index->end);
    std::vector<Scored>& tokens = selected.emplace_back();
    for (size_t i = q * all.room; i < q * all.room + host_counts[q]; ++i) {
      const uint32_t token = host_ids[i];
      const bool apart = token < queries[q].index->sink || token >= clustered;
      tokens.push_back({apart ? score_apart(queries[q], token) : host_scores[i], token});
    }
    rank(tokens);
  }
}

}  // namespace

std::vector<std::vector<Scored>> select_tokens(std::span<const ClusterQuery> queries) {
  std::vector<std::vector<Scored>> selected;
  for (size_t first = 0; first < queries.size(); first += kAtOnce)
    select_some(queries.subspan(first, std::min(kAtOnce, queries.size() - first)), selected);
  return selected;
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

/// Copies the index there, once, and queries; tokens and their scores come back.
TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index, uint64_t tokens) {
  auto made =
      device.try_make("selection by clusters", [&] { return device.share(DeviceClusterIndex(index)); });
  if (!made) return {};
  return [&device, tokens, on_device = std::move(made)](std::span<const TokenChoice> choices, bool largest,
                                                        std::span<std::vector<Scored>> chosen) {
    const auto run = [&] {
      std::vector<ClusterQuery> queries;
      for (const TokenChoice& choice : choices)
        queries.push_back({.index = on_device.get(),
                           .document = tokens,
                           .tokens = choice.visible,
                           .queries = choice.queries,
                           .largest = largest,
                           .budget = std::min(choice.budget, choice.visible),
                           .newest = choice.newest});
      std::ranges::move(select_tokens(queries), chosen.begin());
    };
    return device.try_run(run);
  };
}

}  // namespace

void add_cluster_choice(Engine& engine, const DeviceWork& device) {
  engine.add<ClusterChoice>(std::bind_front(cluster_chooser, std::cref(device)));
}

}  // namespace kvcodec::cuda
