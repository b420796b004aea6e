// Rows to columns.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lib/core/view.hpp"

namespace kvcodec {

/// out(j, i) = in(i, j); in: (rows, cols), out: (cols, rows), apart from each other.
template <class T>
void transpose(MatrixView<const T> in, MatrixView<T> out) {
  constexpr size_t kTile = 16;  // a tile's rows and columns stay in the first-level cache and in few lines
  for (size_t i0 = 0; i0 < in.rows(); i0 += kTile)
    for (size_t j0 = 0; j0 < in.cols(); j0 += kTile)
      for (size_t j = j0; j < std::min(j0 + kTile, in.cols()); ++j)
        for (size_t i = i0; i < std::min(i0 + kTile, in.rows()); ++i) out(j, i) = in(i, j);
}

}  // namespace kvcodec
