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
//   tail         bf16|f16 [T mod B][H][d]
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <optional>

#include "lib/codec/engine.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/kvcomp_blocks.hpp"
#include "lib/codec/products.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/quant/error_bounded.hpp"

namespace kvcodec {

using namespace kvcomp;

namespace {

/// Blocks that one piece of decoding or of a product covers: enough to be worth handing out.
constexpr size_t kPieceBlocks = 8;

/// Block rows whose symbols are counted at a time: some MiB of blocks.
constexpr uint64_t kCountedRows = 64;

/// Queries of a head from which decoding and a matrix product, which blocks them, take less time than a
/// product with symbols, which goes over the symbols again for every four. With 4 the latter is the faster,
/// with 128 it takes almost twice as long.
constexpr size_t kManyQueries = 33;

/// Bytes of a raw block from which blocks are made: the byte that flags one is then below a hundredth of it.
constexpr size_t kLeastBlock = 128;

constexpr std::string_view kLimits = "limits";

struct KvcompOptions final : Options {
  std::string key_quant = "channel";  ///< the paper's better one: outliers of keys sit in few channels
  double key_rel = 0;                 ///< 0: by key_quant, where the paper's accuracy begins to drop
  double value_rel = 0;               ///< 0: 0.15, likewise
  double max_error = 0;
  double max_rel_error = 0;
  double max_logit_error = 0;
  int64_t block = 64;  ///< the paper's block size
  bool unit_heads = false;
  std::string entropy = "huffman";  ///< the paper's; decodes three times as fast as rANS

  /// Bounds of their own make the relative steps unnecessary, unless they are asked for.
  bool bounded(Side side) const {
    return max_error > 0 || max_rel_error > 0 || (side == Side::key && max_logit_error > 0);
  }

  std::vector<OptionField> fields() override {
    return {
        {"key-quant",
         "what shares a step of the keys: a channel over a block of tokens, or all of a head's block",
         &key_quant,
         {},
         {},
         {"channel", "block"}},
        {"key-rel",
         "step of the keys, relative to the spread of what shares it; errors are at most half a step (0: "
         "0.25 by channel, 0.05 by block; none if one of the bounds below is given)",
         &key_rel, 0, 1},
        {"value-rel",
         "step of the values, relative to the spread of a token's head (0: 0.15; none if --max-error or "
         "--max-rel-error is given)",
         &value_rel, 0, 1},
        {"max-error", "largest error of any value (0: no such bound)", &max_error, 0},
        {"max-rel-error",
         "largest error of any value, relative to the largest magnitude of what shares its step (0: no such "
         "bound)",
         &max_rel_error, 0, 1},
        {"max-logit-error",
         "largest error of any attention logit q.k / sqrt(head dimension) of the dumped queries, by a bound "
         "on the "
         "keys (0: no such bound)",
         &max_logit_error, 0},
        {"block", "tokens of a block, which is coded and decoded alone", &block, 1,
         static_cast<double>(kMaxBlockRun)},
        {"unit-heads", "steps of values, and of keys by block, are shared by all heads", &unit_heads},
        {"entropy",
         "coder of the symbols: huffman is fastest, rans packs tighter at low rates, auto takes the smaller, "
         "none spends whole bits",
         &entropy,
         {},
         {},
         {kEntropyNames[0].data(), kEntropyNames[1].data(), kEntropyNames[2].data(),
          kEntropyNames[3].data()}}};
  }

  void resolve() {
    if (key_rel == 0 && !bounded(Side::key)) key_rel = key_quant == "channel" ? 0.25 : 0.05;
    if (value_rel == 0 && !bounded(Side::value)) value_rel = 0.15;
  }
};

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

/// Tokens in 16 bits and the new ones behind them, which become 16 bits where they are read.
class TokenQueue {
 public:
  TokenQueue(DType storage, std::span<const uint16_t> waiting, MatrixView<const float> added)
      : storage_(storage), waiting_(waiting), added_(added) {}

