// CUDA implementation of lib/rvq/residual.hpp: sums of entries, and the searches for ids, greedy and with a beam. Sums are
// those of lib/ bit for bit, and so are ids.
#pragma once

#include <cstddef>

#include "cuda/runtime/runtime.hpp"
#include "cuda/rvq/rvq.cuh"
#include "lib/core/view.hpp"
#include "lib/rvq/residual.hpp"

namespace kvcodec::cuda {

/// Codebooks in device memory.
class ResidualQuantizer {
 public:
  /// Throws Error(usage) for codebooks wider than 256 dimensions, Error(failed) without device memory.
  explicit ResidualQuantizer(const Codebooks& books);

  /// As kvcodec::sum_entries. Throws Error(bad_input) for ids that are not below the number of entries.
  void sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const;

  /// As kvcodec::ResidualEncoder::encode. Throws Error(bad_input) naming the first row that is not finite or
  /// whose scores may overflow: if (|row| + the sum of each stage's largest norm) times the largest norm
  /// of an entry, or times itself if beam is above 1, is above 2^126. Throws Error(failed) for beams that lib
  /// refuses.
  void encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const;

  /// For launches of rvq.cuh, as long as this lives.
  const RvqBooks& books() const { return books_; }

 private:
  size_t rows_at_once(size_t hypotheses) const;

  size_t width_;
  RvqBooks books_{};
  double largest_norm_ = 0, norms_ = 0;  // of all entries; the sum of each stage's largest
  Stream stream_;
  DeviceBuffer<float> entries_, bias_;
  DeviceBuffer<uint16_t> halves_;
  DeviceBuffer<RvqScreen> screens_;
};

}  // namespace kvcodec::cuda
