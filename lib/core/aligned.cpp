#include "lib/core/aligned.hpp"

#include <cstdint>
#include <cstdlib>

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

namespace kvcodec {

constexpr size_t kLargePage = size_t{2} << 20;

/// Below this the part of a page that stays unused would matter.
constexpr size_t kLarge = 2 * kLargePage;

static std::align_val_t alignment_of(size_t size) {
  return std::align_val_t{size >= kLarge ? kLargePage : kCacheLine};
}

void wish_large_pages(void* data, size_t size) {
#ifdef __linux__
  const auto begin = round_up(reinterpret_cast<uintptr_t>(data), kLargePage),
             end = (reinterpret_cast<uintptr_t>(data) + size) / kLargePage * kLargePage;
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
}

void* allocate_aligned(size_t size) {
  void* data = ::operator new(size, alignment_of(size));
  if (size >= kLarge) wish_large_pages(data, size);
  return data;
}

void free_aligned(void* data, size_t size) { ::operator delete(data, alignment_of(size)); }

void prepare_heap() {
#ifdef __GLIBC__
  // The heap grows by these sizes at once, the first with large pages; untouched pages take only address space.
  constexpr int kFirst = 64 << 20, kLater = 1 << 20;
  // An allocation of at least this size has pages of its own, which go back to the system when it is freed.
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
