#include "lib/core/aligned.hpp"

#include <cstdint>

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

}  // namespace kvcodec
