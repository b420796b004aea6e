#include "cuda/kmeans/nearest.cuh"
#include "cuda/kmeans/nearest_kernels.cuh"

namespace kvcodec::cuda {
namespace {

unsigned divide_up(unsigned n, unsigned by) { return n / by + (n % by != 0); }

}  // namespace

Status run_make_rough(const RoughRows& rows, StreamHandle stream) {
  return launch(make_rough, divide_up(rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, rows);
}

Status run_largest(const RoughRows& rows, const float* bias, float* largest, StreamHandle stream) {
  const unsigned blocks = divide_up(rows.count, 256);
  return launch(find_largest, blocks < 64 ? blocks : 64, 256, 0, stream, rows, bias, largest);
}

Status run_peaks(const RoughRows& rows, const RoughRows& entries, const float* bias, Peak* peaks,
                 StreamHandle stream) {
  return launch(product_peaks, dim3(divide_up(entries.count, kPeakTile), divide_up(rows.count, kPeakTile)),
                kPeakThreads, kPeakSharedBytes, stream, rows, entries, bias, peaks);
}

Status run_settle(const RoughRows& rows, const RoughRows& entries, const float* bias, const float* largest,
                  const Peak* peaks, uint32_t* ids, float* scores, StreamHandle stream) {
  return launch(settle, divide_up(rows.count, kRowWarps), kRowWarps * kWarp, 0, stream, rows, entries, bias,
                largest, peaks, ids, scores);
}

Status run_means(const float* rows, uint32_t d, const uint64_t* offsets, const uint32_t* ids,
                 uint32_t clusters, float* means, StreamHandle stream) {
  return launch(cluster_means, clusters, 128, 0, stream, rows, d, offsets, ids, means);
}

}  // namespace kvcodec::cuda
