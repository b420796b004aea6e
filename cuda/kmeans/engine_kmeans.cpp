#include "cuda/engine_parts.hpp"
#include "cuda/kmeans/kmeans.hpp"

namespace kvcodec::cuda {
namespace {

/// Bytes that a row takes on the device: as it is, in 16 bits, its norms; its label and score.
uint64_t bytes_of(const KmeansTask& task) {
  return uint64_t{task.rows.rows()} * (task.rows.cols() * 6 + 64 * 2 + 32);
}

}  // namespace

/// Copies the rows of as many tasks as fit there, once; each round centroids there and labels and scores
/// back, then rows by cluster there and means back.
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
            device.leave(fmt::format("k-means of {} rows, which do not fit its memory", some));
          else if (!device.run([&] { found = cuda::kmeans(part, options, show); }))
            found.clear();
          if (found.empty()) found = kvcodec::kmeans(part, options, show);
          for (Clustering& clustering : found) all.push_back(std::move(clustering));
          done += some;
        }
        return all;
      };
}

}  // namespace kvcodec::cuda
