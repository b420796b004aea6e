#include "cuda/kmeans/kmeans.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "cuda/kmeans/kmeans.cuh"
#include "cuda/kmeans/nearest.cuh"
#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

struct RowsByCluster::Impl {
  Stream stream;
  SortShape shape;
  DeviceBuffer<uint64_t> offsets;
  DeviceBuffer<uint32_t> rows;
};

RowsByCluster::RowsByCluster(std::span<const uint32_t> labels, size_t clusters)
    : impl_(std::make_unique<Impl>()) {
  if (clusters == 0 || clusters > UINT32_MAX || labels.size() > UINT32_MAX)
    throw failed("{} rows of {} clusters; ids have 32 bits", labels.size(), clusters);
  for (const uint32_t label : labels)
    if (label >= clusters) throw failed("a row of cluster {} of {}", label, clusters);
  Impl& own = *impl_;
  own.shape = sort_shape(static_cast<uint32_t>(labels.size()), static_cast<uint32_t>(clusters));
  const DeviceBuffer<uint32_t> device_labels(labels, own.stream);
  DeviceBuffer<uint32_t> counts(own.shape.counts()), totals(clusters);
  counts.fill(0, own.stream);
  own.offsets.resize(clusters + 1), own.rows.resize(labels.size());
  check(run_sort_by_cluster(own.shape, device_labels.data(), counts.data(), totals.data(), own.offsets.data(),
                            own.rows.data(), own.stream.handle()),
        "sorting rows by cluster");
  own.stream.synchronize();
}
RowsByCluster::~RowsByCluster() = default;
RowsByCluster::RowsByCluster(RowsByCluster&&) noexcept = default;
RowsByCluster& RowsByCluster::operator=(RowsByCluster&&) noexcept = default;
size_t RowsByCluster::clusters() const { return impl_->shape.clusters; }

void RowsByCluster::read_offsets(std::span<uint64_t> offsets) const {
  if (offsets.size() != clusters() + 1) throw failed("{} offsets of {} clusters", offsets.size(), clusters());
  impl_->offsets.download(offsets, impl_->stream);
  impl_->stream.synchronize();
}

kvcodec::RowsByCluster RowsByCluster::read() const {
  kvcodec::RowsByCluster sorted{std::vector<uint64_t>(clusters() + 1),
                                std::vector<uint32_t>(impl_->shape.rows)};
  impl_->rows.download(sorted.rows, impl_->stream);
  read_offsets(sorted.offsets);
  return sorted;
}

namespace {

/// Copies there, runs what fills it, and copies back; matrices may have a stride.
template <class T, class Run>
void fill(MatrixView<T> matrix, const Stream& stream, const Run& run) {
  const PackedRows<T> packed(matrix);
  DeviceBuffer<T> filled(packed.values(), stream);
  run(filled.data());
  download_rows(filled, matrix, stream);
}

void check_shapes(const DeviceMatrix& rows, size_t sorted, size_t clusters, size_t count, size_t cols) {
  if (rows.rows() != sorted || count != clusters || cols != rows.cols())
    throw failed("({}, {}) of {} rows of {} dimensions for {} rows in {} clusters", count, cols, rows.rows(),
                 rows.cols(), sorted, clusters);
}

}  // namespace

void RowsByCluster::means_of(const DeviceMatrix& rows, MatrixView<float> means) const {
  const Impl& own = *impl_;
  check_shapes(rows, own.shape.rows, clusters(), means.rows(), means.cols());
  fill(means, own.stream, [&](float* found) {
    check(run_means(rows.data(), static_cast<uint32_t>(rows.cols()), own.offsets.data(), own.rows.data(),
                    own.shape.clusters, found, own.stream.handle()),
          "means of clusters");
  });
}

void RowsByCluster::sums_of(const DeviceMatrix& rows, MatrixView<double> sums) const {
  const Impl& own = *impl_;
  check_shapes(rows, own.shape.rows, clusters(), sums.rows(), sums.cols());
  fill(sums, own.stream, [&](double* found) {
    check(run_cluster_sums(rows.data(), static_cast<uint32_t>(rows.cols()), own.offsets.data(),
                           own.rows.data(), own.shape.clusters, found, own.stream.handle()),
          "sums of clusters");
  });
}

namespace {

class Rounds final : public KmeansEngine {
 public:
  explicit Rounds(std::span<const KmeansTask> tasks)
      : tasks_(tasks), rows_(tasks.size()), sorted_(tasks.size()) {}

  void assign(std::span<const Assignment> tasks) override {
    for (const Assignment& task : tasks)
      best_products(rows_of(task.task), DeviceMatrix(task.entries), task.bias, task.labels, task.scores);
  }

  void sort(std::span<const Sorting> tasks) override {
    for (const Sorting& task : tasks)
      sorted_[task.task].emplace(task.labels, task.offsets.size() - 1).read_offsets(task.offsets);
  }

  void move(std::span<const Means> tasks) override {
    for (const Means& task : tasks) sorted_[task.task]->means_of(rows_of(task.task), task.means);
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
  std::vector<std::optional<RowsByCluster>> sorted_;
};

}  // namespace

std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress) {
  Rounds rounds(tasks);
  return kvcodec::kmeans(tasks, options, progress, &rounds);
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

/// Bytes that a row takes on the device: as it is, in 16 bits, its norms; its label and score.
uint64_t bytes_of(const KmeansTask& task) {
  return uint64_t{task.rows.rows()} * (task.rows.cols() * 6 + 64 * 2 + 32);
}

}  // namespace

/// Copies the rows of as many tasks as fit there, once; each round centroids there and labels and scores
/// back, then rows by cluster there and means back.

namespace {

KmeansFunction kmeans_function(const DeviceWork& device) {
  return
      [&device](std::span<const KmeansTask> tasks, const KmeansOptions& options, const Progress& progress) {
        uint64_t rows = 0, done = 0;
        for (const KmeansTask& task : tasks) rows += task.rows.rows();
        std::vector<Clustering> all;
        while (all.size() < tasks.size()) {
          const uint64_t room = device.room();
          size_t count = 0;
          uint64_t bytes = 0, some = 0;
          for (const KmeansTask& task : tasks.subspan(all.size())) {
            if (count > 0 && bytes + bytes_of(task) > room) break;
            bytes += bytes_of(task), some += task.rows.rows();
            ++count;
          }
          const auto part = tasks.subspan(all.size(), count);
          const Progress show = [&](double at, double total, std::string_view note) {
            report(progress, static_cast<double>(done) + static_cast<double>(some) * at / total,
                   static_cast<double>(rows), note);
          };
          std::vector<Clustering> found;
          if (bytes > room)
            device.fall_back(fmt::format("k-means of {} rows, which do not fit its memory", some));
          else if (device.try_run([&] { found = cuda::kmeans(part, options, show); }) == Outcome::declined)
            found.clear();
          if (found.empty()) found = kvcodec::kmeans(part, options, show);
          for (Clustering& clustering : found) all.push_back(std::move(clustering));
          done += some;
        }
        return all;
      };
}

}  // namespace

void add_kmeans(Engine& engine, const DeviceWork& device) {
  engine.add<KmeansOnDevice>(std::bind_front(kmeans_function, std::cref(device)));
}

}  // namespace kvcodec::cuda