  size_t tokens() const { return waiting_.size() / added_.cols() + added_.rows(); }

  /// As many tokens as out has room for, from token `first` on. Throws Error(bad_input) as store_row.
  void read(size_t first, std::span<uint16_t> out) const {
    const size_t width = added_.cols(), before = waiting_.size() / width;
    const size_t old = std::min(first < before ? before - first : 0, out.size() / width);
    std::ranges::copy(waiting_.subspan(std::min(first, before) * width, old * width), out.begin());
    for (size_t i = old; i < out.size() / width; ++i) {
      const size_t row = first + i - before;
      store_row(storage_, added_.row(row), row, out.subspan(i * width, width));
    }
  }
  std::vector<uint16_t> from(size_t first) const {
    std::vector<uint16_t> out((tokens() - first) * added_.cols());
    read(first, out);
    return out;
  }
  DType storage() const { return storage_; }

 private:
  DType storage_;
  std::span<const uint16_t> waiting_;
  MatrixView<const float> added_;
};

/// Room for one block row in work; one per thread.
struct RowScratch {
  std::vector<uint16_t> halves;
  Matrix<float> values;  ///< the same, (tokens, width)
  Matrix<uint8_t> symbols;
  std::vector<float> steps;
  std::vector<int16_t> origins;

  RowScratch(const Layout& layout, size_t tokens)
      : halves(tokens * layout.width()),
        values(tokens, layout.width()),
        symbols(tokens, layout.width()),
        steps(layout.heads * std::max(layout.steps(), tokens)),
        origins(layout.heads * layout.origins()) {}

