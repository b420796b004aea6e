// Range coding by asymmetric numeral systems (rANS; Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding
// with compression rate of arithmetic coding", arXiv:1311.2540) with static frequencies: the model, encoding and decoding. Decoders take
// any bytes: they read nothing outside the payload, and refuse segments that no encoder writes.
//
// Alphabet. Symbols are 0..alphabet-1. A model may also have an escape, the symbol numbered `alphabet`, for
// values without a frequency; such a value is stored raw in escape_bits() bits.
//
// Segments. Symbols are coded in segments, which are decoded alone. A segment of n symbols is
//   8 states          u32, little-endian: where the decoder starts
//   words             u16, little-endian, read in order
//   raw values        of its escapes in order, escape_bits each, most significant bit first, then zero bits
//                     to the end of the byte
// Symbol i belongs to lane i % 8. With M = 2^scale, a lane of state x gives the symbol s whose range
// [start(s), start(s) + frequency(s)) holds x mod M, and goes on with
//   x' = frequency(s) * floor(x / M) + x mod M - start(s);
// where that is below 2^16, it takes in the next word: x'' = x' * 2^16 + word. The eight lanes of a group take their words in lane order,
// after all of them have given their symbols. Behind its last symbol every lane's state is 2^16, and all words are used up.
//
// Runs. A segment may change its model: its symbols are then runs, one behind the other, each of one model out
// of several with the same alphabet and escape_bits. Symbol i of a run belongs to lane i % 8, so that each run
// begins with lane 0; states go on from run to run. A segment of one model is one run.
//
// A segment costs 16 to 32 bytes over its symbols' entropy (the part of the states that holds no information), and the scale rounds
// probabilities to 1/M: 12 suits alphabets of up to 256 symbols and is the fastest to decode, 16 suits very uneven or large ones. Up to
// 8192 symbols in use the loss is below half a percent; alphabets may reach 65536, but the closer the number of symbols in use is to
// 2^16, the closer all frequencies are to 1, and nothing is gained over storing symbols plainly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"

namespace kvcodec {

inline constexpr unsigned kMinRansScale = 8, kMaxRansScale = 16;

struct RansOptions {
  /// Bits of the raw value behind an escape, 1..32; 0: the model has no escape.
  unsigned escape_bits = 0;
  /// log2 of the sum of frequencies, 8..16; 0: 12 or 16, the one with fewer bits, 12 if the difference is below a thousandth.
  unsigned scale = 0;
  /// Maximum number of symbols with a frequency, the escape included; rarer symbols use the escape.
  size_t max_symbols = 65536;
};

/// Consecutive symbols of a segment that one of several models codes.
struct RansRun {
  size_t model = 0;
  size_t symbols = 0;
};

class RansModel {
 public:
  /// The model for symbols with these counts; counts.size() is the alphabet, at most 65536. Symbols of count 0 have no frequency, nor,
  /// with an escape, symbols so rare that escaping them is cheaper. Throws Error(failed) for options out of range, counts beyond 2^53 in
  /// sum, or if symbols would have to be left out of a model without an escape.
  static RansModel from_counts(std::span<const uint64_t> counts, const RansOptions& options);

  /// Reads a model from the position of `in`. Throws Error(bad_input) for anything that write() does not write.
  static RansModel read(BitReader& in);

  /// Writes the model:
  ///   17 bits  alphabet
  ///   6 bits   escape_bits
  ///   5 bits   scale
  ///   then the frequencies of symbols 0..alphabet-1 (and of the escape, if there is one) as 5-bit tokens:
  ///   0        frequency 0
  ///   1..16    a frequency of so many bits, its bits below the highest follow
  ///   17 n     n + 2 symbols of frequency 0 (n: 4 bits)
  ///   18 n     n + 18 symbols of frequency 0 (n: 12 bits)
  void write(BitWriter& out) const;

  size_t alphabet() const { return alphabet_; }
  unsigned escape_bits() const { return escape_bits_; }
  bool has_escape() const { return escape_bits_ > 0; }
  /// The escape's number; only where has_escape().
  size_t escape() const { return alphabet_; }
  /// Symbols that may have a frequency: the alphabet and the escape.
  size_t symbols() const { return frequencies_.size(); }

  unsigned scale() const { return scale_; }
  /// Out of 2^scale() and below 2^16; 0 = the symbol cannot be coded. They sum up to 2^scale(), or to 0 if there are none.
  uint32_t frequency(size_t symbol) const { return frequencies_[symbol]; }
  /// Sum of the frequencies of all symbols below this one.
  uint32_t start(size_t symbol) const { return starts_[symbol]; }

  /// Bits of these symbols (counts.size() == alphabet), raw values included, without the overhead of a
  /// segment. Throws Error(failed) if some have no frequency and there is no escape.
  double coded_bits(std::span<const uint64_t> counts) const;

  bool operator==(const RansModel&) const = default;

