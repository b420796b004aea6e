// The table of huffman_step.hpp for a book.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/entropy/huffman.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec {

struct StepTable {
  unsigned window = 0;            ///< 11, or 12 if the book has codes so long
  std::vector<uint32_t> entries;  ///< 2^window
};

/// Throws Error(failed) if the book has no codes, or more than 256 symbols.
StepTable step_table(const HuffmanBook& book, int zero_symbol);

}  // namespace kvcodec
