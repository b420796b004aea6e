#include "cuda/kmeans.hpp"

#include <optional>

#include "cuda/nearest.hpp"

namespace kvcodec::cuda {
namespace {

class Engine final : public KmeansEngine {
 public:
  explicit Engine(std::span<const KmeansTask> tasks) : tasks_(tasks), rows_(tasks.size()) {}

  void assign(std::span<const Assignment> tasks) override {
    for (const Assignment& task : tasks)
      best_products(rows_of(task.task), DeviceMatrix(task.entries), task.bias, task.labels, task.scores);
  }

  void move(std::span<const Means> tasks) override {
    for (const Means& task : tasks)
      means_of(rows_of(task.task), task.sorted->offsets, task.sorted->rows, task.means);
  }

 private:
  /// Copied when first asked for: by then all tasks were checked.
  const DeviceMatrix& rows_of(size_t task) {
    auto& rows = rows_[task];
    if (!rows) rows.emplace(tasks_[task].rows);
    return *rows;
  }

  std::span<const KmeansTask> tasks_;
  std::vector<std::optional<DeviceMatrix>> rows_;
};

}  // namespace

std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress) {
  Engine engine(tasks);
  return kvcodec::kmeans(tasks, options, progress, &engine);
}

}  // namespace kvcodec::cuda
