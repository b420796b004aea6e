#include "lib/kvcomp/codec/encode.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/codec/reader.hpp"
#include "lib/kvcomp/codec/rows.hpp"

namespace kvcodec::kvcomp {
namespace {

/// One coded block of one head, and what belongs to it.
struct HeadBlock {
  CodedBlock coded;
  uint8_t origin_bits = 0;
  std::vector<uint8_t> origins;
};

/// Coded block rows: their blocks, row after row, head after head, and their steps.
struct EncodedRows {
  std::vector<HeadBlock> blocks;
  std::vector<float> steps;  // (rows, row_steps)
};

HeadBlock encode_head(const BlockCoder& coder, const Layout& layout, MatrixView<const uint8_t> symbols,
                      MatrixView<const uint16_t> values, std::span<const int16_t> origins) {
  HeadBlock block;
  if (layout.has_origins) {
    const auto [least, most] = std::ranges::minmax(origins);
    block.origin_bits = static_cast<uint8_t>(index_bits(static_cast<uint64_t>(most - least) + 1));
    block.origins.resize(layout.origin_bytes(block.origin_bits));
    block.origins[0] = static_cast<uint8_t>(least);
    block.origins[1] = static_cast<uint8_t>(least >> 8);
    std::vector<uint16_t> above(origins.size());
    for (size_t c = 0; c < origins.size(); ++c) above[c] = static_cast<uint16_t>(origins[c] - least);
    pack_bits(std::span<const uint16_t>(above), block.origin_bits, 0, std::span(block.origins).subspan(2));
  }
  // What a raw block goes without: its size, steps, origins and their bits.
  const size_t side_bytes = 4 + 2 * layout.steps() + (layout.has_origins ? 1 + block.origins.size() : 0);
  block.coded = coder.encode(layout.block, symbols, values, side_bytes);
  if (block.coded.mode == kRawBlock) block.origins.clear();
  return block;
}

/// Blocks as they lie in the streams.
EncodedBlocks in_streams(const Layout& layout, const EncodedRows& rows) {
  EncodedBlocks out;
  std::vector<float> kept_steps;
  for (size_t i = 0; i * layout.heads < rows.blocks.size(); ++i) {
    bool any_coded = false;
    for (size_t head = 0; head < layout.heads; ++head) {
      const HeadBlock& block = rows.blocks[i * layout.heads + head];
      const bool coded = block.coded.mode != kRawBlock;
      out.modes.push_back(block.coded.mode);
      if (coded) out.sizes.push_back(static_cast<uint32_t>(block.coded.payload.size()));
      out.counts.insert(out.counts.end(), block.coded.counts.begin(), block.coded.counts.end());
      out.payload.insert(out.payload.end(), block.coded.payload.begin(), block.coded.payload.end());
      if (coded && layout.has_origins) out.origin_bits.push_back(block.origin_bits);
      out.origins.insert(out.origins.end(), block.origins.begin(), block.origins.end());
      const auto first = rows.steps.begin() + static_cast<ptrdiff_t>(i * layout.row_steps());
      if (coded && !layout.shared_steps)
        kept_steps.insert(kept_steps.end(), first + static_cast<ptrdiff_t>(head * layout.steps()),
                          first + static_cast<ptrdiff_t>((head + 1) * layout.steps()));
      if (coded && layout.shared_steps && !any_coded)
        kept_steps.insert(kept_steps.end(), first, first + static_cast<ptrdiff_t>(layout.row_steps()));
      any_coded |= coded;
    }
  }
  out.steps.resize(kept_steps.size());
  narrow(DType::f16, kept_steps, out.steps);
  return out;
}

void append_blocks(const Layout& layout, const BlockCoder& coder, const EncodedBlocks& blocks,
                   StreamStore& document) {
  store_places(layout, coder, blocks, document);
  document.append_values<uint8_t>(kModes, blocks.modes);
  document.append_values<uint32_t>(kSizes, blocks.sizes);
  document.append_values<uint8_t>(kCounts, blocks.counts);
  document.append_values<uint8_t>(kPayload, blocks.payload);
  document.append_values<uint16_t>(kSteps, blocks.steps);
  if (layout.has_origins) {
    document.append_values<uint8_t>(kOriginBits, blocks.origin_bits);
    document.append_values<uint8_t>(kOrigins, blocks.origins);
  }
}

/// The first `rows` block rows of the queue, with the document's book and limits.
EncodedBlocks encode_rows(const Quantizer& quantizer, const BlockCoder& coder, const TokenQueue& queue,
                          size_t rows, const StreamReader& document) {
  const Layout& layout = quantizer.layout();
  const size_t width = layout.width(), d = layout.block.dims, tokens = layout.block.tokens;
  if (const BlockEngine* device = quantizer.device()) {
    Matrix<uint16_t> values(rows * tokens, width);
    queue.read(0, {values.data(), values.size()});
    if (auto blocks = device->encode(layout, quantizer.storage(), quantizer.bound(), coder, values))
      return std::move(*blocks);
  }
  const auto limits =
      quantizer.has_limits() ? document.read<float>(kLimits, 0, 1, quantizer.limits()) : std::vector<float>();
  EncodedRows out{.blocks = std::vector<HeadBlock>(rows * layout.heads),
                  .steps = std::vector<float>(rows * layout.row_steps())};
  std::vector<std::optional<RowScratch>> scratch(static_cast<size_t>(num_threads()));
  parallel_for(rows, 1, [&](size_t i, size_t, int worker) {
    auto& row = scratch[static_cast<size_t>(worker)];
    if (!row) row.emplace(layout, tokens);
    row->read(queue, i * tokens);
    quantizer.quantize(limits, row->values,
                       std::span(out.steps).subspan(i * layout.row_steps(), layout.row_steps()), row->origins,
                       row->symbols);
    const MatrixView<const uint16_t> halves(row->halves.data(), tokens, width);
    for (size_t head = 0; head < layout.heads; ++head)
      out.blocks[i * layout.heads + head] =
          encode_head(coder, layout, row->symbols.view().columns(head * d, d), halves.columns(head * d, d),
                      std::span(row->origins).subspan(head * layout.origins(), layout.origins()));
  });
  return in_streams(layout, out);
}

}  // namespace

void append_rows(const Quantizer& quantizer, MatrixView<const float> rows, StreamStore& document) {
  const Layout& layout = quantizer.layout();
  const DType storage = quantizer.storage();
  const size_t block = layout.block.tokens;
  const uint64_t waiting = document.rows(kTail);
  const auto blocks = layout.pays ? static_cast<size_t>((waiting + rows.rows()) / block) : 0;
  if (blocks == 0) return document.append_values<uint16_t>(kTail, to_storage(storage, rows));

  const std::vector<uint16_t> tail = document.read<uint16_t>(kTail, 0, waiting, layout.width());
  const TokenQueue queue(storage, tail, rows);
  const BlockCoder coder = read_coder(document);
  const EncodedBlocks encoded = encode_rows(quantizer, coder, queue, blocks, document);
  const std::vector<uint16_t> rest = queue.from(blocks * block);
  append_blocks(layout, coder, encoded, document);
  document.truncate(kTail, 0);
  document.append_values<uint16_t>(kTail, rest);
}

}  // namespace kvcodec::kvcomp
