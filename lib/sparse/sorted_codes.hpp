// Sparse codes as sets. The order in which pursuit took atoms carries no information: with ids in rising order only the gaps between them
// are stored, which saves log2(s!) bits of a code of s pairs, and gaps and coefficients are entropy-coded. Codes are stored in blocks, each
// with the Huffman books (lib/entropy/huffman.hpp) that suit it, and decodable alone: FORMAT.md, "sparse", describes their bytes.
//
// Gaps have classes, given by their highest four bits, and extra bits: within a class gaps are about equally
// likely (for geometric gaps this loses less than 0.002 bits).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// Codes of some signals, one behind the other: signal i has counts[i] pairs of id and word.
struct PairsView {
  std::span<const uint32_t> counts;
  std::span<const uint32_t> ids;
  std::span<const uint16_t> words;
};

/// The two parts of a block.
struct SortedBlock {
  std::vector<uint8_t> ids, words;
};
struct SortedBlockView {
  std::span<const uint8_t> ids, words;
};

/// Sorts the pairs of each signal by id, those of one id by word.
void sort_pairs(std::span<const uint32_t> counts, std::span<uint32_t> ids, std::span<uint16_t> words);

/// Pairs sorted as sort_pairs does; ids below `atoms` (at most 2^31), words of word_bits (8 or 16).
SortedBlock encode_sorted(const PairsView& pairs, uint64_t atoms, unsigned word_bits);

/// The way back: fills ids and words, as many as the counts add up to. Throws Error(bad_input) for parts that
/// no encoder writes; they are never read beyond their end.
void decode_sorted(const SortedBlockView& block, uint64_t atoms, unsigned word_bits,
                   std::span<const uint32_t> counts, std::span<uint32_t> ids, std::span<uint16_t> words);

}  // namespace kvcodec