 private:
  RansModel(size_t alphabet, unsigned escape_bits, unsigned scale, std::vector<uint32_t> frequencies)
      : alphabet_(alphabet),
        escape_bits_(escape_bits),
        scale_(scale),
        frequencies_(std::move(frequencies)),
        starts_(frequencies_.size()) {
    std::exclusive_scan(frequencies_.begin(), frequencies_.end(), starts_.begin(), 0u);
  }

  size_t alphabet_ = 0;
  unsigned escape_bits_ = 0;
  unsigned scale_ = 0;
  std::vector<uint32_t> frequencies_, starts_;  // of 0..alphabet-1 and the escape
};

/// Maximum number of symbols in one segment: its bytes are counted in 32 bits.
inline constexpr size_t kMaxSegmentSymbols = size_t{1} << 26;

class RansEncoder {
 public:
  explicit RansEncoder(const RansModel& model) : RansEncoder(std::span(&model, 1)) {}
  /// For segments whose runs have models of their own. Throws Error(failed) unless there is one, and all have the
  /// same alphabet and escape_bits.
  explicit RansEncoder(std::span<const RansModel> models);

  /// Appends the rows of `symbols` (segments, n) to `out` as segments one behind the other. Symbols are ones that have a frequency; in
  /// place of others stands the escape, and `raw` holds their values in order (as many as there are escapes, each below 2^escape_bits).
  /// segment_bytes[i] becomes the bytes of segment i. runs: of every segment, which together have as many symbols as a row; empty: one run.
  /// Throws Error(failed) for a symbol without a frequency, another number of raw values, raw values that are too wide, runs of other
  /// numbers of symbols or of models that are not there, or segments of more than kMaxSegmentSymbols; `out` is then unspecified.
  void encode_segments(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                       std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out,
                       std::span<const RansRun> runs = {}) const {
    encode(symbols, raw, segment_bytes, out, runs);
  }
  void encode_segments(MatrixView<const uint16_t> symbols, std::span<const uint32_t> raw,
                       std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out,
                       std::span<const RansRun> runs = {}) const {
    encode(symbols, raw, segment_bytes, out, runs);
  }

 private:
  /// One step: x' = x + bias + floor(x / frequency) * complement, after x has been brought below `limit`.
  struct Step {
    uint64_t reciprocal = 0;  ///< floor(x / frequency) is the high half of x * reciprocal
    uint64_t limit = 0;       ///< 0: the symbol has no frequency
    uint32_t bias = 0;
    uint32_t complement = 0;
  };
  template <class Symbol>
  void encode(MatrixView<const Symbol> symbols, std::span<const uint32_t> raw,
              std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out,
              std::span<const RansRun> runs) const;
  std::span<const Step> steps(size_t model) const {
    return std::span(steps_).subspan(model * symbols_, symbols_);
  }

  unsigned escape_bits_;
  size_t escape_, symbols_;
  std::vector<Step> steps_;  // of each model, of each symbol
};

namespace rans_kernels {
template <class Symbol>
struct Segment;
}

/// Symbol: uint8_t (models of at most 256 symbols, the escape included) or uint16_t.
template <class Symbol>
class RansDecoder {
 public:
  /// Segments of one call that are decoded side by side.
  static constexpr size_t kTogether = 4;

  /// Throws Error(failed) if the model's symbols do not fit the type.
  explicit RansDecoder(const RansModel& model) : RansDecoder(std::span(&model, 1)) {}
  /// For segments whose runs have models of their own. Throws Error(failed) also unless there is one, and all have
  /// the same alphabet and escape_bits.
  explicit RansDecoder(std::span<const RansModel> models);

  /// Decodes consecutive segments of out.cols() symbols, the first one at payload[0], segment i of segment_bytes[i] bytes, into row i of
  /// out: (segment_bytes.size(), n). Escapes stand in out as the escape's number; their values are appended to `escaped` in order. runs: of
  /// every segment, as encoded; empty: one run. Four segments of one call at a time are decoded side by side, three times as fast as one by
  /// itself. Throws Error(bad_input) naming the segment if the payload ends before the segments do, or for a segment that is damaged,
  /// Error(failed) for runs that do not have out.cols() symbols; out and escaped are then unspecified.
  void decode_segments(std::span<const uint8_t> payload, std::span<const uint32_t> segment_bytes,
                       MatrixView<Symbol> out, std::vector<EscapedValue>& escaped,
                       std::span<const RansRun> runs = {}) const;

 private:
  /// A model in the form of the kernels' tables (rans_kernels.hpp): either the first or the other two.
  struct Tables {
    explicit Tables(const RansModel& model);
    std::vector<uint32_t> narrow;
    std::vector<uint16_t> symbols;
    std::vector<uint32_t> ranges;
  };
  struct Work;
  void decode_group(Work& work, size_t segment, size_t count) const;
  void finish_run(const Work& work, const RansRun& run, size_t begin, size_t segment,
                  rans_kernels::Segment<Symbol>& at) const;
  void finish(Work& work, size_t segment, const rans_kernels::Segment<Symbol>& at) const;

  std::vector<RansModel> models_;
  std::vector<Tables> tables_;
};

}  // namespace kvcodec
