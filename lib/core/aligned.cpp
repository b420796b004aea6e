#include "lib/core/aligned.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace kvcodec {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

/// Below this the part of a page that stays unused would matter.
constexpr size_t kLarge = 2 * kLargePage;

std::align_val_t alignment_of(size_t size) {
  return std::align_val_t{size >= kLarge ? kLargePage : kCacheLine};
}

}  // namespace

void* allocate_aligned(size_t size) {
  void* data = ::operator new(size, alignment_of(size));
#ifdef __linux__
  // A wish: where it cannot be granted, all works as well with small pages.
  if (size >= kLarge) static_cast<void>(madvise(data, size / kLargePage * kLargePage, MADV_HUGEPAGE));
#endif
  return data;
}

void free_aligned(void* data, size_t size) { ::operator delete(data, alignment_of(size)); }

}  // namespace kvcodec
