// Matrix products of bf16 by the vendor's library. It is looked for when first used, not when the program
// starts: a program built with CUDA runs where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime.hpp"

namespace kvcodec::cuda {

class Blas {
 public:
  /// For work on this stream, which outlives it. Throws Error(no_device) where the library is missing,
  /// Error(failed) where it does not start.
  explicit Blas(const Stream& stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  /// out (n, outputs) = or += x (n, inputs) times the transpose of weight (outputs, inputs), all row-major,
  /// without gaps, in device memory; bf16 with sums in f32. Throws Error(failed), also for sizes of more than
  /// 31 bits.
  void products(const uint16_t* x, const uint16_t* weight, size_t n, size_t outputs, size_t inputs, bool add,
                float* out) const;

 private:
  void* handle_ = nullptr;
  StreamHandle stream_ = nullptr;
};

}  // namespace kvcodec::cuda
