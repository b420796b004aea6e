// Selection by semantic clusters for all heads of a decoding step, and the sort of rows by cluster.
#include "cuda/cluster/cluster.cuh"
#include "cuda/kmeans/kmeans.cuh"
#include "lib/attention/selector.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

ClusterIndex random_index(uint64_t seed, size_t tokens, size_t dims) {
  Rng rng(seed);
  ClusterIndex::Parts parts;
  parts.sink = 16, parts.batch_ends = {tokens};
  const size_t clusters = std::max<size_t>(1, tokens / ClusterOptions::kTokensPerCluster);
  parts.centroids = Matrix<float>(clusters, dims);
  for (size_t i = 0; i < parts.centroids.size(); ++i)
    parts.centroids.data()[i] = static_cast<float>(rng.normal());
  std::vector<uint32_t> labels(tokens - parts.sink);
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<uint32_t>(i < clusters ? i : rng.below(clusters));
  rng.shuffle(labels);
  RowsByCluster sorted = sort_by_cluster(labels, clusters);
  parts.offsets = std::move(sorted.offsets);
  for (const uint32_t row : sorted.rows) parts.ids.push_back(static_cast<uint32_t>(parts.sink) + row);
  return ClusterIndex(std::move(parts));
}

void selection_case(DeviceBench& bench, size_t tokens, size_t heads, size_t budget) {
  if (!bench.wanted("cluster/select")) return;
  const size_t dims = 128, group = 4;
  const cuda::Stream& stream = bench.stream();
  const ClusterIndex index = random_index(1, tokens, dims);
  const size_t clusters = index.clusters();
  const std::vector<float> queries = random_floats(2, heads * group * dims);

  // All heads have the same clusters, in separate memory: the timing does not change.
  std::vector<cuda::DeviceBuffer<float>> centroids;
  std::vector<cuda::DeviceBuffer<uint64_t>> offsets;
  std::vector<cuda::DeviceBuffer<uint32_t>> ids, labels;
  std::vector<uint32_t> label_of(tokens);
  for (size_t c = 0; c < clusters; ++c)
    for (const uint32_t token : index.tokens_of(c)) label_of[token] = static_cast<uint32_t>(c);
  const cuda::DeviceBuffer<float> device_queries(queries, stream);
  const KeptAnyway kept = kept_anyway(tokens, index.sink(), 0, budget);
  std::vector<cuda::ClusterSearch> searches(heads);
  for (size_t h = 0; h < heads; ++h) {
    cuda::ClusterSearch& search = searches[h];
    search.centroids =
        centroids.emplace_back(std::span(index.centroids().data(), clusters * dims), stream).data();
    search.offsets = offsets.emplace_back(index.offsets(), stream).data();
    search.ids = ids.emplace_back(index.ids(), stream).data();
    search.labels = labels.emplace_back(label_of, stream).data();
    search.queries = device_queries.data() + h * group * dims;
    search.clusters = static_cast<uint32_t>(clusters), search.dims = static_cast<uint32_t>(dims);
    search.query_count = static_cast<uint32_t>(group);
    search.tokens = static_cast<uint32_t>(tokens), search.end = static_cast<uint32_t>(tokens);
    search.first = static_cast<uint32_t>(kept.first), search.newest = static_cast<uint32_t>(kept.newest);
    search.budget = static_cast<uint32_t>(budget - kept.first - kept.newest);
  }
  const cuda::DeviceBuffer<cuda::ClusterSearch> each(searches, stream);
  const size_t words = (tokens + 31) / 32, room = std::min(budget, tokens);
  cuda::DeviceBuffer<float> scores(heads * clusters), token_scores(heads * room);
  cuda::DeviceBuffer<uint32_t> limits(heads * 2), bits(heads * 2 * words), chosen(heads * room),
      counts(heads), nan(1);
  cuda::ClusterSearches all;
  all.each = each.data(), all.count = static_cast<uint32_t>(heads);
  all.max_clusters = static_cast<uint32_t>(clusters);
  all.scores = scores.data(), all.stride = clusters, all.limits = limits.data();
  all.bits = bits.data(), all.words = static_cast<uint32_t>(words);
  all.ids = chosen.data(), all.token_scores = token_scores.data(), all.room = room;
  all.counts = counts.data(), all.nan = nan.data();
  nan.fill(0, stream);
  const auto select = [&](size_t) {
    bits.fill(0, stream);
    cuda::check(cuda::run_select_clusters(all, stream.handle()), "selecting clusters");
  };
  chosen.fill(0xff, stream);
  select(0);
  const std::vector<uint32_t> found = read(chosen, stream), found_counts = read(counts, stream);
  const std::vector<float> found_scores = read(token_scores, stream);
  const ClusterSelector selector(index, tokens);
  for (size_t h = 0; h < heads; ++h) {
    const MatrixView<const float> of_head(queries.data() + h * group * dims, group, dims);
    Matrix<float> of_tokens(group, tokens);
    selector.scores(of_head, of_tokens);
    std::vector<float> largest(of_tokens.row(0).begin(), of_tokens.row(0).end());
    for (size_t q = 1; q < group; ++q)
      for (size_t t = 0; t < tokens; ++t) largest[t] = std::max(largest[t], of_tokens(q, t));
    const auto expected = top_k(largest, budget, Order::by_id);
    verify(found_counts[h] == expected.size(), "cluster/select: as many tokens");
    for (size_t i = 0; i < expected.size(); ++i) {
      const float score = i < kept.first ? 0 : expected[i].score;  // kernels leave the sink's to the wrapper
      verify(found[h * room + i] == expected[i].id && found_scores[h * room + i] == score, "cluster/select");
    }
  }
  const std::string shape = fmt::format("{} tokens, {} heads, {} kept", tokens, heads, budget);
  // Centroids and offsets, the tokens chosen, and the bits, which are written and read.
  const double of_head = static_cast<double>(clusters) * (4.0 * static_cast<double>(dims) + 8) +
                         16.0 * static_cast<double>(room) + 16.0 * static_cast<double>(words);
  bench.measure("cluster/select", shape, {.bytes = static_cast<double>(heads) * of_head}, 1, select);
}

