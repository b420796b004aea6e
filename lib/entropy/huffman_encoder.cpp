#include "lib/entropy/huffman_encoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

// An entry of the table: the code from bit 63 downwards, its bits in bits 0..6, and a flag. Four entries are
// added up, so a flag is the lowest of three bits.
constexpr uint64_t kBits = 127;
constexpr uint64_t kIsEscape = uint64_t{1} << 8, kNoCode = uint64_t{1} << 11;
constexpr uint64_t kFlags = kIsEscape * 7 | kNoCode * 7;
constexpr uint64_t kFourCodes = ~uint64_t{0} << 16;  // where four codes of up to 12 bits lie

/// The code of `a`, then that of `b`. What an entry holds below its code stays in the low 14 bits of whatever
/// it is joined to.
uint64_t joined(uint64_t a, uint64_t b) { return a | b >> (a & 63); }

/// Writes codes behind each other. It may write 8 bytes behind the last bit.
class CodeWriter {
 public:
  CodeWriter(uint8_t* out, uint64_t bit) : out_(out), place_(out + bit / 8), used_(bit % 8) {
    word_ = used_ == 0 ? 0 : static_cast<uint64_t>(*place_ >> (8 - used_)) << (64 - used_);
  }

  /// Up to 56 bits, from bit 63 of `codes` downwards, zeros below.
  void put(uint64_t codes, uint64_t bits) {
    static_assert(std::endian::native == std::endian::little);
    word_ |= codes >> used_;
    used_ += bits;
    const uint64_t bytes = __builtin_bswap64(word_);
    std::memcpy(place_, &bytes, sizeof bytes);
    place_ += used_ / 8;
    word_ <<= used_ & ~uint64_t{7};
    used_ %= 8;
  }

  uint64_t bit() const { return static_cast<uint64_t>(place_ - out_) * 8 + used_; }

 private:
  uint8_t *out_, *place_;
  uint64_t used_;  // bits of the byte at place_, 0..7
  uint64_t word_;  // they, highest first
};

/// Writes a run; returns the flags in its entries.
uint64_t put_codes(std::span<const uint64_t, 256> codes, std::span<const uint8_t> symbols,
                   CodeWriter& writer) {
  uint64_t flags = 0;
  size_t i = 0;
  for (; i + 4 <= symbols.size(); i += 4) {
    const uint64_t a = codes[symbols[i]], b = codes[symbols[i + 1]];
    const uint64_t c = codes[symbols[i + 2]], d = codes[symbols[i + 3]];
    // In pairs, so that the next codes wait for one addition.
    const uint64_t sum = a + b + (c + d);
    writer.put((joined(a, b) | joined(c, d) >> ((a + b) & 63)) & kFourCodes, sum & kBits);
    flags |= sum;
  }
  for (; i < symbols.size(); ++i) {
    const uint64_t a = codes[symbols[i]];
    writer.put(a & kFourCodes, a & kBits);
    flags |= a;
  }
  return flags & kFlags;
}

}  // namespace

HuffmanEncoder::HuffmanEncoder(const HuffmanBook& book)
    : max_length_(std::max(book.max_length(), 1u)),
      escape_bits_(book.escape_bits()),
      escape_(book.has_escape() ? book.escape() : kBytes) {
  if (book.symbols() > kBytes) throw failed("a book of {} symbols; bytes name {}", book.symbols(), kBytes);
  codes_.fill(kNoCode);
  for (size_t symbol = 0; symbol < book.symbols(); ++symbol)
    if (const unsigned length = book.length(symbol); length > 0)
      codes_[symbol] = uint64_t{book.code(symbol)} << (64 - length) | length;
  if (book.has_escape()) codes_[escape_] |= kIsEscape;
}

void HuffmanEncoder::encode_runs(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                                 std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const {
  const size_t n = symbols.cols();
  if (n > kMaxRunSymbols) throw failed("a run of {} symbols; at most {} are possible", n, kMaxRunSymbols);
  if (run_bits.size() != symbols.rows())
    throw failed("{} runs, but room for the bits of {}", symbols.rows(), run_bits.size());
  uint64_t bit = uint64_t{out.size()} * 8;
  const auto writer_of = [&](uint64_t bits) {  // with room for so many
    const uint64_t room = (bit + bits) / 8 + 1 + sizeof(uint64_t);
    if (out.size() < room) out.resize(std::max(room, uint64_t{out.size()} * 3 / 2));
    return CodeWriter(out.data(), bit);
  };
  for (size_t run = 0; run < symbols.rows(); ++run) {
    const uint64_t start = bit;
    const std::span<const uint8_t> row = symbols.row(run);
    CodeWriter writer = writer_of(uint64_t{n} * max_length_);
    const uint64_t flags = put_codes(codes_, row, writer);
    bit = writer.bit();
    if (flags != 0) {
      for (const uint8_t symbol : row)
        if (codes_[symbol] & kNoCode) throw failed("the book has no code for symbol {}", symbol);
      const auto escapes = static_cast<size_t>(std::ranges::count(row, escape_));
      if (escapes > raw.size()) throw failed("fewer raw values than escapes");
      CodeWriter behind = writer_of(escapes * escape_bits_);
      for (const uint32_t value : raw.first(escapes)) {
        if (escape_bits_ < 32 && value >> escape_bits_ != 0)
          throw failed("raw value {} does not fit {} bits", value, escape_bits_);
        behind.put(uint64_t{value} << (64 - escape_bits_), escape_bits_);
      }
      raw = raw.subspan(escapes);
      bit = behind.bit();
    }
    run_bits[run] = static_cast<uint32_t>(bit - start);
  }
  if (!raw.empty()) throw failed("{} more raw values than escapes", raw.size());
  out.resize((bit + 7) / 8);
}

}  // namespace kvcodec
