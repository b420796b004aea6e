// The library's own code, which its header has too.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/core/xxh3_kernels.hpp"

namespace kvcodec::xxh3_kernels {

Hash avx2::hash(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

}  // namespace kvcodec::xxh3_kernels
