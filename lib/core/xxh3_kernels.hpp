// XXH3 of digest.hpp once per instruction set: the library as it is installed knows the narrowest alone. With AVX-512 it is slower than
// with AVX2 on what does not lie in a cache. Inside lib/core only; see cpu.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::xxh3_kernels {

/// The halves of the 128 bits.
struct Hash {
  uint64_t low, high;
};

namespace scalar {
Hash hash(const void* data, size_t size);
}
KVCODEC_WIDE_VARIANT(avx2, scalar, Hash hash(const void* data, size_t size);)

}  // namespace kvcodec::xxh3_kernels
