#include "lib/kmeans/kmeans.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/nearest.hpp"
#include "lib/linalg/topk.hpp"

namespace kvcodec {
namespace {

/// Rows that a thread assigns at a time: a few blocks of nearest.hpp, so that its buffers cost nothing.
constexpr size_t kRowsAtATime = 1536;

/// Clusters that a thread sums at a time.
constexpr size_t kClustersAtATime = 16;

/// A row nearer to its centroid than this, relative to its norm, is as good as on it: no reason to move.
constexpr double kOnCentroid = 1e-5;

/// Rows that a sum asks memory for before it needs them.
constexpr size_t kAhead = 4;

/// One task under way.
class Run {
 public:
  Run(const KmeansTask& task, const KmeansOptions& options)
      : task_(task),
        rows_(task.rows),
        options_(options),
        centroids_(std::min(task.clusters, task.rows.rows()), task.rows.cols()),
        labels_(task.rows.rows()),
        scores_(task.rows.rows()) {
    if (task.clusters == 0) throw failed("k-means with 0 clusters");
    if (rows_.rows() > UINT32_MAX) throw failed("k-means of {} rows: ids have 32 bits", rows_.rows());
    start(task.stream);
    converged_ = rows_.rows() == 0;
  }

  size_t rows() const { return rows_.rows(); }
  size_t clusters() const { return centroids_.rows(); }
  bool converged() const { return converged_; }

  void check(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i)
      if (const double square = squared_norm(rows_.row(i)); !(square <= kLargestNorm * kLargestNorm)) {
        const Error error = bad_input("row {} has a norm of {:.3g}; beyond {:g} products may overflow",
                                      task_.first_row + i, std::sqrt(square), kLargestNorm);
        throw task_.name.empty() ? error : error.at(std::string(task_.name));
      }
  }

  /// Before rows are assigned in a round.
  void make_entries() {
    const size_t k = clusters(), dims = rows_.cols();
    if (options_.metric == Metric::cosine) {
      units_ = Matrix<float>(k, dims);
      for (size_t c = 0; c < k; ++c) {
        const double square = squared_norm(centroids_.row(c)),
                     inverse = square > 0 ? 1 / std::sqrt(square) : 0;
        for (size_t j = 0; j < dims; ++j)
          units_(c, j) = static_cast<float>(double{centroids_(c, j)} * inverse);
      }
    } else if (options_.metric == Metric::l2) {
      bias_ = nearest_bias(centroids_);
    }
    previous_ = labels_;
  }

  KmeansEngine::Assignment assignment(size_t task) { return {task, entries(), bias_, labels_, scores_}; }
  KmeansEngine::Sorting sorting(size_t task) {
    offsets_.resize(clusters() + 1);
    return {task, labels_, offsets_};
  }
  KmeansEngine::Means means(size_t task) { return {task, centroids_}; }

  /// After all rows were assigned; unless it has converged, they are to be sorted.
  void end_round() {
    ++rounds_;
    converged_ = rounds_ > 1 && labels_ == previous_;
  }
  /// After they were sorted. True if any changed, so they are to be sorted again; the means are next.
  bool refill() { return options_.metric != Metric::inner_product && fill_empty_clusters(); }

  Clustering finish() {
    Clustering result{
        .centroids = {}, .labels = std::move(labels_), .rounds = rounds_, .converged = converged_};
    if (rows() == 0) return result;
    // Converged or not, offsets_ are of these labels and the centroids are their means.
    std::vector<uint32_t> number(clusters());
    uint32_t kept = 0;
    for (size_t c = 0; c < clusters(); ++c)
      if (size_of(c) > 0) number[c] = kept++;
    result.centroids = Matrix<float>(kept, rows_.cols());
    for (size_t c = 0; c < clusters(); ++c)
      if (size_of(c) > 0)
        std::ranges::copy(std::as_const(centroids_).row(c), result.centroids.row(number[c]).begin());
    for (uint32_t& label : result.labels) label = number[label];
    return result;
  }

 private:
  uint64_t size_of(size_t cluster) const { return offsets_[cluster + 1] - offsets_[cluster]; }

  MatrixView<const float> entries() const {
    return options_.metric == Metric::cosine ? units_.view() : centroids_.view();
  }

