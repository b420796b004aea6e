#include "lib/kmeans/team_kmeans.hpp"

#include <algorithm>

#include "lib/core/parallel.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {
namespace {

constexpr size_t kClustersOfPiece = 16;

size_t size_of(const RowsByCluster& clusters, size_t c) {
  return clusters.offsets[c + 1] - clusters.offsets[c];
}

class TeamKmeans final : public KmeansEngine {
 public:
  TeamKmeans(const Team& team, std::span<const KmeansTask> tasks)
      : team_(team), tasks_(tasks), sorted_(tasks.size()) {}

  void assign(std::span<const Assignment> assignments) override {
    for (const Assignment& task : assignments) {
      const MatrixView<const float> rows = tasks_[task.task].rows;
      const ProductSearch search(task.entries, task.bias);
      const TeamShare own = team_.share(rows.rows());
      search.best(rows.rows(own.begin, own.count()), task.labels.subspan(own.begin, own.count()),
                  task.scores.subspan(own.begin, own.count()));
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
    for (const Means& task : means) team_means(team_, tasks_[task.task].rows, sorted_[task.task], task.means);
  }

 private:
  const Team& team_;
  std::span<const KmeansTask> tasks_;
  std::vector<RowsByCluster> sorted_;
};

}  // namespace

void team_means(const Team& team, MatrixView<const float> rows, const RowsByCluster& clusters,
                MatrixView<float> means) {
  Matrix<float> all(means.rows(), means.cols());
  const TeamShare own = team.share(all.rows());
  parallel_for(own.count(), kClustersOfPiece, [&](size_t begin, size_t end, int) {
    for (size_t c = own.begin + begin; c < own.begin + end; ++c)
      mean_of(rows, std::span(clusters.rows).subspan(clusters.offsets[c], size_of(clusters, c)), all.row(c));
  });
  team.gather(std::span(all.data(), all.size()), all.rows());
  for (size_t c = 0; c < all.rows(); ++c)
    if (size_of(clusters, c) > 0) std::ranges::copy(all.row(c), means.row(c).begin());
}

KmeansFunction kmeans_of(const Team& team) {
  return [&team](std::span<const KmeansTask> tasks, const KmeansOptions& options, const Progress& progress) {
    TeamKmeans engine(team, tasks);
    return kmeans(tasks, options, progress, &engine);
  };
}

}  // namespace kvcodec
