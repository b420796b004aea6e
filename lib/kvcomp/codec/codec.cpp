// The codec `kvcomp`: error-bounded quantization and entropy coding (Jiang et al., "KVComp: A
// High-Performance, LLM-Aware, Lossy Compression Framework for KV Cache", 2025).
//
// Every value is a multiple of its unit's step away from 0, within half of `rel` times the unit's spread (max
// - min): keys by channel over `block` tokens, or a whole head of a block; values by token, over the channels
// of a head. Beyond the paper, symbols of keys are counted from the channel's mean in the block (its
// "origin"): channels of rotated keys lie far from 0, each somewhere else, and one book for all of them would
// pay half a bit for that. Without key-origins all symbols are counted from level 0, as in the paper.
//
// The symbols of a layer's side share a book, made in a first pass over all tokens that a file starts with
// and kept for whatever is appended. Blocks are coded for themselves (lib/kvcomp/block.hpp). The newest `window` tokens
// and those short of a block wait exactly, in the stream "tail", as those of kivi do: a document of T tokens has
// R = floor(max(0, T - window) / block) block rows.
//
// Streams, H heads of d channels, block B; blocks lie block row after block row (B tokens each), head after
// head
//   book         u8  shared                 coder and book
//   modes        u8  [R][H]                 bits of a block's counts, or 255: it is raw
//   sizes        u32 of blocks not raw      bytes of a block in "payload"
//   counts       u8  bytes of all blocks    how many bits each run takes
//   payload      u8  bytes of all blocks
//   limits       f32 shared [1][H][d or 1]  keys, with max-logit-error: a channel's or head's largest error
//   steps        f16 steps of all units     of blocks not raw; of block rows, where heads share them
//   origin_bits  u8  of blocks not raw      keys with origins: bits of a block's origins
//   origins      u8  bytes of all blocks    the smallest (i16), then by channel what it is above that
//   places       u64 of block rows          where sizes, counts, payload, steps and origins go on
//                                           (lib/codec/places.hpp; units are blocks)
//   tail         bf16|f16 [T - R B][H][d]
#include "lib/codec/codec.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/codec/blocks.hpp"
#include "lib/kvcomp/codec/options.hpp"

namespace kvcodec {
namespace kvcomp {

Layout layout_of(const KvcompOptions& options, const GroupShape& shape) {
  Layout layout;
  layout.heads = shape.all_heads();
  layout.block = {.tokens = static_cast<size_t>(options.block),
                  .dims = shape.dims(),
                  .by_channel = shape.side == Side::value};
  if (shape.side == Side::key) {
    layout.unit = options.key_quant == KeySteps::channel ? UnitShape::column : UnitShape::block;
    layout.has_origins = options.key_origins;
  }
  layout.window = static_cast<uint64_t>(options.window);
  layout.shared_steps = options.unit_heads && layout.unit != UnitShape::column;
  // Blocks are made only if a raw one has at least so many bytes: the byte that flags it is then below a hundredth of it.
  constexpr size_t kMinBlock = 128;
  layout.pays = layout.block.raw_bytes() >= kMinBlock;
  return layout;
}

namespace {

/// One block row: at most a block of tokens.
struct BlockRow {
  /// halves: whole tokens.
  BlockRow(const Layout& layout, DType storage, std::span<const uint16_t> tokens)
      : halves(tokens.data(), tokens.size() / layout.width(), layout.width()),
        values(halves.rows(), layout.width()),
        symbols(halves.rows(), layout.width()),
        steps(layout.unit == UnitShape::row ? layout.row_steps() / layout.block.tokens * halves.rows()
                                            : layout.row_steps()),
        origins(layout.heads * layout.origins()) {
    widen(storage, tokens, {values.data(), values.size()});
  }

  MatrixView<const uint16_t> halves;  ///< (tokens, width)
  Matrix<float> values;               ///< the same
  Matrix<uint8_t> symbols;
  std::vector<float> steps;      ///< [heads or 1, if they share them][steps of a head]
  std::vector<int16_t> origins;  ///< (heads, layout.origins())
};

/// Quantizes one side of a layer group.
class Quantizer {
 public:
  /// engine: may be nullptr; outlives this.
  Quantizer(const KvcompOptions& options, const GroupShape& shape, DType storage, Engine* engine)
      : side_(shape.side),
        layout_(layout_of(options, shape)),
        storage_(storage),
        engine_(engine),
        has_limits_(kvcomp::has_limits(options, shape.side)),
        bound_{.range = (side_ == Side::key ? options.key_rel : options.value_rel) / 2,
               .absolute = options.max_error *
                           static_cast<double>(options.weights.error_scale(shape.first_layer(), shape.side)),
               .magnitude = options.max_rel_error} {}

