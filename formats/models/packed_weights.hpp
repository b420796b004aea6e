// Weights that checkpoints hold as codes and scales in two tensors, as one tensor of blocks (TensorType): FP8 with a scale for each
// block of rows and columns (NAME and NAME_scale_inv, Qwen3-FP8 and DeepSeek-V3), and MXFP4 (NAME_blocks and NAME_scales, gpt-oss).
#pragma once

#include <map>
#include <mutex>

#include "lib/model/weights.hpp"

namespace kvcodec {

/// Puts blocks together when a tensor is first asked for, in memory of as many bytes as both tensors, about.
class PackedWeights {
 public:
  /// e4m3 of a matrix of codes (rows, columns), columns a multiple of 32, and scales in floats, one for each block of 128 rows and 128
  /// columns. Throws Error(bad_input) for other shapes, and for codes of NaN.
  const TensorView& e4m3(const TensorView& codes, const TensorView& scales);
  /// mxfp4 of (…, rows, columns / 32, 16) bytes, two codes in each, and the scales' exponents, (…, rows, columns / 32).
  const TensorView& mxfp4(const TensorView& codes, const TensorView& scales);

 private:
  struct Packed {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  template <class Fill>
  const TensorView& packed(const TensorView& codes, TensorType type, std::vector<uint64_t> shape,
                           const Fill& fill);

  std::mutex mutex_;
  std::map<std::string, Packed> packed_;  // by the origin of the codes
};

}  // namespace kvcodec
