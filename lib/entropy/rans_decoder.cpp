#include "lib/entropy/rans_decoder.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec {
namespace {

using namespace rans_kernels;

static_assert(kTogether == RansDecoder<uint8_t>::kTogether);

constexpr size_t kStateBytes = kLanes * sizeof(uint32_t);

/// What the narrow table's fields hold.
constexpr unsigned kNarrowScale = 12;
constexpr size_t kNarrowSymbols = 256;
constexpr uint32_t kNarrowFrequency = 1u << 12;

uint32_t read_u32(const uint8_t* bytes) {
  return bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24;
}

[[noreturn]] void refuse(size_t segment, size_t symbols, uint32_t bytes) {
  throw bad_input("segment {}: its {} bytes do not hold {} symbols exactly", segment, bytes, symbols);
}

}  // namespace

template <class Symbol>
RansDecoder<Symbol>::RansDecoder(const RansModel& model) : model_(model) {
  if (model.symbols() > size_t{std::numeric_limits<Symbol>::max()} + 1)
    throw failed("a model of {} symbols does not fit symbols of {} bytes", model.symbols(), sizeof(Symbol));
  uint32_t largest = 0;
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol)
    largest = std::max(largest, model.frequency(symbol));
  if (largest == 0) return;
  const size_t slots = size_t{1} << model.scale();
  if (sizeof(Symbol) == 1 && model.scale() <= kNarrowScale && model.symbols() <= kNarrowSymbols &&
      largest < kNarrowFrequency) {
    narrow_.resize(slots);
    for (uint32_t symbol = 0; symbol < model.symbols(); ++symbol)
      for (uint32_t i = 0; i < model.frequency(symbol); ++i)
        narrow_[model.start(symbol) + i] = symbol | i << 8 | model.frequency(symbol) << 20;
    return;
  }
  symbols_.resize(slots + 1);  // the kernels read two at a time
  ranges_.resize(model.symbols());
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol) {
    std::fill_n(symbols_.begin() + ptrdiff_t{model.start(symbol)}, model.frequency(symbol),
                static_cast<uint16_t>(symbol));
    ranges_[symbol] = model.start(symbol) << 16 | (model.frequency(symbol) & 0xffff);
  }
}

/// What one call of decode_segments works on.
template <class Symbol>
struct RansDecoder<Symbol>::Work {
  std::span<const uint8_t> payload;
  std::span<const uint32_t> segment_bytes;
  MatrixView<Symbol> out;
  std::vector<EscapedValue>& escaped;
  DecodeTable table;
  std::vector<size_t> starts;  // first byte of each segment
};

/// Decodes up to kTogether segments: groups of 8 symbols by the kernels, as long as the payload has words to
/// read for the most that groups can take, the rest in finish().
template <class Symbol>
void RansDecoder<Symbol>::decode_group(Work& work, size_t segment, size_t count) const {
  const size_t groups = work.out.cols() / kLanes;
  Segment<Symbol> segments[kTogether];
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const bytes = work.payload.data() + work.starts[segment + i];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      segments[i].states[lane] = read_u32(bytes + 4 * lane);
      if (segments[i].states[lane] < kLowestState)
        refuse(segment + i, work.out.cols(), work.segment_bytes[segment + i]);
    }
    segments[i].words = bytes + kStateBytes;
    segments[i].out = work.out.row(segment + i).data();
  }
  const uint8_t* const end = work.payload.data() + work.payload.size();
  const auto decode = pick(scalar::decode<Symbol>, avx2::decode<Symbol>, avx512::decode<Symbol>);
  const auto advance = [&](Segment<Symbol>* first, size_t together) {
    for (size_t done = 0; done < groups;) {
      size_t safe = groups - done;
      for (size_t i = 0; i < together; ++i)
        safe = std::min(safe, static_cast<size_t>(end - first[i].words) / kGroupBytes);
      if (safe == 0) return;
      decode(work.table, first, together, safe);
      done += safe;
    }
  };
  if (count == kTogether)
    advance(segments, kTogether);
  else
    for (size_t i = 0; i < count; ++i) advance(segments + i, 1);
  for (size_t i = 0; i < count; ++i) {
    const auto done = static_cast<size_t>(segments[i].out - work.out.row(segment + i).data());
    finish(work, segment + i, done, segments[i].states, segments[i].words);
  }
}

