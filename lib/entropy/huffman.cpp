#include "lib/entropy/huffman.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// Weights of packages sum up to at most max length times all counts, and must fit 64 bits.
constexpr uint64_t kMaxTotal = uint64_t{1} << 56;

/// Tokens of a written book (huffman.hpp).
constexpr unsigned kTokenBits = 4, kRepeat = 13, kFewAbsent = 14, kManyAbsent = 15;
constexpr size_t kRepeatFrom = 3, kRepeatTo = 18;
constexpr size_t kFewFrom = 2, kFewTo = 17;
constexpr size_t kManyFrom = 18, kManyTo = 18 + 4095;
constexpr unsigned kAlphabetBits = 17, kEscapeWidthBits = 6;
constexpr unsigned kMaxEscapeBits = 32;

void check_limit(unsigned limit) {
  if (limit < 1 || limit > kMaxCodeLength)
    throw failed("codes of at most {} bits; the limit must be 1 to {}", limit, kMaxCodeLength);
}

/// The leaves with their weights, lightest first; equal ones in symbol order, so that the book is the same
/// everywhere.
std::vector<size_t> by_weight(std::span<const uint64_t> counts, const std::vector<bool>& coded) {
  std::vector<size_t> order;
  for (size_t i = 0; i < counts.size(); ++i)
    if (coded[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] < counts[b]; });
  return order;
}

/// Package-merge on at least two weights in rising order; returns the length of each leaf.
std::vector<uint8_t> package_merge(const std::vector<uint64_t>& leaves, unsigned limit) {
  const size_t n = leaves.size();
  std::vector<std::vector<bool>> is_leaf(limit);  // of each item of each level's merged list, lightest first
  std::vector<uint64_t> level = leaves;
  is_leaf[0].assign(n, true);
  for (unsigned l = 1; l < limit; ++l) {
    std::vector<uint64_t> merged;
    merged.reserve(n + level.size() / 2);
    size_t leaf = 0, pair = 0;
    while (leaf < n || pair + 1 < level.size()) {
      const bool take_leaf =
          leaf < n && (pair + 1 >= level.size() || leaves[leaf] <= level[pair] + level[pair + 1]);
      is_leaf[l].push_back(take_leaf);
      if (take_leaf) {
        merged.push_back(leaves[leaf++]);
      } else {
        merged.push_back(level[pair] + level[pair + 1]);
        pair += 2;
      }
    }
    level = std::move(merged);
  }
  // The 2n-2 lightest items of the last level are chosen; the packages among them stand for twice as many
  // items at the front of the level before, and so on. A leaf's length is the number of levels that chose it.
  std::vector<uint8_t> lengths(n, 0);
  size_t chosen = 2 * n - 2;
  for (unsigned l = limit; l-- > 0 && chosen > 0;) {
    const auto front = is_leaf[l].begin() + static_cast<ptrdiff_t>(chosen);
    const auto taken = static_cast<size_t>(std::count(is_leaf[l].begin(), front, true));
    for (size_t i = 0; i < taken; ++i) ++lengths[i];
    chosen = 2 * (chosen - taken);
  }
  return lengths;
}

/// Leaves out the rarest symbols until `most` are left; returns how often the ones left out occur.
uint64_t keep_most_frequent(std::span<const uint64_t> counts, size_t most, std::vector<bool>& coded) {
  const std::vector<size_t> order = by_weight(counts, coded);
  uint64_t dropped = 0;
  for (size_t i = 0; i + most < order.size(); ++i) {
    coded[order[i]] = false;
    dropped += counts[order[i]];
  }
  return dropped;
}

}  // namespace

