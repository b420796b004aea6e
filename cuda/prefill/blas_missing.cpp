// Implements blas.hpp for a build with CUDA but without cuBLAS.
#include "cuda/prefill/blas.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

static Error not_built() {
  return no_device(
      "matrix products on a CUDA device need cuBLAS: this kvcodec was built without its headers "
      "(cublas_v2.h)");
}

Blas::Blas(const Stream&) { throw not_built(); }
Blas::~Blas() = default;

void Blas::stretch_products(const Product&, size_t) const { throw not_built(); }

}  // namespace kvcodec::cuda
