#include "lib/entropy/huffman_decoder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/transpose.hpp"
#include "lib/entropy/huffman_kernels.hpp"
#include "lib/entropy/huffman_window.hpp"

namespace kvcodec {
namespace {

using namespace huffman_kernels;

/// Symbols that a lane decodes in one go: long runs in parts, short ones several together. What a lane costs
/// once hardly counts then, eight lanes fit a first-level cache beside the table, and not too much is decoded
/// again where there is an escape.
constexpr size_t kPartSymbols = 1024;

template <class Symbol>
void check_symbols(const HuffmanBook& book) {
  if (book.symbols() > size_t{std::numeric_limits<Symbol>::max()} + 1)
    throw failed("a book of {} symbols does not fit symbols of {} bytes", book.symbols(), sizeof(Symbol));
}

/// Throws unless all runs, of n symbols, lie within the payload and there is room for them; returns whether
/// there is anything to decode.
bool check_runs(const HuffmanBook& book, std::span<const uint8_t> payload, uint64_t first_bit,
                std::span<const uint32_t> run_bits, size_t room, size_t n) {
  if (run_bits.size() != room) throw failed("{} runs, but room for {}", run_bits.size(), room);
  const uint64_t end = checked_add(first_bit, std::accumulate(run_bits.begin(), run_bits.end(), uint64_t{0}));
  if (end > uint64_t{payload.size()} * 8)
    throw bad_input("{} bytes of coded runs end before bit {}", payload.size(), end);
  if (run_bits.empty()) return false;
  if (n > 0 && book.num_codes() == 0) throw bad_input("runs of {} symbols, but a book without codes", n);
  return true;
}

/// A payload of at least 8 bytes, which the kernels read at a time.
class Padded {
 public:
  explicit Padded(std::span<const uint8_t> payload) : bytes_(payload) {
    if (payload.size() >= tiny_.size()) return;
    std::ranges::copy(payload, tiny_.begin());
    bytes_ = tiny_;
  }
  Padded(const Padded&) = delete;
  operator std::span<const uint8_t>() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
  std::array<uint8_t, 8> tiny_{};
};

[[noreturn]] void refuse(size_t run, size_t symbols, uint32_t bits) {
  throw bad_input("run {}: its {} bits do not hold {} symbols exactly", run, bits, symbols);
}

/// Reads the raw values of a decoded run, whose codes take code_bits of its bits; first_bit: where it starts.
template <class Symbol>
void read_raw(const HuffmanBook& book, std::span<const uint8_t> payload, uint64_t first_bit,
              uint64_t code_bits, uint32_t bits, size_t run, std::span<const Symbol> symbols,
              std::vector<EscapedValue>& escaped) {
  const size_t escapes =
      book.has_escape() ? find_escapes(symbols, run, static_cast<Symbol>(book.escape()), escaped) : 0;
  if (code_bits + escapes * book.escape_bits() != bits) refuse(run, symbols.size(), bits);
  BitReader reader(payload, first_bit + code_bits);
  for (EscapedValue& value : std::span(escaped).last(escapes)) value.value = reader.get(book.escape_bits());
}

/// The bit behind the n-th symbol of a decoded lane: what the look-ups left out is added. Always the same
/// number of steps and no branch that could be mispredicted.
template <class Symbol>
uint64_t end_of(const Lane<Symbol>& lane, size_t n, const uint8_t* lengths) {
  uint64_t bit = lane.bit;
  for (size_t i = lane.decoded; i + 1 < lane.decoded + kBytesPerEntry / sizeof(Symbol); ++i) {
    const size_t symbol = *(lane.end - 1 - i);
    const uint64_t length = lengths[i < n ? symbol : 0];
    bit += i < n ? length : 0;
  }
  return bit;
}

}  // namespace

template <class Symbol>
HuffmanDecoder<Symbol>::HuffmanDecoder(const HuffmanBook& book)
    : book_(book), window_(book.max_length() <= kSmallWindow ? kSmallWindow : kLargeWindow) {
  check_symbols<Symbol>(book);
  for (size_t symbol = 0; symbol < book.symbols(); ++symbol)
    lengths_.push_back(static_cast<uint8_t>(book.length(symbol)));
  if (book.num_codes() == 0) return;
  constexpr size_t kMost = kBytesPerEntry / sizeof(Symbol);
  const auto codes = codes_by_window(book, window_);
  if constexpr (sizeof(Symbol) == 1) side_by_side_ = SideBySideDecoder(book, window_, codes);
  entries_.resize(codes.size());
  for (size_t value = 0; value < codes.size(); ++value) {
    uint64_t entry = 0;
    unsigned bits = 0;
    size_t count = 0;
    for (; count < kMost; ++count) {
      const auto [symbol, length] = codes[(value << bits) & (codes.size() - 1)];
      if (bits + length > window_) break;
      entry |= uint64_t{symbol} << (64 - 8 * sizeof(Symbol) * (count + 1));
      bits += length;
    }
    entries_[value] = entry | uint64_t{count} << 8 | bits;
  }
}

/// What one call of decode_runs works on.
template <class Symbol>
struct HuffmanDecoder<Symbol>::Work {
  std::span<const uint8_t> payload;  // at least 8 bytes
  std::span<const uint32_t> run_bits;
  MatrixView<Symbol> out;
  std::vector<EscapedValue>& escaped;
  DecodeTable table;
  size_t first_run;  // what the first row is called
  const Table<Symbol>& kernels = pick(scalar::table<Symbol>, avx2::table<Symbol>)();
  // One behind the other with different places in the first-level cache.
  static constexpr size_t kRoom = kPartSymbols + kDecodeSlack;
  std::array<Symbol, kLanes * kRoom> rooms;

