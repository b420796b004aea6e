#include "lib/kvcomp/block.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {

constexpr size_t kAlphabet = kExactSymbol;  // 255 is the escape
constexpr unsigned kExactBits = 16;

/// Below so many symbols the counts alone say too little about what comes later.
constexpr uint64_t kEnoughSymbols = 1 << 14;

/// Counts that a book can be made from: those seen and, while they are few, a normal distribution.
static std::vector<uint64_t> book_counts(std::span<const uint64_t> seen, double deviation) {
  std::vector<uint64_t> counts(seen.begin(), seen.begin() + kAlphabet);
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (total >= kEnoughSymbols) return counts;
  const double sigma = std::clamp(deviation, 0.25, 40.0);
  double sum = 0;
  const auto density = [&](size_t symbol) {
    const double x = (static_cast<double>(symbol) - kZeroSymbol) / sigma;
    return std::exp(-x * x / 2);
  };
  for (size_t symbol = 0; symbol < kAlphabet; ++symbol) sum += density(symbol);
  const auto mass = static_cast<double>(kEnoughSymbols - total);
  for (size_t symbol = 0; symbol < kAlphabet; ++symbol)
    counts[symbol] += static_cast<uint64_t>(std::lround(mass * density(symbol) / sum));
  return counts;
}

static HuffmanBook huffman_book(std::span<const uint64_t> counts) {
  return HuffmanBook::from_counts(counts, {.escape_bits = kExactBits});
}

/// All symbols that occur, and the escape, with codes of the same length or one bit less.
static HuffmanBook flat_book(std::span<const uint64_t> counts) {
  std::vector<uint64_t> ones(counts.size());
  std::ranges::transform(counts, ones.begin(), [](uint64_t count) { return std::min<uint64_t>(count, 1); });
  return huffman_book(ones);
}

/// Bits per block that the counts say nothing about: what Huffman spends on counting its runs (about 6 bits
/// for the excess of each), what rANS spends on the states of its lanes.
static double huffman_overhead(const BlockShape& shape) { return 16 + 6 * static_cast<double>(shape.runs()); }
constexpr double kRansOverhead = 8 * 32;

static EntropyChoice smaller_coder(std::span<const uint64_t> counts, const BlockShape& shape) {
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const double blocks =
      static_cast<double>(total) / static_cast<double>(std::max<size_t>(1, shape.symbols()));
  const double huffman =
      static_cast<double>(huffman_book(counts).coded_bits(counts)) + blocks * huffman_overhead(shape);
  const double rans =
      RansModel::from_counts(counts, {.escape_bits = kExactBits}).coded_bits(counts) + blocks * kRansOverhead;
  return rans < huffman ? EntropyChoice::rans : EntropyChoice::huffman;
}

BlockCoder::BlockCoder(HuffmanBook book) : huffman_(std::make_shared<const Huffman>(std::move(book))) {
  unknown_.fill(true);
  for (size_t i = 0; i < kAlphabet; ++i) unknown_[i] = huffman_->book.length(i) == 0;
}

BlockCoder::BlockCoder(RansModel model) : rans_(std::make_shared<const Rans>(std::move(model))) {
  unknown_.fill(true);
  for (size_t i = 0; i < kAlphabet; ++i) unknown_[i] = rans_->book.frequency(i) == 0;
}

BlockCoder BlockCoder::from_counts(std::span<const uint64_t> seen, double deviation, EntropyChoice choice,
                                   const BlockShape& shape) {
  if (seen.size() != 256) throw failed("counts of {} symbols; there are 256", seen.size());
  const std::vector<uint64_t> counts = book_counts(seen, deviation);
  if (choice == EntropyChoice::automatic) choice = smaller_coder(counts, shape);
  if (choice == EntropyChoice::rans)
    return BlockCoder(RansModel::from_counts(counts, {.escape_bits = kExactBits}));
  return BlockCoder(choice == EntropyChoice::none ? flat_book(counts) : huffman_book(counts));
}

BlockCoder BlockCoder::read(std::span<const uint8_t> bytes) {
  if (bytes.empty() || bytes[0] > 1) throw bad_input("the book does not say which coder it is for");
  BitReader in(bytes, 8);
  const auto coder_of = [&](auto book) {
    if (book.alphabet() != kAlphabet || book.escape_bits() != kExactBits)
      throw bad_input("a book of {} symbols with escapes of {} bits; blocks have {} and {}", book.alphabet(),
                      book.escape_bits(), kAlphabet, kExactBits);
    if ((in.position() + 7) / 8 != bytes.size())
      throw bad_input("the book is {} bytes long; {} were expected", bytes.size(), (in.position() + 7) / 8);
    return BlockCoder(std::move(book));
  };
  const bool rans = bytes[0] == static_cast<uint8_t>(Coder::rans);
  return rans ? coder_of(RansModel::read(in)) : coder_of(HuffmanBook::read(in));
}

