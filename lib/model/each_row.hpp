// Work on single rows, spread over the threads. Inside lib/model only.
#pragma once

#include <cstddef>

#include "lib/core/parallel.hpp"

namespace kvcodec {

// Tokens per piece: tens of microseconds, well above the cost of starting threads.
inline constexpr size_t kRowGrain = 32;

/// body(row) for all rows below count.
template <class Body>
void each_row(size_t count, const Body& body) {
  parallel_for(count, kRowGrain, [&](size_t begin, size_t end, int) {
    for (size_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace kvcodec
