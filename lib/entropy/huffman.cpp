#include "lib/entropy/huffman.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec {

/// Weights of packages sum up to at most max length times all counts, and must fit 64 bits.
constexpr uint64_t kMaxTotal = uint64_t{1} << 56;

/// Tokens of a written book (huffman.hpp).
constexpr unsigned kTokenBits = 4, kRepeat = 13, kFewAbsent = 14, kManyAbsent = 15;
constexpr size_t kRepeatFrom = 3, kRepeatTo = 18;

static void check_limit(unsigned limit) {
  if (limit < 1 || limit > kMaxCodeLength)
    throw failed("codes of at most {} bits; the limit must be 1 to {}", limit, kMaxCodeLength);
}

/// Package-merge on at least two weights in rising order; returns the length of each leaf.
static std::vector<uint8_t> package_merge(const std::vector<uint64_t>& leaves, unsigned limit) {
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
  check_alphabet(counts.size(), options.escape_bits, ErrorKind::failed);
  if (options.max_codes == 0) throw failed("a book of at most 0 codes");
  const bool escape = options.escape_bits > 0;
  std::vector<bool> coded(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) coded[i] = counts[i] > 0;
  const size_t bound = std::min(options.max_codes, size_t{1} << options.max_length) - (escape ? 1 : 0);
  const auto used = static_cast<size_t>(std::count(coded.begin(), coded.end(), true));
  std::vector<uint64_t> weights(counts.begin(), counts.end());
  uint64_t dropped = 0;
  if (used > bound) {
    if (!escape) throw failed("{} symbols do not fit a book of {} codes without an escape", used, bound);
    dropped = keep_most_frequent(counts, bound, coded);
  }
  if (escape) {
    weights.push_back(dropped);
    coded.push_back(true);
  }
  return {counts.size(), options.escape_bits, limited_code_lengths(weights, coded, options.max_length)};
}