  Work(std::span<const uint8_t> in, std::span<const uint32_t> bits, MatrixView<Symbol> rows,
       std::vector<EscapedValue>& values, DecodeTable decode_table, size_t first)
      : payload(in), run_bits(bits), out(rows), escaped(values), table(decode_table), first_run(first) {}

  /// n symbols in lane 0 (count == 1) or in all lanes, to be copied to the target.
  void decode(size_t n, Target target, Lane<Symbol>* lanes, size_t count) const {
    const auto decode = count == 1 ? kernels.decode_lane : kernels.decode_lanes;
    decode(table, payload.data(), payload.size(), n, target, lanes);
  }

  Symbol* end_of_room(size_t lane) { return rooms.data() + (lane + 1) * kRoom; }

  /// Copies a lane to `rows` rows of n symbols from out(row, column) on; says whether `wanted` is among them.
  bool copy_and_find(const Lane<Symbol>& lane, size_t rows, size_t n, Symbol wanted, size_t row,
                     size_t column) const {
    const bool one_row = n == out.stride();  // they follow each other without gaps
    const size_t length = one_row ? rows * n : n, count = one_row ? 1 : rows;
    Symbol* const to = out.row(row).data() + column;
    return kernels.copy_and_find(lane.end, count, length, wanted, to, out.stride());
  }

