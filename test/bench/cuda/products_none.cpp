// Without the vendor's library there is no baseline for matrix products.
#include "test/bench/cuda/device_bench.hpp"

double kvcodec::bench::library_product_rate(const cuda::Stream&, size_t,
                                            const std::function<Times(const std::function<void(size_t)>&)>&) {
  return 0;
}

namespace kvcodec::bench {

LibraryProducts::LibraryProducts(const cuda::Stream&) {}
LibraryProducts::~LibraryProducts() = default;
void LibraryProducts::multiply_keys(const HeadProducts&, const uint16_t*, const uint16_t*, float*) const {}
void LibraryProducts::multiply_values(const HeadProducts&, const uint16_t*, const uint16_t*, float*) const {}

}  // namespace kvcodec::bench