void HuffmanBook::write(BitWriter& out) const {
  write_alphabet(out, alphabet_, escape_bits_);
  for (size_t i = 0; i < lengths_.size();) {
    size_t same = 1;  // symbols from i on with the length of i
    while (i + same < lengths_.size() && lengths_[i + same] == lengths_[i]) ++same;
    const bool again = i > 0 && lengths_[i] == lengths_[i - 1] && lengths_[i] > 0;
    const size_t absent = lengths_[i] == 0 ? write_absent(out, same, kFewAbsent, kTokenBits) : 0;
    if (absent > 0) {
      same = absent;
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
  const auto [alphabet, escape_bits] = read_alphabet(in);
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
    } else if (token >= kFewAbsent) {
      times = read_absent(in, token == kManyAbsent);
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

// Encoding -----------------------------------------------------------------------------------------

namespace {

// An entry of the table: the code from bit 63 downwards, its bits in bits 0..6, and a flag. Four entries are
// added up, so a flag is the lowest of three bits.
constexpr uint64_t kBits = 127;
constexpr uint64_t kIsEscape = uint64_t{1} << 8, kNoCode = uint64_t{1} << 11;
constexpr uint64_t kFlags = kIsEscape * 7 | kNoCode * 7;
constexpr uint64_t kFourCodes = ~uint64_t{0} << 16;  // where four codes of up to 12 bits lie

/// The code of `a`, then that of `b`. What an entry holds below its code stays in the low 14 bits of whatever it is joined to.
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
      check_raw(raw, escapes, escape_bits_);
      CodeWriter behind = writer_of(escapes * escape_bits_);
      for (const uint32_t value : raw.first(escapes))
        behind.put(uint64_t{value} << (64 - escape_bits_), escape_bits_);
      raw = raw.subspan(escapes);
      bit = behind.bit();
    }
    run_bits[run] = static_cast<uint32_t>(bit - start);
  }
  if (!raw.empty()) throw failed("{} more raw values than escapes", raw.size());
  out.resize((bit + 7) / 8);
}

// Decoding -----------------------------------------------------------------------------------------

namespace {

/// Bits of a look-up: as many as the longest code has. The table then takes 32 KiB.
constexpr unsigned kWindow = kMaxCodeLength;

/// Maximum number of symbols of an entry. An entry, one for each value of the next kWindow bits, has all symbols whose
/// codes lie entirely within them, up to that number:
///   bits  0..5   bits of these symbols together, 1..kWindow
///   bits  6..9   bits of the first symbol
///   bits 10..12  number of symbols, 1..kEntrySymbols
///   bits 16..63  the symbols, the first one lowest
constexpr size_t kEntrySymbols = 6;

/// Streams that are decoded side by side, so that the processor has independent work while a look-up waits.
constexpr size_t kLanes = 8;

/// A stream of symbols: from bit `bit` of the input to [out, end). Decoding moves bit and out behind what it has decoded.
struct Lane {
  uint64_t bit;
  uint8_t *out, *end;
};

static_assert(std::endian::native == std::endian::little, "words are swapped from big-endian below");

/// Minimum number of bits of one load, and the number of look-ups that they suffice for.
constexpr uint64_t kLoadBits = 57;
constexpr size_t kLookUps = kLoadBits / kWindow;

/// Maximum number of symbols of a round of look-ups, and the additional bytes that its last store writes.
constexpr size_t kRoundSymbols = kLookUps * kEntrySymbols, kSlack = sizeof(uint64_t) - kEntrySymbols;

/// The bits from `bit` on, highest first; last: the last byte that 8 bytes can be read from.
inline uint64_t load_bits(const uint8_t* in, uint64_t last, uint64_t bit) {
  const uint64_t byte = bit / 8 < last ? bit / 8 : last;
  uint64_t word;
  memcpy(&word, in + byte, sizeof word);
  return __builtin_bswap64(word) << ((bit - 8 * byte) & 63);
}

/// Number of rounds of look-ups in which no lane can leave its room or the input.
template <size_t kCount>
size_t safe_rounds(const Lane* lanes, uint64_t last) {
  size_t least_room = ~size_t{0};
  uint64_t last_bit = 0;
  for (size_t k = 0; k < kCount; ++k) {
    const auto room = (size_t)(lanes[k].end - lanes[k].out);
    least_room = room < least_room ? room : least_room;
    last_bit = lanes[k].bit > last_bit ? lanes[k].bit : last_bit;
  }
  const size_t by_room = least_room < kSlack ? 0 : (least_room - kSlack) / kRoundSymbols;
  const size_t by_bits = last_bit > 8 * last ? 0 : (8 * last - last_bit) / kLoadBits;
  return by_room < by_bits ? by_room : by_bits;
}

/// Decodes the lanes to their ends. Reads nothing outside in[0, in_bytes), in_bytes >= 8; codes behind the end of the input are
/// undefined. The lanes advance together, look-up by look-up: a processor sees only so far ahead, and finds independent
/// work there. First whole entries, in rounds for which no lane asks how far its end is; then symbol by symbol, to the ends.
template <size_t kCount>
void decode_lanes(const uint64_t* entries, const uint8_t* in, size_t in_bytes, Lane* lanes) {
  const uint64_t last = in_bytes - 8;
  Lane lane[kCount];
#pragma GCC unroll 8
  for (size_t k = 0; k < kCount; ++k) lane[k] = lanes[k];
  while (size_t rounds = safe_rounds<kCount>(lane, last))
    for (; rounds > 0; --rounds) {
      uint64_t word[kCount];
      // Its lowest bit is a mark, not input: how far it has moved up at the end is how many bits were used.
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) word[k] = load_bits(in, last, lane[k].bit) | 1;
#pragma GCC unroll 8
      for (size_t i = 0; i < kLookUps; ++i)
#pragma GCC unroll 8
        for (size_t k = 0; k < kCount; ++k) {
          const uint64_t entry = entries[word[k] >> (64 - kWindow)], symbols = entry >> 16;
          memcpy(lane[k].out, &symbols,
                 sizeof symbols);  // more than count: the next look-up writes over the rest
          lane[k].out += entry >> 10 & 7;
          word[k] <<= entry & 63;
        }
#pragma GCC unroll 8
      for (size_t k = 0; k < kCount; ++k) lane[k].bit += (uint64_t)__builtin_ctzll(word[k]);
    }
  for (bool unfinished = true; unfinished;) {
    unfinished = false;
    for (size_t k = 0; k < kCount; ++k) {
      if (lane[k].out == lane[k].end) continue;
      const uint64_t entry = entries[load_bits(in, last, lane[k].bit) >> (64 - kWindow)];
      *lane[k].out++ = (uint8_t)(entry >> 16);
      lane[k].bit += entry >> 6 & 15;
      unfinished = true;
    }
  }
  for (size_t k = 0; k < kCount; ++k) lanes[k] = lane[k];
}

}  // namespace

HuffmanDecoder::HuffmanDecoder(const HuffmanBook& book) : book_(book) {
  if (book.symbols() > 256) throw failed("a book of {} symbols; bytes name 256", book.symbols());
  if (book.num_codes() == 0) return;
  const std::vector<HuffmanBook::Code> codes = book.codes_by_window(kWindow);
  entries_.resize(codes.size());
  for (size_t value = 0; value < codes.size(); ++value) {
    uint64_t symbols = 0;
    unsigned bits = 0;
    uint64_t count = 0;
    for (; count < kEntrySymbols; ++count) {
      const auto [symbol, length] = codes[(value << bits) & (codes.size() - 1)];
      if (bits + length > kWindow) break;
      symbols |= uint64_t{symbol} << (8 * count);
      bits += length;
    }
    entries_[value] = symbols << 16 | count << 10 | uint64_t{codes[value].length} << 6 | bits;
  }
}

