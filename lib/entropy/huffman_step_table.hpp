// The table of huffman_step.hpp for a book.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/entropy/huffman.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec {

/// 2^kStepWindow entries. Throws Error(failed) if the book has no codes, or more than 256 symbols.
std::vector<uint32_t> step_table(const HuffmanBook& book);

}  // namespace kvcodec
