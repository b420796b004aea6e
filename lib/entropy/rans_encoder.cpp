#include "lib/entropy/rans_encoder.hpp"

#include <algorithm>
#include <bit>

#include "lib/core/error.hpp"
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec {
namespace {

using rans_kernels::kLanes;
using rans_kernels::kLowestState;

static_assert(std::endian::native == std::endian::little, "words are copied as they lie in memory");

__extension__ using Uint128 = unsigned __int128;

}  // namespace

RansEncoder::RansEncoder(std::span<const RansModel> models) {
  check_alike(models);
  escape_bits_ = models.front().escape_bits(), escape_ = models.front().alphabet();
  symbols_ = models.front().symbols();
  for (const RansModel& model : models) {
    const uint64_t whole = uint64_t{1} << model.scale();
    for (size_t symbol = 0; symbol < symbols_; ++symbol) {
      Step& step = steps_.emplace_back();
      const uint64_t frequency = model.frequency(symbol);
      if (frequency == 0) continue;
      // x' = floor(x / f) * M + x mod f + start = x + start + floor(x / f) * (M - f).
      step.limit = frequency << (32 - model.scale());
      step.complement = static_cast<uint32_t>(whole - frequency);
      step.bias = model.start(symbol);
      // 2^64 / f rounded up: its error times x < 2^32 stays below 1/f, so the high half of the product is
      // exact.
      step.reciprocal = ~uint64_t{0} / frequency + 1;
      if (frequency == 1) {
        // 2^64 does not fit. The largest number makes it x - 1 instead of x, and the bias mends that.
        step.reciprocal = ~uint64_t{0};
        step.bias += static_cast<uint32_t>(whole - 1);
      }
    }
  }
}

template <class Symbol>
void RansEncoder::encode(MatrixView<const Symbol> symbols, std::span<const RansRun> runs,
                         std::span<const uint32_t> raw, std::span<uint32_t> segment_bytes,
                         std::vector<uint8_t>& out) const {
  const size_t n = symbols.cols();
  check_runs(runs, steps_.size() / symbols_, n);
  if (n > kMaxSegmentSymbols)
    throw failed("a segment of {} symbols; at most {} are possible", n, kMaxSegmentSymbols);
  if (segment_bytes.size() != symbols.rows())
    throw failed("{} segments, but room for the bytes of {}", symbols.rows(), segment_bytes.size());
  std::vector<uint16_t> words(n + 1);  // at most one for each symbol, filled from the end
  for (size_t segment = 0; segment < symbols.rows(); ++segment) {
    const std::span<const Symbol> row = symbols.row(segment);
    size_t escapes = 0, begin = 0;
    for (const RansRun& run : runs) {
      const auto steps = this->steps(run.model);
      for (const Symbol symbol : row.subspan(begin, run.symbols)) {
        if (symbol >= symbols_ || steps[symbol].limit == 0)
          throw failed("the model has no frequency for symbol {}", symbol);
        escapes += symbol == escape_;
      }
      begin += run.symbols;
    }
    uint64_t states[kLanes];
    std::fill_n(states, kLanes, uint64_t{kLowestState});
    uint16_t* next_word = words.data() + n;
    const auto push = [&](uint64_t& state, const Step& step) {
      const bool full = state >= step.limit;
      *next_word = static_cast<uint16_t>(state);
      next_word -= full ? 1 : 0;
      const uint64_t x = full ? state >> 16 : state;
      const auto quotient = static_cast<uint64_t>(Uint128{x} * step.reciprocal >> 64);
      state = x + step.bias + quotient * step.complement;
    };
    // Backwards: the decoder takes the words and gives the symbols in the opposite order.
    size_t end = n;
    for (size_t r = runs.size(); r-- > 0;) {
      const auto steps = this->steps(runs[r].model);
      const std::span<const Symbol> of_run = row.subspan(end - runs[r].symbols, runs[r].symbols);
      const size_t groups = of_run.size() / kLanes;
      for (size_t i = of_run.size(); i > groups * kLanes; --i)
        push(states[(i - 1) % kLanes], steps[of_run[i - 1]]);
      for (size_t group = groups; group > 0; --group)
        for (size_t lane = kLanes; lane-- > 0;)
          push(states[lane], steps[of_run[(group - 1) * kLanes + lane]]);
      end -= of_run.size();
    }
    BitWriter raw_bits;
    if (escapes > raw.size()) throw failed("fewer raw values than escapes");
    for (const uint32_t value : raw.first(escapes)) {
      if (escape_bits_ < 32 && value >> escape_bits_ != 0)
        throw failed("raw value {} does not fit {} bits", value, escape_bits_);
      raw_bits.put(value, escape_bits_);
    }
    raw = raw.subspan(escapes);
    const size_t start = out.size();
    for (const uint64_t state : states)
      for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<uint8_t>(state >> shift));
    const auto word_bytes = std::as_bytes(std::span(next_word + 1, words.data() + n + 1));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(word_bytes.data());
    out.insert(out.end(), bytes, bytes + word_bytes.size());
    const std::vector<uint8_t> tail = raw_bits.finish();
    out.insert(out.end(), tail.begin(), tail.end());
    segment_bytes[segment] = static_cast<uint32_t>(out.size() - start);
  }
  if (!raw.empty()) throw failed("{} more raw values than escapes", raw.size());
}

void RansEncoder::encode_segments(MatrixView<const uint8_t> symbols, std::span<const uint32_t> raw,
                                  std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out) const {
  const RansRun run{0, symbols.cols()};
  encode(symbols, {&run, 1}, raw, segment_bytes, out);
}
void RansEncoder::encode_segments(MatrixView<const uint16_t> symbols, std::span<const uint32_t> raw,
                                  std::span<uint32_t> segment_bytes, std::vector<uint8_t>& out) const {
  const RansRun run{0, symbols.cols()};
  encode(symbols, {&run, 1}, raw, segment_bytes, out);
}
void RansEncoder::encode_segments(MatrixView<const uint8_t> symbols, std::span<const RansRun> runs,
                                  std::span<const uint32_t> raw, std::span<uint32_t> segment_bytes,
                                  std::vector<uint8_t>& out) const {
  encode(symbols, runs, raw, segment_bytes, out);
}

}  // namespace kvcodec
