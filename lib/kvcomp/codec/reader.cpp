#include "lib/kvcomp/codec/reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::kvcomp {
namespace {

constexpr std::string_view kPartStreams[] = {kSizes, kCounts, kPayload, kSteps, kOrigins};

/// Blocks from one row of `places` to the next: whole block rows.
uint64_t interval_blocks(const Layout& layout) { return place_interval(layout.block.tokens) * layout.heads; }

/// How many rows blocks take of each of part_streams(), block after block.
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

void check_step(float step) {
  if (!std::isfinite(step) || step < 0) throw bad_input("stream '{}': {} is not a step", kSteps, step);
}

}  // namespace

std::span<const std::string_view> part_streams(const Layout& layout) {
  return std::span(kPartStreams).first(layout.has_origins ? std::size(kPartStreams) : origin_part);
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

void BlockReader::refresh() {
  rows_ = document_.rows(kModes);
  const uint64_t blocks = checked_mul(rows_, layout_.heads);
  places_.grow(document_, blocks, blocks);
}

const BlockCoder& BlockReader::coder() const {
  return coder_.get([&] { return read_coder(document_); });
}

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

const Interval<BlockReader::BlockHead>& BlockReader::interval_of(uint64_t block) const {
  return places_.at(block, document_,
                    [&](Interval<BlockHead>& interval, uint64_t last) { read_heads(interval, last); });
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
  for (const uint16_t step : out.steps) check_step(f16_to_float(step));
  return out;
}

}  // namespace kvcodec::kvcomp
