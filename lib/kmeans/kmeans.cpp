#include "lib/kmeans/kmeans.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"
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

double square_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

/// One task under way.
class Run {
 public:
  Run(const KmeansTask& task, const KmeansOptions& options)
      : rows_(task.rows),
        first_row_(task.first_row),
        name_(task.name),
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
      if (const double square = square_of(rows_.row(i)); !(square <= kLargestNorm * kLargestNorm)) {
        const Error error = bad_input("row {} has a norm of {:.3g}; beyond {:g} products may overflow",
                                      first_row_ + i, std::sqrt(square), kLargestNorm);
        throw name_.empty() ? error : error.at(std::string(name_));
      }
  }

  /// Before rows are assigned in a round. search: whether assign() does it.
  void make_entries(bool search) {
    const size_t k = clusters(), dims = rows_.cols();
    if (options_.metric == Metric::cosine) {
      units_ = Matrix<float>(k, dims);
      for (size_t c = 0; c < k; ++c) {
        const double square = square_of(centroids_.row(c)), inverse = square > 0 ? 1 / std::sqrt(square) : 0;
        for (size_t j = 0; j < dims; ++j)
          units_(c, j) = static_cast<float>(double{centroids_(c, j)} * inverse);
      }
    } else if (options_.metric == Metric::l2) {
      bias_ = nearest_bias(centroids_);
    }
    if (search) search_.emplace(entries(), bias_);
    previous_ = labels_;
  }

  void assign(size_t begin, size_t end) {
    search_->best(rows_.rows(begin, end - begin), std::span(labels_).subspan(begin, end - begin),
                  std::span(scores_).subspan(begin, end - begin));
  }

  KmeansEngine::Assignment assignment(size_t task) { return {task, entries(), bias_, labels_, scores_}; }
  KmeansEngine::Sorting sorting(size_t task) {
    sorted_.offsets.resize(clusters() + 1);
    return {task, labels_, sorted_.offsets};
  }
  KmeansEngine::Means means(size_t task) { return {task, centroids_}; }

  /// After all rows were assigned; unless it has converged, they are to be sorted.
  void end_round() {
    ++rounds_;
    converged_ = rounds_ > 1 && labels_ == previous_;
  }
  void sort() { sorted_ = sort_by_cluster(labels_, clusters()); }
  /// After they were sorted. True if any changed, so they are to be sorted again; the means are next.
  bool refill() { return options_.metric != Metric::inner_product && fill_empty_clusters(); }

  /// Means of clusters [begin, end); those without rows stay where they are.
  void move_centroids(size_t begin, size_t end) {
    const std::span<const uint32_t> rows(sorted_.rows);
    for (size_t c = begin; c < end; ++c) {
      const uint64_t first = sorted_.offsets[c], last = sorted_.offsets[c + 1];
      if (first < last) mean_of(rows_, rows.subspan(first, last - first), centroids_.row(c));
    }
  }

  Clustering finish() {
    Clustering result{
        .centroids = {}, .labels = std::move(labels_), .rounds = rounds_, .converged = converged_};
    if (rows() == 0) return result;
    // Converged or not, sorted_ is of these labels and the centroids are its means.
    std::vector<uint32_t> number(clusters());
    uint32_t kept = 0;
    for (size_t c = 0; c < clusters(); ++c)
      if (sorted_.offsets[c] < sorted_.offsets[c + 1]) number[c] = kept++;
    result.centroids = Matrix<float>(kept, rows_.cols());
    for (size_t c = 0; c < clusters(); ++c)
      if (sorted_.offsets[c] < sorted_.offsets[c + 1])
        std::ranges::copy(std::as_const(centroids_).row(c), result.centroids.row(number[c]).begin());
    for (uint32_t& label : result.labels) label = number[label];
    return result;
  }

 private:
  MatrixView<const float> entries() const {
    return options_.metric == Metric::cosine ? units_.view() : centroids_.view();
  }

  void start(uint64_t stream) {
    Rng rng(options_.seed, stream);
    std::vector<uint32_t> order(rows());
    std::iota(order.begin(), order.end(), 0u);
    for (size_t c = 0; c < clusters(); ++c) {
      std::swap(order[c], order[c + static_cast<size_t>(rng.below(rows() - c))]);
      std::ranges::copy(rows_.row(order[c]), centroids_.row(c).begin());
    }
  }

  /// How far a row is from its centroid: |x| (1 - cosine), or |x - c|^2 / 2; 0 if it is as good as on it.
  float distance(size_t row) const {
    const double square = square_of(rows_.row(row));
    const double most = options_.metric == Metric::cosine ? std::sqrt(square) : square / 2;
    const double own = most - scores_[row];
    return own > kOnCentroid * most ? static_cast<float>(own) : 0;
  }

  /// Gives empty clusters a row each, the farthest of clusters that have others. True if any moved.
  bool fill_empty_clusters() {
    const auto size = [&](size_t c) { return sorted_.offsets[c + 1] - sorted_.offsets[c]; };
    std::vector<uint32_t> empty;
    for (size_t c = 0; c < clusters(); ++c)
      if (size(c) == 0) empty.push_back(static_cast<uint32_t>(c));
    if (empty.empty()) return false;
    std::vector<float> distances(rows());
    for (size_t i = 0; i < rows(); ++i) distances[i] = distance(i);
    std::vector<uint64_t> sizes(clusters());
    for (size_t c = 0; c < clusters(); ++c) sizes[c] = size(c);
    size_t filled = 0;
    for (const Scored& far : top_k(distances, empty.size())) {
      uint64_t& own = sizes[labels_[far.id]];
      if (far.score <= 0 || own < 2) continue;
      --own;
      labels_[far.id] = empty[filled++];
    }
    return filled > 0;
  }

  MatrixView<const float> rows_;
  uint64_t first_row_;
  std::string_view name_;
  const KmeansOptions& options_;
  Matrix<float> centroids_, units_;  // units_: of the cosine only
  std::vector<float> bias_;          // of distances only
  std::optional<ProductSearch> search_;
  std::vector<uint32_t> labels_, previous_;
  std::vector<float> scores_;
  RowsByCluster sorted_;
  size_t rounds_ = 0;
  bool converged_ = false;
};