  void start(uint64_t stream) {
    Rng rng(options_.seed, stream);
    auto order = numbers_below<uint32_t>(rows());
    for (size_t c = 0; c < clusters(); ++c) {
      std::swap(order[c], order[c + static_cast<size_t>(rng.below(rows() - c))]);
      std::ranges::copy(rows_.row(order[c]), centroids_.row(c).begin());
    }
  }

  /// The distance of a row from its centroid: |x| (1 - cosine), or |x - c|^2 / 2; 0 if it is as good as on
  /// it.
  float distance(size_t row) const {
    const double square = squared_norm(rows_.row(row));
    const double limit = options_.metric == Metric::cosine ? std::sqrt(square) : square / 2;
    const double own = limit - scores_[row];
    return own > kOnCentroid * limit ? static_cast<float>(own) : 0;
  }

  /// Gives empty clusters a row each, the farthest of clusters that have others. True if any moved.
  bool fill_empty_clusters() {
    std::vector<uint32_t> empty;
    std::vector<uint64_t> sizes(clusters());
    for (size_t c = 0; c < clusters(); ++c)
      if ((sizes[c] = size_of(c)) == 0) empty.push_back(static_cast<uint32_t>(c));
    if (empty.empty()) return false;
    std::vector<float> distances(rows());
    for (size_t i = 0; i < rows(); ++i) distances[i] = distance(i);
    size_t filled = 0;
    for (const Scored& far : top_k(distances, empty.size())) {
      uint64_t& own = sizes[labels_[far.id]];
      if (far.score <= 0 || own < 2) continue;
      --own;
      labels_[far.id] = empty[filled++];
    }
    return filled > 0;
  }

  const KmeansTask& task_;
  MatrixView<const float> rows_;
  const KmeansOptions& options_;
  Matrix<float> centroids_, units_;  // units_: of the cosine only
  std::vector<float> bias_;          // of distances only
  std::vector<uint32_t> labels_, previous_;
  std::vector<float> scores_;
  std::vector<uint64_t> offsets_;  // of the clusters as last sorted
  size_t rounds_ = 0;
  bool converged_ = false;
};

/// Cuts stretches of `grain` items from [0, count_of(i)) for each of `lists`, and calls body(i, begin, end)
/// for each, in parallel.
template <class Count, class Body>
void for_pieces(size_t lists, size_t grain, const Count& count_of, const Body& body) {
  std::vector<std::pair<size_t, size_t>> pieces;  // list, begin
  for (size_t i = 0; i < lists; ++i)
    for (size_t begin = 0; begin < count_of(i); begin += grain) pieces.emplace_back(i, begin);
  parallel_for(pieces.size(), 1, [&](size_t piece, size_t, int) {
    const auto [i, begin] = pieces[piece];
    body(i, begin, std::min(begin + grain, count_of(i)));
  });
}

/// Computes rounds on the CPU.
class CpuKmeans final : public KmeansEngine {
 public:
  explicit CpuKmeans(std::span<const KmeansTask> tasks) : tasks_(tasks), sorted_(tasks.size()) {}

  void assign(std::span<const Assignment> assignments) override {
    std::vector<ProductSearch> searches(assignments.size());
    parallel_for(searches.size(), 1, [&](size_t i, size_t, int) {
      searches[i] = ProductSearch(assignments[i].entries, assignments[i].bias);
    });
    for_pieces(
        searches.size(), kRowsAtATime, [&](size_t i) { return assignments[i].labels.size(); },
        [&](size_t i, size_t begin, size_t end) {
          const Assignment& task = assignments[i];
          const size_t count = end - begin;
          searches[i].best(tasks_[task.task].rows.rows(begin, count), task.labels.subspan(begin, count),
                           task.scores.subspan(begin, count));
        });
  }

  void sort(std::span<const Sorting> sortings) override {
    parallel_for(sortings.size(), 1, [&](size_t i, size_t, int) {
      const Sorting& task = sortings[i];
      sorted_[task.task] = sort_by_cluster(task.labels, task.offsets.size() - 1);
      std::ranges::copy(sorted_[task.task].offsets, task.offsets.begin());
    });
  }

  void move(std::span<const Means> means) override {
    for_pieces(
        means.size(), kClustersAtATime, [&](size_t i) { return means[i].means.rows(); },
        [&](size_t i, size_t begin, size_t end) {
          const size_t task = means[i].task;
          for (size_t c = begin; c < end; ++c)
            if (const auto rows = sorted_[task].of(c); !rows.empty())
              mean_of(tasks_[task].rows, rows, means[i].means.row(c));
        });
  }