void sort_case(DeviceBench& bench, size_t rows, size_t clusters) {
  if (!bench.wanted("cluster/sort")) return;
  std::vector<uint32_t> labels(rows);
  Rng rng(4);
  for (uint32_t& label : labels) label = static_cast<uint32_t>(rng.below(clusters));
  cuda::SortByCluster work(static_cast<uint32_t>(rows), static_cast<uint32_t>(clusters));
  const cuda::DeviceBuffer<uint32_t> device_labels(labels, bench.stream());
  cuda::DeviceBuffer<uint32_t> counts(work.counts_size()), totals(clusters), sorted(rows);
  cuda::DeviceBuffer<uint64_t> offsets(clusters + 1);
  work.labels = device_labels.data(), work.counts = counts.data(), work.totals = totals.data();
  work.offsets = offsets.data(), work.sorted = sorted.data();
  const auto sort = [&](size_t) {
    counts.fill(0, bench.stream());
    bench.stream().run("sorting rows", cuda::run_sort_by_cluster, work);
  };
  sorted.fill(0xff, bench.stream());
  sort(0);
  const RowsByCluster expected = sort_by_cluster(labels, clusters);
  verify(read(offsets, bench.stream()) == expected.offsets && read(sorted, bench.stream()) == expected.rows,
         "cluster/sort");
  bench.measure("cluster/sort", fmt::format("{} rows, {} clusters", rows, clusters),
                {.bytes = 12.0 * static_cast<double>(rows)}, 1, sort);
}

}  // namespace

void cluster_cases(DeviceBench& bench) {
  const bool small = bench.small();
  bench.attempt("cluster/select", [&] {
    selection_case(bench, small ? 700 : 32768, small ? 2 : 256, small ? 60 : 1024);
    if (!small) selection_case(bench, 131072, 256, 1024);
  });
  bench.attempt("cluster/sort", [&] { sort_case(bench, small ? 3000 : 1 << 20, small ? 30 : 6400); });
}

}  // namespace kvcodec::bench