  const Layout& layout() const { return layout_; }
  DType storage() const { return storage_; }
  bool has_limits() const { return has_limits_; }
  size_t limits() const { return layout_.heads * limits_per_head(layout_); }

  /// The bound of the options, and that errors are at most `limit` as well; limit 0: the options' bound alone.
  ErrorBound bound(float limit = 0) const {
    ErrorBound bound = bound_;
    const double own = bound_.absolute;
    bound.absolute = own > 0 && limit > 0 ? std::min<double>(own, limit) : std::max<double>(own, limit);
    return bound;
  }

  /// Quantizes one block row. limits: of errors, limits() of them, or empty. Written of the row: steps, symbols and
  /// origins.
  void quantize(std::span<const float> limits, BlockRow& row) const {
    const MatrixView<const float> rows = std::as_const(row.values);
    const std::span<float> steps = row.steps;
    const std::span<int16_t> origins = row.origins;
    if (layout_.shared_steps) {
      const float limit = limits.empty() ? 0 : *std::ranges::min_element(limits);
      return quantize_bounded(rows, layout_.unit, bound(limit), storage_, {steps, origins, row.symbols});
    }
    const size_t d = layout_.block.dims, per_head = steps.size() / layout_.heads;
    for (size_t head = 0; head < layout_.heads; ++head) {
      // Channels with limits of their own are quantized one by one.
      const bool by_channel = layout_.unit == UnitShape::column && !limits.empty();
      for (size_t c = 0; c < (by_channel ? d : 1); ++c) {
        const float limit = limits.empty() ? 0 : limits[by_channel ? head * d + c : head];
        const size_t width = by_channel ? 1 : d, column = head * d + c;
        quantize_bounded(rows.columns(column, width), layout_.unit, bound(limit), storage_,
                         {by_channel ? steps.subspan(column, 1) : steps.subspan(head * per_head, per_head),
                          layout_.has_origins ? origins.subspan(column, width) : origins,
                          row.symbols.view().columns(column, width)});
      }
    }
  }

  /// The device that quantizes whole block rows in place of quantize(), or nullptr.
  const BlockEngine* device() const {
    const BlockEngine* const device = engine_ ? engine_->make<BlockEngine>() : nullptr;
    if (!device) return nullptr;
    if (has_limits_) engine_->fall_back("kvcomp: keys with --max-logit-error");
    if (layout_.shared_steps) engine_->fall_back("kvcomp: steps that heads share");
    return has_limits_ || layout_.shared_steps ? nullptr : device;
  }

 private:
  Side side_;
  Layout layout_;
  DType storage_;
  Engine* engine_;
  bool has_limits_;
  ErrorBound bound_;
};

// Survey -------------------------------------------------------------------------------------------

/// About the mean spread, largest less smallest, of so many values of a normal distribution, in its deviations: 4.8 of 64.
/// The largest value's limit distribution is Gumbel's (Cramer, "Mathematical Methods of Statistics", section 28.6).
double spread_of_normal(size_t values) {
  if (values < 3) return 1;
  constexpr double kLogOf4Pi = 2.5310242, kEuler = 0.5772157;
  const double log = std::log(static_cast<double>(values)), root = std::sqrt(2 * log);
  return 2 * (root - (std::log(log) + kLogOf4Pi - 2 * kEuler) / (2 * root));
}

/// Counts the symbols of all tokens. It counts a document's last, incomplete block too: append will code those
/// tokens in a block when the document grows.
class HistogramSurvey final : public Survey {
 public:
  HistogramSurvey(Quantizer quantizer, const KvcompOptions& options)
      : quantizer_(quantizer),
        layout_(quantizer_.layout()),
        choice_(options.entropy),
        max_logit_error_(options.max_logit_error),
        counts_(256) {}

  /// Limits come from the queries of all documents, before the first token is quantized.
  int passes() const override { return quantizer_.has_limits() ? 2 : 1; }

  void observe_queries(std::span<const uint64_t>, MatrixView<const float> queries) override {
    if (!quantizer_.has_limits() || pass_ > 0) return;
    const size_t d = layout_.block.dims, group = queries.cols() / layout_.width();
    largest_.resize(quantizer_.limits());
    for (size_t i = 0; i < queries.rows(); ++i)
      for (size_t query_head = 0; query_head < layout_.heads * group; ++query_head) {
        const auto query = queries.row(i).subspan(query_head * d, d);
        const size_t head = query_head / group;
        if (layout_.unit == UnitShape::column) {
          for (size_t c = 0; c < d; ++c)
            largest_[head * d + c] = std::max<double>(largest_[head * d + c], std::abs(query[c]));
        } else {
          double sum = 0;
          for (const float value : query) sum += std::abs(static_cast<double>(value));
          largest_[head] = std::max(largest_[head], sum);
        }
      }
  }

