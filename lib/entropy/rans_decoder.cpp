#include "lib/entropy/rans_decoder.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec {

template <class Symbol>
void rans_kernels::scalar::decode(const DecodeTable&, Segment<Symbol>*, size_t, size_t) {}

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
RansDecoder<Symbol>::Tables::Tables(const RansModel& model) {
  if (model.symbols() > size_t{std::numeric_limits<Symbol>::max()} + 1)
    throw failed("a model of {} symbols does not fit symbols of {} bytes", model.symbols(), sizeof(Symbol));
  uint32_t largest = 0;
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol)
    largest = std::max(largest, model.frequency(symbol));
  if (largest == 0) return;
  const size_t slots = size_t{1} << model.scale();
  if (sizeof(Symbol) == 1 && model.scale() <= kNarrowScale && model.symbols() <= kNarrowSymbols &&
      largest < kNarrowFrequency) {
    narrow.resize(slots);
    for (uint32_t symbol = 0; symbol < model.symbols(); ++symbol)
      for (uint32_t i = 0; i < model.frequency(symbol); ++i)
        narrow[model.start(symbol) + i] = symbol | i << 8 | model.frequency(symbol) << 20;
    return;
  }
  symbols.resize(slots + 1);  // the kernels read two at a time
  ranges.resize(model.symbols());
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol) {
    std::fill_n(symbols.begin() + ptrdiff_t{model.start(symbol)}, model.frequency(symbol),
                static_cast<uint16_t>(symbol));
    ranges[symbol] = model.start(symbol) << 16 | (model.frequency(symbol) & 0xffff);
  }
}

template <class Symbol>
RansDecoder<Symbol>::RansDecoder(std::span<const RansModel> models) : models_(models.begin(), models.end()) {
  check_alike(models);
  for (const RansModel& model : models_) tables_.emplace_back(model);
}

/// What one call of decode_segments works on.
template <class Symbol>
struct RansDecoder<Symbol>::Work {
  std::span<const uint8_t> payload;
  std::span<const uint32_t> segment_bytes;
  std::span<const RansRun> runs;
  MatrixView<Symbol> out;
  std::vector<EscapedValue>& escaped;
  std::vector<size_t> starts = {};  // first byte of each segment

  const uint8_t* end_of(size_t segment) const {
    return payload.data() + starts[segment] + segment_bytes[segment];
  }
  [[noreturn]] void refuse(size_t segment) const {
    kvcodec::refuse(segment, out.cols(), segment_bytes[segment]);
  }
};

/// Decodes up to kTogether segments, run by run: groups of 8 symbols by the kernels, as long as the payload has
/// words to read for the most that groups can take, the rest in finish_run().
template <class Symbol>
void RansDecoder<Symbol>::decode_group(Work& work, size_t segment, size_t count) const {
  Segment<Symbol> segments[kTogether];
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const bytes = work.payload.data() + work.starts[segment + i];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      segments[i].states[lane] = read_u32(bytes + 4 * lane);
      if (segments[i].states[lane] < kLowestState) work.refuse(segment + i);
    }
    segments[i].words = bytes + kStateBytes;
    segments[i].out = work.out.row(segment + i).data();
  }
  const uint8_t* const end = work.payload.data() + work.payload.size();
  const auto decode = pick(scalar::decode<Symbol>, avx2::decode<Symbol>);
  const auto advance = [&](const DecodeTable& table, Segment<Symbol>* first, size_t together, size_t groups) {
    for (size_t done = 0; done < groups;) {
      size_t safe = groups - done;
      for (size_t i = 0; i < together; ++i)
        safe = std::min(safe, static_cast<size_t>(end - std::min(end, first[i].words)) / kGroupBytes);
      if (safe == 0) return;
      decode(table, first, together, safe);
      done += safe;
    }
  };
  for (size_t begin = 0; const RansRun& run : work.runs) {
    const Tables& tables = tables_[run.model];
    const DecodeTable table{models_[run.model].scale(),
                            tables.narrow.empty() ? nullptr : tables.narrow.data(), tables.symbols.data(),
                            tables.ranges.data()};
    if (run.symbols > 0 && tables.narrow.empty() && tables.symbols.empty())
      throw bad_input("segments of {} symbols, but a model without frequencies", work.out.cols());
    if (count == kTogether)
      advance(table, segments, kTogether, run.symbols / kLanes);
    else
      for (size_t i = 0; i < count; ++i) advance(table, segments + i, 1, run.symbols / kLanes);
    for (size_t i = 0; i < count; ++i) finish_run(work, run, begin, segment + i, segments[i]);
    begin += run.symbols;
  }
  for (size_t i = 0; i < count; ++i) finish(work, segment + i, segments[i]);
}

