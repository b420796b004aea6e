// The tokens that blocks are made of, read block row by block row: what the survey and append share.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/half.hpp"
#include "lib/kvcomp/stored_blocks.hpp"

namespace kvcodec::kvcomp {

/// Tokens that wait in 16 bits, and behind them new ones, which read() rounds to 16 bits.
class TokenQueue {
 public:
  TokenQueue(DType storage, std::span<const uint16_t> waiting, MatrixView<const float> added)
      : storage_(storage), waiting_(waiting), added_(added) {}

  size_t tokens() const { return waiting_.size() / added_.cols() + added_.rows(); }

  /// As many tokens as out has room for, from token `first` on. Throws Error(bad_input) as store_row.
  void read(size_t first, std::span<uint16_t> out) const {
    const size_t width = added_.cols(), before = waiting_.size() / width;
    const size_t old = std::min(first < before ? before - first : 0, out.size() / width);
    std::ranges::copy(waiting_.subspan(std::min(first, before) * width, old * width), out.begin());
    for (size_t i = old; i < out.size() / width; ++i) {
      const size_t row = first + i - before;
      store_row(storage_, added_.row(row), row, out.subspan(i * width, width));
    }
  }
  /// All tokens from `first` on, in 16 bits. Throws as read().
  std::vector<uint16_t> from(size_t first) const {
    std::vector<uint16_t> out((tokens() - first) * added_.cols());
    read(first, out);
    return out;
  }
  DType storage() const { return storage_; }

 private:
  DType storage_;
  std::span<const uint16_t> waiting_;
  MatrixView<const float> added_;
};

/// Buffers for one block row; one per thread.
struct RowScratch {
  std::vector<uint16_t> halves;
  Matrix<float> values;  ///< the same, (tokens, width)
  Matrix<uint8_t> symbols;
  std::vector<float> steps;
  std::vector<int16_t> origins;

  RowScratch(const Layout& layout, size_t tokens)
      : halves(tokens * layout.width()),
        values(tokens, layout.width()),
        symbols(tokens, layout.width()),
        steps(layout.heads * std::max(layout.steps(), tokens)),
        origins(layout.heads * layout.origins()) {}

  void read(const TokenQueue& queue, size_t first) {
    queue.read(first, halves);
    widen(queue.storage(), halves, {values.data(), values.size()});
  }
};

}  // namespace kvcodec::kvcomp
