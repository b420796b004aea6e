#include "lib/entropy/huffman_decoder.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/huffman_kernels_body.hpp"

namespace kvcodec {

const huffman_kernels::Table& huffman_kernels::scalar::table() { return kTable; }

using namespace huffman_kernels;

namespace {

static_assert(kWindow == kMaxCodeLength);

const Table& kernels() { return pick(scalar::table, avx2::table)(); }

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

bool HuffmanDecoder::has_escape(std::span<const uint8_t> symbols) const {
  if (!book_.has_escape()) return false;
  const auto escape = static_cast<uint8_t>(book_.escape());
  uint8_t any = 0;  // bytes and no early exit, so that it is done in vectors
  for (const uint8_t symbol : symbols) any |= static_cast<uint8_t>(symbol == escape);
  return any != 0;
}

/// Decodes the first runs, per_lane of them in each lane as if they were one. They are, as long as there is no
/// escape: where there is one, or the bits do not come out right, the lane's runs are decoded once more, each
/// by itself. Returns how many.
size_t HuffmanDecoder::decode_joined(Work& work, size_t per_lane) const {
  const size_t symbols = per_lane * work.out.cols();
  Lane lanes[kLanes];
  uint64_t starts[kLanes + 1] = {work.bit};
  for (size_t k = 0; k < kLanes; ++k) {
    uint8_t* const out = work.out.row(k * per_lane).data();
    lanes[k] = {starts[k], out, out + symbols};
    starts[k + 1] = starts[k] + work.bits_of(k * per_lane, per_lane);
  }
  kernels().decode_lanes(entries_.data(), work.payload.data(), work.payload.size(), lanes);
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
  kernels().decode_lane(entries_.data(), work.payload.data(), work.payload.size(), &lane);
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

}  // namespace kvcodec
