#include "lib/codec/kvcomp_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/transpose.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/products.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::kvcomp {
namespace {

/// Where consecutive parts lie: part i begins where the parts before it end.
struct Places {
  uint64_t begin = 0;          ///< of the first part that is wanted
  std::vector<uint64_t> ends;  ///< of the parts wanted
  uint64_t at = 0;

  void skip(uint64_t size) { begin = at = checked_add(at, size); }
  void add(uint64_t size) { ends.push_back(at = checked_add(at, size)); }
  uint64_t start(size_t i) const { return (i == 0 ? begin : ends[i - 1]) - begin; }
  uint64_t size(size_t i) const { return ends[i] - (i == 0 ? begin : ends[i - 1]); }
  uint64_t total() const { return at - begin; }
};

BlockCoder read_coder(const StreamReader& document) {
  const uint64_t bytes = document.rows(kBook);
  // No book is longer: 5 bits of a length and 16 of a frequency for each symbol, and a header.
  if (bytes > 1024) throw bad_input("stream '{}': {} bytes are too many for a book", kBook, bytes);
  return with_context(fmt::format("stream '{}'", kBook),
                      [&] { return BlockCoder::read(document.read<uint8_t>(kBook, 0, bytes, 1)); });
}

void check_step(float step) {
  if (!std::isfinite(step) || step < 0) throw bad_input("stream '{}': {} is no step", kSteps, step);
}

/// Values stored exactly are added by themselves; their symbols are to add nothing.
void leave_out_exact(BlockScratch& scratch) {
  for (const EscapedValue& exact : scratch.exact) scratch.runs(exact.row, exact.position) = kZeroSymbol;
}

}  // namespace

BlockScratch::BlockScratch(const Layout& layout)
    : runs(layout.block.runs(), layout.block.run_length()),
      symbols(layout.block.by_channel ? layout.block.tokens : 0, layout.block.dims),
      origins(layout.origins()) {}

StoredBlocks::StoredBlocks(const Layout& layout, const StreamReader& document, uint64_t first, uint64_t last)
    : coder(read_coder(document)) {
  if (first == last) return;
  const size_t heads = layout.heads;
  const auto modes = document.read<uint8_t>(kModes, 0, last, heads);
  const auto coded_blocks = modes.size() - static_cast<size_t>(std::ranges::count(modes, kRawBlock));
  const auto sizes = document.read<uint32_t>(kSizes, 0, coded_blocks, 1);
  const auto origin_bits = layout.has_origins ? document.read<uint8_t>(kOriginBits, 0, coded_blocks, 1)
                                              : std::vector<uint8_t>(coded_blocks);
  Places payload_places, count_places, step_places, origin_places;
  blocks.resize((last - first) * heads);
  for (size_t i = 0, next = 0; i < modes.size(); ++i) {
    const bool coded = modes[i] != kRawBlock, wanted = i >= first * heads;
    const uint64_t size = coded ? sizes[next] : layout.block.raw_bytes();
    const uint8_t bits = coded ? origin_bits[next] : 0;
    next += coded;
    if (bits > 16)
      throw bad_input("stream '{}', row {}: {} bits; origins have 16", kOriginBits, next - 1, bits);
    const auto add = [&](Places& places, uint64_t bytes) { wanted ? places.add(bytes) : places.skip(bytes); };
    add(payload_places, size);
    add(count_places, with_context(fmt::format("stream '{}', row {}", kModes, i / heads),
                                   [&] { return coder.count_bytes(layout.block, modes[i]); }));
    add(origin_places, coded && layout.has_origins ? layout.origin_bytes(bits) : 0);
    if (!layout.shared_steps) {
      add(step_places, coded ? layout.steps() : 0);
    } else if (i % heads == 0) {  // with the first head of its row
      const auto of_row = std::span(modes).subspan(i, heads);
      const bool any = std::ranges::any_of(of_row, [](uint8_t mode) { return mode != kRawBlock; });
      add(step_places, any ? layout.steps() : 0);
    }
    if (wanted) {
      blocks[i - first * heads].mode = modes[i];
      blocks[i - first * heads].origin_bits = bits;
    }
  }
  payload = document.read<uint8_t>(kPayload, payload_places.begin, payload_places.total(), 1);
  counts = document.read<uint8_t>(kCounts, count_places.begin, count_places.total(), 1);
  if (layout.has_origins)
    origins = document.read<uint8_t>(kOrigins, origin_places.begin, origin_places.total(), 1);
  steps = document.read<uint16_t>(kSteps, step_places.begin, step_places.total(), 1);
  for (const uint16_t step : steps) check_step(f16_to_float(step));

  const auto part = [](const Places& places, size_t i) -> Part { return {places.start(i), places.size(i)}; };
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].payload = part(payload_places, i);
    blocks[i].counts = part(count_places, i);
    if (layout.has_origins) blocks[i].origins = part(origin_places, i);
    blocks[i].steps = part(step_places, layout.shared_steps ? i / heads : i);
  }
}