  void read(const TokenQueue& queue, size_t first) {
    queue.read(first, halves);
    widen(queue.storage(), halves, {values.data(), values.size()});
  }
};

class KvcompCodec final : public Codec {
 public:
  KvcompCodec(const KvcompOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        block_(static_cast<size_t>(options.block)),
        engine_(context.engine),
        blocks_(engine_ ? engine_->blocks() : nullptr) {
    options_.resolve();
    choice_ = static_cast<EntropyChoice>(std::ranges::find(kEntropyNames, std::string_view(options.entropy)) -
                                         std::begin(kEntropyNames));
    if (static_cast<size_t>(context.head_dim) > kMaxBlockRun)
      throw usage_error("heads of {} dimensions; kvcomp takes at most {}", context.head_dim, kMaxBlockRun);
  }

  Record parameters() const override {
    KvcompOptions copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override;

  /// 16-bit rows (2 bytes a value), symbols and runs (1 each), coded blocks (at most 2), and floats of the
  /// blocks in work; for a device 16-bit rows and coded blocks once more.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (engine_ ? 14 : 8);
  }

  SurveyScope survey_scope() const override { return SurveyScope::file; }
  bool wants_queries() const override { return options_.max_logit_error > 0; }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override;

  uint64_t tokens(const GroupShape& shape, const StreamReader& document) const override;
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;
  void multiply_keys(const GroupShape& shape, const StreamReader& document, uint64_t first,
                     MatrixView<const float> queries, MatrixView<float> out) const override;
  void multiply_values(const GroupShape& shape, const StreamReader& document, uint64_t first,
                       MatrixView<const float> weights, MatrixView<float> out) const override;
  std::vector<uint64_t> symbol_counts(const GroupShape& shape, const StreamReader& document) const override;

 private:
  friend class HistogramSurvey;

  Layout layout_of(const GroupShape& shape) const;
  ErrorBound bound_of(Side side, float limit = 0) const {
    const double own = options_.max_error;
    return {.range = (side == Side::key ? options_.key_rel : options_.value_rel) / 2,
            .absolute = own > 0 && limit > 0 ? std::min<double>(own, limit) : std::max<double>(own, limit),
            .magnitude = options_.max_rel_error};
  }
  /// Limits of the errors of keys that --max-logit-error sets: one per channel, or per head.
  bool has_limits(Side side) const { return side == Side::key && options_.max_logit_error > 0; }
  size_t limits_per_head(const Layout& layout) const {
    return layout.unit == UnitShape::column ? layout.block.dims : 1;
  }

  /// Symbols of one block row, rows: (block or fewer, width) of 16-bit values. steps: heads * layout.steps()
  /// or, if they are shared, layout.steps(); origins: (heads, layout.origins()); symbols: (rows, width);
  /// limits: heads * limits_per_head(), or empty.
  void quantize(Side side, const Layout& layout, std::span<const float> limits, MatrixView<const float> rows,
                std::span<float> steps, std::span<int16_t> origins, MatrixView<uint8_t> symbols) const;
  /// The engine, where it can quantize a side's blocks, or nullptr.
  const BlockEngine* quantizing_engine(Side side, const Layout& layout) const {
    if (!blocks_) return nullptr;
    if (has_limits(side)) engine_->fall_back("kvcomp: keys with --max-logit-error");
    if (layout.shared_steps) engine_->fall_back("kvcomp: steps that heads share");
    return has_limits(side) || layout.shared_steps ? nullptr : blocks_;
  }
  HeadBlock encode_head(const BlockCoder& coder, const Layout& layout, MatrixView<const uint8_t> symbols,
                        MatrixView<const uint16_t> values, std::span<const int16_t> origins) const;
  EncodedBlocks encode_rows(Side side, const Layout& layout, const TokenQueue& queue, size_t rows,
                            const StreamReader& document) const;

  /// How many of the tokens [first, first + count) lie in blocks. Throws Error(bad_input) if not all are
  /// there.
  size_t check_range(const GroupShape& shape, const StreamReader& document, uint64_t first,
                     uint64_t count) const;
  /// The blocks of tokens [first, first + count), all of them in blocks.
  LoadedBlocks load(const Layout& layout, const StreamReader& document, uint64_t first,
                    uint64_t count) const {
    const uint64_t begin = first / block_, end = count == 0 ? begin : (first + count - 1) / block_ + 1;
    return {layout, storage_, document, begin, end};
  }
  void decode_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                     MatrixView<float> out) const;
  void multiply_key_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                           MatrixView<const float> queries, MatrixView<float> out) const;
  void multiply_value_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                             MatrixView<const float> weights, MatrixView<float> out) const;
  void check_limits(const GroupShape& shape, const StreamReader& document) const {
    if (!has_limits(shape.side)) return;
    const Layout layout = layout_of(shape);
    for (const float limit : document.read<float>(kLimits, 0, 1, layout.heads * limits_per_head(layout)))
      if (!(limit > 0 && std::isfinite(limit)))
        throw bad_input("stream '{}': {} is no limit", kLimits, limit);
  }

  KvcompOptions options_;
  DType storage_;
  size_t block_;
  Engine* engine_;
  const BlockEngine* blocks_;
  EntropyChoice choice_;
};

Layout KvcompCodec::layout_of(const GroupShape& shape) const {
  Layout layout;
  layout.heads = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads);
  layout.block = {
      .tokens = block_, .dims = static_cast<size_t>(shape.head_dim), .by_channel = shape.side == Side::value};
  if (shape.side == Side::key) {
    layout.unit = options_.key_quant == "channel" ? UnitShape::column : UnitShape::block;
    layout.has_origins = true;
  }
  layout.shared_steps = options_.unit_heads && layout.unit != UnitShape::column;
  layout.pays = layout.block.raw_bytes() >= kLeastBlock;
  return layout;
}

std::vector<StreamSpec> KvcompCodec::streams(const GroupShape& shape) const {
  const Layout layout = layout_of(shape);
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
  if (has_limits(shape.side))
    specs.push_back({std::string(kLimits),
                     DType::f32,
                     {layout.heads, limits_per_head(layout)},
                     Category::tables,
                     0,
                     true});
  specs.push_back(exact_stream(std::string(kTail), shape, storage_, Category::exempt));
  return specs;
}

