// CUDA implementation of lib/kvcomp/codec/blocks.hpp for blocks of the codec `kvcomp`: decoding, and products
// with keys and values that are never written out (KVComp, sections 3.3.1 and 3.3.2). Blocks coded with rANS are decoded to
// bytes when they are copied to the device, and stay there in that form.
//
// Decoded values are those of lib/, bit for bit. Products with values are sums in float32 in another order:
// for n terms they differ from exact sums by at most (2 n + 16) 2^-24 times the sum of the terms' magnitudes.
// Products with keys are sums on the matrix units, which cut off instead of rounding, of queries times steps,
// each as the sum of two halves, times levels. For n channels they differ by at most (2 n + 16) 2^-24 times
// the sum of the magnitudes of query x level x step and of query x origin x step, and by n 2^-28 times the
// largest query x step of the block, since the halves drop bits below 2^-35 of the largest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/kvcomp/kvcomp.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::cuda {

/// Some block rows of a document, in device memory in the form of the streams. Tokens are counted from the
/// first of them.
class DeviceBlocks {
 public:
  /// As kvcodec::kvcomp::LoadedBlocks. Throws Error(bad_input) for sizes that no encoder writes, Error(failed) without
  /// device memory.
  DeviceBlocks(const kvcomp::Layout& layout, DType storage, const kvcomp::StoredBlocks& stored);

  size_t rows() const { return store_.rows; }
  size_t tokens() const { return size_t{store_.rows} * store_.tokens; }
  /// Bytes of device memory.
  uint64_t bytes() const;

  /// Tokens [first, first + out.rows()): (n, heads * dims). Throws Error(bad_input) for a damaged block.
  void decode(size_t first, MatrixView<float> out) const;

  /// out (heads * n, tokens) = products of the queries (heads * n, dims), n for each head, with the keys of
  /// tokens [first, first + out.cols()). Throws Error(usage) for queries that are not finite or beyond
  /// 2^64.
  void multiply_keys(size_t first, MatrixView<const float> queries, MatrixView<float> out) const;

  /// out (heads * n, dims) = the sums of the values of tokens [first, first + weights.cols()) with these
  /// weights (heads * n, tokens).
  void multiply_values(size_t first, MatrixView<const float> weights, MatrixView<float> out) const;

  /// For launches of kvcomp.cuh: the store, as long as this lives.
  const KvcompStore& store() const { return store_; }
  /// For tests: the division of the work from now on.
  void cut(const KvcompCuts& cuts) { cuts_ = cuts; }

 private:
  void to_bytes(const RansModel& model, std::span<const KvcompPlace> places, uint64_t target);
  KvcompWork part(uint64_t first, uint64_t count) const;
  template <class Run>
  void guarded(KvcompWork work, MatrixView<float> out, const Run& run) const;

  Stream stream_;
  DeviceBuffer<uint8_t> payload_, counts_, origins_;
  DeviceBuffer<uint16_t> steps_;
  DeviceBuffer<KvcompPlace> places_;
  DeviceBuffer<uint32_t> table_;
  KvcompStore store_{};
  KvcompCuts cuts_{};
};

}  // namespace kvcodec::cuda