LoadedBlocks::LoadedBlocks(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
                           uint64_t last)
    : layout_(layout), storage_(storage), rows_(last - first), stored_(layout, document, first, last) {
  steps_.resize(stored_.steps.size());
  widen(DType::f16, stored_.steps, steps_);
  const auto part_of = [](const auto& values, StoredBlocks::Part part) {
    return std::span(values).subspan(part.start, part.size);
  };
  for (const StoredBlocks::Block& block : stored_.blocks)
    blocks_.push_back({block.mode, block.origin_bits, part_of(stored_.payload, block.payload),
                       part_of(stored_.counts, block.counts), part_of(stored_.origins, block.origins),
                       part_of(steps_, block.steps)});
}

/// The symbols of a block as rows of tokens: in scratch.symbols where runs are channels, else in
/// scratch.runs.
MatrixView<const uint8_t> LoadedBlocks::decode_tokens(const Block& block, BlockScratch& scratch) const {
  if (!layout_.block.by_channel || stored_.coder.coder() == Coder::rans) {
    decode_runs(block, scratch);
    if (!layout_.block.by_channel) return scratch.runs;
    transpose<uint8_t>(scratch.runs, scratch.symbols);
  } else {
    scratch.exact.clear();
    stored_.coder.decode_columns(layout_.block, block.mode, block.counts, block.payload, scratch.symbols,
                                 scratch.exact);
  }
  return scratch.symbols;
}

void LoadedBlocks::decode_runs(const Block& block, BlockScratch& scratch) const {
  if (stored_.coder.coder() == Coder::huffman) {
    scratch.exact.clear();
    return stored_.coder.decode_runs(layout_.block, block.mode, block.counts, block.payload, scratch.runs,
                                     scratch.exact);
  }
  const auto index = static_cast<size_t>(&block - blocks_.data());
  auto place = std::ranges::find(scratch.ahead, index);
  if (place == scratch.ahead.end()) {
    decode_ahead(index, scratch);
    place = scratch.ahead.begin();
  }
  const auto row = static_cast<size_t>(place - scratch.ahead.begin());
  std::ranges::copy(scratch.ahead_runs.row(row), scratch.runs.data());
  scratch.exact = scratch.ahead_exact[row];
}

/// Decodes a block coded with rANS, and with it some of those that come next.
void LoadedBlocks::decode_ahead(size_t index, BlockScratch& scratch) const {
  scratch.ahead = {index};
  std::vector<std::span<const uint8_t>> payloads{blocks_[index].payload};
  for (size_t next = index + scratch.stride; next < scratch.end && payloads.size() < BlockCoder::kTogether;
       next += scratch.stride) {
    if (blocks_[next].mode == kRawBlock) continue;
    scratch.ahead.push_back(next);
    payloads.push_back(blocks_[next].payload);
  }
  if (scratch.ahead_runs.rows() == 0)
    scratch.ahead_runs = Matrix<uint8_t>(BlockCoder::kTogether, layout_.block.symbols());
  for (auto& exact : scratch.ahead_exact) exact.clear();
  stored_.coder.decode_rans(layout_.block, payloads, scratch.ahead_runs.view().rows(0, payloads.size()),
                            scratch.ahead_exact);
}

void LoadedBlocks::read_origins(const Block& block, BlockScratch& scratch) const {
  if (!layout_.has_origins) return;
  std::vector<uint16_t> above(layout_.block.dims);
  unpack_bits(block.origins.subspan(2), 0, block.origin_bits, 0, std::span<uint16_t>(above));
  const auto least = static_cast<int16_t>(block.origins[0] | block.origins[1] << 8);
  for (size_t c = 0; c < above.size(); ++c) {
    const int origin = least + above[c];
    if (origin > INT16_MAX) throw bad_input("stream '{}': {} does not fit 16 bits", kOrigins, origin);
    scratch.origins[c] = static_cast<int16_t>(origin);
  }
}

float LoadedBlocks::exact_value(const EscapedValue& exact) const {
  const auto half = static_cast<uint16_t>(exact.value);
  float value = 0;
  widen(storage_, {&half, 1}, {&value, 1});
  if (!std::isfinite(value)) throw bad_input("stream '{}' holds a value that is not finite", kPayload);
  return value;
}

