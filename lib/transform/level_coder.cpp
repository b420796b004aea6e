#include "lib/transform/level_coder.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr uint8_t kEscape = kLevelSymbols;

uint32_t zigzag(int32_t value) {
  return static_cast<uint32_t>(value) << 1 ^ static_cast<uint32_t>(value >> 31);
}

/// What an escape holds, with the low bits that belong to it. Throws Error(bad_input) for levels that are too large.
int32_t escaped_level(uint32_t value, unsigned shift, uint32_t low_bits) {
  const int64_t high = from_zigzag(value), level = high * (int64_t{1} << shift) + low_bits;
  constexpr int64_t kMost = 1 << (kEscapedBits - 1);
  if (level <= -kMost || level >= kMost)
    throw bad_input("an escape holds {}, and its level is {}; sizes are below {}", high, level, kMost);
  return static_cast<int32_t>(level);
}

}  // namespace

LevelCoder::LevelCoder(const LevelTables& tables, std::vector<uint8_t> classes)
    : tables_(tables), classes_(std::move(classes)) {
  for (const uint8_t level_class : classes_) {
    if (level_class >= kLevelClasses) throw failed("a component of class {}", level_class);
    low_bits_ += shift_of_class(level_class);
  }
}

/// Neighbours of one class are one run if their symbols fill whole groups of lanes, and so lie as they would in one.
std::vector<RansRun> LevelCoder::runs(size_t tokens) const {
  std::vector<RansRun> runs;
  for (const uint8_t level_class : classes_)
    if (tokens % 8 == 0 && !runs.empty() && runs.back().model == level_class)
      runs.back().symbols += tokens;
    else
      runs.push_back({level_class, tokens});
  return runs;
}

uint64_t LevelCoder::low_bytes(size_t tokens) const {
  return checked_mul(low_bits_, tokens) / 8 + (low_bits_ * tokens % 8 != 0);
}

uint32_t LevelCoder::encode(MatrixView<const int32_t> levels, std::vector<uint8_t>& out) const {
  const size_t tokens = levels.cols(), start = out.size();
  if (levels.rows() != components())
    throw failed("levels of {} components, not {}", levels.rows(), components());
  std::vector<uint8_t> symbols(components() * tokens);
  std::vector<uint32_t> escaped;
  BitWriter low;
  for (size_t i = 0; i < components(); ++i) {
    const unsigned shift = shift_of_class(classes_[i]);
    uint8_t* const of_component = symbols.data() + i * tokens;
    const std::span<const int32_t> row = levels.row(i);
    const RansModel& model = tables_[classes_[i]].model;
    for (size_t t = 0; t < tokens; ++t) {
      const int32_t high = row[t] >> shift;
      const bool small = std::abs(high) <= kLargestSymbol;
      const auto symbol = static_cast<size_t>(std::max(high + kLargestSymbol, 0));
      if (small && model.frequency(symbol) > 0) {
        of_component[t] = static_cast<uint8_t>(symbol);
      } else {
        of_component[t] = kEscape;
        escaped.push_back(zigzag(high));
      }
      if (shift > 0) low.put(static_cast<uint32_t>(row[t]), shift);
    }
  }
  uint32_t segment_bytes = 0;
  tables_.symbol_coder().encoder.encode_segments(MatrixView<const uint8_t>(symbols.data(), 1, symbols.size()),
                                                 runs(tokens), escaped, {&segment_bytes, 1}, out);
  const std::vector<uint8_t> low_bytes = low.finish();
  out.insert(out.end(), low_bytes.begin(), low_bytes.end());
  if (out.size() - start > std::numeric_limits<uint32_t>::max())
    throw failed("a block of {} bytes", out.size() - start);
  return static_cast<uint32_t>(out.size() - start);
}

void LevelCoder::decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes,
                        size_t tokens, MatrixView<int32_t> levels) const {
  if (levels.rows() != components() || levels.cols() != block_bytes.size() * tokens)
    throw failed("room for levels ({}, {}) of {} blocks of {} tokens", levels.rows(), levels.cols(),
                 block_bytes.size(), tokens);
  constexpr size_t kTogether = RansDecoder<uint8_t>::kTogether;
  const std::vector<RansRun> runs = this->runs(tokens);
  const uint64_t low = low_bytes(tokens);
  const RansDecoder<uint8_t>& decoder = tables_.symbol_coder().decoder;
  uint64_t begin = 0;
  Matrix<uint8_t> symbols(std::min(kTogether, block_bytes.size()), components() * tokens);
  std::vector<uint8_t> segments;
  for (size_t first = 0; first < block_bytes.size(); first += kTogether) {
    const size_t count = std::min(kTogether, block_bytes.size() - first);
    // Segments one behind the other, without the low bits between them.
    segments.clear();
    std::vector<uint32_t> segment_bytes;
    std::vector<std::span<const uint8_t>> lows;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bytes = block_bytes[first + i];
      if (bytes < low || bytes > payload.size() - begin)
        throw bad_input("block {}: {} bytes; {} are there, and {} are low bits", first + i, bytes,
                        payload.size() - begin, low);
      const auto block = payload.subspan(begin, bytes);
      segment_bytes.push_back(static_cast<uint32_t>(bytes - low));
      const auto segment = block.first(bytes - low);
      segments.insert(segments.end(), segment.begin(), segment.end());
      lows.push_back(block.last(low));
      begin += bytes;
    }
    std::vector<EscapedValue> escaped;
    decoder.decode_segments(segments, segment_bytes, runs, symbols.view().rows(0, count), escaped);
    for (size_t i = 0; i < count; ++i) {
      const std::span<const uint8_t> row = symbols.row(i);
      BitReader bits(lows[i]);
      size_t next = 0;
      while (next < escaped.size() && escaped[next].row < i) ++next;
      for (size_t c = 0; c < components(); ++c) {
        const unsigned shift = shift_of_class(classes_[c]);
        int32_t* const out = levels.row(c).data() + (first + i) * tokens;
        for (size_t t = 0; t < tokens; ++t) {
          const auto high = static_cast<uint32_t>(row[c * tokens + t] - kLargestSymbol);
          out[t] = static_cast<int32_t>(shift == 0 ? high : high << shift | bits.get(shift));
        }
        for (; next < escaped.size() && escaped[next].row == i && escaped[next].position < (c + 1) * tokens;
             ++next) {
          int32_t& level = out[escaped[next].position - c * tokens];
          level =
              escaped_level(escaped[next].value, shift, static_cast<uint32_t>(level) & ((1u << shift) - 1));
        }
      }
      if (low > 0 && (lows[i].back() & ((1u << (low * 8 - low_bits_ * tokens)) - 1)) != 0)
        throw bad_input("block {}: bits behind its last low bits are not 0", first + i);
    }
  }
}

}  // namespace kvcodec
