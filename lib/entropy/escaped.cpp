#include "lib/entropy/escaped.hpp"

namespace kvcodec {

constexpr unsigned kAlphabetBits = 17, kEscapeWidthBits = 6, kMaxEscapeBits = 32;

/// Bits of the numbers behind the two tokens, and the least number of symbols that each stands for.
constexpr unsigned kFewBits = 4, kManyBits = 12;
constexpr size_t kFewFrom = 2, kManyFrom = kFewFrom + (1 << kFewBits);

void check_alphabet(size_t alphabet, unsigned escape_bits, ErrorKind kind) {
  if (alphabet > kMaxAlphabet)
    throw Error(kind,
                fmt::format("an alphabet of {} symbols; at most {} are possible", alphabet, kMaxAlphabet));
  if (escape_bits > kMaxEscapeBits)
    throw Error(
        kind, fmt::format("escaped values of {} bits; at most {} are possible", escape_bits, kMaxEscapeBits));
}

std::vector<size_t> by_weight(std::span<const uint64_t> counts, const std::vector<bool>& coded) {
  std::vector<size_t> order;
  for (size_t i = 0; i < counts.size(); ++i)
    if (coded[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] < counts[b]; });
  return order;
}

uint64_t keep_most_frequent(std::span<const uint64_t> counts, size_t bound, std::vector<bool>& coded) {
  const std::vector<size_t> order = by_weight(counts, coded);
  uint64_t dropped = 0;
  for (size_t i = 0; i + bound < order.size(); ++i) {
    coded[order[i]] = false;
    dropped += counts[order[i]];
  }
  return dropped;
}

void write_alphabet(BitWriter& out, size_t alphabet, unsigned escape_bits) {
  out.put(static_cast<uint32_t>(alphabet), kAlphabetBits);
  out.put(escape_bits, kEscapeWidthBits);
}

std::pair<size_t, unsigned> read_alphabet(BitReader& in) {
  const size_t alphabet = in.get(kAlphabetBits);
  const unsigned escape_bits = in.get(kEscapeWidthBits);
  check_alphabet(alphabet, escape_bits, ErrorKind::bad_input);
  return {alphabet, escape_bits};
}

size_t write_absent(BitWriter& out, size_t absent, unsigned few, unsigned token_bits) {
  if (absent < kFewFrom) return 0;
  const bool many = absent >= kManyFrom;
  const size_t from = many ? kManyFrom : kFewFrom;
  const unsigned bits = many ? kManyBits : kFewBits;
  const size_t written = std::min(absent, from + (size_t{1} << bits) - 1);
  out.put(few + many, token_bits);
  out.put(static_cast<uint32_t>(written - from), bits);
  return written;
}

size_t read_absent(BitReader& in, bool many) {
  return many ? kManyFrom + in.get(kManyBits) : kFewFrom + in.get(kFewBits);
}

void check_raw(std::span<const uint32_t> raw, size_t escapes, unsigned escape_bits) {
  if (escapes > raw.size()) throw failed("fewer raw values than escapes");
  for (const uint32_t value : raw.first(escapes))
    if (escape_bits < 32 && value >> escape_bits != 0)
      throw failed("raw value {} does not fit {} bits", value, escape_bits);
}

}  // namespace kvcodec
