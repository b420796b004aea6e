// Matrix products of bf16 by the vendor's library. It is looked for when first used, not when the program
// starts: a program built with CUDA runs where there is none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/runtime.hpp"

namespace kvcodec::cuda {

/// The matrix units truncate what they add (kernel.cuh), so that sums come out too small, the more the longer
/// they are. Stretches are added with rounding to nearest, once each; but each reads and writes the outputs
/// anew, which for one of 1024 inputs takes about as long as its products. So long are those that matter.
inline constexpr size_t kPreciseStretch = 1024;

class Blas {
 public:
  /// For work on this stream, which outlives it. Throws Error(no_device) where the library is missing,
  /// Error(failed) where it does not start.
  explicit Blas(const Stream& stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  /// out (n, outputs) = or += x (n, inputs) times the transpose of weight (outputs, inputs), all row-major,
  /// without gaps, in device memory; bf16 with sums in f32, of `stretch` inputs at a time. Throws
  /// Error(failed), also for sizes of more than 31 bits.
  void products(const uint16_t* x, const uint16_t* weight, size_t n, size_t outputs, size_t inputs, bool add,
                float* out, size_t stretch) const {
    for (size_t first = 0; first < inputs; first += stretch)
      stretch_products(x + first, weight + first, n, outputs, std::min(stretch, inputs - first), inputs,
                       add || first > 0, out);
  }

 private:
  /// One call of the library; rows of x and weight are `stride` elements apart.
  void stretch_products(const uint16_t* x, const uint16_t* weight, size_t n, size_t outputs, size_t inputs,
                        size_t stride, bool add, float* out) const;

  void* handle_ = nullptr;
  StreamHandle stream_ = nullptr;
};

}  // namespace kvcodec::cuda
