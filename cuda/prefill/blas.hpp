// Matrix products of bf16 by the vendor's library. It is loaded on first use, not when the program
// starts: a program built with CUDA runs where there is none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/runtime.hpp"

namespace kvcodec::cuda {

/// The matrix units truncate sums (kernel.cuh), so that they become too small, the more the longer they are.
/// Stretches are added with rounding to nearest, once each; but each reads and writes the outputs anew, which for
/// a stretch of 1024 inputs takes about as long as its products. This is the length for products that matter.
inline constexpr size_t kPreciseStretch = 1024;

class Blas {
 public:
  /// For work on this stream, which outlives it. Throws Error(no_device) if the library is missing,
  /// Error(failed) if it does not start.
  explicit Blas(const Stream& stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  /// out (n, outputs) = or += x (n, inputs) times the transpose of weight (outputs, inputs), all row-major, in device
  /// memory; bf16 with sums in f32.
  struct Product {
    const uint16_t *x, *weight;
    size_t n, outputs, inputs;
    bool add;
    float* out;
  };
  /// Products of `stretch` inputs at a time. Throws Error(failed), also for sizes of more than 31 bits.
  void products(Product all, size_t stretch) const {
    const size_t inputs = all.inputs;
    for (size_t first = 0; first < inputs; first += stretch) {
      all.inputs = std::min(stretch, inputs - first);
      stretch_products(all, inputs);
      all.x += all.inputs, all.weight += all.inputs;
      all.add = true;
    }
  }

 private:
  /// One call of the library; rows of x and weight are `stride` elements apart.
  void stretch_products(const Product& product, size_t stride) const;

  void* handle_ = nullptr;
  StreamHandle stream_ = nullptr;
};

}  // namespace kvcodec::cuda
