// The codec `kvcomp`: error-bounded quantization and entropy coding (Jiang et al., "KVComp: A
// High-Performance, LLM-Aware, Lossy Compression Framework for KV Cache", 2025).
//
// Every value is a multiple of its unit's step away from 0, within half of `rel` times the unit's spread (max
// - min): keys by channel over `block` tokens, or a whole head of a block; values by token, over the channels
// of a head. Beyond the paper, symbols of keys are counted from the channel's mean in the block (its
// "origin"): channels of rotated keys lie far from 0, each somewhere else, and one book for all of them would
// pay half a bit for that.
//
// The symbols of a layer's side share a book, made in a first pass over all tokens that a file starts with
// and kept for whatever is appended. Blocks are coded for themselves (lib/kvcomp/block.hpp). Tokens short of
// a block wait exactly, in the stream "tail": a document of T tokens has floor(T / block) blocks.
//
// Streams, H heads of d channels, block B; blocks lie block row after block row (B tokens each), head after
// head
//   book         u8  shared                 coder and book
//   modes        u8  [T/B][H]               bits of a block's counts, or 255: it is raw
//   sizes        u32 of blocks not raw      bytes of a block in "payload"
//   counts       u8  bytes of all blocks    how many bits each run takes
//   payload      u8  bytes of all blocks
//   limits       f32 shared [1][H][d or 1]  keys, with max-logit-error: a channel's or head's largest error
//   steps        f16 steps of all units     of blocks not raw; of block rows, where heads share them
//   origin_bits  u8  [T/B][H]               keys: bits of a block's origins
//   origins      u8  bytes of all blocks    keys: the smallest (i16), then by channel what it is above that
//   places       u64 of block rows          where sizes, counts, payload, steps and origins go on
//                                           (lib/codec/places.hpp; units are blocks, origins of keys only)
//   tail         bf16|f16 [T mod B][H][d]
#include "lib/codec/codec.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/core/error.hpp"
#include "lib/kvcomp/codec/encode.hpp"
#include "lib/kvcomp/codec/options.hpp"
#include "lib/kvcomp/codec/reader.hpp"
#include "lib/kvcomp/codec/survey.hpp"
#include "lib/kvcomp/codec/view.hpp"

namespace kvcodec {
namespace kvcomp {
namespace {

/// Blocks are made only if a raw one has at least so many bytes: the byte that flags it is then below a hundredth of it.
constexpr size_t kLeastBlock = 128;

}  // namespace

Layout layout_of(const KvcompOptions& options, const GroupShape& shape) {
  Layout layout;
  layout.heads = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads);
  layout.block = {.tokens = static_cast<size_t>(options.block),
                  .dims = static_cast<size_t>(shape.head_dim),
                  .by_channel = shape.side == Side::value};
  if (shape.side == Side::key) {
    layout.unit = options.key_quant == KeySteps::channel ? UnitShape::column : UnitShape::block;
    layout.has_origins = true;
  }
  layout.shared_steps = options.unit_heads && layout.unit != UnitShape::column;
  layout.pays = layout.block.raw_bytes() >= kLeastBlock;
  return layout;
}

namespace {

class KvcompCodec final : public Codec {
 public:
  KvcompCodec(const KvcompOptions& options, const CodecContext& context)
      : options_(options), storage_(context.storage), engine_(context.engine) {
    options_.weights = context.weights;
    if (!options_.weights.alike() && options_.max_error == 0)
      throw usage_error("weights scale the bound --max-error of each layer: give --max-error too");
    options_.resolve();
    if (static_cast<size_t>(context.head_dim) > kMaxBlockRun)
      throw usage_error("heads of {} dimensions; kvcomp takes at most {}", context.head_dim, kMaxBlockRun);
  }

