// Residual quantization: a row is the sum of one entry of each of N_q codebooks, taken in order; codebook i
// codes the residual of the codebooks before it (VQKV, eq. 1 to 3; there each entry is a projected random
// vector, folded in beforehand, so that nothing else is needed here).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {

/// N_q codebooks of N_c entries of `width` floats.
class Codebooks {
 public:
  Codebooks() = default;
  Codebooks(size_t stages, size_t entries, size_t width);

  size_t stages() const { return stages_; }
  size_t entries() const { return entries_; }
  size_t width() const { return width_; }
  /// Floats from one entry to the next: width rounded up to 16; elements behind the width are zero.
  size_t padded() const { return padded_; }

  /// (entries, width), with a stride.
  MatrixView<float> stage(size_t s) { return {data(s), entries_, width_, padded_}; }
  MatrixView<const float> stage(size_t s) const { return {data(s), entries_, width_, padded_}; }
  /// (entries, padded), contiguous.
  MatrixView<const float> padded_stage(size_t s) const { return {data(s), entries_, padded_}; }
  const float* data(size_t s) const { return values_.data() + s * entries_ * padded_; }

  /// Throws Error(bad_input) naming the first value that is not finite.
  void check_finite() const;

 private:
  float* data(size_t s) { return values_.data() + s * entries_ * padded_; }
  size_t stages_ = 0, entries_ = 0, width_ = 0, padded_ = 0;
  AlignedVector<float> values_;
};

/// Adds entries up: row i of out (n, width) = sum over s of entry ids(i, s) of codebook s, in that order. ids: (n, stages), each below
/// entries (not checked here). The same bits for any number of threads and any SIMD level.
void sum_entries(const Codebooks& books, MatrixView<const uint32_t> ids, MatrixView<float> out);

/// A device that computes in place of sum_entries and ResidualEncoder::encode, for one set of codebooks. Threads may share it.
class ResidualEngine {
 public:
  /// For Engine::make. The codebooks must outlive the result.
  using Factory = std::unique_ptr<ResidualEngine>(const Codebooks&);
  virtual ~ResidualEngine() = default;
  /// As the functions, with the same bits. False: the engine did not do it, and the output is undefined; the caller does it.
  virtual bool sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const = 0;
  virtual bool encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const = 0;
};

/// Finds ids. The codebooks outlive it.
class ResidualEncoder {
 public:
  explicit ResidualEncoder(const Codebooks& books) : books_(books) {
    for (size_t s = 0; s < books.stages(); ++s)
      search_.emplace_back(books.padded_stage(s), nearest_bias(books.stage(s)));
  }

  /// ids: (n, stages) of rows (n, width), finite. With beam 1 each stage takes the entry nearest to the
  /// residual (greedy, as in the paper). With beam B the B best sums of the stages so far are kept, by the
  /// energy of their residual, and the best one at the end is taken; B = 1 to kMaxHypotheses.
  ///
  /// A stage's choice is by the score <r, e> - |e|^2 / 2 as nearest.hpp defines it, plus -|r|^2 / 2 where
  /// there are several hypotheses; r is the difference of the row and the entries taken, subtracted one after
  /// the other. The same bits for any number of threads and any SIMD level.
  void encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const;

  static constexpr size_t kMaxHypotheses = 64;

 private:
  struct Scratch;
  void encode_block(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids,
                    Scratch& scratch) const;
  const Codebooks& books_;
  std::vector<ProductSearch> search_;
};

}  // namespace kvcodec