// Survey
// ----------------------------------------------------------------------------------------------------------

/// Counts the symbols of all tokens, those of the last, incomplete block of a document too: they will be part
/// of a block when the document grows.
class HistogramSurvey final : public Survey {
 public:
  HistogramSurvey(const KvcompCodec& codec, const GroupShape& shape)
      : codec_(codec), side_(shape.side), layout_(codec.layout_of(shape)), counts_(256) {}

  /// Limits come from the queries of all documents, before the first token is quantized.
  int passes() const override { return codec_.has_limits(side_) ? 2 : 1; }

  void observe_queries(std::span<const uint64_t>, MatrixView<const float> queries) override {
    if (!codec_.has_limits(side_) || pass_ > 0) return;
    const size_t d = layout_.block.dims, group = queries.cols() / layout_.width();
    largest_.resize(layout_.heads * codec_.limits_per_head(layout_));
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
    if (codec_.has_limits(side_) && pass_++ == 0) set_limits();
  }

  void observe(MatrixView<const float> rows) override {
    if (pass_ + 1 < passes()) return;
    const TokenQueue queue(codec_.storage_, waiting_, rows);
    const size_t whole = queue.tokens() / layout_.block.tokens;
    count(queue, whole, layout_.block.tokens);
    waiting_ = queue.from(whole * layout_.block.tokens);
  }

  void end_document() override {
    if (!waiting_.empty()) {
      const Matrix<float> none(0, layout_.width());
      const TokenQueue queue(codec_.storage_, waiting_, none);
      count(queue, 1, queue.tokens());
    }
    waiting_.clear();
  }

  void finish(StreamStore& document) override {
    // What a normal distribution's spread over so many values comes to, in units of its deviation (about 4.7
    // for 64).
    const double spread = 2 * std::sqrt(2 * std::log(static_cast<double>(layout_.unit == UnitShape::row
                                                                             ? layout_.block.dims
                                                                             : layout_.block.tokens) +
                                                     1));
    const double rel = 2 * codec_.bound_of(side_).range;
    const double deviation = rel > 0 ? 1 / (rel * std::max(spread, 1.0)) : 8;
    if (codec_.has_limits(side_)) document.append_values<float>(kLimits, limits_);
    document.append_values<uint8_t>(
        kBook, BlockCoder::from_counts(counts_, deviation, codec_.choice_, layout_.block).write());
  }

 private:
  /// |q . error| <= sum over c of |q[c]| * limit[c]: a channel is allowed the same share of it as any other,
  /// or, where a head has one step, the same error.
  void set_limits() {
    if (largest_.empty())
      throw bad_input("there are no queries, which --max-logit-error needs; see dump-kv --queries");
    const double d = static_cast<double>(layout_.block.dims);
    const double shares = layout_.unit == UnitShape::column ? d : 1;
    for (const double largest : largest_) {
      const double limit = codec_.options_.max_logit_error * std::sqrt(d) / (shares * largest);
      limits_.push_back(limit < FLT_MAX ? std::nextafter(static_cast<float>(limit), 0.0f) : FLT_MAX);
    }
  }

  void count(const TokenQueue& queue, size_t blocks, size_t tokens) {
    const BlockEngine* engine = codec_.quantizing_engine(side_, layout_);
    if (engine && blocks > 0 && tokens == layout_.block.tokens) {
      Matrix<uint16_t> values(blocks * tokens, layout_.width());
      queue.read(0, {values.data(), values.size()});
      if (const auto counts =
              engine->count_symbols(layout_, codec_.storage_, codec_.bound_of(side_), values)) {
        for (size_t symbol = 0; symbol < 256; ++symbol) counts_[symbol] += (*counts)[symbol];
        return;
      }
    }
    std::vector<std::vector<uint64_t>> counts(blocks);
    std::vector<std::optional<RowScratch>> scratch(static_cast<size_t>(num_threads()));
    parallel_for(blocks, 1, [&](size_t i, size_t, int worker) {
      auto& row = scratch[static_cast<size_t>(worker)];
      if (!row) row.emplace(layout_, tokens);
      row->read(queue, i * tokens);
      codec_.quantize(side_, layout_, limits_, row->values, row->steps, row->origins, row->symbols);
      counts[i] = histogram({row->symbols.data(), row->symbols.size()}, 256);
    });
    for (const auto& of_block : counts)
      for (size_t symbol = 0; symbol < 256; ++symbol) counts_[symbol] += of_block[symbol];
  }

