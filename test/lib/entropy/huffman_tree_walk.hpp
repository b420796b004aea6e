// KVComp's decoder of Huffman codes (the paper's section 3.3.1), the reference for HuffmanDecoder: the code tree as an array of
// nodes, walked bit by bit without a branch. Every node's symbol is written, but the position advances, and the walk returns to the
// root, only if the node is a symbol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"
#include "lib/entropy/huffman.hpp"

namespace kvcodec::test {

class HuffmanTreeWalk {
 public:
  explicit HuffmanTreeWalk(const HuffmanBook& book) : book_(book), nodes_(1) {
    for (size_t symbol = 0; symbol < book.symbols(); ++symbol) {
      size_t node = 0;
      for (unsigned level = book.length(symbol); level-- > 0;) {
        const size_t bit = book.code(symbol) >> level & 1;
        if (nodes_[node].child[bit] == 0) {
          nodes_[node].child[bit] = static_cast<uint16_t>(nodes_.size());
          nodes_.emplace_back();
        }
        node = nodes_[node].child[bit];
      }
      if (book.length(symbol) == 0) continue;
      nodes_[node].is_symbol = 1;
      nodes_[node].symbol = static_cast<uint8_t>(symbol);
    }
    if (book.num_codes() == 1) nodes_[0].child[1] = nodes_[0].child[0];
  }

  /// Like HuffmanDecoder::decode_runs.
  void decode_runs(std::span<const uint8_t> payload, uint64_t first_bit, std::span<const uint32_t> run_bits,
                   MatrixView<uint8_t> out, std::vector<EscapedValue>& escaped) const {
    const size_t n = out.cols();
    uint64_t start = first_bit;
    if (start > uint64_t{payload.size()} * 8) throw bad_input("the runs lie behind the payload");
    for (size_t run = 0; run < run_bits.size(); ++run) {
      const std::span<uint8_t> row = out.row(run);
      if (run_bits[run] > uint64_t{payload.size()} * 8 ||
          start > uint64_t{payload.size()} * 8 - run_bits[run])
        throw bad_input("run {} lies behind the payload", run);
      const uint64_t end = start + run_bits[run];
      uint64_t bit = start;
      size_t written = 0;
      unsigned node = 0;
      if (n > 0 && book_.num_codes() == 0) throw bad_input("a book without codes");
      for (; written < n && bit < end; ++bit) {
        node = nodes_[node].child[payload[bit / 8] >> (7 - bit % 8) & 1];
        row[written] = nodes_[node].symbol;
        written += nodes_[node].is_symbol;
        node &= ~(0u - nodes_[node].is_symbol);
      }
      if (written < n) throw bad_input("run {} has too few bits", run);
      read_raw(payload, bit, end, run, row, escaped);
      start = end;
    }
  }

 private:
  void read_raw(std::span<const uint8_t> payload, uint64_t bit, uint64_t end, size_t run,
                std::span<const uint8_t> row, std::vector<EscapedValue>& escaped) const {
    const size_t escapes =
        book_.has_escape() ? find_escapes(row, run, static_cast<uint8_t>(book_.escape()), escaped) : 0;
    if (bit + escapes * book_.escape_bits() != end) throw bad_input("run {} has other bits", run);
    BitReader reader(payload, bit);
    for (EscapedValue& value : std::span(escaped).last(escapes))
      value.value = reader.get(book_.escape_bits());
  }

  struct Node {
    uint16_t child[2] = {};  // by the next bit
    uint16_t is_symbol = 0;
    uint8_t symbol = 0;
  };
  HuffmanBook book_;
  std::vector<Node> nodes_;  // the root first
};

}  // namespace kvcodec::test
