#include "lib/entropy/huffman_encoder.hpp"

#include <algorithm>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/huffman_kernels.hpp"

namespace kvcodec {
namespace {

using namespace huffman_kernels;

constexpr size_t kSymbolsAtATime = 2048;

template <class Symbol>
size_t encode_codes(const EncodeTable& table, MatrixView<const Symbol> symbols, uint8_t* out, uint64_t& bit,
                    uint32_t* run_bits, uint64_t& flags) {
  return pick(scalar::table<Symbol>, avx2::table<Symbol>)().encode(
      table, symbols.data(), symbols.stride(), symbols.rows(), symbols.cols(), out, &bit, run_bits, &flags);
}

/// Writes the low `width` bits (1..32) of value from bit `bit` of out on, zeros behind them to the end of the
/// last byte.
void put_bits(uint8_t* out, uint64_t bit, uint32_t value, unsigned width) {
  uint64_t left = uint64_t{value} << (64 - width);
  uint8_t* place = out + bit / 8;
  const unsigned skip = bit % 8;
  const auto kept = static_cast<uint8_t>(skip == 0 ? 0 : *place & (0xff00u >> skip));
  *place++ = static_cast<uint8_t>(kept | (left >> (56 + skip)));
  left <<= 8 - skip;
  for (unsigned written = 8 - skip; written < width; written += 8, left <<= 8)
    *place++ = static_cast<uint8_t>(left >> 56);
}

}  // namespace

HuffmanEncoder::HuffmanEncoder(const HuffmanBook& book)
    : max_length_(std::max(book.max_length(), 1u)),
      escape_bits_(book.escape_bits()),
      escape_(book.alphabet()),
      codes_(std::max<size_t>(book.symbols(), 256), kNoCode) {
  std::vector<uint32_t> weights(codes_.size(), 0);  // how often a symbol is to be expected
  for (size_t symbol = 0; symbol < book.symbols(); ++symbol)
    if (const unsigned length = book.length(symbol); length > 0) {
      codes_[symbol] = uint64_t{book.code(symbol)} << (64 - length) | length;
      weights[symbol] = 1u << (kMaxCodeLength - length);
    }
  if (book.has_escape()) codes_[escape_] |= kIsEscape;
  // The symbols most often met in pairs.
  uint64_t weight = 0, best = 0;
  for (size_t end = 0; end < weights.size(); ++end) {
    weight += weights[end];
    if (end >= kPaired) weight -= weights[end - kPaired];
    if (weight <= best || end + 1 < kPaired) continue;
    best = weight;
    first_paired_ = end + 1 - kPaired;
  }
  pairs_.resize(kPaired * kPairStride);
  for (size_t i = 0; i < kPaired; ++i)
    for (size_t j = 0; j < kPaired; ++j) {
      const uint64_t a = codes_[first_paired_ + i], b = codes_[first_paired_ + j];
      constexpr uint64_t kBelow = (uint64_t{1} << 16) - 1;  // bits and flags
      const uint64_t flags = (a | b) & (kIsEscape | kNoCode);
      const uint64_t bits = (a & 63) + (b & 63);
      pairs_[i + j * kPairStride] = (a & ~kBelow) | (b & ~kBelow) >> (a & 63) | flags | bits;
    }
}

template <class Symbol>
void HuffmanEncoder::encode(MatrixView<const Symbol> symbols, std::span<const uint32_t> raw,
                            std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const {
  const size_t n = symbols.cols();
  if (n > kMaxRunSymbols) throw failed("a run of {} symbols; at most {} are possible", n, kMaxRunSymbols);
  if (run_bits.size() != symbols.rows())
    throw failed("{} runs, but room for the bits of {}", symbols.rows(), run_bits.size());
  if constexpr (sizeof(Symbol) > 1)
    for (size_t run = 0; run < symbols.rows(); ++run) {
      Symbol largest = 0;
      for (const Symbol symbol : symbols.row(run)) largest = std::max(largest, symbol);
      if (n > 0 && largest >= codes_.size()) throw failed("the book has no code for symbol {}", largest);
    }
  uint64_t bit = uint64_t{out.size()} * 8;
  for (size_t run = 0; run < symbols.rows();) {
    // Room for a few runs at a time: making it costs as much as filling it.
    const size_t count =
        std::clamp<size_t>(kSymbolsAtATime / std::max<size_t>(n, 1), 1, symbols.rows() - run);
    const uint64_t room = (bit + count * n * max_length_) / 8 + kEncodeSlack + 1;
    if (out.size() < room) out.resize(room);
    uint64_t flags = 0;
    run += encode_codes({codes_.data(), pairs_.data(), first_paired_}, symbols.rows(run, count), out.data(),
                        bit, run_bits.data() + run, flags);
    if (flags == 0) continue;
    const std::span<const Symbol> row = symbols.row(run - 1);
    for (const Symbol symbol : row)
      if (codes_[symbol] & kNoCode) throw failed("the book has no code for symbol {}", symbol);
    const auto escapes = static_cast<size_t>(
        std::count_if(row.begin(), row.end(), [&](Symbol symbol) { return symbol == escape_; }));
    if (escapes > raw.size()) throw failed("fewer raw values than escapes");
    const uint64_t raw_room = (bit + escapes * escape_bits_) / 8 + kEncodeSlack + 1;
    if (out.size() < raw_room) out.resize(raw_room);
    for (const uint32_t value : raw.first(escapes)) {
      if (escape_bits_ < 32 && value >> escape_bits_ != 0)
        throw failed("raw value {} does not fit {} bits", value, escape_bits_);
      put_bits(out.data(), bit, value, escape_bits_);
      bit += escape_bits_;
    }
    raw = raw.subspan(escapes);
    run_bits[run - 1] += static_cast<uint32_t>(escapes * escape_bits_);
  }
  if (!raw.empty()) throw failed("{} more raw values than escapes", raw.size());
  out.resize(bit / 8 + (bit % 8 != 0));
}

void HuffmanEncoder::encode_runs(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                                 std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const {
  encode(symbols, raw, run_bits, out);
}
void HuffmanEncoder::encode_runs(MatrixView<const uint16_t> symbols, std::span<const uint32_t> raw,
                                 std::span<uint32_t> run_bits, std::vector<uint8_t>& out) const {
  encode(symbols, raw, run_bits, out);
}

}  // namespace kvcodec