/// What the kernels left: symbols from `done` on one by one, then the checks and the raw values.
template <class Symbol>
void RansDecoder<Symbol>::finish(Work& work, size_t segment, size_t done, uint32_t* states,
                                 const uint8_t* words) const {
  const std::span<Symbol> row = work.out.row(segment);
  const uint32_t bytes = work.segment_bytes[segment];
  const uint8_t* const end = work.payload.data() + work.starts[segment] + bytes;
  const uint32_t mask = (1u << work.table.scale) - 1;
  for (; done < row.size(); done += kLanes) {
    const size_t lanes = std::min(row.size() - done, kLanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      uint32_t& x = states[lane];
      const uint32_t slot = x & mask;
      const size_t symbol = work.table.narrow ? work.table.narrow[slot] & 0xff : work.table.symbols[slot];
      row[done + lane] = static_cast<Symbol>(symbol);
      x = model_.frequency(symbol) * (x >> work.table.scale) + slot - model_.start(symbol);
    }
    for (size_t lane = 0; lane < lanes; ++lane)
      if (states[lane] < kLowestState) {
        if (end - words < 2) refuse(segment, row.size(), bytes);
        states[lane] = states[lane] << 16 | words[0] | static_cast<uint32_t>(words[1]) << 8;
        words += 2;
      }
  }
  // The kernels may have gone on into the next segment.
  const bool at_rest = std::all_of(states, states + kLanes, [](uint32_t x) { return x == kLowestState; });
  if (words > end || !at_rest) refuse(segment, row.size(), bytes);
  const auto escape = static_cast<Symbol>(model_.escape());
  const uint64_t escapes = model_.has_escape() ? find_escapes<Symbol>(row, segment, escape, work.escaped) : 0;
  const std::span<const uint8_t> raw(words, end);
  const uint64_t raw_bits = escapes * model_.escape_bits();
  if (raw.size() != raw_bits / 8 + (raw_bits % 8 != 0)) refuse(segment, row.size(), bytes);
  BitReader reader(raw);
  for (EscapedValue& value : std::span(work.escaped).last(escapes))
    value.value = reader.get(model_.escape_bits());
}

template <class Symbol>
void RansDecoder<Symbol>::decode_segments(std::span<const uint8_t> payload,
                                          std::span<const uint32_t> segment_bytes, MatrixView<Symbol> out,
                                          std::vector<EscapedValue>& escaped) const {
  if (segment_bytes.size() != out.rows())
    throw failed("{} segments, but room for {}", segment_bytes.size(), out.rows());
  if (out.cols() > 0 && out.rows() > 0 && narrow_.empty() && symbols_.empty())
    throw bad_input("segments of {} symbols, but a model without frequencies", out.cols());
  const DecodeTable table{model_.scale(), narrow_.empty() ? nullptr : narrow_.data(), symbols_.data(),
                          ranges_.data()};
  Work work{payload, segment_bytes, out, escaped, table, {}};
  uint64_t end = 0;
  for (size_t i = 0; i < segment_bytes.size(); ++i) {
    if (segment_bytes[i] < kStateBytes) refuse(i, out.cols(), segment_bytes[i]);
    work.starts.push_back(end);
    end += segment_bytes[i];
  }
  if (end > payload.size()) throw bad_input("{} bytes of segments end before byte {}", payload.size(), end);
  for (size_t segment = 0; segment < segment_bytes.size(); segment += kTogether)
    decode_group(work, segment, std::min(segment_bytes.size() - segment, kTogether));
}

template class RansDecoder<uint8_t>;
template class RansDecoder<uint16_t>;

}  // namespace kvcodec