 private:
  std::span<const KmeansTask> tasks_;
  std::vector<RowsByCluster> sorted_;
};

}  // namespace

void mean_of(MatrixView<const float> rows, std::span<const uint32_t> ids, std::span<float> mean) {
  std::vector<double> sums(rows.cols());
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* row = rows.row(ids[i]).data();
    if (i + kAhead < ids.size()) {
      const float* ahead = rows.row(ids[i + kAhead]).data();
      for (size_t j = 0; j < sums.size(); j += kCacheLine / sizeof(float)) __builtin_prefetch(ahead + j);
    }
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += row[j];
  }
  for (size_t j = 0; j < mean.size(); ++j)
    mean[j] = ids.empty() ? 0 : static_cast<float>(sums[j] / static_cast<double>(ids.size()));
}

RowsByCluster sort_by_cluster(std::span<const uint32_t> labels, size_t clusters) {
  RowsByCluster sorted{std::vector<uint64_t>(clusters + 1), std::vector<uint32_t>(labels.size())};
  for (const uint32_t label : labels) ++sorted.offsets[label + 1];
  std::partial_sum(sorted.offsets.begin(), sorted.offsets.end(), sorted.offsets.begin());
  std::vector<uint64_t> next(sorted.offsets.begin(), sorted.offsets.end() - 1);
  for (size_t i = 0; i < labels.size(); ++i) sorted.rows[next[labels[i]]++] = static_cast<uint32_t>(i);
  return sorted;
}

std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress, KmeansEngine* engine) {
  if (options.rounds == 0) throw failed("k-means of 0 rounds");
  CpuKmeans cpu(tasks);
  if (!engine) engine = &cpu;
  std::vector<std::unique_ptr<Run>> runs;
  for (const KmeansTask& task : tasks) runs.push_back(std::make_unique<Run>(task, options));
  for_pieces(
      runs.size(), kRowsAtATime, [&](size_t i) { return runs[i]->rows(); },
      [&](size_t i, size_t begin, size_t end) { runs[i]->check(begin, end); });
  auto active = numbers_below<size_t>(runs.size());
  const auto drop_converged = [&] { std::erase_if(active, [&](size_t i) { return runs[i]->converged(); }); };
  const auto for_active = [&](const auto& body) {
    parallel_for(active.size(), 1, [&](size_t i, size_t, int) { body(i, *runs[active[i]]); });
  };
  drop_converged();
  for (size_t round = 0; round < options.rounds && !active.empty(); ++round) {
    report(progress, static_cast<double>(round), static_cast<double>(options.rounds));
    for_active([](size_t, Run& run) { run.make_entries(); });
    std::vector<KmeansEngine::Assignment> assignments;
    for (const size_t i : active) assignments.push_back(runs[i]->assignment(i));
    engine->assign(assignments);
    for_active([](size_t, Run& run) { run.end_round(); });
    drop_converged();
    if (active.empty()) break;
    std::vector<KmeansEngine::Sorting> sortings, again;
    std::vector<KmeansEngine::Means> means;
    for (const size_t i : active) {
      sortings.push_back(runs[i]->sorting(i));
      means.push_back(runs[i]->means(i));
    }
    engine->sort(sortings);
    std::vector<uint8_t> refilled(active.size());
    for_active([&](size_t i, Run& run) { refilled[i] = run.refill(); });
    for (size_t i = 0; i < sortings.size(); ++i)
      if (refilled[i]) again.push_back(sortings[i]);
    if (!again.empty()) engine->sort(again);
    engine->move(means);
  }
  report(progress, static_cast<double>(options.rounds), static_cast<double>(options.rounds));
  return mapped<Clustering>(runs, [&](const auto& run) { return run->finish(); });
}

void team_means(const Team& team, MatrixView<const float> rows, const RowsByCluster& clusters,
                MatrixView<float> means) {
  Matrix<float> all(means.rows(), means.cols());
  const TeamShare own = team.share(all.rows());
  parallel_each(own.count(), kClustersAtATime,
                [&](size_t i) { mean_of(rows, clusters.of(own.begin + i), all.row(own.begin + i)); });
  team.gather(std::span(all.data(), all.size()), all.rows());
  for (size_t c = 0; c < all.rows(); ++c)
    if (!clusters.of(c).empty()) std::ranges::copy(all.row(c), means.row(c).begin());
}

}  // namespace kvcodec
