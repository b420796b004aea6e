// The streams of the codec `sparse`, without the dictionary that gives them a meaning: what is stored of
// codes, and the way from one form of it to another (FORMAT.md, "sparse").
//
// Streams of one document of T tokens, S signals per token (1, or H heads), n atoms, s pairs per signal at
// most:
//   ids           u16 (u32 from 65537 atoms on), index bound n     [T][S][s]   with an error target [pairs]
//   coefficients  f16; u8 for fp8, e3m4 and i8; u8, index bound 16, for i4             likewise
//   count         u8 (u16 from s = 256 on), index bound s + 1      [T][S]      with an error target only:
//   pairs scale         u8                                               [T][S]      with all but f16 only
//   gain          f16                                              [T][S]      with gains only: norm of the
//   signal
// (no dimension S where a token is one signal). Without an error target every signal has s pairs; one that
// needs fewer is filled up with coefficients 0 of atom 0.
//
// With sorted ids, codes stand in blocks of kSortedTokens tokens (lib/sparse/sorted_codes.hpp), the last one
// shorter; what is appended to it makes it anew, with the same bytes as at once:
//   ids, coefficients   u8       bytes of the parts of all blocks
//   block               u32 [3]  per block: tokens, bytes of ids, bytes of coefficients
// and count, scale, gain as before.
//
// Coefficients: lib/sparse/coefficients.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/stream.hpp"
#include "lib/sparse/coefficients.hpp"

namespace kvcodec {

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

  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(const StreamReader& document) const;

  /// Codes of tokens [first, first + count). Throws Error(bad_input) if they are not all there or are of no
  /// encoder; ids are below `atoms`. Room is made for no more than the streams can hold.
  SparsePairs read(const StreamReader& document, uint64_t first, uint64_t count) const;

  /// Adds codes; those of signals with fewer than `sparsity` pairs are filled up where the form wants it.
  /// Sorts them where it wants that.
  void append(SparsePairs pairs, StreamStore& document) const;

  /// The form of streams in a file, from its parameters and the streams of one side of a group. Throws
  /// Error(bad_input) if they are not those of any form.
  static SparseForm of(const Record& parameters, std::span<const StreamSpec> streams);

 private:
  uint64_t words_per_row() const { return signals * sparsity; }
  uint64_t stored_tokens(const StreamReader& document) const;
  void read_plain(const StreamReader& document, uint64_t first, uint64_t count, SparsePairs& pairs) const;
  void read_sorted(const StreamReader& document, uint64_t first, uint64_t count, SparsePairs& pairs) const;
  void append_plain(const SparsePairs& pairs, StreamStore& document) const;
  void append_sorted(SparsePairs pairs, StreamStore& document) const;
  std::vector<uint32_t> read_counts(const StreamReader& document, uint64_t first, uint64_t count) const;
};

/// The parameters of codes in a form: `parameters`, with what the form says in place. Sorted codes also name
/// what no stream of theirs says (atoms, signals, per-head), so that they can be copied without the book.
Record parameters_of(const SparseForm& form, const Record& parameters);

/// Stands for the codec where codes are copied without the book: it knows streams and tokens, and refuses
/// to encode or decode.
class SparseCopyCodec final : public Codec {
 public:
  SparseCopyCodec(SparseForm keys, SparseForm values, const Record& parameters)
      : keys_(keys), values_(values), parameters_(parameters_of(keys, parameters)) {}

  Record parameters() const override { return parameters_; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return form(shape.side).streams();
  }
  uint64_t tokens(const GroupShape& shape, const StreamReader& document) const override {
    return form(shape.side).tokens(document);
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;

  const SparseForm& form(Side side) const { return side == Side::key ? keys_ : values_; }

 private:
  SparseForm keys_, values_;
  Record parameters_;
};

/// Bits of the nearest f16. Throws Error(bad_input) for a coefficient beyond their range.
std::vector<uint16_t> coefficients_in_f16(std::span<const float> coefficients);

/// Coefficients from their words and scales. Throws Error(bad_input) for words that stand for no finite
/// number.
std::vector<float> dequantize_coefficients(CoefficientType type, const SparsePairs& pairs);

/// Reads all of one document and adds it to another one in another form, with nothing lost but the order of
/// pairs within signals where the other form sorts.
void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to, StreamStore& out);

}  // namespace kvcodec