std::vector<uint8_t> limited_code_lengths(std::span<const uint64_t> counts, const std::vector<bool>& coded,
                                          unsigned limit) {
  check_limit(limit);
  if (coded.size() != counts.size())
    throw failed("{} counts, but {} symbols to code or not", counts.size(), coded.size());
  const std::vector<size_t> order = by_weight(counts, coded);
  if (order.size() > size_t{1} << limit)
    throw failed("{} symbols do not fit codes of at most {} bits", order.size(), limit);
  std::vector<uint64_t> leaves;
  uint64_t total = 0;
  for (const size_t symbol : order) {
    leaves.push_back(counts[symbol]);
    if (counts[symbol] > kMaxTotal - total) throw failed("counts of more than 2^56 symbols");
    total += counts[symbol];
  }
  std::vector<uint8_t> lengths(counts.size(), 0);
  if (leaves.size() == 1) {
    lengths[order[0]] = 1;
  } else if (!leaves.empty()) {
    const std::vector<uint8_t> sorted = package_merge(leaves, limit);
    for (size_t i = 0; i < order.size(); ++i) lengths[order[i]] = sorted[i];
  }
  return lengths;
}

HuffmanBook::HuffmanBook(size_t alphabet, unsigned escape_bits, std::vector<uint8_t> lengths)
    : alphabet_(alphabet), escape_bits_(escape_bits), lengths_(std::move(lengths)), codes_(lengths_.size()) {
  // Canonical: shorter codes first, equal lengths in symbol order, each one more than the one before it.
  uint32_t of_length[kMaxCodeLength + 2] = {};
  for (const uint8_t length : lengths_)
    if (length > 0) {
      ++of_length[length + 1];
      ++num_codes_;
      max_length_ = std::max<unsigned>(max_length_, length);
    }
  uint32_t next[kMaxCodeLength + 1] = {};
  for (unsigned length = 1; length <= kMaxCodeLength; ++length)
    next[length] = (next[length - 1] + of_length[length]) << 1;
  for (size_t symbol = 0; symbol < lengths_.size(); ++symbol)
    if (lengths_[symbol] > 0) codes_[symbol] = static_cast<uint16_t>(next[lengths_[symbol]]++);
}

HuffmanBook HuffmanBook::from_counts(std::span<const uint64_t> counts, const HuffmanOptions& options) {
  check_limit(options.max_length);
  if (counts.size() > kMaxAlphabet)
    throw failed("an alphabet of {} symbols; books have at most {}", counts.size(), kMaxAlphabet);
  if (options.escape_bits > kMaxEscapeBits)
    throw failed("escaped values of {} bits; they have at most {}", options.escape_bits, kMaxEscapeBits);
  if (options.max_codes == 0) throw failed("a book of at most 0 codes");
  const bool escape = options.escape_bits > 0;
  std::vector<bool> coded(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) coded[i] = counts[i] > 0;
  const size_t most = std::min(options.max_codes, size_t{1} << options.max_length) - (escape ? 1 : 0);
  const auto used = static_cast<size_t>(std::count(coded.begin(), coded.end(), true));
  std::vector<uint64_t> weights(counts.begin(), counts.end());
  uint64_t dropped = 0;
  if (used > most) {
    if (!escape) throw failed("{} symbols do not fit a book of {} codes without an escape", used, most);
    dropped = keep_most_frequent(counts, most, coded);
  }
  if (escape) {
    weights.push_back(dropped);
    coded.push_back(true);
  }
  return {counts.size(), options.escape_bits, limited_code_lengths(weights, coded, options.max_length)};
}

void HuffmanBook::write(BitWriter& out) const {
  out.put(static_cast<uint32_t>(alphabet_), kAlphabetBits);
  out.put(escape_bits_, kEscapeWidthBits);
  for (size_t i = 0; i < lengths_.size();) {
    size_t same = 1;  // symbols from i on with the length of i
    while (i + same < lengths_.size() && lengths_[i + same] == lengths_[i]) ++same;
    const bool again = i > 0 && lengths_[i] == lengths_[i - 1] && lengths_[i] > 0;
    if (lengths_[i] == 0 && same >= kManyFrom) {
      same = std::min(same, kManyTo);
      out.put(kManyAbsent, kTokenBits);
      out.put(static_cast<uint32_t>(same - kManyFrom), 12);
    } else if (lengths_[i] == 0 && same >= kFewFrom) {
      same = std::min(same, kFewTo);
      out.put(kFewAbsent, kTokenBits);
      out.put(static_cast<uint32_t>(same - kFewFrom), 4);
    } else if (again && same >= kRepeatFrom) {
      same = std::min(same, kRepeatTo);
      out.put(kRepeat, kTokenBits);
      out.put(static_cast<uint32_t>(same - kRepeatFrom), 4);
    } else {
      same = 1;
      out.put(lengths_[i], kTokenBits);
    }
    i += same;
  }
}