bool BlockCoder::surely_known(std::span<const uint8_t> symbols) const {
  uint8_t lowest = 255, highest = 0;
  for (const uint8_t symbol : symbols) {
    lowest = std::min(lowest, symbol);
    highest = std::max(highest, symbol);
  }
  return std::find(unknown_.begin() + lowest, unknown_.begin() + highest + 1, true) ==
         unknown_.begin() + highest + 1;
}

CodedBlock BlockCoder::encode(const BlockShape& shape, MatrixView<const uint8_t> symbols,
                              MatrixView<const uint16_t> values, size_t side_bytes) const {
  Matrix<uint8_t> runs(shape.runs(), shape.run_length());
  if (shape.by_channel)
    transpose<uint8_t>(symbols, runs);
  else
    for (size_t i = 0; i < runs.rows(); ++i) std::ranges::copy(symbols.row(i), runs.row(i).begin());
  std::vector<uint32_t> exact;
  for (size_t i = 0; i < runs.rows(); ++i) {
    if (surely_known(runs.row(i))) continue;
    for (size_t j = 0; j < runs.cols(); ++j) {
      uint8_t& symbol = runs(i, j);
      if (!unknown_[symbol]) continue;
      symbol = kExactSymbol;
      exact.push_back(shape.by_channel ? values(j, i) : values(i, j));
    }
  }

  CodedBlock block;
  if (rans_) {
    uint32_t size = 0;
    rans_->encoder.encode_segments({runs.data(), 1, runs.size()}, exact, {&size, 1}, block.payload);
  } else {
    std::vector<uint32_t> bits(shape.runs());
    huffman_->encoder.encode_runs(runs, exact, bits, block.payload);
    const auto [lowest, highest] = std::ranges::minmax(bits);
    block.mode = static_cast<uint8_t>(index_bits(uint64_t{highest} - lowest + 1));
    block.counts.resize(shape.count_bytes(block.mode));
    block.counts[0] = static_cast<uint8_t>(lowest);
    block.counts[1] = static_cast<uint8_t>(lowest >> 8);
    for (uint32_t& count : bits) count -= lowest;
    pack_bits(std::span<const uint32_t>(bits), block.mode, 0, std::span(block.counts).subspan(2));
  }
  if (block.bytes() + side_bytes < shape.raw_bytes()) return block;

  CodedBlock raw{.mode = kRawBlock, .counts = {}, .payload = std::vector<uint8_t>(shape.raw_bytes())};
  for (size_t i = 0; i < values.rows(); ++i)
    std::memcpy(raw.payload.data() + i * shape.dims * 2, values.row(i).data(), shape.dims * 2);
  return raw;
}

std::vector<uint32_t> BlockCoder::run_bits(const BlockShape& shape, uint8_t mode,
                                           std::span<const uint8_t> counts,
                                           std::span<const uint8_t> payload) const {
  std::vector<uint32_t> bits(shape.runs());
  unpack_bits(counts.subspan(2), 0, mode, 0, std::span<uint32_t>(bits));
  const uint32_t base = counts[0] | uint32_t{counts[1]} << 8;
  uint64_t total = 0;
  for (uint32_t& count : bits) {
    count += base;
    total += count;
  }
  if ((total + 7) / 8 != payload.size())
    throw bad_input("its runs have {} bits, its payload {} bytes", total, payload.size());
  return bits;
}

void BlockCoder::decode_runs(const BlockShape& shape, uint8_t mode, std::span<const uint8_t> counts,
                             std::span<const uint8_t> payload, MatrixView<uint8_t> runs,
                             std::vector<EscapedValue>& exact) const {
  if (rans_) {
    std::vector<EscapedValue> found;
    decode_rans(shape, {&payload, 1}, {runs.data(), 1, shape.symbols()}, {&found, 1});
    exact.insert(exact.end(), found.begin(), found.end());
    return;
  }
  huffman_->decoder.decode_runs(payload, 0, run_bits(shape, mode, counts, payload), runs, exact);
}

void BlockCoder::decode_rans(const BlockShape& shape, std::span<const std::span<const uint8_t>> payloads,
                             MatrixView<uint8_t> symbols, std::span<std::vector<EscapedValue>> exact) const {
  std::vector<uint8_t> together;
  std::vector<uint32_t> sizes;
  for (const std::span<const uint8_t> payload : payloads) {
    together.insert(together.end(), payload.begin(), payload.end());
    sizes.push_back(static_cast<uint32_t>(payload.size()));
  }
  std::vector<EscapedValue> found;
  rans_->decoder.decode_segments(together, sizes, symbols, found);
  const size_t length = shape.run_length();
  for (const EscapedValue& value : found)
    exact[value.row].push_back({static_cast<uint32_t>(value.position / length),
                                static_cast<uint32_t>(value.position % length), value.value});
}

}  // namespace kvcodec
