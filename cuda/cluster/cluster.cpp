#include "cuda/cluster/cluster.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "cuda/cluster/cluster.cuh"
#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/attention/selector.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {
namespace {

/// A grid has a row of blocks for each query.
constexpr size_t kMostQueries = kMostGridRows;

}  // namespace

struct DeviceClusterIndex::Impl {
  size_t dims = 0, clusters = 0;
  uint64_t sink = 0, end = 0;
  DeviceBuffer<float> centroids;
  DeviceBuffer<uint64_t> offsets;
  DeviceBuffer<uint32_t> ids, labels;
};

DeviceClusterIndex::DeviceClusterIndex(const kvcodec::ClusterIndex& index) : impl_(std::make_unique<Impl>()) {
  Impl& own = *impl_;
  own.dims = index.dims(), own.clusters = index.clusters(), own.sink = index.sink(), own.end = index.end();
  std::vector<uint32_t> labels(own.end);
  for (size_t c = 0; c < own.clusters; ++c)
    for (const uint32_t token : index.tokens_of(c)) labels[token] = static_cast<uint32_t>(c);
  const Stream stream;
  const MatrixView<const float> centroids = index.centroids();
  own.centroids = DeviceBuffer<float>({centroids.data(), own.clusters * own.dims}, stream);
  own.offsets = DeviceBuffer<uint64_t>(index.offsets(), stream);
  own.ids = DeviceBuffer<uint32_t>(index.ids(), stream);
  own.labels = DeviceBuffer<uint32_t>(labels, stream);
  stream.synchronize();
}
DeviceClusterIndex::~DeviceClusterIndex() = default;
DeviceClusterIndex::DeviceClusterIndex(DeviceClusterIndex&&) noexcept = default;
DeviceClusterIndex& DeviceClusterIndex::operator=(DeviceClusterIndex&&) noexcept = default;

struct TokenRows::Impl {
  size_t tokens = 0, row_bytes = 0;
  DeviceBuffer<uint8_t> data;

  template <class T>
  explicit Impl(MatrixView<const T> rows) : tokens(rows.rows()), row_bytes(rows.cols() * sizeof(T)) {
    if (row_bytes > UINT32_MAX) throw failed("rows of {} bytes; a device gathers up to 2^32", row_bytes);
    data.resize(checked_mul(tokens, row_bytes));
    const PackedRows packed(rows);
    const Stream stream;
    data.upload({reinterpret_cast<const uint8_t*>(packed.values().data()), data.size()}, stream);
    stream.synchronize();
  }
};
TokenRows::TokenRows(MatrixView<const float> rows) : impl_(std::make_unique<Impl>(rows)) {}
TokenRows::TokenRows(MatrixView<const uint16_t> rows) : impl_(std::make_unique<Impl>(rows)) {}
TokenRows::~TokenRows() = default;
TokenRows::TokenRows(TokenRows&&) noexcept = default;
TokenRows& TokenRows::operator=(TokenRows&&) noexcept = default;
size_t TokenRows::tokens() const { return impl_->tokens; }
size_t TokenRows::row_bytes() const { return impl_->row_bytes; }

struct ClusterSelection::Impl {
  struct Query {
    uint64_t tokens;
    uint64_t clustered;  ///< tokens from here on wait
    KeptAnyway kept;
  };
  std::vector<Query> queries;
  size_t room = 0;
  Stream stream;
  DeviceBuffer<uint32_t> ids;
  DeviceBuffer<float> scores;
  std::vector<uint32_t> counts;

  /// tokens: of the query, rising; cluster_scores: of their clusters.
  std::vector<Scored> chosen(size_t query, std::span<const uint32_t> tokens,
                             std::span<const float> cluster_scores, Order order) const;
};

