#include "cuda/kmeans/kmeans.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {

/// Rows searched at a time: a grid has a row of blocks for each tile of them, and their peaks take room.
constexpr size_t kPeakBytes = size_t{256} << 20;
constexpr size_t kMaxRows = kMaxGridRows * kPeakTile;

/// Limits up to which kSlack (kmeans.cu) covers sums of norms, and 32-bit ids cover whole tiles.
constexpr size_t kMaxDimensions = size_t{1} << 15, kMaxIds = size_t{1} << 31;

DeviceMatrix::DeviceMatrix(MatrixView<const float> rows) {
  const size_t count = rows.rows(), d = rows.cols(), padded = round_up(d, kRoughStep);
  if (d == 0 || d > kMaxDimensions || count > kMaxIds)
    throw failed("{} rows of {} dimensions for a search on a device, which takes up to {} of 1 to {}", count,
                 d, kMaxIds, kMaxDimensions);
  const Stream stream;
  exact_ = upload_rows(rows, stream);
  all_ = {.exact = exact_.data(),
          .rough = rough_.sized(checked_mul(count, padded)),
          .factors = factors_.sized(count),
          .norms = norms_.sized(count),
          .errors = errors_.sized(count),
          .count = static_cast<uint32_t>(count),
          .d = static_cast<uint32_t>(d),
          .padded = static_cast<uint32_t>(padded)};
  stream.run("rounding rows", run_make_rough, all_);
  stream.synchronize();
}

RoughRows DeviceMatrix::rough(size_t first, size_t some) const {
  RoughRows part = all_;
  part.exact += first * part.d, part.rough += first * part.padded;
  part.factors += first, part.norms += first, part.errors += first;
  part.count = static_cast<uint32_t>(some);
  return part;
}

void best_products(const DeviceMatrix& rows, const DeviceMatrix& entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores) {
  if (entries.rows() == 0 || entries.cols() != rows.cols() ||
      (!bias.empty() && bias.size() != entries.rows()) || ids.size() != rows.rows() ||
      (!scores.empty() && scores.size() != rows.rows()))
    throw failed("{} ids and {} scores of {} rows of {} dimensions with {} entries of {} and {} biases",
                 ids.size(), scores.size(), rows.rows(), rows.cols(), entries.rows(), entries.cols(),
                 bias.size());
  const Stream stream;
  const DeviceBuffer<float> device_bias(bias, stream);
  const size_t tiles = (entries.rows() + kPeakTile - 1) / kPeakTile;
  const size_t at_once = std::clamp<size_t>(kPeakBytes / (tiles * sizeof(Peak)), kPeakTile, kMaxRows);
  DeviceBuffer<Peak> peaks(std::min(at_once, rows.rows()) * tiles);
  DeviceBuffer<uint32_t> device_ids(rows.rows());
  DeviceBuffer<float> device_scores(rows.rows()), largest(3);
  largest.fill(0, stream);
  EntrySearch search{.rows = {},
                     .entries = entries.rough(0, entries.rows()),
                     .bias = device_bias.data(),
                     .largest = largest.data(),
                     .peaks = peaks.data()};
  stream.run("norms of entries", run_largest, search);
  for (size_t first = 0; first < rows.rows(); first += at_once) {
    search.rows = rows.rough(first, std::min(at_once, rows.rows() - first));
    search.ids = device_ids.data() + first, search.scores = device_scores.data() + first;
    stream.run("rough products", run_peaks, search);
    stream.run("nearest entries", run_settle, search);
  }
  device_ids.download(ids, stream);
  if (!scores.empty()) device_scores.download(scores, stream);
  stream.synchronize();
}

RowsByCluster::RowsByCluster(std::span<const uint32_t> labels, size_t clusters) {
  if (clusters == 0 || clusters > UINT32_MAX || labels.size() > UINT32_MAX)
    throw failed("{} rows of {} clusters; ids have 32 bits", labels.size(), clusters);
  for (const uint32_t label : labels)
    if (label >= clusters) throw failed("a row of cluster {} of {}", label, clusters);
  SortByCluster sort(static_cast<uint32_t>(labels.size()), static_cast<uint32_t>(clusters));
  const DeviceBuffer<uint32_t> device_labels(labels, stream_);
  DeviceBuffer<uint32_t> counts(sort.counts_size()), totals(clusters);
  counts.fill(0, stream_);
  offsets_.resize(clusters + 1), rows_.resize(labels.size());
  sort.labels = device_labels.data(), sort.counts = counts.data(), sort.totals = totals.data();
  sort.offsets = offsets_.data(), sort.sorted = rows_.data();
  stream_.run("sorting rows by cluster", run_sort_by_cluster, sort);
  stream_.synchronize();
}

void RowsByCluster::read_offsets(std::span<uint64_t> offsets) const {
  if (offsets.size() != clusters() + 1) throw failed("{} offsets of {} clusters", offsets.size(), clusters());
  offsets_.download(offsets, stream_);
  stream_.synchronize();
}

template <class T>
void RowsByCluster::fill(const DeviceMatrix& rows, MatrixView<T> totals,
                         Status (*launcher)(const ClusteredRows&, T*, StreamHandle)) const {
  check_shape("sums of clusters", totals, clusters(), rows.cols());
  if (rows.rows() != rows_.size()) throw failed("{} rows in clusters of {}", rows.rows(), rows_.size());
  DeviceBuffer<T> found = upload_rows(totals, stream_);
  const ClusteredRows all{rows.data(), static_cast<uint32_t>(rows.cols()), static_cast<uint32_t>(clusters()),
                          offsets_.data(), rows_.data()};
  stream_.run("sums of clusters", launcher, all, found.data());
  download_rows(found, totals, stream_);
}

void RowsByCluster::means_of(const DeviceMatrix& rows, MatrixView<float> means) const {
  fill(rows, means, run_cluster_means);
}
void RowsByCluster::sums_of(const DeviceMatrix& rows, MatrixView<double> sums) const {
  fill(rows, sums, run_cluster_sums);
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

/// Bytes that the rows of a task take on the device: as they are, in 16 bits, their norms; labels and scores.
uint64_t bytes_of(const KmeansTask& task) {
  return uint64_t{task.rows.rows()} * (task.rows.cols() * 6 + 64 * 2 + 32);
}

/// Copies the rows of as many tasks as fit there, once; each round centroids there and labels and scores
/// back, then rows by cluster there and means back.
std::vector<Clustering> kmeans_in_pieces(const DeviceWork& device, std::span<const KmeansTask> tasks,
                                         const KmeansOptions& options, const Progress& progress) {
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
    else if (!device.try_run([&] { found = cuda::kmeans(part, options, show); }))
      found.clear();
    if (found.empty()) found = kvcodec::kmeans(part, options, show);
    std::ranges::move(found, std::back_inserter(all));
    done += some;
  }
  return all;
}

}  // namespace

std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress) {
  Rounds rounds(tasks);
  return kvcodec::kmeans(tasks, options, progress, &rounds);
}

void add_kmeans(const DeviceWork& device) {
  device.engine().add<KmeansOnDevice>(
      [&device] { return std::bind_front(kmeans_in_pieces, std::cref(device)); });
}

}  // namespace kvcodec::cuda
