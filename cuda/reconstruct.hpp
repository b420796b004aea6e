// Device twin of lib/sparse/reconstruct.hpp: signals from sparse codes, straight from packed ids and f16
// coefficients.
//
// Sums run over each signal's pairs in order, fused: with atoms in f32 the result is lib's bit for bit, with
// atoms rounded to bf16 or f16 that of lib's with the rounded atoms.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::cuda {

/// Codes as files hold them: s pairs per signal, ids packed to `width` bits (lib/entropy/pack.hpp).
struct PackedCodes {
  std::span<const uint8_t> ids;            ///< packed_bytes(coefficients.size(), width) bytes at least
  unsigned width = 0;                      ///< 1..32; 0 where there is one atom only
  std::span<const uint16_t> coefficients;  ///< f16, signals * s
  size_t s = 0;                            ///< at least 1
};

class Reconstructor {
 public:
  /// atoms: (n, m), copied to device memory in `type`: f32, or rounded to bf16 or f16. Throws Error(failed)
  /// for another type and for no atom.
  explicit Reconstructor(MatrixView<const float> atoms, DType type = DType::f32);
  ~Reconstructor();
  Reconstructor(Reconstructor&&) noexcept;
  Reconstructor& operator=(Reconstructor&&) noexcept;

  size_t atoms() const;
  size_t width() const;

  /// As kvcodec::Reconstructor::run, its errors too.
  void run(const CodeView& codes, MatrixView<float> out) const;
  /// out: (signals, width()). Throws Error(bad_input) for an id that is no atom, Error(failed) for ids of more
  /// than 32 bits.
  void run(const PackedCodes& codes, MatrixView<float> out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