  const KvcompCodec& codec_;
  Side side_;
  Layout layout_;
  std::vector<uint64_t> counts_;
  std::vector<uint16_t> waiting_;  // tokens short of a block
  int pass_ = 0;
  std::vector<double> largest_;  // |q| of a channel, or the sum of |q| of a head, over all queries
  std::vector<float> limits_;
};

std::unique_ptr<Survey> KvcompCodec::survey(const GroupShape& shape) const {
  return std::make_unique<HistogramSurvey>(*this, shape);
}

// Encoding
// --------------------------------------------------------------------------------------------------------

void KvcompCodec::quantize(Side side, const Layout& layout, std::span<const float> limits,
                           MatrixView<const float> rows, std::span<float> steps, std::span<int16_t> origins,
                           MatrixView<uint8_t> symbols) const {
  const size_t d = layout.block.dims;
  const size_t per_head = layout.unit == UnitShape::row ? rows.rows() : layout.steps();
  std::vector<float> bounds(per_head);
  if (layout.shared_steps) {
    const float limit = limits.empty() ? 0 : *std::ranges::min_element(limits);
    fit_steps(rows, layout.unit, bound_of(side, limit), storage_, steps.first(per_head), bounds);
  }
  for (size_t head = 0; head < layout.heads; ++head) {
    const auto x = rows.columns(head * d, d);
    const auto own = layout.shared_steps ? steps.first(per_head) : steps.subspan(head * per_head, per_head);
    const auto own_origins = origins.subspan(head * layout.origins(), layout.origins());
    const auto own_symbols = symbols.columns(head * d, d);
    const bool limit_per_channel = layout.unit == UnitShape::column && !limits.empty();
    if (!layout.shared_steps && !limit_per_channel) {  // steps and symbols in one go
      const float limit = limits.empty() ? 0 : limits[head];
      quantize_bounded(x, layout.unit, bound_of(side, limit), storage_, own, own_origins, own_symbols);
      continue;
    }
    if (limit_per_channel)
      for (size_t c = 0; c < d; ++c)
        fit_steps(x.columns(c, 1), layout.unit, bound_of(side, limits[head * d + c]), storage_,
                  own.subspan(c, 1), std::span(bounds).subspan(c, 1));
    quantize_with(x, layout.unit, own, bounds, storage_, own_origins, own_symbols);
  }
}

