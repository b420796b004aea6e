#include "lib/kvcomp/codec/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/transpose.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/codec/reader.hpp"
#include "lib/kvcomp/products.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::kvcomp {
namespace {

/// Makes the symbols of values stored exactly add nothing to a product: the caller adds these values itself.
void leave_out_exact(BlockScratch& scratch) {
  for (const EscapedValue& exact : scratch.exact) scratch.runs(exact.row, exact.position) = kZeroSymbol;
}

}  // namespace

BlockScratch::BlockScratch(const Layout& layout)
    : runs(layout.block.runs(), layout.block.run_length()),
      symbols(layout.block.by_channel ? layout.block.tokens : 0, layout.block.dims),
      origins(layout.origins()) {}

LoadedBlocks::LoadedBlocks(const Layout& layout, DType storage, StoredBlocks stored)
    : layout_(layout), storage_(storage), stored_(std::move(stored)) {
  steps_.resize(stored_.steps.size());
  widen(DType::f16, stored_.steps, steps_);
  const auto part_of = [](const auto& values, StoredBlocks::Part part) {
    return std::span(values).subspan(part.start, part.size);
  };
  blocks_.reserve(stored_.blocks.size());
  for (const StoredBlocks::Block& block : stored_.blocks)
    blocks_.push_back({block.mode, block.origin_bits, part_of(stored_.payload, block.payload),
                       part_of(stored_.counts, block.counts), part_of(stored_.origins, block.origins),
                       part_of(steps_, block.steps)});
}

/// The symbols of a block as rows of tokens: in scratch.symbols where runs are channels, else in
/// scratch.runs.
MatrixView<const uint8_t> LoadedBlocks::decode_tokens(const Block& block, BlockScratch& scratch) const {
  decode_runs(block, scratch);
  if (!layout_.block.by_channel) return scratch.runs;
  transpose<uint8_t>(scratch.runs, scratch.symbols);
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
