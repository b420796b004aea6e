#include "lib/kvcomp/codec/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/products.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::kvcomp {
namespace {

constexpr std::string_view kPartStreams[] = {kSizes, kCounts, kPayload, kSteps, kOrigins};

/// Blocks from one row of `places` to the next: whole block rows.
uint64_t interval_blocks(const Layout& layout) { return place_interval(layout.block.tokens) * layout.heads; }

/// Counts the rows that blocks take of each of part_streams(), block after block.
class BlockRows {
 public:
  BlockRows(const Layout& layout, const BlockCoder& coder) : layout_(layout), coder_(coder) {}

  /// Those of the next block. size, bits: its rows of `sizes` and `origin_bits`, which count if it is coded.
  /// modes_of_row: the modes of all heads of its block row.
  /// Throws Error(bad_input) for a mode that no encoder writes.
  std::span<const uint64_t> of(uint8_t mode, uint64_t size, uint8_t bits,
                               std::span<const uint8_t> modes_of_row, size_t head) {
    const bool coded = mode != kRawBlock;
    rows_[size_part] = coded;
    rows_[count_part] = coder_.count_bytes(layout_.block, mode);
    rows_[payload_part] = coded ? size : layout_.block.raw_bytes();
    // Steps that heads share are stored with the first head.
    const auto is_coded = [](uint8_t other) { return other != kRawBlock; };
    const bool has_steps =
        layout_.shared_steps ? head == 0 && std::ranges::any_of(modes_of_row, is_coded) : coded;
    rows_[step_part] = has_steps ? layout_.steps() : 0;
    rows_[origin_part] = coded && layout_.has_origins ? layout_.origin_bytes(bits) : 0;
    return std::span(rows_).first(part_streams(layout_).size());
  }

 private:
  const Layout& layout_;
  const BlockCoder& coder_;
  std::array<uint64_t, std::size(kPartStreams)> rows_{};
};

/// Makes the symbols of values stored exactly add nothing to a product: the caller adds these values itself.
void leave_out_exact(BlockScratch& scratch) {
  for (const EscapedValue& exact : scratch.exact) scratch.runs(exact.row, exact.position) = kZeroSymbol;
}

}  // namespace

std::span<const std::string_view> part_streams(const Layout& layout) {
  return std::span(kPartStreams).first(layout.has_origins ? std::size(kPartStreams) : origin_part);
}

uint64_t tokens_of(const Layout& layout, const StreamReader& document) {
  const uint64_t rows = document.rows(kModes), waiting = document.rows(kTail);
  const uint64_t tokens = checked_add(checked_mul(rows, layout.block.tokens), waiting);
  if (rows != layout.block_rows_of(tokens))
    throw bad_input("stream '{}' has {} tokens beside {} block rows; {} tokens have {}", kTail, waiting, rows,
                    tokens, layout.block_rows_of(tokens));
  return tokens;
}

BlockCoder read_coder(const StreamReader& document) {
  const uint64_t bytes = document.rows(kBook);
  // No book is longer: 5 bits of a length and 16 of a frequency for each symbol, and a header.
  if (bytes > 1024) throw bad_input("stream '{}': {} bytes are too many for a book", kBook, bytes);
  return with_context(fmt::format("stream '{}'", kBook),
                      [&] { return BlockCoder::read(document.read<uint8_t>(kBook, 0, bytes, 1)); });
}

void store_places(const Layout& layout, const BlockCoder& coder, const EncodedBlocks& blocks,
                  StreamStore& document) {
  PlaceWriter places(part_streams(layout), interval_blocks(layout), document,
                     document.rows(kModes) * layout.heads);
  BlockRows rows(layout, coder);
  size_t coded = 0;
  for (size_t i = 0; i < blocks.modes.size(); ++i) {
    const size_t head = i % layout.heads;
    const bool is_coded = blocks.modes[i] != kRawBlock;
    places.add(rows.of(blocks.modes[i], is_coded ? blocks.sizes[coded] : 0,
                       is_coded && layout.has_origins ? blocks.origin_bits[coded] : uint8_t{0},
                       std::span(blocks.modes).subspan(i - head, layout.heads), head));
    coded += is_coded;
  }
  places.store(document);
}

BlockReader::BlockReader(const Layout& layout, const StreamReader& document)
    : layout_(layout),
      document_(document),
      places_({part_streams(layout).begin(), part_streams(layout).end()}, interval_blocks(layout)) {}

/// Adds blocks [interval.end(), last), which are whole block rows, to the interval.
void BlockReader::read_heads(Interval<BlockHead>& interval, uint64_t last) const {
  const size_t heads = layout_.heads;
  const uint64_t first_row = interval.end() / heads, first_coded = interval.ends()[size_part];
  const auto modes = document_.read<uint8_t>(kModes, first_row, last / heads - first_row, heads);
  const uint64_t coded = modes.size() - static_cast<size_t>(std::ranges::count(modes, kRawBlock));
  const auto payload_sizes = document_.read<uint32_t>(kSizes, first_coded, coded, 1);
  const auto origin_bits = layout_.has_origins ? document_.read<uint8_t>(kOriginBits, first_coded, coded, 1)
                                               : std::vector<uint8_t>(coded);
  BlockRows rows(layout_, coder());
  size_t next = 0;
  for (size_t row = 0; row * heads < modes.size(); ++row)
    with_context(fmt::format("stream '{}', row {}", kModes, first_row + row), [&] {
      const auto of_row = std::span(modes).subspan(row * heads, heads);
      for (size_t head = 0; head < heads; ++head) {
        const bool is_coded = of_row[head] != kRawBlock;
        const uint8_t bits = is_coded ? origin_bits[next] : 0;
        if (bits > 16)
          throw bad_input("stream '{}', row {}: {} bits; origins have 16", kOriginBits, first_coded + next,
                          bits);
        const uint64_t size = is_coded ? payload_sizes[next] : 0;
        interval.add({of_row[head], bits}, rows.of(of_row[head], size, bits, of_row, head));
        next += is_coded;
      }
    });
}

