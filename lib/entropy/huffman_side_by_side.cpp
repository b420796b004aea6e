#include "lib/entropy/huffman_side_by_side.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/cpu.hpp"
#include "lib/entropy/huffman_kernels.hpp"

namespace kvcodec {
namespace {

using namespace huffman_kernels;

constexpr size_t kMostRuns = kMostSets * kSideBySide;

/// Symbols of each run that are decoded in one go: with all runs', they fit a first-level cache.
constexpr size_t kPart = 128;

/// Bytes of input whose bits the kernel can count, and bits that leave room for those of kMostSymbols more.
constexpr size_t kMostInput = (size_t{1} << 28) - 1;
constexpr uint64_t kMostBits = uint64_t{1} << 31;
static_assert(kMostBits + SideBySideDecoder::kMostSymbols * kMaxCodeLength < uint64_t{1} << 32);

/// Symbols below which the copying of whole tiles takes longer than what is gained.
constexpr size_t kLeastSymbols = 32;

/// Mean code lengths from which one set or two at once are faster than look-ups of whole windows; measured
/// with kvcodec_bench_entropy. (Look-ups give 4.7 symbols each at 2 bits, 3.2 at 3.)
constexpr double kOneSetFrom = 2.7, kTwoSetsFrom = 2.0;

}  // namespace

SideBySideDecoder::SideBySideDecoder(const HuffmanBook& book, unsigned window,
                                     std::span<const WindowCode> codes)
    : escape_(book.has_escape() ? static_cast<int>(book.escape()) : -1) {
  constexpr size_t kEntries = SideBySideTable::kEntries;
  const auto last_codes = codes.last(kEntries), other_codes = codes.first(codes.size() - kEntries);
  const auto is_long = [](const WindowCode& code) { return code.length > kShortBits; };
  if (std::ranges::any_of(other_codes, is_long)) return;
  auto table = std::make_shared<SideBySideTable>();
  table->window = window;
  // No code is longer than those behind it: what the long lengths say of a short code is never too little.
  for (size_t i = 0; i < kEntries; ++i) {
    const WindowCode& code = codes[i << (window - kShortBits)];
    table->short_symbols[i] = static_cast<uint8_t>(code.symbol);
    table->short_lengths[i] = is_long(code) ? uint8_t{255} : code.length;
    table->long_symbols[i] = static_cast<uint8_t>(last_codes[i].symbol);
    table->long_lengths[i] = last_codes[i].length;
  }
  table_ = std::move(table);
  for (const WindowCode& code : codes) mean_length_ += double(code.length) / double(codes.size());
}

bool SideBySideDecoder::ready() const {
  return table_ && simd_level() >= SimdLevel::avx512 && avx512::have_side_by_side();
}

size_t SideBySideDecoder::runs_at_once(size_t runs, size_t n) const {
  if (!ready() || n < kLeastSymbols || n > kMostSymbols) return 0;
  if (runs >= 2 * kSideBySide && mean_length_ >= kTwoSetsFrom) return 2 * kSideBySide;
  return runs >= kSideBySide && mean_length_ >= kOneSetFrom ? kSideBySide : 0;
}

std::vector<size_t> SideBySideDecoder::decode(std::span<const uint8_t> payload, uint64_t first_bit,
                                              std::span<const uint32_t> run_bits,
                                              MatrixView<uint8_t> out) const {
  const size_t n = out.cols(), runs = run_bits.size(), sets = runs / kSideBySide;
  // Bits are counted from the byte where the first run starts.
  const uint64_t first_byte = std::min<uint64_t>(first_bit / 8, payload.size() - 8);
  const auto in = payload.subspan(first_byte);
  std::array<uint64_t, kMostRuns + 1> starts;
  starts[0] = first_bit - 8 * first_byte;
  for (size_t k = 0; k < runs; ++k) starts[k + 1] = starts[k] + run_bits[k];
  std::vector<size_t> others;
  if (starts[runs] >= kMostBits) {
    others.resize(runs);
    std::iota(others.begin(), others.end(), size_t{0});
    return others;
  }

  std::array<uint32_t, kMostRuns> bits, wrong{};
  std::array<uint8_t, kMostRuns> largest;
  std::array<uint8_t, kMostRuns * kPart> symbols;  // [set][symbol][run]
  for (size_t k = 0; k < runs; ++k) bits[k] = static_cast<uint32_t>(starts[k]);
  for (size_t first = 0; first < n; first += kPart) {
    const size_t part = std::min(n - first, kPart);
    for (size_t k = 0; k < runs; ++k) __builtin_prefetch(out.row(k).data() + first, 1);
    avx512::decode_side_by_side(*table_, in.data(), std::min(in.size(), kMostInput), sets, part, bits.data(),
                                symbols.data(), largest.data());
    for (size_t k = 0; k < runs; ++k) wrong[k] |= largest[k] == escape_;  // no symbol has a larger number
    for (size_t s = 0; s < sets; ++s)
      avx512::copy_side_by_side(symbols.data() + s * part * kSideBySide, part,
                                out.row(s * kSideBySide).data() + first, out.stride());
  }
  uint32_t any = 0;
  for (size_t k = 0; k < runs; ++k) any |= wrong[k] |= bits[k] ^ static_cast<uint32_t>(starts[k + 1]);
  for (size_t k = 0; k < runs && any; ++k)
    if (wrong[k]) others.push_back(k);
  return others;
}

}  // namespace kvcodec