HeadBlock KvcompCodec::encode_head(const BlockCoder& coder, const Layout& layout,
                                   MatrixView<const uint8_t> symbols, MatrixView<const uint16_t> values,
                                   std::span<const int16_t> origins) const {
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

void append_blocks(const Layout& layout, const EncodedBlocks& blocks, StreamStore& document) {
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
EncodedBlocks KvcompCodec::encode_rows(Side side, const Layout& layout, const TokenQueue& queue, size_t rows,
                                       const StreamReader& document) const {
  const uint64_t book_bytes = document.rows(kBook);
  const BlockCoder coder = BlockCoder::read(document.read<uint8_t>(kBook, 0, book_bytes, 1));
  if (const BlockEngine* engine = quantizing_engine(side, layout)) {
    Matrix<uint16_t> values(rows * block_, layout.width());
    queue.read(0, {values.data(), values.size()});
    if (auto blocks = engine->encode(layout, storage_, bound_of(side), coder, values))
      return std::move(*blocks);
  }
  const auto limits = has_limits(side)
                          ? document.read<float>(kLimits, 0, 1, layout.heads * limits_per_head(layout))
                          : std::vector<float>();
  const size_t width = layout.width(), d = layout.block.dims;
  EncodedRows out{.blocks = std::vector<HeadBlock>(rows * layout.heads),
                  .steps = std::vector<float>(rows * layout.row_steps())};
  std::vector<std::optional<RowScratch>> scratch(static_cast<size_t>(num_threads()));
  parallel_for(rows, 1, [&](size_t i, size_t, int worker) {
    auto& row = scratch[static_cast<size_t>(worker)];
    if (!row) row.emplace(layout, block_);
    row->read(queue, i * block_);
    quantize(side, layout, limits, row->values,
             std::span(out.steps).subspan(i * layout.row_steps(), layout.row_steps()), row->origins,
             row->symbols);
    const MatrixView<const uint16_t> halves(row->halves.data(), block_, width);
    for (size_t head = 0; head < layout.heads; ++head)
      out.blocks[i * layout.heads + head] =
          encode_head(coder, layout, row->symbols.view().columns(head * d, d), halves.columns(head * d, d),
                      std::span(row->origins).subspan(head * layout.origins(), layout.origins()));
  });
  return in_streams(layout, out);
}

void KvcompCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_width(shape, rows.cols());
  const Layout layout = layout_of(shape);
  const uint64_t waiting = document.rows(kTail);
  const auto blocks = layout.pays ? static_cast<size_t>((waiting + rows.rows()) / block_) : 0;
  if (blocks == 0) return document.append_values<uint16_t>(kTail, to_storage(storage_, rows));

  const std::vector<uint16_t> tail = document.read<uint16_t>(kTail, 0, waiting, layout.width());
  const TokenQueue queue(storage_, tail, rows);
  const EncodedBlocks encoded = encode_rows(shape.side, layout, queue, blocks, document);
  const std::vector<uint16_t> rest = queue.from(blocks * block_);
  append_blocks(layout, encoded, document);  // nothing is stored unless all can be
  document.truncate(kTail, 0);
  document.append_values<uint16_t>(kTail, rest);
}

// Decoding
// --------------------------------------------------------------------------------------------------------

uint64_t KvcompCodec::tokens(const GroupShape& shape, const StreamReader& document) const {
  const uint64_t rows = document.rows(kModes), waiting = document.rows(kTail);
  const bool pays = layout_of(shape).pays;
  if (pays ? waiting >= block_ : rows > 0)
    throw bad_input("stream '{}' has {} tokens beside {} block rows of {}", kTail, waiting, rows,
                    pays ? block_ : 0);
  return checked_add(checked_mul(rows, block_), waiting);
}

size_t KvcompCodec::check_range(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                uint64_t count) const {
  const uint64_t total = tokens(shape, document), in_blocks = document.rows(kModes) * block_;
  if (first > total || count > total - first)
    throw bad_input("there are {} tokens; {} from token {} on are not all there", total, count, first);
  return first < in_blocks ? std::min(count, in_blocks - first) : 0;
}

/// Tokens [first, first + out.rows()), all of them in blocks.
void KvcompCodec::decode_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                                MatrixView<float> out) const {
  if (blocks_ && out.rows() > 0 && blocks_->decode(layout, storage_, document, first, out)) return;
  const LoadedBlocks blocks = load(layout, document, first, out.rows());
  const uint64_t first_row = first / block_;
  const size_t d = layout.block.dims;
  parallel_for(blocks.rows() * layout.heads, kPieceBlocks, [&](size_t begin, size_t end, int) {
    BlockScratch scratch(layout);
    scratch.end = end;
    Matrix<float> whole(block_, d);
    for (size_t i = begin; i < end; ++i) {
      const uint64_t row = i / layout.heads, head = i % layout.heads;
      const uint64_t start = (first_row + row) * block_;  // first token of the block
      const uint64_t from = std::max(start, first), to = std::min(start + block_, first + out.rows());
      const auto wanted = out.rows(from - first, to - from).columns(head * d, d);
      if (to - from == block_) {
        blocks.decode(row, head, scratch, wanted);
        continue;
      }
      blocks.decode(row, head, scratch, whole);
      for (size_t t = 0; t < wanted.rows(); ++t)
        std::ranges::copy(whole.row(from - start + t), wanted.row(t).begin());
    }
  });
}

void KvcompCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                         MatrixView<float> out) const {
  check_width(shape, out.cols());
  const size_t in_blocks = check_range(shape, document, first, out.rows());
  check_limits(shape, document);
  decode_blocks(layout_of(shape), document, first, out.rows(0, in_blocks));
  if (in_blocks < out.rows())
    read_exact(kTail, storage_, document, first + in_blocks - document.rows(kModes) * block_,
               out.rows(in_blocks, out.rows() - in_blocks));
}

// Products
// -------------------------------------------------------------------------------------------------------

void KvcompCodec::multiply_keys(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                MatrixView<const float> queries, MatrixView<float> out) const {
  const Layout layout = layout_of(shape);
  check_products(shape, Side::key, queries, out);
  if (queries.rows() / layout.heads >= kManyQueries)
    return decode_and_multiply_keys(*this, shape, document, first, queries, out);
  const size_t in_blocks = check_range(shape, document, first, out.cols());
  multiply_key_blocks(layout, document, first, queries, out.columns(0, in_blocks));
  if (in_blocks == out.cols()) return;
  const size_t exact = out.cols() - in_blocks;
  Matrix<float> rows(exact, layout.width());
  read_exact(kTail, storage_, document, first + in_blocks - document.rows(kModes) * block_, rows);
  multiply_key_rows(rows, queries, out.columns(in_blocks, exact));
}

void KvcompCodec::multiply_key_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                                      MatrixView<const float> queries, MatrixView<float> out) const {
  const size_t in_blocks = out.cols();
  if (blocks_ && in_blocks > 0 && blocks_->multiply_keys(layout, storage_, document, first, queries, out))
    return;
  const size_t per_head = queries.rows() / layout.heads;
  const LoadedBlocks blocks = load(layout, document, first, in_blocks);
  const uint64_t first_row = first / block_;
  parallel_for(blocks.rows() * layout.heads, kPieceBlocks, [&](size_t begin, size_t end, int) {
    BlockScratch scratch(layout);
    scratch.end = end;
    Matrix<float> scores(per_head, block_);
    for (size_t i = begin; i < end; ++i) {
      const uint64_t row = i / layout.heads, head = i % layout.heads;
      const uint64_t start = (first_row + row) * block_;
      const uint64_t from = std::max(start, first), to = std::min(start + block_, first + in_blocks);
      blocks.multiply_keys(row, head, queries.rows(head * per_head, per_head), scratch, scores);
      for (size_t g = 0; g < per_head; ++g)
        std::ranges::copy(scores.row(g).subspan(from - start, to - from),
                          out.row(head * per_head + g).begin() + static_cast<ptrdiff_t>(from - first));
    }
  });
}

void KvcompCodec::multiply_values(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                  MatrixView<const float> weights, MatrixView<float> out) const {
  const Layout layout = layout_of(shape);
  check_products(shape, Side::value, out, weights);
  if (weights.rows() / layout.heads >= kManyQueries)
    return decode_and_multiply_values(*this, shape, document, first, weights, out);
  const size_t in_blocks = check_range(shape, document, first, weights.cols());
  multiply_value_blocks(layout, document, first, weights.columns(0, in_blocks), out);
  if (in_blocks == weights.cols()) return;
  const size_t exact = weights.cols() - in_blocks;
  Matrix<float> rows(exact, layout.width());
  read_exact(kTail, storage_, document, first + in_blocks - document.rows(kModes) * block_, rows);
  multiply_value_rows(rows, weights.columns(in_blocks, exact), out);
}

