// The code that stands at the head of every value of a window of bits: what decoding tables are made of.
// Inside lib/entropy only.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/entropy/huffman.hpp"

namespace kvcodec {

struct WindowCode {
  uint16_t symbol = 0;
  uint8_t length = 0;  ///< bits, 1..window
};

/// For each of the 2^window values, the next bit highest; window >= book.max_length(), and the book has
/// codes.
std::vector<WindowCode> codes_by_window(const HuffmanBook& book, unsigned window);

}  // namespace kvcodec