HuffmanBook HuffmanBook::read(BitReader& in) {
  const size_t alphabet = in.get(kAlphabetBits);
  const unsigned escape_bits = in.get(kEscapeWidthBits);
  if (alphabet > kMaxAlphabet)
    throw bad_input("a book with an alphabet of {} symbols; at most {} are possible", alphabet, kMaxAlphabet);
  if (escape_bits > kMaxEscapeBits)
    throw bad_input("a book with escaped values of {} bits; at most {} are possible", escape_bits,
                    kMaxEscapeBits);
  const size_t symbols = alphabet + (escape_bits > 0 ? 1 : 0);
  std::vector<uint8_t> lengths;
  while (lengths.size() < symbols) {
    const unsigned token = in.get(kTokenBits);
    size_t times = 1;
    uint8_t length = 0;
    if (token == kRepeat) {
      if (lengths.empty() || lengths.back() == 0)
        throw bad_input("a book repeats a length before there is one");
      length = lengths.back();
      times = in.get(4) + kRepeatFrom;
    } else if (token == kFewAbsent) {
      times = in.get(4) + kFewFrom;
    } else if (token == kManyAbsent) {
      times = in.get(12) + kManyFrom;
    } else {
      length = static_cast<uint8_t>(token);
    }
    if (times > symbols - lengths.size())
      throw bad_input("a book has lengths for more than its {} symbols", symbols);
    lengths.insert(lengths.end(), times, length);
  }
  uint64_t kraft = 0;  // in units of the longest code
  size_t codes = 0;
  for (const uint8_t length : lengths)
    if (length > 0) {
      kraft += uint64_t{1} << (kMaxCodeLength - length);
      ++codes;
    }
  const bool complete = kraft == uint64_t{1} << kMaxCodeLength;
  const bool single = codes == 1 && kraft == uint64_t{1} << (kMaxCodeLength - 1);
  if (codes > 0 && !complete && !single)
    throw bad_input("the code lengths of a book fill {} of {} possible codes", kraft, 1 << kMaxCodeLength);
  if (escape_bits > 0 && lengths.back() == 0) throw bad_input("the escape of a book has no code");
  return {alphabet, escape_bits, std::move(lengths)};
}

std::vector<HuffmanBook::Code> HuffmanBook::codes_by_window(unsigned window) const {
  // A book of one code leaves the half behind it unused: it means that symbol too.
  size_t only = 0;
  while (only < symbols() && lengths_[only] == 0) ++only;
  std::vector<Code> codes(size_t{1} << window, {static_cast<uint16_t>(only), 1});
  for (size_t symbol = 0; symbol < symbols(); ++symbol)
    if (const unsigned length = lengths_[symbol]; length > 0) {
      const size_t values = size_t{1} << (window - length);
      const auto begin = codes.begin() + ptrdiff_t{codes_[symbol]} * static_cast<ptrdiff_t>(values);
      std::fill_n(begin, values, Code{static_cast<uint16_t>(symbol), static_cast<uint8_t>(length)});
    }
  return codes;
}

uint64_t HuffmanBook::coded_bits(std::span<const uint64_t> counts) const {
  if (counts.size() != alphabet_)
    throw failed("counts of {} symbols, but a book for {}", counts.size(), alphabet_);
  uint64_t bits = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (lengths_[i] == 0 && !has_escape())
      throw failed("the book has no code for symbol {} and no escape", i);
    bits += counts[i] * (lengths_[i] > 0 ? lengths_[i] : lengths_[alphabet_] + escape_bits_);
  }
  return bits;
}

}  // namespace kvcodec
