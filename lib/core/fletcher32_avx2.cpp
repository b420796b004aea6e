#include "lib/core/fletcher32_kernels_body.hpp"

namespace kvcodec::fletcher_kernels {

Sums avx2::sums(const unsigned char* bytes, size_t n) { return wide_sums(bytes, n); }

}  // namespace kvcodec::fletcher_kernels