/// A stretch of one run's rows or clusters.
struct Piece {
  Run* run;
  size_t begin, end;
};

std::vector<Piece> cut(std::span<Run* const> runs, size_t (Run::*count)() const, size_t grain) {
  std::vector<Piece> pieces;
  for (Run* run : runs)
    for (size_t begin = 0; begin < (run->*count)(); begin += grain)
      pieces.push_back({run, begin, std::min(begin + grain, (run->*count)())});
  return pieces;
}

template <class Body>
void for_pieces(std::span<const Piece> pieces, const Body& body) {
  parallel_for(pieces.size(), 1, [&](size_t first, size_t last, int) {
    for (size_t i = first; i < last; ++i) body(pieces[i]);
  });
}

using Runs = std::vector<std::unique_ptr<Run>>;

void assign_by(KmeansEngine& engine, const Runs& runs) {
  std::vector<KmeansEngine::Assignment> active;
  for (size_t task = 0; task < runs.size(); ++task)
    if (!runs[task]->converged()) active.push_back(runs[task]->assignment(task));
  engine.assign(active);
}

void sort_by(KmeansEngine& engine, const Runs& runs) {
  std::vector<KmeansEngine::Sorting> active, again;
  for (size_t task = 0; task < runs.size(); ++task)
    if (!runs[task]->converged()) active.push_back(runs[task]->sorting(task));
  if (active.empty()) return;
  engine.sort(active);
  std::vector<uint8_t> refilled(active.size());
  parallel_for(active.size(), 1,
               [&](size_t first, size_t, int) { refilled[first] = runs[active[first].task]->refill(); });
  for (size_t i = 0; i < active.size(); ++i)
    if (refilled[i]) again.push_back(active[i]);
  if (!again.empty()) engine.sort(again);
}

void move_by(KmeansEngine& engine, const Runs& runs) {
  std::vector<KmeansEngine::Means> active;
  for (size_t task = 0; task < runs.size(); ++task)
    if (!runs[task]->converged()) active.push_back(runs[task]->means(task));
  if (!active.empty()) engine.move(active);
}

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
  Runs runs;
  std::vector<Run*> active;
  for (const KmeansTask& task : tasks) {
    runs.push_back(std::make_unique<Run>(task, options));
    if (!runs.back()->converged()) active.push_back(runs.back().get());
  }
  for_pieces(cut(active, &Run::rows, kRowsAtATime),
             [](const Piece& piece) { piece.run->check(piece.begin, piece.end); });
  for (size_t round = 0; round < options.rounds && !active.empty(); ++round) {
    report(progress, static_cast<double>(round), static_cast<double>(options.rounds));
    parallel_for(active.size(), 1,
                 [&](size_t first, size_t, int) { active[first]->make_entries(engine == nullptr); });
    if (engine)
      assign_by(*engine, runs);
    else
      for_pieces(cut(active, &Run::rows, kRowsAtATime),
                 [](const Piece& piece) { piece.run->assign(piece.begin, piece.end); });
    parallel_for(active.size(), 1, [&](size_t first, size_t, int) {
      Run& run = *active[first];
      run.end_round();
      if (engine || run.converged()) return;
      run.sort();
      if (run.refill()) run.sort();
    });
    if (engine) sort_by(*engine, runs);
    std::erase_if(active, [](const Run* run) { return run->converged(); });
    if (engine)
      move_by(*engine, runs);
    else
      for_pieces(cut(active, &Run::clusters, kClustersAtATime),
                 [](const Piece& piece) { piece.run->move_centroids(piece.begin, piece.end); });
  }
  report(progress, static_cast<double>(options.rounds), static_cast<double>(options.rounds));
  std::vector<Clustering> results;
  for (const auto& run : runs) results.push_back(run->finish());
  return results;
}

Clustering kmeans(MatrixView<const float> rows, size_t clusters, const KmeansOptions& options) {
  const KmeansTask task{.rows = rows, .clusters = clusters};
  return std::move(kmeans({&task, 1}, options)[0]);
}

}  // namespace kvcodec