ClusterSelection::ClusterSelection(std::span<const ClusterQuery> queries) : impl_(std::make_unique<Impl>()) {
  Impl& own = *impl_;
  if (queries.size() > kMostQueries)
    throw failed("{} selections at a time; a device makes {}", queries.size(), kMostQueries);
  std::vector<ClusterSearch> searches;
  std::vector<float> vectors;
  ClusterSearches all;
  uint64_t most_tokens = 0;
  for (const ClusterQuery& query : queries) {
    const DeviceClusterIndex::Impl& index = query.index->impl();
    if (query.queries.rows() == 0 || query.queries.cols() != index.dims || query.tokens > UINT32_MAX)
      throw failed("{} queries of {} dimensions for {} tokens and an index of {} of {}", query.queries.rows(),
                   query.queries.cols(), query.tokens, index.end, index.dims);
    const uint64_t clustered = std::max(index.sink, index.end);
    const uint64_t waiting = query.tokens - std::min(query.tokens, clustered);
    const KeptAnyway kept =
        kept_anyway(query.tokens, index.sink, std::max(waiting, query.newest), query.budget);
    ClusterSearch& search = searches.emplace_back();
    search.centroids = index.centroids.data(), search.offsets = index.offsets.data();
    search.ids = index.ids.data(), search.labels = index.labels.data();
    search.clusters = static_cast<uint32_t>(index.clusters), search.dims = static_cast<uint32_t>(index.dims);
    search.query_count = static_cast<uint32_t>(query.queries.rows());
    search.share = query.by == Share::max ? ClusterShare::max
                   : query.divided        ? ClusterShare::mean
                                          : ClusterShare::sum;
    search.tokens = static_cast<uint32_t>(query.tokens);
    search.first = static_cast<uint32_t>(kept.first), search.newest = static_cast<uint32_t>(kept.newest);
    search.budget =
        static_cast<uint32_t>(std::min<uint64_t>(query.budget - kept.first - kept.newest, UINT32_MAX));
    search.end = static_cast<uint32_t>(index.end);
    own.queries.push_back({query.tokens, clustered, kept});
    own.room = std::max<size_t>(own.room, std::min<uint64_t>(query.budget, query.tokens));
    most_tokens = std::max(most_tokens, query.tokens);
    all.most_clusters = std::max(all.most_clusters, search.clusters);
    for (size_t i = 0; i < query.queries.rows(); ++i)
      vectors.insert(vectors.end(), query.queries.row(i).begin(), query.queries.row(i).end());
  }
  const DeviceBuffer<float> device_vectors(vectors, own.stream);
  size_t at = 0;
  for (ClusterSearch& search : searches) {
    search.queries = device_vectors.data() + at;
    at += size_t{search.query_count} * search.dims;
  }
  const DeviceBuffer<ClusterSearch> each(searches, own.stream);
  const size_t count = searches.size(), words = (most_tokens + 31) / 32;
  DeviceBuffer<float> scores(checked_mul(count, all.most_clusters));
  DeviceBuffer<uint32_t> limits(2 * count), bits(checked_mul(2 * count, words)), counts(count), nan(1);
  bits.fill(0, own.stream), nan.fill(0, own.stream);
  own.ids.resize(checked_mul(count, own.room)), own.scores.resize(count * own.room);
  all.each = each.data(), all.count = static_cast<uint32_t>(count);
  all.scores = scores.data(), all.stride = all.most_clusters;
  all.limits = limits.data();
  all.bits = bits.data(), all.words = static_cast<uint32_t>(words);
  all.ids = own.ids.data(), all.token_scores = own.scores.data(), all.room = own.room;
  all.counts = counts.data(), all.nan = nan.data();
  check(run_select_clusters(all, own.stream.handle()), "selecting clusters");
  own.counts.resize(count);
  counts.download(own.counts, own.stream);
  uint32_t is_nan = 0;
  nan.download({&is_nan, 1}, own.stream);
  own.stream.synchronize();
  if (is_nan != 0) throw bad_input("a query's score of a cluster is not a number");
}
ClusterSelection::~ClusterSelection() = default;
ClusterSelection::ClusterSelection(ClusterSelection&&) noexcept = default;
ClusterSelection& ClusterSelection::operator=(ClusterSelection&&) noexcept = default;
size_t ClusterSelection::queries() const { return impl_->queries.size(); }

std::vector<Scored> ClusterSelection::tokens(size_t query, Order order) const {
  const Impl& own = *impl_;
  std::vector<uint32_t> ids(own.counts.at(query));
  std::vector<float> scores(ids.size());
  own.ids.download(ids, own.stream, query * own.room);
  own.scores.download(scores, own.stream, query * own.room);
  own.stream.synchronize();
  return own.chosen(query, ids, scores, order);
}

std::vector<std::vector<Scored>> ClusterSelection::tokens(Order order) const {
  const Impl& own = *impl_;
  std::vector<uint32_t> ids(own.ids.size());
  std::vector<float> scores(ids.size());
  own.ids.download(ids, own.stream);
  own.scores.download(scores, own.stream);
  own.stream.synchronize();
  std::vector<std::vector<Scored>> all;
  for (size_t query = 0; query < own.queries.size(); ++query)
    all.push_back(own.chosen(query, std::span(ids).subspan(query * own.room, own.counts[query]),
                             std::span(scores).subspan(query * own.room, own.counts[query]), order));
  return all;
}