  void end_pass() override {
    if (quantizer_.has_limits() && pass_++ == 0) set_limits();
  }

  void observe(MatrixView<const float> rows) override {
    if (pass_ + 1 < passes()) return;
    const size_t before = waiting_.size();
    waiting_.resize(before + rows.rows() * rows.cols());
    store_rows(quantizer_.storage(), rows, std::span(waiting_).subspan(before));
    const size_t block = layout_.block.tokens * layout_.width(), whole = waiting_.size() / block * block;
    count(std::span(waiting_).first(whole), block);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(whole));
  }

  void end_document() override {
    if (!waiting_.empty()) count(waiting_, waiting_.size());
    waiting_.clear();
  }

  void finish(StreamStore& document) override {
    const double spread = spread_of_normal(layout_.unit == UnitShape::row      ? layout_.block.dims
                                           : layout_.unit == UnitShape::column ? layout_.block.tokens
                                                                               : layout_.block.symbols());
    const double rel = 2 * quantizer_.bound().range;
    const double deviation = rel > 0 ? 1 / (rel * spread) : 8;
    if (quantizer_.has_limits()) document.append_values<float>(kLimits, limits_);
    document.append_values<uint8_t>(
        kBook, BlockCoder::from_counts(counts_, deviation, choice_, layout_.block).write());
  }

 private:
  /// |q . error| <= sum over channels c of |q[c]| * limit[c]. Where channels have steps of their own, each is given the
  /// same share of the bound; where a head has one step, its channels are given the same limit.
  void set_limits() {
    if (largest_.empty())
      throw bad_input("there are no queries, which --max-logit-error needs; see dump-kv --queries");
    const double d = static_cast<double>(layout_.block.dims);
    const double shares = layout_.unit == UnitShape::column ? d : 1;
    for (const double largest : largest_) {
      const double limit = max_logit_error_ * std::sqrt(d) / (shares * largest);
      limits_.push_back(limit < FLT_MAX ? std::nextafter(static_cast<float>(limit), 0.0f) : FLT_MAX);
    }
  }

  /// halves: pieces of a block row, or of fewer tokens, each of `piece` values.
  void count(std::span<const uint16_t> halves, size_t piece) {
    const size_t width = layout_.width();
    const BlockEngine* engine = quantizer_.device();
    if (engine && !halves.empty() && piece == layout_.block.tokens * width)
      if (const auto counts = engine->count_symbols(layout_, quantizer_.storage(), quantizer_.bound(),
                                                    {halves.data(), halves.size() / width, width}))
        return add(*counts);
    std::vector<std::vector<uint64_t>> counts(halves.size() / piece);
    parallel_for(counts.size(), 1, [&](size_t i, size_t, int) {
      BlockRow row(layout_, quantizer_.storage(), halves.subspan(i * piece, piece));
      quantizer_.quantize(limits_, row);
      counts[i] = histogram({row.symbols.data(), row.symbols.size()}, 256);
    });
    for (const auto& of_piece : counts) add(of_piece);
  }
  void add(const std::vector<uint64_t>& counts) {
    for (size_t symbol = 0; symbol < counts.size(); ++symbol) counts_[symbol] += counts[symbol];
  }

