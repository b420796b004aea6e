// Signals from sparse codes: each the sum of coefficient times atom (SparseCache, its Algorithm 3).
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Codes of many signals, one behind the other: signal i has the pairs [offsets[i], offsets[i + 1]) of ids
/// and coefficients.
struct CodeView {
  std::span<const uint32_t> ids;
  std::span<const float> coefficients;
  std::span<const uint64_t> offsets;  ///< one more than there are signals

  size_t signals() const { return offsets.size() - 1; }
};

/// offsets for `signals` codes of s pairs each.
std::vector<uint64_t> uniform_offsets(size_t signals, size_t s);

/// A dictionary laid out for reconstruction: cut in slices of 128 channels, each of them contiguous, so that
/// rows of a slice are runs of whole cache lines and the sums of a slice stay in registers.
class Reconstructor {
 public:
  Reconstructor() = default;
  /// atoms: (n, m), copied.
  explicit Reconstructor(MatrixView<const float> atoms) { assign(atoms); }
  void assign(MatrixView<const float> atoms);

  size_t atoms() const { return atoms_; }
  size_t width() const { return width_; }

  /// Writes signal i to row i of out: (codes.signals(), width()). Sums run over each signal's pairs in order,
  /// fused, whatever the thread count and SIMD level. Throws Error(bad_input) for an id that is no atom, or
  /// offsets that fall or lead beyond the pairs.
  void run(const CodeView& codes, MatrixView<float> out) const;

 private:
  size_t atoms_ = 0, width_ = 0;
  AlignedVector<float> slices_;  // one behind the other, (atoms, 128) each, the last narrower: a multiple of
                                 // 16, zeros behind width
};

}  // namespace kvcodec
