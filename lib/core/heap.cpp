#include "lib/core/heap.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "lib/core/aligned.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

namespace kvcodec {

void prepare_heap() {
#ifdef __GLIBC__
  // What the heap grows by at once, with large pages; untouched, it takes address space alone.
  constexpr int kFirst = 64 << 20, kLater = 1 << 20;
  // From so many bytes on an allocation has pages of its own, which go back to the system when it is freed.
  constexpr int kOfItsOwn = 32 << 20;
  mallopt(M_MMAP_THRESHOLD, kOfItsOwn);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, kFirst);
  const auto begin = reinterpret_cast<uintptr_t>(sbrk(0));
  void* volatile grown = std::malloc(kLater);  // more than what is left of the first pages
  std::free(grown);
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  mallopt(M_TOP_PAD, kLater);
  if (end > begin) wish_large_pages(reinterpret_cast<void*>(begin), end - begin);
#endif
}

}  // namespace kvcodec
