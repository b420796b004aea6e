// Range coding by asymmetric numeral systems (rANS; Duda, "Asymmetric numeral systems: entropy coding
// combining speed of Huffman coding with compression rate of arithmetic coding", arXiv:1311.2540) with static
// frequencies: the model. Encoding is in rans_encoder.hpp, decoding in rans_decoder.hpp.
//
// Alphabet. Symbols are 0..alphabet-1. A model may also have an escape, the symbol numbered `alphabet`, for
// values that it has no frequency for; such a value is stored raw in escape_bits() bits.
//
// Segments. Symbols are coded in segments, which are decoded alone. A segment of n symbols is
//   8 states          u32, little-endian: where the decoder starts
//   words             u16, little-endian, read in order
//   raw values        of its escapes in order, escape_bits each, most significant bit first, then zero bits
//                     to the end of the byte
// Symbol i belongs to lane i % 8. With M = 2^scale, a lane of state x gives the symbol s whose range
// [start(s), start(s) + frequency(s)) holds x mod M, and goes on with
//   x' = frequency(s) * floor(x / M) + x mod M - start(s);
// where that is below 2^16, it takes in the next word: x'' = x' * 2^16 + word. The eight lanes of a group
// take their words in lane order, after all of them have given their symbols. Behind its last symbol every
// lane's state is 2^16, and all words are used up.
//
// Runs. A segment may change its model: its symbols are then runs, one behind the other, each of one model out
// of several with the same alphabet and escape_bits. Symbol i of a run belongs to lane i % 8, so that each run
// begins with lane 0; states go on from run to run. A segment of one model is one run.
//
// A segment costs 16 to 32 bytes over its symbols' entropy (the part of the states that holds no
// information), and the scale rounds probabilities to 1/M: 12 suits alphabets of up to 256 symbols and is the
// fastest to decode, 16 suits very uneven or large ones. Up to 8192 symbols in use the loss is below half a
// percent; alphabets may reach 65536, but the closer the number of symbols in use comes to 2^16, the closer
// all frequencies are to 1, and nothing is gained over storing symbols plainly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/bits.hpp"

namespace kvcodec {

inline constexpr unsigned kMinRansScale = 8, kMaxRansScale = 16;

struct RansOptions {
  /// Bits of the raw value behind an escape, 1..32; 0: the model has no escape.
  unsigned escape_bits = 0;
  /// log2 of the sum of frequencies, 8..16; 0: 12 or 16, whichever makes less bits, 12 where the difference
  /// is below a thousandth.
  unsigned scale = 0;
  /// Symbols with a frequency at most, the escape included; the rarest beyond are left to the escape.
  size_t max_symbols = 65536;
};

/// Consecutive symbols of a segment that one of several models codes.
struct RansRun {
  size_t model = 0;
  size_t symbols = 0;
};

class RansModel {
 public:
  /// The model for symbols that occur this often; counts.size() is the alphabet, at most 65536. Symbols of
  /// count 0 have no frequency, and with an escape neither have those so rare that escaping them is cheaper.
  /// Throws Error(failed) for options out of range, counts beyond 2^53 in sum, or if symbols would have to be
  /// left out of a model without an escape.
  static RansModel from_counts(std::span<const uint64_t> counts, const RansOptions& options);

  /// Reads a model from where `in` stands. Throws Error(bad_input) for anything that write() does not write.
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
  /// Out of 2^scale() and below 2^16; 0 = the symbol cannot be coded. They sum up to 2^scale(), or to 0 if
  /// there are none.
  uint32_t frequency(size_t symbol) const { return frequencies_[symbol]; }
  /// Sum of the frequencies of all symbols below this one.
  uint32_t start(size_t symbol) const { return starts_[symbol]; }

  /// Bits of these symbols (counts.size() == alphabet), raw values included, but not what a segment costs.
  /// Throws Error(failed) if some have no frequency and there is no escape.
  double coded_bits(std::span<const uint64_t> counts) const;

  bool operator==(const RansModel&) const = default;

 private:
  RansModel(size_t alphabet, unsigned escape_bits, unsigned scale, std::vector<uint32_t> frequencies);

  size_t alphabet_ = 0;
  unsigned escape_bits_ = 0;
  unsigned scale_ = 0;
  std::vector<uint32_t> frequencies_, starts_;  // of 0..alphabet-1 and the escape
};

/// What encoders and decoders of segments of runs ask of their models: there is one, and all have the same alphabet
/// and escape_bits. Throws Error(failed).
void check_alike(std::span<const RansModel> models);

/// Throws Error(failed) unless the runs are of models that there are, and have `symbols` symbols in all.
void check_runs(std::span<const RansRun> runs, size_t models, size_t symbols);

}  // namespace kvcodec