/// A call of decode_runs.
struct HuffmanDecoder::Work {
  std::span<const uint8_t> payload;  // of at least 8 bytes
  std::span<const uint32_t> run_bits;
  MatrixView<uint8_t> out;
  std::vector<EscapedValue>& escaped;
  uint64_t bit;  // where the next run starts

  uint64_t bits_of(size_t run, size_t count) const {
    const auto bits = run_bits.subspan(run, count);
    return std::accumulate(bits.begin(), bits.end(), uint64_t{0});
  }
};

/// Decodes the first runs, per_lane of them in each lane as if they were one. They are, as long as there is no escape: where there is one,
/// or the bits do not come out right, the lane's runs are decoded once more, each by itself. Returns how many.
size_t HuffmanDecoder::decode_joined(Work& work, size_t per_lane) const {
  const size_t symbols = per_lane * work.out.cols();
  Lane lanes[kLanes];
  uint64_t starts[kLanes + 1] = {work.bit};
  for (size_t k = 0; k < kLanes; ++k) {
    uint8_t* const out = work.out.row(k * per_lane).data();
    lanes[k] = {starts[k], out, out + symbols};
    starts[k + 1] = starts[k] + work.bits_of(k * per_lane, per_lane);
  }
  decode_lanes<kLanes>(entries_.data(), work.payload.data(), work.payload.size(), lanes);
  for (size_t k = 0; k < kLanes; ++k) {
    if (lanes[k].bit == starts[k + 1] && !has_escape({lanes[k].end - symbols, symbols})) continue;
    work.bit = starts[k];
    for (size_t i = 0; i < per_lane; ++i) decode_alone(work, k * per_lane + i);
  }
  work.bit = starts[kLanes];
  return kLanes * per_lane;
}

void HuffmanDecoder::decode_alone(Work& work, size_t run) const {
  const std::span<uint8_t> row = work.out.row(run);
  Lane lane{work.bit, row.data(), row.data() + row.size()};
  decode_lanes<1>(entries_.data(), work.payload.data(), work.payload.size(), &lane);
  work.bit += work.run_bits[run];
  size_t escapes = 0;
  if (has_escape(row))
    escapes = find_escapes<uint8_t>(row, run, static_cast<uint8_t>(book_.escape()), work.escaped);
  if (lane.bit + escapes * book_.escape_bits() != work.bit)
    throw bad_input("run {}: its {} bits do not hold {} symbols exactly", run, work.run_bits[run],
                    row.size());
  BitReader raw(work.payload, lane.bit);
  for (EscapedValue& value : std::span(work.escaped).last(escapes))
    value.value = raw.get(book_.escape_bits());
}

void HuffmanDecoder::decode_runs(std::span<const uint8_t> payload, uint64_t first_bit,
                                 std::span<const uint32_t> run_bits, MatrixView<uint8_t> out,
                                 std::vector<EscapedValue>& escaped) const {
  const size_t runs = run_bits.size(), n = out.cols();
  if (runs != out.rows()) throw failed("{} runs, but room for {}", runs, out.rows());
  const uint64_t end = checked_add(first_bit, std::accumulate(run_bits.begin(), run_bits.end(), uint64_t{0}));
  if (end > uint64_t{payload.size()} * 8)
    throw bad_input("{} bytes of coded runs end before bit {}", payload.size(), end);
  if (n > 0 && runs > 0 && book_.num_codes() == 0)
    throw bad_input("runs of {} symbols, but a book without codes", n);
  std::array<uint8_t, 8> tiny{};  // the kernels read 8 bytes at a time
  if (payload.size() < tiny.size()) {
    std::ranges::copy(payload, tiny.begin());
    payload = tiny;
  }
  Work work{payload, run_bits, out, escaped, first_bit};
  size_t run = n > 0 && runs >= kLanes && out.contiguous() ? decode_joined(work, runs / kLanes) : 0;
  for (; run < runs; ++run) decode_alone(work, run);
}

std::vector<uint32_t> step_table(const HuffmanBook& book) {
  if (book.num_codes() == 0) throw failed("a book without codes decodes nothing");
  if (book.symbols() > 256) throw failed("a book of {} symbols; steps know 256", book.symbols());
  const auto codes = book.codes_by_window(kStepWindow);
  const auto escapes = [&](const HuffmanBook::Code& code) {
    return book.has_escape() && code.symbol == book.escape();
  };
  std::vector<uint32_t> table;
  for (size_t bits = 0; bits < codes.size(); ++bits) {
    const HuffmanBook::Code& first = codes[bits];
    // The code behind the first one; unknown bits are those of a second that does not fit.
    const HuffmanBook::Code& second = codes[(bits << first.length) % codes.size()];
    const bool both =
        first.length + second.length <= static_cast<int>(kStepWindow) && !escapes(first) && !escapes(second);
    table.push_back(both ? step_entry(first.symbol, first.length, second.symbol, second.length)
                         : step_entry(first.symbol, first.length, escapes(first)));
  }
  return table;
}

}  // namespace kvcodec
