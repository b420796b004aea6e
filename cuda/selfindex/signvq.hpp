// CUDA implementation of lib/selfindex: sign codes, one-pass codebooks, scores and top-k straight from codes.
// Everything is bit-identical to lib/.
//
// Queries of one head's keys go through float tables here: a look-up of 16 neighbouring words has no bank
// conflicts, so byte tables would gain nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_codes.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::cuda {

/// As kvcodec::encode_signs and kvcodec::build_codebooks together, in one pass over the rows: fills codes and
/// returns a codebook per head. rows: (n, heads * dims), codes: (n, heads * sign_row_bytes(dims)), both
/// contiguous. Throws Error(bad_input) and Error(failed) as they do.
std::vector<SignCodebook> encode_and_build_codebooks(MatrixView<const float> rows, size_t heads,
                                                     MatrixView<uint8_t> codes);

/// The sign codes of one head in device memory: kvcodec::SignIndex. Memory: sign_row_bytes(dims) per token.
class DeviceSignIndex {
 public:
  /// codes: (n, sign_row_bytes(dims)), copied. Throws Error(bad_input) unless dims is a positive multiple of 4, and
  /// Error(failed) as kvcodec::SignIndex does.
  DeviceSignIndex(size_t dims, MatrixView<const uint8_t> codes);

  /// Row i of out, (tables.size(), tokens), becomes the scores of table i.
  void scores(std::span<const SignTable> tables, MatrixView<float> out) const;
  /// The best k tokens of each table.
  std::vector<std::vector<Scored>> top_k(std::span<const SignTable> tables, size_t k,
                                         Order order = Order::by_score) const;

 private:
  size_t at_once(size_t tables) const;
  void run_scores(std::span<const SignTable> tables, float* scores, const Stream& stream) const;

  size_t dims_, row_bytes_, tokens_;
  DeviceBuffer<uint8_t> codes_;
};

}  // namespace kvcodec::cuda
