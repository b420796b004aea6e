// The streams of the codec `sparse`, without the dictionary that gives them a meaning: their forms,
// reading, and conversion from one form to another. FORMAT.md, "sparse", lists them.
//
// A form is fixed (every signal has s pairs; one that needs fewer is filled up with coefficients 0 of atom 0) or variable (with an error
// target: `count` gives their number), and plain or sorted. Sorted codes stand in blocks of kSortedTokens tokens
// (lib/sparse/sorted_codes.hpp), the last one shorter; appending to it codes it anew, with the same bytes as in one call.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/places.hpp"
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

/// The choices that determine the streams.
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

  /// Adds codes. If the form wants it, signals with fewer than `sparsity` pairs are filled up, and pairs are sorted.
  void append(SparsePairs pairs, StreamStore& document) const;

  /// The form of streams in a file, from its parameters and the streams of one side of a group. Throws
  /// Error(bad_input) if they are not those of any form.
  static SparseForm of(const Record& parameters, std::span<const StreamSpec> streams);

  uint64_t pairs_per_token() const { return signals * sparsity; }             ///< unless variable
  DType id_type() const { return atoms <= 65536 ? DType::u16 : DType::u32; }  ///< unless sorted
  DType count_type() const { return sparsity < 256 ? DType::u8 : DType::u16; }
  bool scaled() const { return coefficients == CoefficientType::i8; }  ///< signals have a scale
  unsigned word_bits() const { return scaled() ? 8 : 16; }
  DType word_type() const { return scaled() ? DType::u8 : DType::u16; }

  /// Streams that `places` counts, and its units: blocks if sorted, else tokens of a variable form; none otherwise.
  std::vector<std::string_view> part_streams() const {
    if (sorted) return {kSparseIds, kSparseCoefficients};
    if (variable) return {kSparseIds};
    return {};
  }
  uint64_t tokens_of_unit() const { return sorted ? kSortedTokens : 1; }

  /// Pairs of each signal of tokens [first, first + count), of a variable form. Throws Error(bad_input) if
  /// they are not all there or beyond `sparsity`.
  std::vector<uint32_t> read_counts(const StreamReader& document, uint64_t first, uint64_t count) const;

 private:
  void append_blocks(const SparsePairs& pairs, StreamStore& document) const;
  SparsePairs take_back_last_block(StreamStore& document) const;
};

/// The parameters of codes in a form: `parameters`, with those of the form inserted. Sorted codes also name values
/// that none of their streams holds (atoms, signals, per-head), so that they can be copied without the book.
Record parameters_of(const SparseForm& form, const Record& parameters);

/// Bits of the nearest f16. Throws Error(bad_input) for a coefficient beyond their range.
std::vector<uint16_t> coefficients_in_f16(std::span<const float> coefficients);

/// Coefficients from their words and scales. Throws Error(bad_input) for words of no finite number.
std::vector<float> dequantize_coefficients(CoefficientType type, const SparsePairs& pairs);

/// The streams of one document, opened to read. Threads may read at once.
class SparseReader {
 public:
  /// document outlives this.
  SparseReader(const SparseForm& form, const StreamReader& document)
      : form_(form),
        document_(document),
        places_(form.part_streams(), place_interval(form.tokens_of_unit())) {}

  /// Reads the sizes of the streams, for the first time or when there are more tokens. Throws
  /// Error(bad_input) if they disagree. Not while other threads read.
  void refresh();
  uint64_t tokens() const { return tokens_; }

  /// Codes of tokens [first, first + count). Throws Error(bad_input) if they are not all there or are of no
  /// encoder; ids are below `atoms`. Room is made for no more than the streams can hold.
  SparsePairs read(uint64_t first, uint64_t count) const;

 private:
  struct Nothing {};

  uint64_t stored_tokens() const;
  void read_plain(uint64_t first, uint64_t count, SparsePairs& pairs) const;
  void read_sorted(uint64_t first, uint64_t count, SparsePairs& pairs) const;
  uint64_t first_pair(uint64_t token) const;
  const Interval<Nothing>& blocks_from(uint64_t block) const;

  SparseForm form_;
  const StreamReader& document_;
  uint64_t tokens_ = 0;
  Places<Nothing> places_;
};

/// Replaces the codec when codes are copied without the book: it knows streams and tokens, and refuses to encode or decode.
class SparseCopyCodec final : public Codec {
 public:
  SparseCopyCodec(SparseForm keys, SparseForm values, const Record& parameters)
      : keys_(keys), values_(values), parameters_(parameters_of(keys, parameters)) {}

  Record parameters() const override { return parameters_; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return form(shape.side).streams();
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

  const SparseForm& form(Side side) const { return side == Side::key ? keys_ : values_; }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override;

 private:
  SparseForm keys_, values_;
  Record parameters_;
};

/// Reads all of one document and adds it to another one in another form. Only the order of pairs within
/// signals is lost, if the other form sorts.
void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to, StreamStore& out);

}  // namespace kvcodec