void LoadedBlocks::decode_raw(const Block& block, MatrixView<float> out) const {
  std::vector<uint16_t> halves(layout_.block.dims);
  for (size_t t = 0; t < out.rows(); ++t) {
    std::memcpy(halves.data(), block.payload.data() + t * halves.size() * 2, halves.size() * 2);
    widen(storage_, halves, out.row(t));
    for (const float value : out.row(t))
      if (!std::isfinite(value)) throw bad_input("stream '{}' holds a value that is not finite", kPayload);
  }
}

void LoadedBlocks::decode(size_t row, size_t head, BlockScratch& scratch, MatrixView<float> out) const {
  const Block& block = this->block(row, head);
  if (block.mode == kRawBlock) return decode_raw(block, out);
  const MatrixView<const uint8_t> symbols = decode_tokens(block, scratch);
  read_origins(block, scratch);
  dequantize_bounded(symbols, layout_.unit, block.steps, scratch.origins, out);
  for (const EscapedValue& exact : scratch.exact) {
    const float value = exact_value(exact);
    if (layout_.block.by_channel)
      out(exact.position, exact.row) = value;
    else
      out(exact.row, exact.position) = value;
  }
}

void LoadedBlocks::count_symbols(size_t row, size_t head, BlockScratch& scratch,
                                 std::span<uint64_t> counts) const {
  const Block& block = this->block(row, head);
  if (block.mode == kRawBlock) return;
  decode_runs(block, scratch);
  const std::vector<uint64_t> of_block =
      histogram(std::span<const uint8_t>(scratch.runs.data(), scratch.runs.size()), counts.size());
  for (size_t symbol = 0; symbol < counts.size(); ++symbol) counts[symbol] += of_block[symbol];
}

void LoadedBlocks::multiply_keys(size_t row, size_t head, MatrixView<const float> queries,
                                 BlockScratch& scratch, MatrixView<float> scores) const {
  const Block& block = this->block(row, head);
  const size_t n = queries.rows(), d = layout_.block.dims;
  if (block.mode == kRawBlock) {
    if (scratch.rows.size() == 0) scratch.rows = Matrix<float>(layout_.block.tokens, d);
    decode_raw(block, scratch.rows);
    return gemm(1, queries, Transpose::no, scratch.rows, Transpose::yes, 0, scores);
  }
  decode_runs(block, scratch);
  read_origins(block, scratch);
  if (scratch.vectors.rows() != n) scratch.vectors = Matrix<float>(n, d);
  for (size_t g = 0; g < n; ++g) {
    double base = 0;
    for (size_t c = 0; c < d; ++c) {
      const float vector = queries(g, c) * block.steps[layout_.unit == UnitShape::column ? c : 0];
      scratch.vectors(g, c) = vector;
      base += static_cast<double>(vector) * scratch.origins[c];
    }
    std::ranges::fill(scores.row(g), static_cast<float>(base));
  }
  leave_out_exact(scratch);
  multiply_symbols(scratch.runs, scratch.vectors, scores);
  for (const EscapedValue& exact : scratch.exact) {
    const float value = exact_value(exact);
    const size_t c = exact.position;
    for (size_t g = 0; g < n; ++g)
      scores(g, exact.row) +=
          queries(g, c) * value - scratch.vectors(g, c) * static_cast<float>(scratch.origins[c]);
  }
}

void LoadedBlocks::multiply_values(size_t row, size_t head, MatrixView<const float> weights,
                                   BlockScratch& scratch, MatrixView<float> out) const {
  const Block& block = this->block(row, head);
  const size_t n = weights.rows(), tokens = layout_.block.tokens;
  if (block.mode == kRawBlock) {
    if (scratch.rows.size() == 0) scratch.rows = Matrix<float>(tokens, layout_.block.dims);
    decode_raw(block, scratch.rows);
    return gemm(1, weights, Transpose::no, scratch.rows, Transpose::no, 1, out);
  }
  decode_runs(block, scratch);
  if (scratch.vectors.rows() != n) scratch.vectors = Matrix<float>(n, tokens);
  for (size_t g = 0; g < n; ++g)
    for (size_t t = 0; t < tokens; ++t) scratch.vectors(g, t) = weights(g, t) * block.steps[t];
  leave_out_exact(scratch);
  multiply_symbols(scratch.runs, scratch.vectors, out);
  for (const EscapedValue& exact : scratch.exact) {
    const float value = exact_value(exact);
    const size_t t = exact.position;
    for (size_t g = 0; g < n; ++g) out(g, exact.row) += weights(g, t) * value;
  }
}

}  // namespace kvcodec::kvcomp