/// What the kernels left of a run that begins with symbol `begin`, symbol by symbol.
template <class Symbol>
void RansDecoder<Symbol>::finish_run(const Work& work, const RansRun& run, size_t begin, size_t segment,
                                     Segment<Symbol>& at) const {
  const std::span<Symbol> row = work.out.row(segment).subspan(begin, run.symbols);
  const RansModel& model = models_[run.model];
  const Tables& tables = tables_[run.model];
  const uint32_t mask = (1u << model.scale()) - 1;
  const uint8_t* const end = work.end_of(segment);
  for (auto done = static_cast<size_t>(at.out - row.data()); done < row.size(); done += kLanes) {
    const size_t lanes = std::min(row.size() - done, kLanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      uint32_t& x = at.states[lane];
      const uint32_t slot = x & mask;
      const size_t symbol = tables.narrow.empty() ? tables.symbols[slot] : tables.narrow[slot] & 0xff;
      row[done + lane] = static_cast<Symbol>(symbol);
      x = model.frequency(symbol) * (x >> model.scale()) + slot - model.start(symbol);
    }
    for (size_t lane = 0; lane < lanes; ++lane)
      if (at.states[lane] < kLowestState) {
        if (at.words >= end || end - at.words < 2) work.refuse(segment);
        at.states[lane] = at.states[lane] << 16 | at.words[0] | static_cast<uint32_t>(at.words[1]) << 8;
        at.words += 2;
      }
  }
  at.out = row.data() + row.size();
}

/// The checks and the raw values, once all symbols are decoded.
template <class Symbol>
void RansDecoder<Symbol>::finish(Work& work, size_t segment, const Segment<Symbol>& at) const {
  const uint8_t* const end = work.end_of(segment);
  // The kernels may have gone on into the next segment.
  const bool at_rest =
      std::all_of(at.states, at.states + kLanes, [](uint32_t x) { return x == kLowestState; });
  if (at.words > end || !at_rest) work.refuse(segment);
  const RansModel& model = models_.front();
  const auto escape = static_cast<Symbol>(model.escape());
  const uint64_t escapes =
      model.has_escape() ? find_escapes<Symbol>(work.out.row(segment), segment, escape, work.escaped) : 0;
  const std::span<const uint8_t> raw(at.words, end);
  const uint64_t raw_bits = escapes * model.escape_bits();
  if (raw.size() != raw_bits / 8 + (raw_bits % 8 != 0)) work.refuse(segment);
  BitReader reader(raw);
  for (EscapedValue& value : std::span(work.escaped).last(escapes))
    value.value = reader.get(model.escape_bits());
}

template <class Symbol>
void RansDecoder<Symbol>::decode_segments(std::span<const uint8_t> payload,
                                          std::span<const uint32_t> segment_bytes, MatrixView<Symbol> out,
                                          std::vector<EscapedValue>& escaped) const {
  const RansRun run{0, out.cols()};
  decode_segments(payload, segment_bytes, {&run, 1}, out, escaped);
}

template <class Symbol>
void RansDecoder<Symbol>::decode_segments(std::span<const uint8_t> payload,
                                          std::span<const uint32_t> segment_bytes,
                                          std::span<const RansRun> runs, MatrixView<Symbol> out,
                                          std::vector<EscapedValue>& escaped) const {
  check_runs(runs, models_.size(), out.cols());
  if (segment_bytes.size() != out.rows())
    throw failed("{} segments, but room for {}", segment_bytes.size(), out.rows());
  Work work{payload, segment_bytes, runs, out, escaped};
  uint64_t end = 0;
  for (size_t i = 0; i < segment_bytes.size(); ++i) {
    if (segment_bytes[i] < kStateBytes) work.refuse(i);
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