  Quantizer quantizer_;
  Layout layout_;
  EntropyChoice choice_;
  double max_logit_error_;
  std::vector<uint64_t> counts_;
  UnsetVector<uint16_t> waiting_;  // tokens short of a block
  int pass_ = 0;
  std::vector<double> largest_;  // |q| of a channel, or the sum of |q| of a head, over all queries
  std::vector<float> limits_;
};

// Encoding -----------------------------------------------------------------------------------------

/// Codes one block row; limits: as Quantizer::quantize.
EncodedBlocks encode_row(const Quantizer& quantizer, const BlockCoder& coder, std::span<const float> limits,
                         std::span<const uint16_t> halves) {
  const Layout& layout = quantizer.layout();
  const size_t d = layout.block.dims;
  BlockRow row(layout, quantizer.storage(), halves);
  quantizer.quantize(limits, row);
  EncodedBlocks out;
  const auto store_steps = [&](std::span<const float> steps) {
    out.steps.resize(out.steps.size() + steps.size());
    narrow(DType::f16, steps, std::span(out.steps).last(steps.size()));
  };
  for (size_t head = 0; head < layout.heads; ++head) {
    uint8_t origin_bits = 0;
    std::vector<uint8_t> origins;
    if (layout.has_origins) {
      const auto own = std::span(row.origins).subspan(head * layout.origins(), layout.origins());
      const auto [least, most] = std::ranges::minmax(own);
      origin_bits = static_cast<uint8_t>(index_bits(static_cast<uint64_t>(most - least) + 1));
      origins.resize(layout.origin_bytes(origin_bits));
      origins[0] = static_cast<uint8_t>(least);
      origins[1] = static_cast<uint8_t>(least >> 8);
      std::vector<uint16_t> above;
      for (const int16_t origin : own) above.push_back(static_cast<uint16_t>(origin - least));
      pack_bits(std::span<const uint16_t>(above), origin_bits, 0, std::span(origins).subspan(2));
    }
    // A raw block goes without its size, steps, origins and their bits.
    const size_t side_bytes = 4 + 2 * layout.steps() + (layout.has_origins ? 1 + origins.size() : 0);
    const CodedBlock coded =
        coder.encode(layout.block, std::as_const(row.symbols).view().columns(head * d, d),
                     row.halves.columns(head * d, d), side_bytes);
    out.modes.push_back(coded.mode);
    append_to(out.counts, coded.counts);
    append_to(out.payload, coded.payload);
    if (coded.mode == kRawBlock) continue;
    out.sizes.push_back(static_cast<uint32_t>(coded.payload.size()));
    if (layout.has_origins) out.origin_bits.push_back(origin_bits);
    append_to(out.origins, origins);
    if (!layout.shared_steps)
      store_steps(std::span(row.steps).subspan(head * layout.steps(), layout.steps()));
    else if (out.steps.empty())
      store_steps(row.steps);
  }
  return out;
}

/// Codes block rows, with the document's book and limits.
EncodedBlocks encode_rows(const Quantizer& quantizer, const BlockCoder& coder,
                          std::span<const uint16_t> halves, const StreamReader& document) {
  const Layout& layout = quantizer.layout();
  const size_t width = layout.width(), row_values = layout.block.tokens * width;
  if (const BlockEngine* device = quantizer.device())
    if (auto blocks = device->encode(layout, quantizer.storage(), quantizer.bound(), coder,
                                     {halves.data(), halves.size() / width, width}))
      return std::move(*blocks);
  const auto limits =
      quantizer.has_limits() ? document.read<float>(kLimits, 0, 1, quantizer.limits()) : std::vector<float>();
  std::vector<EncodedBlocks> rows(halves.size() / row_values);
  parallel_for(rows.size(), 1, [&](size_t i, size_t, int) {
    rows[i] = encode_row(quantizer, coder, limits, halves.subspan(i * row_values, row_values));
  });
  EncodedBlocks all;
  for (const EncodedBlocks& row : rows) all.append(row);
  return all;
}

/// halves: whole block rows.
void append_blocks(const Quantizer& quantizer, std::span<const uint16_t> halves, StreamStore& document) {
  const Layout& layout = quantizer.layout();
  const BlockCoder coder = read_coder(document);
  const EncodedBlocks blocks = encode_rows(quantizer, coder, halves, document);
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
    Record record = record_of(options_);
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
    specs.push_back(exact_stream(kTail, shape, storage_));
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
    return std::make_unique<HistogramSurvey>(Quantizer(options_, shape, storage_, engine_), options_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const Quantizer quantizer(options_, shape, storage_, engine_);
    const Layout& layout = quantizer.layout();
    const uint64_t leaving =
        layout.block_rows_of(tokens_of(layout, document) + rows.rows()) - document.rows(kModes);
    append_to_tail(to_storage(storage_, rows), rows.cols(), leaving * layout.block.tokens, document,
                   [&](std::span<const uint16_t> halves) { append_blocks(quantizer, halves, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return make_view(options_, shape, storage_, engine_, document);
  }

 private:
  KvcompOptions options_;
  DType storage_;
  Engine* engine_;
};

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
  return {
      .name = "kvcomp",
      .summary = "error-bounded quantization and entropy coding; needs no training",
      .capabilities = {.multiplies = true, .device_twin = true, .takes_weights = true},
      .make_options = [] { return std::make_unique<kvcomp::KvcompOptions>(); },
      .make =
          make_centered<kvcomp::KvcompOptions, make_behind_sink<kvcomp::KvcompOptions, kvcomp::KvcompCodec>>,
      .paper = {{"window", int64_t{64}},
                {"sink", int64_t{0}},
                {"key-origins", false},
                {"unit-heads", false},
                {"entropy", "huffman"},
                {"center", "none"}},
      .dial = {.lowest = -24, .highest = 24, .useful = -4, .usual = 0, .turn = kvcomp::turn},
      .promise = 2,
      .on_demand = false,
      .place = 4};
}

}  // namespace kvcodec
