#include "cuda/prefill/blas.hpp"

#include <climits>
#include <string>

#include <cublas_v2.h>
#include <dlfcn.h>

#include "lib/core/error.hpp"

namespace kvcodec::cuda {
namespace {

/// cublasGemmEx; the header has an overload of the same name.
using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

/// The functions of the library that are used.
struct Library {
  decltype(&cublasCreate) create = nullptr;
  decltype(&cublasDestroy) destroy = nullptr;
  decltype(&cublasSetStream) set_stream = nullptr;
  Gemm gemm = nullptr;
  std::string missing;  ///< why there is none
};

#define KVCODEC_TEXT_OF(name) #name
#define KVCODEC_SYMBOL(name) KVCODEC_TEXT_OF(name)  // the header calls cublasCreate cublasCreate_v2 …

Library load() {
  Library library;
  const std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
  // First where the system looks, then where it was when this program was built.
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    library.missing = dlerror();
    handle = dlopen((std::string(KVCODEC_CUDA_LIBRARIES "/") + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!handle) return library;
  library.missing.clear();
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    if (!function) library.missing = name + " has no " + symbol;
  };
  find(library.create, KVCODEC_SYMBOL(cublasCreate));
  find(library.destroy, KVCODEC_SYMBOL(cublasDestroy));
  find(library.set_stream, KVCODEC_SYMBOL(cublasSetStream));
  find(library.gemm, KVCODEC_SYMBOL(cublasGemmEx));
  return library;  // it stays loaded
}

const Library& library() {
  static const Library loaded = load();
  if (!loaded.missing.empty())
    throw no_device("matrix products on a CUDA device need cuBLAS: {}", loaded.missing);
  return loaded;
}

void check_product(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string message = fmt::format("{}: error {} of cuBLAS", what, static_cast<int>(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory(message);
  throw DeviceFault(message);
}

int as_int(size_t size) {
  if (size > INT_MAX) throw failed("a matrix of {} rows or columns; cuBLAS takes 2^31 - 1", size);
  return static_cast<int>(size);
}

}  // namespace

Blas::Blas(const Stream& stream) : stream_(stream.handle()) {
  cublasHandle_t handle = nullptr;
  check_product(library().create(&handle), "starting matrix products");
  handle_ = handle;
  if (const cublasStatus_t status = library().set_stream(handle, stream_); status != CUBLAS_STATUS_SUCCESS) {
    library().destroy(handle);
    check_product(status, "starting matrix products");
  }
}

Blas::~Blas() { (void)library().destroy(static_cast<cublasHandle_t>(handle_)); }

void Blas::stretch_products(const Product& product, size_t stride) const {
  const auto& [x, weight, n, outputs, inputs, add, out] = product;
  if (n == 0 || outputs == 0) return;
  const float one = 1, beta = add ? 1 : 0;
  // The library counts columns first: there out is (outputs, n), the product of weight and x as they lie.
  check_product(library().gemm(static_cast<cublasHandle_t>(handle_), CUBLAS_OP_T, CUBLAS_OP_N,
                               as_int(outputs), as_int(n), as_int(inputs), &one, weight, CUDA_R_16BF,
                               as_int(stride), x, CUDA_R_16BF, as_int(stride), &beta, out, CUDA_R_32F,
                               as_int(outputs), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                "a matrix product");
}

}  // namespace kvcodec::cuda
