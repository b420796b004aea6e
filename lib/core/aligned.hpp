// Vectors whose elements begin at a cache line, for kernels that stream whole lines. Large ones ask the
// system for large pages: where rows are read here and there over many megabytes, looking up small pages
// takes a noticeable part of the time.
#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <vector>

namespace kvcodec {

/// Bytes of a cache line on every machine we know, and of the widest vector register.
inline constexpr size_t kCacheLine = 64;

/// size bytes from a cache line on, from a 2 MiB page on if there are several of those. Throws
/// std::bad_alloc.
void* allocate_aligned(size_t size);
void free_aligned(void* data, size_t size);

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(allocate_aligned(count * sizeof(T)));
  }
  void deallocate(T* data, size_t count) { free_aligned(data, count * sizeof(T)); }
  template <class U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
};

template <class T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

/// The least multiple of `step` that is not below n.
constexpr size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace kvcodec