void KvcompCodec::multiply_value_blocks(const Layout& layout, const StreamReader& document, uint64_t first,
                                        MatrixView<const float> weights, MatrixView<float> out) const {
  const size_t in_blocks = weights.cols();
  if (blocks_ && in_blocks > 0 && blocks_->multiply_values(layout, storage_, document, first, weights, out))
    return;
  const size_t per_head = weights.rows() / layout.heads, d = layout.block.dims;
  const LoadedBlocks blocks = load(layout, document, first, in_blocks);
  const uint64_t first_row = first / block_;
  // Sums over tokens: one partial sum for each head and so many block rows, added up in their order.
  const size_t pieces = (blocks.rows() + kPieceBlocks - 1) / kPieceBlocks;
  std::vector<Matrix<float>> partial(pieces * layout.heads);
  parallel_for(partial.size(), 1, [&](size_t begin, size_t end, int) {
    BlockScratch scratch(layout);
    Matrix<float> part(per_head, block_);  // the weights of one block, 0 for tokens not asked for
    for (size_t i = begin; i < end; ++i) {
      const size_t head = i % layout.heads, piece = i / layout.heads;
      partial[i] = Matrix<float>(per_head, d);
      scratch.ahead.clear();
      scratch.stride = layout.heads;
      scratch.end = std::min((piece + 1) * kPieceBlocks, blocks.rows()) * layout.heads;
      for (size_t row = piece * kPieceBlocks; row < std::min((piece + 1) * kPieceBlocks, blocks.rows());
           ++row) {
        const uint64_t start = (first_row + row) * block_;
        const uint64_t from = std::max(start, first), to = std::min(start + block_, first + in_blocks);
        for (size_t g = 0; g < per_head; ++g) {
          std::ranges::fill(part.row(g), 0.0f);
          std::ranges::copy(weights.row(head * per_head + g).subspan(from - first, to - from),
                            part.row(g).begin() + static_cast<ptrdiff_t>(from - start));
        }
        blocks.multiply_values(row, head, part, scratch, partial[i]);
      }
    }
  });
  for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
  for (size_t i = 0; i < partial.size(); ++i)
    for (size_t g = 0; g < per_head; ++g) {
      const auto sum = out.row(i % layout.heads * per_head + g);
      for (size_t c = 0; c < d; ++c) sum[c] += partial[i](g, c);
    }
}

std::vector<uint64_t> KvcompCodec::symbol_counts(const GroupShape& shape,
                                                 const StreamReader& document) const {
  const Layout layout = layout_of(shape);
  const uint64_t rows = tokens(shape, document) / block_ * (layout.pays ? 1 : 0);
  std::vector<uint64_t> total(256);
  for (uint64_t first = 0; first < rows; first += kCountedRows) {
    const LoadedBlocks blocks(layout, storage_, document, first, std::min(first + kCountedRows, rows));
    std::vector<std::vector<uint64_t>> counts(blocks.rows() * layout.heads);
    parallel_for(counts.size(), 1, [&](size_t begin, size_t end, int) {
      BlockScratch scratch(layout);
      for (size_t i = begin; i < end; ++i) {
        counts[i].resize(total.size());
        blocks.count_symbols(i / layout.heads, i % layout.heads, scratch, counts[i]);
      }
    });
    for (const auto& of_block : counts)
      for (size_t symbol = 0; symbol < total.size(); ++symbol) total[symbol] += of_block[symbol];
  }
  return total;
}

std::unique_ptr<Options> make_options() { return std::make_unique<KvcompOptions>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<KvcompCodec>(dynamic_cast<const KvcompOptions&>(options), context);
}

}  // namespace

CodecEntry kvcomp_codec() {
  return {.name = "kvcomp",
          .summary = "error-bounded quantization and entropy coding; needs no training",
          .capabilities = {.multiplies = true, .device_twin = true},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
