// Signals from sparse codes: each the sum of coefficient times atom (SparseCache, its Algorithm 3).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/dictionary.hpp"

namespace kvcodec {

/// Codes of many signals, one behind the other: signal i has the pairs [offsets[i], offsets[i + 1]) of ids and coefficients.
struct CodeView {
  std::span<const uint32_t> ids;
  std::span<const float> coefficients;
  std::span<const uint64_t> offsets;  ///< one more than there are signals

  size_t signals() const { return offsets.size() - 1; }
};

struct OwnedCodes {
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;
  std::vector<uint64_t> offsets{0};
  CodeView view() const { return {ids, coefficients, offsets}; }
};

/// Codes of signals first, first + step …, transposed: for each atom, the signals that have it, rising,
/// and their coefficients. Signal first + i * step counts as i.
OwnedCodes codes_by_atom(const CodeView& codes, size_t atoms, size_t first = 0, size_t step = 1);

/// offsets for `signals` codes of s pairs each.
inline std::vector<uint64_t> uniform_offsets(size_t signals, size_t s) {
  std::vector<uint64_t> offsets(signals + 1);
  for (size_t i = 0; i <= signals; ++i) offsets[i] = i * s;
  return offsets;
}

/// Operations on signals after their sums, each rounded to f32. Empty: the operation is left out.
struct Finishing {
  std::span<const float> gains;  ///< a factor for each signal
  std::span<const float> scale;  ///< then one for each channel,
  std::span<const float> mean;   ///< and what is added to it
};

/// Throws unless the codes have all their pairs, and `out` of that width and the finishing fit their signals.
void check_fit(const CodeView& codes, MatrixView<float> out, size_t width, const Finishing& finishing);

/// A device's function that computes in place of Reconstructor::run, for one dictionary. Threads may share it. The
/// bits are the same. False: the device did not do it, and `out` is undefined; the caller does it.
using ReconstructFunction =
    std::function<bool(const CodeView& codes, MatrixView<float> out, const Finishing& finishing)>;
/// For Engine::make. The function needs nothing of the dictionary afterwards.
struct ReconstructionOnDevice {
  using Factory = ReconstructFunction(const Dictionary&);
};

/// A dictionary laid out for reconstruction: cut in slices of some channels, each of them contiguous, so that rows of a slice are runs of
/// whole cache lines and the sums of a slice stay in registers. Atoms of 8 bits make slices that stay in the second-level cache.
///
/// FORMAT.md, "sparse", defines the bits of the sums. Over atoms of floats they run over each signal's pairs in order, fused. Over atoms of
/// 8 bits they are of integers, so that the order of pairs does not matter; the weights are rounded to q with W / 32639 as the unit, W the
/// largest weight, which adds an error near 1e-5 of W. Either way the thread count and the SIMD level do not matter.
class Reconstructor {
 public:
  Reconstructor() = default;
  /// atoms: (n, m), copied.
  explicit Reconstructor(MatrixView<const float> atoms) { assign(atoms); }
  explicit Reconstructor(const ByteAtoms& atoms) { assign(atoms); }
  void assign(MatrixView<const float> atoms);
  void assign(const ByteAtoms& atoms);

  /// Writes signal i to row i of out: (codes.signals(), width()). Throws Error(bad_input) for an id without
  /// an atom, or offsets that fall or lead beyond the pairs. Coefficients are finite.
  void run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) const;

  /// The weight of each pair in its signal, in units of the atom, or of its levels where atoms are of 8 bits:
  /// the coefficients, or q * W / 32639.
  std::vector<float> weights(const CodeView& codes) const;

 private:
  void check_ids(const CodeView& codes) const {
    const uint64_t begin = codes.offsets.front(), end = codes.offsets.back();
    uint32_t largest = 0;
    for (uint64_t k = begin; k < end; ++k) largest = std::max(largest, codes.ids[k]);
    if (begin < end && largest >= atoms_) throw bad_input("atom {} of a dictionary of {}", largest, atoms_);
  }
  void run_floats(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const;
  void run_bytes(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const;

  size_t atoms_ = 0, width_ = 0;
  AlignedVector<float> slices_;  // one behind the other, (atoms, 128) each, the last narrower: a multiple of
                                 // 16, zeros behind width
  AlignedVector<uint8_t> byte_slices_;  // instead of those, (atoms, 64) each: combine_kernels.hpp
  std::vector<float> scales_;
};

}  // namespace kvcodec
