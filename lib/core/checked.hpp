// Sizes that come from outside are multiplied and added with overflow checks before anything is allocated. Most come from files; of
// those that come from options ErrorKind::usage says whose fault an overflow is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "lib/core/error.hpp"

namespace kvcodec {

/// A number of layers, heads or channels as a size; it is not negative.
constexpr size_t as_size(int count) { return static_cast<size_t>(count); }

/// a * b; throws Error(kind) on overflow.
inline uint64_t checked_mul(uint64_t a, uint64_t b, ErrorKind kind = ErrorKind::bad_input) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw Error(kind, fmt::format("size {} x {} does not fit 64 bits", a, b));
  return product;
}

/// a + b; throws Error(kind) on overflow.
inline uint64_t checked_add(uint64_t a, uint64_t b, ErrorKind kind = ErrorKind::bad_input) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw Error(kind, fmt::format("size {} + {} does not fit 64 bits", a, b));
  return sum;
}

/// The product of all factors; throws Error(bad_input) on overflow. An empty list gives 1.
template <class Range>
uint64_t checked_product(const Range& factors) {
  uint64_t product = 1;
  for (auto factor : factors) product = checked_mul(product, static_cast<uint64_t>(factor));
  return product;
}

}  // namespace kvcodec
