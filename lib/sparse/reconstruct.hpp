// Signals from sparse codes: each the sum of coefficient times atom (SparseCache, its Algorithm 3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/aligned.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/byte_atoms.hpp"

namespace kvcodec {

struct Dictionary;  // lib/sparse/dictionary.hpp

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

/// What is done to signals once they are sums, each operation rounded to f32. Empty: not done.
struct Finishing {
  std::span<const float> gains;  ///< a factor for each signal
  std::span<const float> scale;  ///< then one for each channel,
  std::span<const float> mean;   ///< and what is added to it
};

/// What computes in place of Reconstructor::run, for one dictionary: a device. Threads may share it. The bits
/// are the same. False: the engine did not do it, and `out` is undefined; the caller does it.
class ReconstructionEngine {
 public:
  /// For Engine::make. The result needs nothing of the dictionary afterwards.
  using Factory = std::unique_ptr<ReconstructionEngine>(const Dictionary&);
  virtual ~ReconstructionEngine() = default;
  virtual bool run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const = 0;
};

/// A dictionary laid out for reconstruction: cut in slices of some channels, each of them contiguous, so that
/// rows of a slice are runs of whole cache lines and the sums of a slice stay in registers. Atoms of 8 bits
/// make slices that stay in the second-level cache.
///
/// Sums over atoms of floats run over each signal's pairs in order, fused. Those over atoms of 8 bits are of
/// integers: with w = coefficient * scale of the atom (rounded to f32), the weights of a signal are
/// q = w * (32639 / W) rounded to the nearest integer, ties to even, W the largest |w| (product and quotient
/// rounded to f32), and a value is the sum of q * level, rounded to f32, times W / 32639 (rounded to f32).
/// Where W is below 2^-100 it is 0. The sum is exact, so the order of pairs does not matter; rounding the
/// weights adds an error near 1e-5 of the largest of them. Either way the thread count and the SIMD level do
/// not matter.
class Reconstructor {
 public:
  Reconstructor() = default;
  /// atoms: (n, m), copied.
  explicit Reconstructor(MatrixView<const float> atoms) { assign(atoms); }
  explicit Reconstructor(const ByteAtoms& atoms) { assign(atoms); }
  void assign(MatrixView<const float> atoms);
  void assign(const ByteAtoms& atoms);

  size_t atoms() const { return atoms_; }
  size_t width() const { return width_; }

  /// Writes signal i to row i of out: (codes.signals(), width()). Throws Error(bad_input) for an id that is
  /// no atom, or offsets that fall or lead beyond the pairs. Coefficients are finite.
  void run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) const;

  /// What each pair adds to its signal, in units of the atom, or of its levels where atoms are of 8 bits: the
  /// coefficients, or q * W / 32639.
  std::vector<float> weights(const CodeView& codes) const;

  /// The same values, rounded to bf16 or f16 as `narrow` does.
  void run(const CodeView& codes, DType type, MatrixView<uint16_t> out,
           const Finishing& finishing = {}) const;

 private:
  void check_codes(const CodeView& codes) const;
  void check(const CodeView& codes, size_t rows, size_t cols, const Finishing& finishing) const;
  void run_floats(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const;
  template <class T>
  void run_bytes(const CodeView& codes, DType type, MatrixView<T> out, const Finishing& finishing) const;
  template <class T>
  void run_long(const CodeView& codes, DType type, MatrixView<T> out, const Finishing& finishing) const;

  size_t atoms_ = 0, width_ = 0;
  AlignedVector<float> slices_;  // one behind the other, (atoms, 128) each, the last narrower: a multiple of
                                 // 16, zeros behind width
  AlignedVector<uint8_t> byte_slices_;  // instead of those, (atoms, 64) each: combine_kernels.hpp
  std::vector<float> scales_;
};

}  // namespace kvcodec
