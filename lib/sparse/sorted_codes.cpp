#include "lib/sparse/sorted_codes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {
namespace {

enum : uint8_t { kPlain = 0, kCoded = 1 };

constexpr size_t kAlphabet = 256;
constexpr uint32_t kSmallGaps = 16;
constexpr unsigned kClassBits = 3;  // of a gap below its highest bit, that say its class

/// Runs are decoded side by side; below so many pairs their lengths would cost more than a bit per code.
constexpr size_t kRuns = 8, kLeastPairsOfRuns = 1024;

constexpr unsigned kByteBits = 8;

size_t runs_of(size_t pairs) { return pairs < kLeastPairsOfRuns ? 1 : kRuns; }
size_t run_length(size_t pairs) { return (pairs + runs_of(pairs) - 1) / runs_of(pairs); }

struct Gap {
  uint8_t symbol;
  uint8_t extra_bits;
};

Gap gap_of(uint32_t gap) {
  if (gap < kSmallGaps) return {static_cast<uint8_t>(gap), 0};
  const auto exponent = static_cast<unsigned>(std::bit_width(gap)) - 1, extra = exponent - kClassBits;
  return {static_cast<uint8_t>(kSmallGaps + 8 * (exponent - 4) + ((gap >> extra) & 7)),
          static_cast<uint8_t>(extra)};
}

/// The least gap of each class, and its extra bits. Classes beyond those of 31-bit gaps are of no gap.
struct Classes {
  uint32_t least[kAlphabet];
  uint8_t extra_bits[kAlphabet];
};
constexpr size_t kClasses = kSmallGaps + 8 * (31 - 4);

constexpr Classes make_classes() {
  Classes classes{};
  for (uint32_t i = 0; i < kClasses; ++i) {
    const uint32_t extra = i < kSmallGaps ? 0 : (i - kSmallGaps) / 8 + 1;
    classes.least[i] = i < kSmallGaps ? i : (8 + (i - kSmallGaps) % 8) << extra;
    classes.extra_bits[i] = static_cast<uint8_t>(extra);
  }
  return classes;
}
constexpr Classes kGapClasses = make_classes();

/// Book, lengths of runs, and runs, to the end of `out`.
void put_symbols(std::span<const uint8_t> symbols, std::vector<uint8_t>& out) {
  std::vector<uint64_t> counts(kAlphabet);
  const size_t runs = runs_of(symbols.size()), length = run_length(symbols.size());
  std::vector<uint8_t> filled(symbols.begin(), symbols.end());
  filled.resize(runs * length, symbols.back());
  for (const uint8_t symbol : filled) ++counts[symbol];
  const HuffmanBook book = HuffmanBook::from_counts(counts, {});
  BitWriter head;
  book.write(head);
  std::vector<uint32_t> bits(runs);
  std::vector<uint8_t> coded;
  HuffmanEncoder(book).encode_runs(MatrixView<const uint8_t>(filled.data(), runs, length), {}, bits, coded);
  append_to(out, head.finish());
  const auto* lengths = reinterpret_cast<const uint8_t*>(bits.data());  // little-endian, as the host
  out.insert(out.end(), lengths, lengths + runs * sizeof(uint32_t));
  append_to(out, coded);
}

/// Fills `symbols` from the beginning of `part`; returns the bytes that they took.
size_t get_symbols(std::span<const uint8_t> part, std::span<uint8_t> symbols) {
  BitReader head(part);
  const HuffmanBook book = HuffmanBook::read(head);
  if (book.alphabet() != kAlphabet || book.has_escape() || book.num_codes() == 0)
    throw bad_input("a book of {} symbols{}; sorted codes have {} and no escape", book.alphabet(),
                    book.has_escape() ? " and an escape" : "", kAlphabet);
  const size_t runs = runs_of(symbols.size()), length = run_length(symbols.size());
  const uint64_t lengths_at = (head.position() + 7) / kByteBits;
  if (part.size() < lengths_at + runs * sizeof(uint32_t)) throw bad_input("lengths of runs are missing");
  std::vector<uint32_t> bits(runs);
  std::memcpy(bits.data(), part.data() + lengths_at, runs * sizeof(uint32_t));
  const uint64_t total = std::accumulate(bits.begin(), bits.end(), uint64_t{0});
  const auto coded = part.subspan(lengths_at + runs * sizeof(uint32_t));
  const uint64_t coded_bytes = (total + 7) / kByteBits;
  if (coded_bytes > coded.size())
    throw bad_input("runs of {} bytes where {} are left", coded_bytes, coded.size());
  Matrix<uint8_t> filled(runs, length);
  std::vector<EscapedValue> escaped;
  HuffmanDecoder(book).decode_runs(coded.first(coded_bytes), 0, bits,
                                   MatrixView<uint8_t>(filled.data(), runs, length), escaped);
  std::copy_n(filled.data(), symbols.size(), symbols.data());
  return part.size() - coded.size() + coded_bytes;
}

/// `coded`, or the plain form where that is not larger.
template <class T>
std::vector<uint8_t> smaller(std::vector<uint8_t> coded, std::span<const T> values, unsigned width) {
  std::vector<uint8_t> plain(1 + packed_bytes(values.size(), width), kPlain);
  if (!values.empty() && coded.size() < plain.size()) return coded;
  pack_bits(values, width, 0, std::span(plain).subspan(1));
  return plain;
}

std::vector<uint8_t> encode_ids(const PairsView& pairs, uint64_t atoms) {
  std::vector<uint8_t> part{kCoded}, symbols;
  symbols.reserve(pairs.ids.size());
  BitWriter extra;
  size_t k = 0;
  for (const uint32_t count : pairs.counts) {
    uint32_t before = 0;
    for (const size_t end = k + count; k < end; ++k) {
      const uint32_t gap = pairs.ids[k] - before;
      const Gap coded = gap_of(gap);
      symbols.push_back(coded.symbol);
      extra.put(gap, coded.extra_bits);
      before = pairs.ids[k];
    }
  }
  if (!symbols.empty()) put_symbols(symbols, part);
  append_to(part, extra.finish());
  return smaller(std::move(part), pairs.ids, index_bits(atoms));
}

std::vector<uint8_t> encode_words(std::span<const uint16_t> words, unsigned word_bits) {
  std::vector<uint8_t> part{kCoded}, symbols(words.size());
  const unsigned lower = word_bits > kByteBits ? kByteBits : 0;
  std::ranges::transform(words, symbols.begin(),
                         [&](uint16_t word) { return static_cast<uint8_t>(word >> lower); });
  if (!symbols.empty()) put_symbols(symbols, part);
  if (lower > 0)
    for (const uint16_t word : words) part.push_back(static_cast<uint8_t>(word));
  return smaller(std::move(part), words, word_bits);
}

/// The bytes behind the first one, which says how they are stored.
std::span<const uint8_t> body_of(std::span<const uint8_t> part) {
  if (part.empty() || part[0] > kCoded) throw bad_input("a part of a block does not say how it is stored");
  return part.subspan(1);
}

template <class T>
void get_plain(std::span<const uint8_t> body, unsigned width, uint64_t bound, std::span<T> out) {
  if (body.size() != packed_bytes(out.size(), width))
    throw bad_input("{} bytes for {} values of {} bits", body.size(), out.size(), width);
  unpack_bits(body, 0, width, bound, out);
}

void decode_ids(std::span<const uint8_t> part, uint64_t atoms, std::span<const uint32_t> counts,
                std::span<uint32_t> ids) {
  const auto body = body_of(part);
  if (part[0] == kPlain) {
    get_plain(body, index_bits(atoms), atoms, ids);
    size_t k = 0;
    for (const uint32_t count : counts) {
      if (!std::ranges::is_sorted(std::span(ids).subspan(k, count)))
        throw bad_input("ids of a sorted code fall");
      k += count;
    }
    return;
  }
  if (ids.empty()) throw bad_input("symbols of a block without pairs");
  std::vector<uint8_t> symbols(ids.size());
  const auto rest = body.subspan(get_symbols(body, symbols));
  uint64_t extra_bits = 0;
  for (const uint8_t symbol : symbols) {
    if (symbol >= kClasses) throw bad_input("gaps have no class {}", symbol);
    extra_bits += kGapClasses.extra_bits[symbol];
  }
  if (rest.size() != (extra_bits + 7) / kByteBits)
    throw bad_input("{} bytes for {} extra bits of gaps", rest.size(), extra_bits);
  BitReader extra(rest);
  size_t k = 0;
  for (const uint32_t count : counts) {
    uint64_t id = 0;
    for (const size_t end = k + count; k < end; ++k) {
      id += kGapClasses.least[symbols[k]] + extra.get(kGapClasses.extra_bits[symbols[k]]);
      if (id >= atoms) throw bad_input("atom {} of a dictionary of {}", id, atoms);
      ids[k] = static_cast<uint32_t>(id);
    }
  }
}

void decode_words(std::span<const uint8_t> part, unsigned word_bits, std::span<uint16_t> words) {
  const auto body = body_of(part);
  if (part[0] == kPlain) return get_plain(body, word_bits, 0, words);
  if (words.empty()) throw bad_input("symbols of a block without pairs");
  std::vector<uint8_t> symbols(words.size());
  const auto rest = body.subspan(get_symbols(body, symbols));
  const bool split = word_bits > kByteBits;
  if (rest.size() != (split ? words.size() : 0))
    throw bad_input("{} bytes behind the symbols of {} coefficients of {} bits", rest.size(), words.size(),
                    word_bits);
  for (size_t k = 0; k < words.size(); ++k)
    words[k] = split ? static_cast<uint16_t>(symbols[k] << kByteBits | rest[k]) : symbols[k];
}

}  // namespace

void sort_pairs(std::span<const uint32_t> counts, std::span<uint32_t> ids, std::span<uint16_t> words) {
  std::vector<uint64_t> pairs;
  size_t first = 0;
  for (const uint32_t count : counts) {
    pairs.resize(count);
    for (size_t k = 0; k < count; ++k) pairs[k] = uint64_t{ids[first + k]} << 16 | words[first + k];
    std::ranges::sort(pairs);
    for (size_t k = 0; k < count; ++k) {
      ids[first + k] = static_cast<uint32_t>(pairs[k] >> 16);
      words[first + k] = static_cast<uint16_t>(pairs[k]);
    }
    first += count;
  }
}

SortedBlock encode_sorted(const PairsView& pairs, uint64_t atoms, unsigned word_bits) {
  return {encode_ids(pairs, atoms), encode_words(pairs.words, word_bits)};
}

void decode_sorted(const SortedBlockView& block, uint64_t atoms, unsigned word_bits,
                   std::span<const uint32_t> counts, std::span<uint32_t> ids, std::span<uint16_t> words) {
  decode_ids(block.ids, atoms, counts, ids);
  decode_words(block.words, word_bits, words);
}

}  // namespace kvcodec