  Record parameters() const override {
    KvcompOptions copy = options_;
    Record record = to_record(copy);
    options_.weights.write(record);
    return record;
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const Layout layout = layout_of(options_, shape);
    const std::vector<uint64_t> per_block{layout.heads};
    std::vector<StreamSpec> specs{{std::string(kBook), DType::u8, {}, Category::tables, 0, true},
                                  {std::string(kModes), DType::u8, per_block, Category::offsets},
                                  {std::string(kSizes), DType::u32, {}, Category::offsets},
                                  {std::string(kCounts), DType::u8, {}, Category::offsets},
                                  {std::string(kPayload), DType::u8, {}, Category::payload},
                                  {std::string(kSteps), DType::f16, {}, Category::scales}};
    if (layout.has_origins) {
      specs.push_back({std::string(kOriginBits), DType::u8, {}, Category::scales});
      specs.push_back({std::string(kOrigins), DType::u8, {}, Category::scales});
    }
    if (has_limits(options_, shape.side))
      specs.push_back({std::string(kLimits),
                       DType::f32,
                       {layout.heads, limits_per_head(layout)},
                       Category::tables,
                       0,
                       true});
    specs.push_back(places_stream(part_streams(layout).size()));
    specs.push_back(exact_stream(std::string(kTail), shape, storage_, Category::exempt));
    return specs;
  }

  /// 16-bit rows (2 bytes a value), symbols and runs (1 each), coded blocks (at most 2), and floats of the
  /// blocks in work; for a device 16-bit rows and coded blocks once more.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (engine_ ? 14 : 8);
  }

  SurveyScope survey_scope(const GroupShape&) const override { return SurveyScope::file; }
  bool wants_queries() const override { return options_.max_logit_error > 0; }
  /// The bound would not hold for keys turned back: the angle between a query and a key is not known here, and the
  /// rounding of keys that are turned again is not bounded.
  std::string needs_rope() const override {
    return options_.max_logit_error > 0 ? "max-logit-error bounds products with queries as they are" : "";
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return make_survey(Quantizer(options_, shape, storage_, engine_), options_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    append_rows(Quantizer(options_, shape, storage_, engine_), rows, document);
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return make_view(options_, shape, storage_, engine_, document);
  }

 private:
  KvcompOptions options_;
  DType storage_;
  Engine* engine_;
};

std::unique_ptr<Options> make_options() { return std::make_unique<KvcompOptions>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  const auto& chosen = dynamic_cast<const KvcompOptions&>(options);
  return keep_first_tokens(std::make_unique<KvcompCodec>(chosen, context), chosen.sink, context.storage);
}

/// The setting is the number of times that steps are halved. Bounds that were given are scaled; weights need an absolute one.
void turn(Options& options, double setting, bool weighed) {
  auto& own = dynamic_cast<KvcompOptions&>(options);
  const double scale = std::exp2(-setting);
  bool bounded = false;
  const auto scale_bound = [&](double& bound, double largest) {
    if (bound > 0) bound = rounded_setting(std::min(bound * scale, largest)), bounded = true;
  };
  scale_bound(own.max_error, std::numeric_limits<double>::infinity());
  scale_bound(own.max_rel_error, 1);
  scale_bound(own.max_logit_error, std::numeric_limits<double>::infinity());
  if (!bounded && weighed) {
    own.max_error = rounded_setting(scale);
    own.key_quant = KeySteps::block;
  } else if (!bounded) {
    own.resolve();
    for (double* relative : {&own.key_rel, &own.value_rel})
      *relative = rounded_setting(std::min(*relative * scale, 1.0));
  }
}

}  // namespace
}  // namespace kvcomp

CodecEntry kvcomp_codec() {
  return {.name = "kvcomp",
          .summary = "error-bounded quantization and entropy coding; needs no training",
          .capabilities = {.multiplies = true, .device_twin = true, .any_shape = true, .takes_weights = true},
          .book_type = "",
          .make_options = kvcomp::make_options,
          .make = kvcomp::make,
          .paper = {{"sink", int64_t{0}}, {"entropy", "huffman"}},
          .dial = {.least = -24, .most = 24, .useful = -4, .turn = kvcomp::turn},
          .promise = 2,
          .on_demand = false,
          .place = 4};
}

}  // namespace kvcodec