std::vector<Scored> ClusterSelection::Impl::chosen(size_t query, std::span<const uint32_t> tokens,
                                                   std::span<const float> cluster_scores, Order order) const {
  const Query& of = queries[query];
  const size_t count = tokens.size();
  std::vector<Scored> best(count);
  for (size_t i = 0; i < count; ++i) {
    best[i] = {tokens[i] < of.kept.first   ? std::numeric_limits<float>::infinity()
               : tokens[i] >= of.clustered ? waiting_score(of.tokens, tokens[i])
                                           : cluster_scores[i],
               tokens[i]};
  }
  if (order == Order::by_id) return best;
  // Those of the sink, by rising id; those that wait, the newest first; then clusters, the best first.
  const auto begin = best.begin() + static_cast<ptrdiff_t>(of.kept.first),
             waiting = std::partition_point(begin, best.end(),
                                            [&](const Scored&token) { return token.id < of.clustered; });
  rank({begin, waiting});
  std::reverse(waiting, best.end());
  std::rotate(begin, waiting, best.end());
  return best;
}

std::vector<std::vector<std::byte>> ClusterSelection::gather(std::span<const TokenRows* const> rows) const {
  const Impl& own = *impl_;
  if (rows.size() != own.queries.size())
    throw failed("{} sets of rows for {} selections", rows.size(), own.queries.size());
  std::vector<GatherTask> tasks(rows.size());
  std::vector<size_t> places;
  size_t bytes = 0, most = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRows::Impl& of = rows[i]->impl();
    if (of.tokens < own.queries[i].tokens)
      throw failed("rows of {} tokens for a selection among {}", of.tokens, own.queries[i].tokens);
    tasks[i].rows = of.data.data();
    tasks[i].ids = own.ids.data() + i * own.room;
    tasks[i].count = own.counts[i], tasks[i].row_bytes = static_cast<uint32_t>(of.row_bytes);
    places.push_back(bytes);
    const size_t size = checked_mul(own.counts[i], of.row_bytes);
    most = std::max(most, size);
    bytes = round_up(checked_add(bytes, size), size_t{16});
  }
  places.push_back(bytes);
  DeviceBuffer<uint8_t> out(bytes);
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].out = out.data() + places[i];
  const DeviceBuffer<GatherTask> device_tasks(tasks, own.stream);
  check(run_gather(device_tasks.data(), static_cast<uint32_t>(tasks.size()), most, own.stream.handle()),
        "gathering rows");
  std::vector<std::vector<std::byte>> gathered(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    gathered[i].resize(size_t{tasks[i].count} * tasks[i].row_bytes);
    out.download({reinterpret_cast<uint8_t*>(gathered[i].data()), gathered[i].size()}, own.stream, places[i]);
  }
  own.stream.synchronize();
  return gathered;
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

/// Selections at a time, of as many bits each as there are tokens, twice.
constexpr size_t kAtOnce = 4096;

/// What ClusterSelector::scores adds up to for tokens that are taken whatever they score.
float score_of(uint64_t token, const kvcodec::ClusterIndex& index, uint64_t tokens, size_t queries,
               bool largest) {
  if (token < index.sink()) return std::numeric_limits<float>::infinity();
  const float one = waiting_score(tokens, token);
  float score = one;
  for (size_t q = 1; q < queries && !largest; ++q) score += one;
  return score;
}

}  // namespace

/// Copies the index there, once, and queries; tokens and their scores come back.

namespace {

TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index, uint64_t tokens) {
  auto made = device.try_make("selection by clusters", [&] { return DeviceClusterIndex(index); });
  if (!made) return {};
  return [&device, &index, tokens, on_device = device.share(std::move(*made))](
             std::span<const TokenChoice> choices, bool largest, std::span<std::vector<Scored>> chosen) {
    const auto run = [&] {
      std::vector<std::vector<Scored>> all;
      for (size_t first = 0; first < choices.size(); first += kAtOnce) {
        std::vector<ClusterQuery> queries;
        for (const TokenChoice& choice : choices.subspan(first, std::min(kAtOnce, choices.size() - first)))
          queries.push_back({.index = on_device.get(),
                             .tokens = choice.visible,
                             .queries = choice.queries,
                             .by = largest ? Share::max : Share::mean,
                             .divided = false,
                             .budget = std::min(choice.budget, choice.visible),
                             .newest = choice.newest});
        for (std::vector<Scored>& some : ClusterSelection(queries).tokens(Order::by_id))
          all.push_back(std::move(some));
      }
      const uint64_t clustered = std::max(index.sink(), index.end());
      for (size_t i = 0; i < all.size(); ++i) {
        for (Scored& token : all[i])
          if (token.id < index.sink() || token.id >= clustered)
            token.score = score_of(token.id, index, tokens, choices[i].queries.rows(), largest);
        rank(all[i]);
        chosen[i] = std::move(all[i]);
      }
    };
    return device.try_run(run) == Outcome::done;
  };
}

}  // namespace

void add_cluster_choice(Engine& engine, const DeviceWork& device) {
  engine.add<ClusterChoice>(std::bind_front(cluster_chooser, std::cref(device)));
}

}  // namespace kvcodec::cuda
