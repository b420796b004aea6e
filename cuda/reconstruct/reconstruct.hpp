// CUDA implementation of lib/sparse/reconstruct.hpp: signals from sparse codes, also straight from packed ids and
// coefficients as files hold them.
//
// Sums over atoms of floats run over each signal's pairs in order, fused: with atoms in f32 the result is
// lib's bit for bit, with atoms rounded to bf16 or f16 that of lib's with the rounded atoms. Sums over atoms
// of 8 bits are of integers, and lib's as well: slices of 16 channels of the dictionary stay in shared memory
// (128 KiB for 8192 atoms) while signals pass by; larger dictionaries are read from the second-level cache.
//
// Time of the second way, by arithmetic. A value takes a product of a level and a weight for each pair, two
// of which are one instruction, and half a byte shuffle: 48 of 64 pairs. At 64 of those per clock and
// multiprocessor an H200 comes to 0.3 T values a second. Reading 16 bytes of an atom from random places of
// shared memory meets conflicts of banks, some 2.6 accesses instead of one: 0.17 T values, a third of a
// terabyte a second of bf16. A signal's pairs are therefore put in an order in which there are 1.5: 0.3 T
// values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::cuda {

/// Codes as files hold them: s pairs per signal, ids packed to `width` bits (lib/entropy/pack.hpp), and
/// coefficients in f16 or as words of up to 8 bits, packed likewise (of 8 bits that is one byte each).
struct PackedCodes {
  std::span<const uint8_t> ids;               ///< packed_bytes(signals * s, width) bytes at least
  unsigned width = 0;                         ///< 1..32; 0 where there is one atom only
  std::span<const uint16_t> coefficients;     ///< f16, signals * s; or empty:
  size_t s = 0;                               ///< at least 1
  std::span<const uint8_t> words = {};        ///< packed_bytes(signals * s, word_width) bytes at least
  unsigned word_width = 0;                    ///< 1..8
  std::span<const float> numbers = {};        ///< 256: what a word stands for; not finite: nothing
  std::span<const uint8_t> scales = {};       ///< of each signal
  std::span<const float> scale_numbers = {};  ///< 256: what a scale stands for; a number is multiplied by it
};

class DeviceReconstructor {
 public:
  /// atoms: (n, m), copied to device memory in `type`: f32, or rounded to bf16 or f16. Throws Error(failed)
  /// for another type, for no atom, and for atoms of more than 2^20 - 16 values.
  explicit DeviceReconstructor(MatrixView<const float> atoms, DType type = DType::f32);
  explicit DeviceReconstructor(const ByteAtoms& atoms);
  ~DeviceReconstructor();
  DeviceReconstructor(DeviceReconstructor&&) noexcept;
  DeviceReconstructor& operator=(DeviceReconstructor&&) noexcept;

  size_t atoms() const;
  size_t width() const;

  /// As kvcodec::Reconstructor::run, its errors too; coefficients that are not finite are refused. Atoms of 8
  /// bits: Throws Error(failed) for more than 512 pairs of a signal.
  void run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) const;
  void run(const CodeView& codes, DType type, MatrixView<uint16_t> out,
           const Finishing& finishing = {}) const;
  /// out: (signals, width()). Throws Error(bad_input) for an id that is no atom and a coefficient that is no
  /// finite number, Error(failed) for ids of more than 32 bits.
  void run(const PackedCodes& codes, MatrixView<float> out, const Finishing& finishing = {}) const;
  void run(const PackedCodes& codes, DType type, MatrixView<uint16_t> out,
           const Finishing& finishing = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
