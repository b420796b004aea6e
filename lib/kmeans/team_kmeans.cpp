#include "lib/kmeans/team_kmeans.hpp"

#include <algorithm>

#include "lib/core/parallel.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {
namespace {

constexpr size_t kRowsOfPiece = 1536, kClustersOfPiece = 16;

class TeamKmeans final : public KmeansEngine {
 public:
  TeamKmeans(const Team& team, std::span<const KmeansTask> tasks)
      : team_(team), tasks_(tasks), sorted_(tasks.size()) {}

  void assign(std::span<const Assignment> assignments) override {
    for (const Assignment& task : assignments) {
      const MatrixView<const float> rows = tasks_[task.task].rows;
      const ProductSearch search(task.entries, task.bias);
      const TeamShare own = team_.share(rows.rows());
      parallel_for(own.count(), kRowsOfPiece, [&](size_t begin, size_t end, int) {
        const size_t first = own.begin + begin, count = end - begin;
        search.best(rows.rows(first, count), task.labels.subspan(first, count),
                    task.scores.subspan(first, count));
      });
      team_.gather(task.labels, rows.rows());
      team_.gather(task.scores, rows.rows());
    }
  }

  void sort(std::span<const Sorting> sortings) override {
    for (const Sorting& task : sortings) {
      sorted_[task.task] = sort_by_cluster(task.labels, task.offsets.size() - 1);
      std::ranges::copy(sorted_[task.task].offsets, task.offsets.begin());
    }
  }

  void move(std::span<const Means> means) override {
    for (const Means& task : means) {
      const RowsByCluster& sorted = sorted_[task.task];
      const MatrixView<const float> rows = tasks_[task.task].rows;
      Matrix<float> moved(task.means.rows(), task.means.cols());
      const TeamShare own = team_.share(moved.rows());
      parallel_for(own.count(), kClustersOfPiece, [&](size_t begin, size_t end, int) {
        for (size_t c = own.begin + begin; c < own.begin + end; ++c)
          mean_of(rows, std::span(sorted.rows).subspan(sorted.offsets[c], size_of(sorted, c)), moved.row(c));
      });
      team_.gather(std::span(moved.data(), moved.size()), moved.rows());
      for (size_t c = 0; c < moved.rows(); ++c)
        if (size_of(sorted, c) > 0) std::ranges::copy(moved.row(c), task.means.row(c).begin());
    }
  }

 private:
  static size_t size_of(const RowsByCluster& sorted, size_t c) {
    return sorted.offsets[c + 1] - sorted.offsets[c];
  }

  const Team& team_;
  std::span<const KmeansTask> tasks_;
  std::vector<RowsByCluster> sorted_;
};

}  // namespace

KmeansFunction kmeans_of(const Team& team) {
  return [&team](std::span<const KmeansTask> tasks, const KmeansOptions& options, const Progress& progress) {
    TeamKmeans engine(team, tasks);
    return kmeans(tasks, options, progress, &engine);
  };
}

}  // namespace kvcodec
