// Vectors whose elements begin at a cache line, for kernels that stream whole lines. Large ones ask the system for large pages: where rows
// are read here and there over many megabytes, looking up small pages takes a noticeable part of the time.
#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace kvcodec {

/// Bytes of a cache line on every known machine, and of the widest vector register.
inline constexpr size_t kCacheLine = 64;

/// Asks for large pages in place of the small ones of this memory, for all whole large pages in it. If the system refuses,
/// everything works as well with small ones.
void wish_large_pages(void* data, size_t size);

/// Lets the heap begin with large pages and keep freed memory for the next allocations. For the start of a program, before it
/// has threads. A short command spends a third of its time on fresh small pages, some three microseconds each. If the system or
/// the C library does not support this, nothing changes.
void prepare_heap();

/// Allocates size bytes, aligned to a cache line, or to a large page if there are several of those. Throws std::bad_alloc.
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

/// Leaves numbers without a given value uninitialised.
template <class T>
struct UnsetAllocator : CacheLineAllocator<T> {
  using value_type = T;
  UnsetAllocator() = default;
  template <class U>
  UnsetAllocator(const UnsetAllocator<U>&) {}

  void construct(T* place) { ::new (static_cast<void*>(place)) T; }
  template <class... Arguments>
  void construct(T* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) T(std::forward<Arguments>(arguments)...);
  }
};

/// For numbers that are written before they are read: setting them to zero first costs as much as reading a file.
template <class T>
using UnsetVector = std::vector<T, UnsetAllocator<T>>;

/// The smallest multiple of `step` that is at least n.
constexpr size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace kvcodec