StoredBlocks BlockReader::read(uint64_t first, uint64_t last) const {
  StoredBlocks out{coder(), {}, {}, {}, {}, {}};
  if (first == last) return out;
  const size_t heads = layout_.heads;
  std::array<uint64_t, std::size(kPartStreams)> begins{}, ends{};
  out.blocks.reserve((last - first) * heads);
  for (uint64_t block = first * heads; block < last * heads;) {
    const Interval<BlockHead>& interval = interval_of(block);
    const uint64_t stop = std::min(interval.end(), last * heads);
    for (size_t i = 0; i < part_streams(layout_).size(); ++i) {
      if (block == first * heads) begins[i] = interval.begin(block, i);
      ends[i] = interval.begin(stop, i);
    }
    const auto part = [&](uint64_t of, PartStream stream) -> StoredBlocks::Part {
      const uint64_t begin = interval.begin(of, stream);
      return {begin - begins[stream], interval.begin(of + 1, stream) - begin};
    };
    for (; block < stop; ++block) {
      StoredBlocks::Block& stored = out.blocks.emplace_back();
      stored.mode = interval[block].mode;
      stored.origin_bits = interval[block].origin_bits;
      stored.payload = part(block, payload_part);
      stored.counts = part(block, count_part);
      if (layout_.has_origins) stored.origins = part(block, origin_part);
      stored.steps = part(layout_.shared_steps ? block - block % heads : block, step_part);
    }
  }
  const auto bytes = [&](std::string_view stream, PartStream which) {
    return document_.read<uint8_t>(stream, begins[which], ends[which] - begins[which], 1);
  };
  out.payload = bytes(kPayload, payload_part);
  out.counts = bytes(kCounts, count_part);
  if (layout_.has_origins) out.origins = bytes(kOrigins, origin_part);
  out.steps = document_.read<uint16_t>(kSteps, begins[step_part], ends[step_part] - begins[step_part], 1);
  for (const uint16_t half : out.steps)
    if (const float step = f16_to_float(half); !std::isfinite(step) || step < 0)
      throw bad_input("stream '{}': {} is not a step", kSteps, step);
  return out;
}

// Decoding -----------------------------------------------------------------------------------------

LoadedBlocks::LoadedBlocks(const Layout& layout, DType storage, StoredBlocks stored)
    : layout_(layout), storage_(storage), stored_(std::move(stored)) {
  steps_.resize(stored_.steps.size());
  widen(DType::f16, stored_.steps, steps_);
}

LoadedBlocks::Block LoadedBlocks::block(size_t index) const {
  const auto part_of = [](const auto& values, StoredBlocks::Part part) {
    return std::span(values).subspan(part.start, part.size);
  };
  const StoredBlocks::Block& block = stored_.blocks[index];
  return {index,
          block.mode,
          block.origin_bits,
          part_of(stored_.payload, block.payload),
          part_of(stored_.counts, block.counts),
          part_of(stored_.origins, block.origins),
          part_of(steps_, block.steps)};
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
  auto place = std::ranges::find(scratch.ahead, block.index);
  if (place == scratch.ahead.end()) {
    decode_ahead(block.index, scratch);
    place = scratch.ahead.begin();
  }
  const auto row = static_cast<size_t>(place - scratch.ahead.begin());
  std::ranges::copy(scratch.ahead_runs.row(row), scratch.runs.data());
  scratch.exact = scratch.ahead_exact[row];
}

/// Decodes a block coded with rANS, and with it some of those that come next.
void LoadedBlocks::decode_ahead(size_t index, BlockScratch& scratch) const {
  scratch.ahead = {index};
  std::vector<std::span<const uint8_t>> payloads{block(index).payload};
  for (size_t next = index + scratch.stride; next < scratch.end && payloads.size() < BlockCoder::kTogether;
       next += scratch.stride) {
    if (stored_.blocks[next].mode == kRawBlock) continue;
    scratch.ahead.push_back(next);
    payloads.push_back(block(next).payload);
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
  const Block block = this->block(row * layout_.heads + head);
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
  const Block block = this->block(row * layout_.heads + head);
  if (block.mode == kRawBlock) return;
  decode_runs(block, scratch);
  const std::vector<uint64_t> of_block =
      histogram(std::span<const uint8_t>(scratch.runs.data(), scratch.runs.size()), counts.size());
  for (size_t symbol = 0; symbol < counts.size(); ++symbol) counts[symbol] += of_block[symbol];
}

void LoadedBlocks::multiply_keys(size_t row, size_t head, MatrixView<const float> queries,
                                 BlockScratch& scratch, MatrixView<float> scores) const {
  const Block block = this->block(row * layout_.heads + head);
  const size_t n = queries.rows(), d = layout_.block.dims;
  if (block.mode == kRawBlock) {
    if (scratch.rows.size() == 0) scratch.rows = Matrix<float>(layout_.block.tokens, d);
    decode_raw(block, scratch.rows);
    return gemm(1, queries, transposed(scratch.rows), 0, scores);
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
  const Block block = this->block(row * layout_.heads + head);
  const size_t n = weights.rows(), tokens = layout_.block.tokens;
  if (block.mode == kRawBlock) {
    if (scratch.rows.size() == 0) scratch.rows = Matrix<float>(tokens, layout_.block.dims);
    decode_raw(block, scratch.rows);
    return gemm(1, weights, scratch.rows, 1, out);
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
