#include "lib/entropy/huffman_side_by_side.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/cpu.hpp"
#include "lib/entropy/huffman_kernels.hpp"

namespace kvcodec {
namespace {

using namespace huffman_kernels;

/// Null where the level in force has none.
const SideBySideKernels* kernels() {
  constexpr auto none = scalar::side_by_side;
  return pick(none, none, none, none, avx512_vbmi::side_by_side)();
}

constexpr size_t kMostRuns = kMostSets * kSideBySide;

/// Symbols of each run that are decoded in one go: with all runs', they fit a first-level cache.
constexpr size_t kPart = 128;

/// Bytes of input whose bits the kernel can count, and bits that leave room for those of kMostSymbols more.
constexpr size_t kMostInput = (size_t{1} << 28) - 1;
constexpr uint64_t kMostBits = uint64_t{1} << 31;
static_assert(kMostBits + SideBySideDecoder::kMostSymbols * kMaxCodeLength < uint64_t{1} << 32);

/// Symbols below which the copying of whole tiles takes longer than what is gained.
constexpr size_t kLeastCopied = 32;

/// Mean code lengths from which one set or two at once are faster by run than look-ups of whole windows;
/// measured with kvcodec_bench_entropy. (Look-ups give 4.7 symbols each at 2 bits, 3.2 at 3.) By symbol they
/// always are.
constexpr double kOneSetFrom = 2.7, kTwoSetsFrom = 2.3;

/// How many symbols to decode between two loads of 57 bits, if `shares` of all symbols have codes of that
/// many bits: so many that in most batches all runs have a whole window left before the last one. Decoding
/// one batch in ten again costs about what loading for one symbol less would.
size_t batch_size(unsigned window, std::span<const double> shares) {
  constexpr double kRepeated = 0.1;
  const size_t most_bits = 57 - window;
  std::vector<double> chances(most_bits + 1), next(most_bits + 1);  // that so many bits are used up
  chances[0] = 1;
  size_t before = 0;
  for (; (before + 2) * window <= 255; ++before) {
    std::ranges::fill(next, 0.0);
    for (size_t length = 1; length < shares.size(); ++length)
      for (size_t bits = length; bits <= most_bits; ++bits)
        next[bits] += chances[bits - length] * shares[length];
    const double fits = std::accumulate(next.begin(), next.end(), 0.0);
    if (std::pow(fits, kMostRuns) < 1 - kRepeated) break;
    std::swap(chances, next);
  }
  return before + 1;
}

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
  std::vector<double> shares(window + 1);  // of symbols that are as frequent as their lengths say
  for (const WindowCode& code : codes) shares[code.length] += 1 / double(codes.size());
  for (size_t length = 1; length <= window; ++length) mean_length_ += shares[length] * double(length);
  table->batch = batch_size(window, shares);
  table_ = std::move(table);
}

bool SideBySideDecoder::ready() const { return table_ && kernels() != nullptr; }

size_t SideBySideDecoder::runs_at_once(size_t runs, size_t n, Order order) const {
  if (!ready() || n == 0 || n > kMostSymbols) return 0;
  const bool by_symbol = order == Order::by_symbol;
  if (!by_symbol && n < kLeastCopied) return 0;
  if (runs >= 2 * kSideBySide && (by_symbol || mean_length_ >= kTwoSetsFrom)) return 2 * kSideBySide;
  return runs >= kSideBySide && (by_symbol || mean_length_ >= kOneSetFrom) ? kSideBySide : 0;
}

namespace {

/// Runs side by side, in the order that the kernel takes (side_by_side_place).
struct SideBySideRuns {
  std::array<uint32_t, kMostRuns> bits, ends;  // where the kernel stands and where runs end, from in[0] on
  std::array<uint8_t, kMostRuns> largest, wrong;
  size_t count;

  /// Returns where the last run ends.
  uint64_t start(uint64_t first_bit, std::span<const uint32_t> run_bits) {
    count = run_bits.size();
    uint64_t bit = first_bit;
    for (size_t k = 0; k < count; k += 8)  // with the places of eight at once the loop has nothing to compute
      for (size_t i = 0, place = side_by_side_place(k); i < 8; ++i, place += side_by_side_place(1)) {
        bits[place] = static_cast<uint32_t>(bit);
        bit += run_bits[k + i];
        ends[place] = static_cast<uint32_t>(bit);
      }
    std::fill_n(wrong.begin(), count, uint8_t{0});
    return bit;
  }

  void note_escapes(int escape) {  // no symbol has a larger number
    for (size_t k = 0; k < kMostRuns; ++k) wrong[k] |= static_cast<uint8_t>(largest[k] == escape);
  }

  /// Runs with an escape, and those that do not end where they should.
  std::vector<size_t> others() const {
    uint32_t any = 0;
    for (size_t k = 0; k < count; ++k) any |= wrong[k];
    for (size_t k = 0; k < count; ++k) any |= bits[k] ^ ends[k];
    std::vector<size_t> found;
    for (size_t k = 0; k < count && any; ++k)
      if (const size_t place = side_by_side_place(k); wrong[k] || bits[place] != ends[place])
        found.push_back(k);
    return found;
  }
};

}  // namespace

std::vector<size_t> SideBySideDecoder::decode(std::span<const uint8_t> payload, uint64_t first_bit,
                                              std::span<const uint32_t> run_bits, MatrixView<uint8_t> out,
                                              Order order) const {
  const size_t n = order == Order::by_run ? out.cols() : out.rows(), sets = run_bits.size() / kSideBySide;
  // Bits are counted from the byte where the first run starts.
  std::array<uint8_t, kSideBySideInput> tiny{};
  if (payload.size() < tiny.size()) {
    std::ranges::copy(payload, tiny.begin());
    payload = tiny;
  }
  const uint64_t first_byte = std::min<uint64_t>(first_bit / 8, payload.size() - kSideBySideInput);
  const auto in = payload.subspan(first_byte);
  SideBySideRuns runs;
  if (runs.start(first_bit - 8 * first_byte, run_bits) >= kMostBits) {
    std::vector<size_t> all(run_bits.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return all;
  }
  const auto decode_part = [&](size_t part, SideBySideOut to) {
    kernels()->decode(*table_, in.data(), std::min(in.size(), kMostInput), sets, part, runs.bits.data(), to,
                      runs.largest.data());
    runs.note_escapes(escape_);
  };
  if (order == Order::by_symbol) {
    decode_part(n, {out.data(), out.stride(), kSideBySide});
    return runs.others();
  }
  std::array<uint8_t, kMostRuns * kPart> symbols;  // [set][symbol][run]
  for (size_t first = 0; first < n; first += kPart) {
    const size_t part = std::min(n - first, kPart);
    for (size_t k = 0; k < run_bits.size(); ++k) __builtin_prefetch(out.row(k).data() + first, 1);
    decode_part(part, {symbols.data(), kSideBySide, part * kSideBySide});
    for (size_t s = 0; s < sets; ++s)
      kernels()->copy(symbols.data() + s * part * kSideBySide, part, out.row(s * kSideBySide).data() + first,
                      out.stride());
  }
  return runs.others();
}

}  // namespace kvcodec
