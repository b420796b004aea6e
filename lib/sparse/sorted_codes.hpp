// Sparse codes as sets. The order in which pursuit took atoms carries no information: with ids in rising
// order only the gaps between them are stored, which saves log2(s!) bits of a code of s pairs, and gaps and
// coefficients are entropy-coded. Codes are stored in blocks, each with the Huffman books
// (lib/entropy/huffman.hpp) that suit it, and decodable alone.
//
// Gaps. The gap of the first pair of a code is its id, that of any other its id less the one before; the same
// atom twice has a gap of 0. A gap g belongs to a class and has extra bits:
//   g < 16      class g, no extra bits
//   else, with e = floor(log2 g)
//               class 16 + 8 (e - 4) + (g >> (e - 3)) mod 8, and the low e - 3 bits of g
// Within a class gaps are about equally likely (geometric gaps lose less than 0.002 bits by it).
//
// Coefficients are words of 4, 8 or 16 bits. Those of 16 bits are split: the upper byte is coded, the lower
// one stored as it is.
//
// Both parts of a block begin with a byte that says how it is stored:
//   0   plain: ids in index_bits(atoms) bits, words in their bits, most significant bit first, padded with
//       zero bits to a whole byte (lib/entropy/pack.hpp)
//   1   symbols (classes of gaps; words, or their upper bytes), and then the rest: extra bits of all gaps,
//       most significant bit first, padded; or all lower bytes
// Symbols stand in R runs of equal length, R = 8 for 1024 pairs or more, else 1; the last run is filled up
// with the last symbol. They are stored as: the Huffman book, without an escape and padded to a whole byte;
// the bits of each run as 32-bit little-endian numbers; the runs, padded to a whole byte. A part is stored
// plainly where that is not larger, and where there are no pairs.
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

/// Sorts the pairs of each signal by id, those of one id by word.
void sort_pairs(std::span<const uint32_t> counts, std::span<uint32_t> ids, std::span<uint16_t> words);

/// Pairs sorted as sort_pairs does; ids below `atoms` (at most 2^31), words of word_bits (4, 8 or 16).
SortedBlock encode_sorted(const PairsView& pairs, uint64_t atoms, unsigned word_bits);

/// The way back: fills ids and words, as many as the counts add up to. Throws Error(bad_input) for parts that
/// no encoder writes; they are read no further than they go.
void decode_sorted(std::span<const uint8_t> id_part, std::span<const uint8_t> word_part, uint64_t atoms,
                   unsigned word_bits, std::span<const uint32_t> counts, std::span<uint32_t> ids,
                   std::span<uint16_t> words);

}  // namespace kvcodec
