// Documents of the codec kvcomp for tests and benchmarks of its device twin.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/codec/blocks.hpp"
#include "lib/kvcomp/codec/options.hpp"

namespace kvcodec::test {

struct KvcompCase {
  Side side = Side::key;
  size_t block = 64, heads = 2, dims = 128, tokens = 128;
  DType storage = DType::bf16;
  std::vector<std::pair<std::string, Scalar>> options = {};
  double outliers = 0.005;  ///< how many values are far away and become exact
  bool noise = false;       ///< values that no coder makes smaller: raw blocks
  bool rare = false;        ///< every 16th channel is 0 but for one token of 32
};

/// Block rows [first, last) of a document's streams.
inline kvcomp::StoredBlocks read_blocks(const kvcomp::Layout& layout, const StreamReader& document,
                                        uint64_t first, uint64_t last) {
  kvcomp::BlockReader reader(layout, document);
  reader.refresh();
  return reader.read(first, last);
}

/// Rows of one side, their codec, and what it made of them.
struct KvcompDocument {
  KvcompDocument(const KvcompCase& c, uint64_t seed) {
    shape = usual_group(0, 1, static_cast<int>(c.heads), static_cast<int>(c.dims), c.side);
    rows = Matrix<float>(c.tokens, c.heads * c.dims);
    parallel_for(rows.cols(), 16, [&](size_t begin, size_t end, int) {
      for (size_t j = begin; j < end; ++j) {
        Rng rng(seed, j);
        const double loudness = std::exp2(rng.uniform(-3, 3));
        const double offset = rng.below(4) == 0 ? 6 * loudness * rng.normal() : 0;
        for (size_t i = 0; i < rows.rows(); ++i) {
          double value = offset + loudness * rng.normal();
          if (rng.uniform() < c.outliers) value += 50 * loudness;
          if (c.noise && rng.below(3) == 0) value = std::exp2(rng.uniform(-12, 6));
          if (c.rare && j % 16 == 0) value = i % 32 == 0 ? 8 : 0;
          rows(i, j) = round_to(c.storage, static_cast<float>(value));
        }
      }
    });
    const CodecContext context{
        .num_layers = 1, .heads = shape.heads(), .head_dim = shape.head_dim(), .storage = c.storage};
    const CodecEntry& entry = find_codec("kvcomp");
    const auto options = entry.make_options();
    std::vector<std::pair<std::string, Scalar>> settings{{"sink", int64_t{0}},
                                                         {"entropy", std::string("huffman")},
                                                         {"block", static_cast<int64_t>(c.block)},
                                                         {"unit-heads", false},
                                                         {"key-quant", std::string("channel")},
                                                         {"center", std::string("none")}};
    settings.insert(settings.end(), c.options.begin(), c.options.end());
    const auto fields = options->fields();
    for (const auto& [name, value] : settings)
      set_value(*std::ranges::find(fields, name, &OptionField::name), value);
    codec = entry.make(*options, context);
    encoded = std::make_unique<Encoded>(encode_in_memory(*codec, shape, {{DocumentRows(rows)}}));
    layout = kvcomp::layout_of(dynamic_cast<const kvcomp::KvcompOptions&>(*options), shape);
    block_rows = document().rows(kvcomp::kModes);
  }

  const StreamReader& document() const { return encoded->document(0); }
  /// Tokens in blocks.
  size_t tokens() const { return block_rows * layout.block.tokens; }
  /// The tokens as the codec decodes them.
  Matrix<float> decoded(size_t first, size_t count) const {
    Matrix<float> out(count, rows.cols());
    codec->open(shape, document())->decode(first, out);
    return out;
  }
  /// Block rows [first, last).
  kvcomp::StoredBlocks blocks(uint64_t first, uint64_t last) const {
    return read_blocks(layout, document(), first, last);
  }
  /// For each block row and channel (block rows, heads * dims) of keys: the step, and the origin times it; zeros for raw blocks.
  struct Units {
    Matrix<float> steps, origins;
  };
  Units units() const {
    const kvcomp::StoredBlocks stored = blocks(0, block_rows);
    Units units{Matrix<float>(block_rows, rows.cols()), Matrix<float>(block_rows, rows.cols())};
    std::vector<uint16_t> above(layout.block.dims);
    for (size_t i = 0; i < stored.blocks.size(); ++i) {
      const auto& block = stored.blocks[i];
      if (block.mode == kRawBlock) continue;
      int16_t least = 0;
      if (layout.has_origins) {
        const auto bytes = std::span(stored.origins).subspan(block.origins.start, block.origins.size);
        least = static_cast<int16_t>(bytes[0] | bytes[1] << 8);
        unpack_bits(bytes.subspan(2), 0, block.origin_bits, 0, std::span<uint16_t>(above));
      }
      for (size_t c = 0; c < above.size(); ++c) {
        const size_t row = i / layout.heads, column = i % layout.heads * above.size() + c;
        const size_t own = layout.unit == UnitShape::column ? c : 0;
        units.steps(row, column) = f16_to_float(stored.steps[block.steps.start + own]);
        units.origins(row, column) = static_cast<float>(least + above[c]) * units.steps(row, column);
      }
    }
    return units;
  }
  size_t blocks_of_mode(bool raw) const {
    const auto modes = document().read<uint8_t>(kvcomp::kModes, 0, block_rows, layout.heads);
    const auto count = static_cast<size_t>(std::ranges::count(modes, kRawBlock));
    return raw ? count : modes.size() - count;
  }

  GroupShape shape;
  Matrix<float> rows;
  std::unique_ptr<Codec> codec;
  std::unique_ptr<Encoded> encoded;
  kvcomp::Layout layout;
  uint64_t block_rows = 0;
};

}  // namespace kvcodec::test
