// The streams of the codec `sparse`, without the dictionary that gives them a meaning: what is stored of
// codes, and the way from one form of it to another (FORMAT.md, "sparse").
//
// Streams of one document of T tokens, S signals per token (1, or H heads), n atoms, s pairs per signal at
// most:
//   ids           [T][S][s], with an error target [pairs]; u16 (u32 from 65537 atoms on), index bound n
//   coefficients  likewise; f16; u8 for fp8, e3m4 and i8; u8, index bound 16, for i4
//   count         [T][S], with an error target only: pairs; u8 (u16 from s = 256 on), index bound s + 1
//   places        u64, with an error target only: where tokens go on in ids (lib/codec/places.hpp)
//   scale         [T][S], with all but f16 only; u8
//   gain          [T][S], with gains only: norm of the signal; f16
// (no dimension S where a token is one signal). Without an error target every signal has s pairs; one that
// needs fewer is filled up with coefficients 0 of atom 0.
//
// With sorted ids, codes stand in blocks of kSortedTokens tokens (lib/sparse/sorted_codes.hpp), the last one
// shorter; what is appended to it makes it anew, with the same bytes as at once:
//   ids, coefficients   u8       bytes of the parts of all blocks
//   block               u32 [3]  per block: tokens, bytes of ids, bytes of coefficients
//   places              u64      where full blocks go on in ids and coefficients
// and count, scale, gain as before.
//
// Coefficients: lib/sparse/coefficients.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/stream.hpp"
#include "lib/core/record.hpp"
#include "lib/sparse/coefficients.hpp"

namespace kvcodec {

inline constexpr std::string_view kSparseIds = "ids", kSparseCoefficients = "coefficients",
                                  kSparseCount = "count", kSparseScale = "scale", kSparseGain = "gain",
                                  kSparseBlock = "block";

/// Numbers of a row of `block`.
enum SparseBlockNumber : size_t { kBlockTokens, kIdBytes, kCoefficientBytes, kBlockNumbers };

/// Tokens of a block of sorted codes: its books, some 150 bytes, are then about five bits per token.
inline constexpr uint64_t kSortedTokens = 256;

/// Codes of some tokens as they are stored.
struct SparsePairs {
  std::vector<uint32_t> counts;  ///< per signal
  std::vector<uint32_t> ids;
  std::vector<uint16_t> words;  ///< bits of coefficients
  std::vector<uint8_t> scales;  ///< per signal; empty with f16
  std::vector<uint16_t> gains;  ///< per signal, f16 bits; empty where there are none
};

/// What decides about the streams.
struct SparseForm {
  uint64_t atoms = 1;
  uint64_t sparsity = 1;  ///< pairs per signal, at most
  uint64_t signals = 1;   ///< per token
  bool per_head = false;  ///< rows have a dimension of signals
  bool variable = false;  ///< signals have pairs of their own number
  bool gains = false;
  CoefficientType coefficients = CoefficientType::f16;
  bool sorted = false;

  friend bool operator==(const SparseForm&, const SparseForm&) = default;

  std::vector<StreamSpec> streams() const;

  /// Adds codes; those of signals with fewer than `sparsity` pairs are filled up where the form wants it.
  /// Sorts them where it wants that.
  void append(SparsePairs pairs, StreamStore& document) const;

  /// The form of streams in a file, from its parameters and the streams of one side of a group. Throws
  /// Error(bad_input) if they are not those of any form.
  static SparseForm of(const Record& parameters, std::span<const StreamSpec> streams);

  uint64_t pairs_per_token() const { return signals * sparsity; }             ///< unless variable
  DType id_type() const { return atoms <= 65536 ? DType::u16 : DType::u32; }  ///< unless sorted
  DType count_type() const { return sparsity < 256 ? DType::u8 : DType::u16; }
  DType word_type() const { return coefficients == CoefficientType::f16 ? DType::u16 : DType::u8; }

  /// Streams that `places` counts, and its units: blocks if sorted, else tokens of a variable form; none
  /// otherwise.
  std::vector<std::string_view> part_streams() const;
  uint64_t tokens_of_unit() const { return sorted ? kSortedTokens : 1; }

  /// Pairs of each signal of tokens [first, first + count), of a variable form. Throws Error(bad_input) if
  /// they are not all there or beyond `sparsity`.
  std::vector<uint32_t> read_counts(const StreamReader& document, uint64_t first, uint64_t count) const;

 private:
  void append_plain(const SparsePairs& pairs, uint64_t tokens_before, StreamStore& document) const;
  void append_sorted(SparsePairs pairs, StreamStore& document) const;
  uint64_t take_back_last_block(SparsePairs& pairs, StreamStore& document) const;
};

/// The parameters of codes in a form: `parameters`, with what the form says in place. Sorted codes also name
/// what no stream of theirs says (atoms, signals, per-head), so that they can be copied without the book.
Record parameters_of(const SparseForm& form, const Record& parameters);

/// A coefficient takes a bit at least, however it is stored: throws Error(bad_input) for pairs that so many
/// bytes cannot hold, before room is made for what a damaged file only claims to have.
void check_pairs(uint64_t pairs, uint64_t bytes);

/// Bits of the nearest f16. Throws Error(bad_input) for a coefficient beyond their range.
std::vector<uint16_t> coefficients_in_f16(std::span<const float> coefficients);

/// Coefficients from their words and scales. Throws Error(bad_input) for words that stand for no finite
/// number.
std::vector<float> dequantize_coefficients(CoefficientType type, const SparsePairs& pairs);

}  // namespace kvcodec
