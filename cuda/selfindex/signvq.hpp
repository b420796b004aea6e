// CUDA implementation of lib/selfindex: one-pass codebooks, and scores directly from codes. Everything is
// bit-identical to lib/.
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
#include "lib/selfindex/sign_codes.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::cuda {

/// As kvcodec::build_codebooks of the rows and their codes: a codebook per head. rows: (n, heads * dims). Throws
/// Error(bad_input) and Error(failed) as it does.
std::vector<SignCodebook> build_codebooks(MatrixView<const float> rows, size_t heads);

/// The sign codes of one head in device memory: kvcodec::SignIndex. Memory: sign_row_bytes(dims) per token, in whole
/// pieces of 16 bytes.
class DeviceSignIndex {
 public:
  /// codes: (n, sign_row_bytes(dims)), copied. Throws Error(bad_input) unless dims is a positive multiple of 4, and
  /// Error(failed) as kvcodec::SignIndex does.
  DeviceSignIndex(size_t dims, MatrixView<const uint8_t> codes)
      : dims_(dims), row_bytes_(round_up(sign_row_bytes(dims), 16)), tokens_(codes.rows()) {
    check_shape("sign codes", codes, tokens_, sign_row_bytes(dims));
    if (tokens_ > (uint64_t{1} << 32)) throw failed("{} tokens in one index: ids have 32 bits", tokens_);
    codes_ = upload_rows(codes, Stream(), row_bytes_);
  }

  /// Row i of out, (tables.size(), tokens), becomes the scores of table i.
  void scores(std::span<const SignTable> tables, MatrixView<float> out) const;

 private:
  size_t dims_, row_bytes_, tokens_;
  DeviceBuffer<uint8_t> codes_;
};

}  // namespace kvcodec::cuda
