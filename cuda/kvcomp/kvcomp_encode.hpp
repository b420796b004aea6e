// CUDA implementation of the operations of the codec `kvcomp` on whole blocks in encoding: quantize_bounded
// (lib/quant/error_bounded.hpp) for every block, histogram, and BlockCoder::encode (lib/kvcomp/block.hpp) with
// Huffman codes. Steps, origins, symbols, counts and streams are those of lib/, byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kvcomp/kvcomp_encode.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::cuda {

using kvcomp::EncodedBlocks;

/// The codes of a book for kernels (256); symbols without a code are stored behind an escape.
std::vector<uint32_t> kvcomp_codes(const HuffmanBook& book);

/// Block rows in device memory, quantized.
class QuantizedBlocks {
 public:
  /// values: (whole blocks of tokens, heads * dims) of the 16-bit type `storage`, finite. Throws
  /// Error(usage) if no bound is > 0, or for steps that heads share, which only the CPU computes;
  /// Error(bad_input) for values that are not finite.
  QuantizedBlocks(const kvcomp::Layout& layout, DType storage, const ErrorBound& bound,
                  MatrixView<const uint16_t> values);

  size_t rows() const { return all_.rows; }

  /// [row][head][tokens][dims], steps and origins likewise, as quantize_bounded makes them.
  std::vector<uint8_t> symbols() const { return downloaded(symbols_, stream_); }
  std::vector<float> steps() const { return downloaded(steps_, stream_); }
  std::vector<int16_t> origins() const { return downloaded(origins_, stream_); }

  /// Count of each of the 256 symbols.
  std::vector<uint64_t> histogram() const {
    DeviceBuffer<unsigned long long> counts(256);
    counts.fill(0, stream_);
    stream_.run("counting symbols", run_kvcomp_histogram, symbols_.data(), symbols_.size(), counts.data());
    const auto found = downloaded(counts, stream_);
    return {found.begin(), found.end()};
  }

  /// Throws Error(usage) for a coder of rANS.
  EncodedBlocks encode(const BlockCoder& coder) const;

  /// For launches of kvcomp_encode.cuh, as long as this lives.
  const KvcompValues& values() const { return all_; }

 private:
  Stream stream_;
  DeviceBuffer<uint16_t> values_;
  DeviceBuffer<uint8_t> symbols_;
  DeviceBuffer<float> steps_;
  DeviceBuffer<int16_t> origins_;
  KvcompValues all_{};
};

}  // namespace kvcodec::cuda