  uint64_t bits_of(size_t run, size_t count) const {
    const auto bits = run_bits.subspan(run, count);
    return std::accumulate(bits.begin(), bits.end(), uint64_t{0});
  }
};

/// Decodes `chain` runs in each lane as if they were one. They are, as long as there is no escape: where
/// there is one, or the bits do not come out right, the lane's runs are decoded once more, each by itself.
/// Returns the bit behind the runs.
template <class Symbol>
uint64_t HuffmanDecoder<Symbol>::decode_chained(Work& work, size_t run, size_t chain,
                                                uint64_t first_bit) const {
  const size_t n = work.out.cols();
  Lane<Symbol> lanes[kLanes];
  uint64_t starts[kLanes + 1] = {first_bit};
  for (size_t k = 0; k < kLanes; ++k) {
    lanes[k] = {starts[k], work.end_of_room(k), 0};
    starts[k + 1] = starts[k] + work.bits_of(run + k * chain, chain);
  }
  const size_t stride = work.out.stride() * sizeof(Symbol);
  work.decode(chain * n, {work.out.row(run).data(), chain * stride}, lanes, kLanes);
  bool clean[kLanes];
  for (size_t k = 0; k < kLanes; ++k) {
    const bool escape =
        work.copy_and_find(lanes[k], chain, n, static_cast<Symbol>(book_.escape()), run + k * chain, 0);
    clean[k] =
        !(escape && book_.has_escape()) && end_of(lanes[k], chain * n, lengths_.data()) == starts[k + 1];
  }
  for (size_t k = 0; k < kLanes; ++k) {
    uint64_t bit = starts[k];
    for (size_t i = 0; i < chain && !clean[k]; i += kLanes)
      bit = decode_group(work, run + k * chain + i, std::min(chain - i, kLanes), bit);
  }
  return starts[kLanes];
}

/// Decodes up to kLanes runs, one in each lane; lanes that have none repeat the last one. Returns the bit
/// behind them.
template <class Symbol>
uint64_t HuffmanDecoder<Symbol>::decode_group(Work& work, size_t run, size_t count,
                                              uint64_t first_bit) const {
  const size_t n = work.out.cols();
  uint64_t starts[kLanes + 1] = {first_bit}, ends[kLanes];
  for (size_t k = 0; k < count; ++k) starts[k + 1] = starts[k] + work.run_bits[run + k];
  for (size_t k = 0; k < kLanes; ++k) ends[k] = starts[std::min(k, count - 1)];
  bool escapes[kLanes] = {};
  for (size_t first = 0; first < n; first += kPartSymbols) {
    const size_t part = std::min(n - first, kPartSymbols);
    Lane<Symbol> lanes[kLanes];
    for (size_t k = 0; k < kLanes; ++k) lanes[k] = {ends[k], work.end_of_room(k), 0};
    work.decode(part, {work.out.row(run).data() + first, work.out.stride() * sizeof(Symbol)}, lanes, count);
    for (size_t k = 0; k < (count == 1 ? 1 : kLanes); ++k) ends[k] = end_of(lanes[k], part, lengths_.data());
    for (size_t k = 0; k < count; ++k)
      escapes[k] |=
          work.copy_and_find(lanes[k], 1, part, static_cast<Symbol>(book_.escape()), run + k, first);
  }
  for (size_t k = 0; k < count; ++k)
    if ((escapes[k] && book_.has_escape()) || ends[k] != starts[k + 1])
      read_raw<Symbol>(book_, work.payload, starts[k], ends[k] - starts[k], work.run_bits[run + k],
                       work.first_run + run + k, work.out.row(run + k), work.escaped);
  return starts[count];
}

/// Runs that lie within the payload, first_run being the number of the first.
template <class Symbol>
void HuffmanDecoder<Symbol>::decode_rows(std::span<const uint8_t> payload, uint64_t first_bit,
                                         size_t first_run, std::span<const uint32_t> run_bits,
                                         MatrixView<Symbol> out, std::vector<EscapedValue>& escaped) const {
  Work work(payload, run_bits, out, escaped, {entries_.data(), window_}, first_run);
  const size_t n = out.cols();
  const size_t chain = n == 0 ? 0 : std::min(kPartSymbols / n, run_bits.size() / kLanes);
  size_t run = 0;
  uint64_t bit = first_bit;
  if constexpr (sizeof(Symbol) == 1)
    while (const size_t count = side_by_side_.runs_at_once(run_bits.size() - run, n)) {
      const auto bits = run_bits.subspan(run, count);
      for (const size_t other : side_by_side_.decode(payload, bit, bits, out.rows(run, count)))
        decode_group(work, run + other, 1, bit + work.bits_of(run, other));
      bit += work.bits_of(run, count);
      run += count;
    }
  if (chain > 1)
    for (; run + chain * kLanes <= run_bits.size(); run += chain * kLanes)
      bit = decode_chained(work, run, chain, bit);
  for (; run < run_bits.size(); run += kLanes)
    bit = decode_group(work, run, std::min(run_bits.size() - run, kLanes), bit);
}

template <class Symbol>
void HuffmanDecoder<Symbol>::decode_runs(std::span<const uint8_t> payload, uint64_t first_bit,
                                         std::span<const uint32_t> run_bits, MatrixView<Symbol> out,
                                         std::vector<EscapedValue>& escaped) const {
  if (!check_runs(book_, payload, first_bit, run_bits, out.rows(), out.cols())) return;
  decode_rows(Padded(payload), first_bit, 0, run_bits, out, escaped);
}

template <class Symbol>
void HuffmanDecoder<Symbol>::decode_columns(std::span<const uint8_t> payload, uint64_t first_bit,
                                            std::span<const uint32_t> run_bits, MatrixView<Symbol> out,
                                            std::vector<EscapedValue>& escaped) const {
  const size_t n = out.rows();
  if (!check_runs(book_, payload, first_bit, run_bits, out.cols(), n)) return;
  const Padded padded(payload);
  uint64_t bit = first_bit;
  const auto decode_as_rows = [&](size_t run, size_t count, uint64_t from) {
    Matrix<Symbol> rows(count, n);
    decode_rows(padded, from, run, run_bits.subspan(run, count), rows, escaped);
    transpose<Symbol>(rows, out.columns(run, count));
  };
  const auto bits_of = [&](size_t run, size_t count) {
    const auto bits = run_bits.subspan(run, count);
    return std::accumulate(bits.begin(), bits.end(), uint64_t{0});
  };
  size_t run = 0;
  if constexpr (sizeof(Symbol) == 1)
    while (const size_t count =
               side_by_side_.runs_at_once(run_bits.size() - run, n, SideBySideDecoder::Order::by_symbol)) {
      for (const size_t other :
           side_by_side_.decode(padded, bit, run_bits.subspan(run, count), out.columns(run, count),
                                SideBySideDecoder::Order::by_symbol))
        decode_as_rows(run + other, 1, bit + bits_of(run, other));
      bit += bits_of(run, count);
      run += count;
    }
  if (run < run_bits.size()) decode_as_rows(run, run_bits.size() - run, bit);
}

template <class Symbol>
HuffmanTreeWalk<Symbol>::HuffmanTreeWalk(const HuffmanBook& book) : book_(book), nodes_(1) {
  check_symbols<Symbol>(book);
  for (size_t symbol = 0; symbol < book.symbols(); ++symbol) {
    size_t node = 0;
    for (unsigned level = book.length(symbol); level-- > 0;) {
      const size_t bit = book.code(symbol) >> level & 1;
      if (nodes_[node].child[bit] == 0) {
        nodes_[node].child[bit] = static_cast<uint16_t>(nodes_.size());
        nodes_.emplace_back();
      }
      node = nodes_[node].child[bit];
    }
    if (book.length(symbol) == 0) continue;
    nodes_[node].is_symbol = 1;
    nodes_[node].symbol = static_cast<Symbol>(symbol);
  }
  if (book.num_codes() == 1) nodes_[0].child[1] = nodes_[0].child[0];
}

template <class Symbol>
void HuffmanTreeWalk<Symbol>::decode_runs(std::span<const uint8_t> payload, uint64_t first_bit,
                                          std::span<const uint32_t> run_bits, MatrixView<Symbol> out,
                                          std::vector<EscapedValue>& escaped) const {
  if (!check_runs(book_, payload, first_bit, run_bits, out.rows(), out.cols())) return;
  const size_t n = out.cols();
  uint64_t start = first_bit;
  for (size_t run = 0; run < run_bits.size(); ++run) {
    const std::span<Symbol> row = out.row(run);
    const uint64_t end = start + run_bits[run];
    uint64_t bit = start;
    size_t written = 0;
    unsigned node = 0;
    for (; written < n && bit < end; ++bit) {
      node = nodes_[node].child[payload[bit / 8] >> (7 - bit % 8) & 1];
      row[written] = nodes_[node].symbol;
      written += nodes_[node].is_symbol;
      node &= ~(0u - nodes_[node].is_symbol);
    }
    if (written < n) refuse(run, n, run_bits[run]);
    read_raw<Symbol>(book_, payload, start, bit - start, run_bits[run], run, row, escaped);
    start = end;
  }
}

template class HuffmanDecoder<uint8_t>;
template class HuffmanDecoder<uint16_t>;
template class HuffmanTreeWalk<uint8_t>;
template class HuffmanTreeWalk<uint16_t>;

}  // namespace kvcodec
