// The codec `transform`: a token's keys and values of some layers, all heads, together or each side by itself, as
// components of a learned orthonormal basis
// (lib/transform/basis.hpp), quantized with one step (lib/transform/levels.hpp) and coded by rANS with tables of the
// book (lib/transform/level_coder.hpp). Transform coding with reverse water-filling is the textbook's (Goyal,
// "Theoretical foundations of transform coding", 2001); of caches KVTC ("KV Cache Transform Coding for Compact
// Storage in LLM Inference", 2025) has it per layer without weights.
//
// The first `sink` tokens of a document and its newest `window` tokens are kept at 16 bits. With a sink of 0 and a book
// that knows first tokens, the first one is coded by itself (lib/transform/first_token.hpp); what is said below of
// tokens is of those behind it. What falls out of the window is quantized: of T tokens Q = max(0, T - sink - window),
// in blocks of `block` tokens; the last one may have fewer, and is coded anew when tokens come.
//
// Streams of one document, `adapted` being shared by all:
//   adapted u8 [bytes]                 classes and means that fit the file better than the book's
//                                      (lib/transform/adaptation.hpp); empty: the book's; there only with `adapt`
//   first   u8 [bytes]                 the first token; there only if first tokens are coded by themselves
//   sink    bf16|f16 [min(T, sink)][sides, if joint][layers][heads][d]
//   blocks  u32 [ceil(Q / block)][2]   tokens and bytes of each block
//   codes   u8 [bytes]                 the blocks, one behind the other
//   places  u64                        where blocks begin in codes (lib/codec/places.hpp); complete ones count
//   exact_ids u32 [E]                  which of the Q tokens are kept exactly beside the codes, rising
//   exact   bf16|f16 [E][as sink]
//   tail    bf16|f16 [T - sink - Q][as sink]
//
// Tokens unlike all that the book learned from, whose levels would take more bits than their values, or that lie so far
// outside its components that their bits would be worth their error, are kept exactly; their levels are 0.
#include <algorithm>
#include <memory>

#include "lib/codec/exact_ends.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/codec/part.hpp"
#include "lib/transform/codec/survey.hpp"
#include "lib/transform/level_coder.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kAdapted = "adapted", kFirst = "first", kBlocks = "blocks", kCodes = "codes",
                           kExactIds = "exact_ids", kExact = "exact";
constexpr uint64_t kMostQuantized = uint64_t{1} << 32;  // what exact_ids can name
/// Blocks decoded side by side.
constexpr size_t kTogether = RansDecoder<uint8_t>::kTogether;

struct TransformOptions final : Options {
  double bits = 0.7;  ///< what costs a small model as much as 4.5 bits without a transform
  int64_t rung = -1;
  double rate_distortion = -1;
  int64_t sink = -1;
  int64_t window = 0;
  int64_t block = 256;  ///< a block's states and its length are below a thousandth of its bits
  bool adapt = true;

  std::vector<OptionField> fields() override {
    return {
        {"bits", "about this many bits per value: uses the book's step that came nearest in training", &bits,
         0.001, 16},
        {"rung", "number of the book's step to use, 0 is the coarsest; -1: the one that --bits chooses",
         &rung, -1, 1023},
        {.name = "rate-distortion",
         .help = "squared error, in squared steps, that the encoder accepts to save one bit: larger values "
                 "lower the rate between two steps; -1: the book's value",
         .target = &rate_distortion,
         .min = -1,
         .max = 1},
        {"sink",
         "first tokens of a document kept exactly; -1: none if the book knows first tokens, and the first one is "
         "then coded finer than others, else 1",
         &sink, -1, 1 << 24},
        {"window", "newest tokens of a document kept exactly", &window, 0, 1 << 24},
        {"block", "tokens of a block, which is coded and decoded alone", &block, 1, 1 << 16},
        {"adapt",
         "take the book's classes and means as they are; by default they are fitted to the "
         "tokens, which are read once more, if that saves more bits than it takes",
         &adapt}};
  }
};

/// A block as the stream `blocks` has it.
struct BlockHead {
  uint32_t tokens = 0, bytes = 0;
};

class TransformView final : public DocumentView {
 public:
  TransformView(const ExactEnds& ends, uint64_t block, const TransformParts& parts, bool adapts,
                const GroupShape& shape, DType storage, const StreamReader& document)
      : DocumentView(shape, document),
        ends_(ends),
        block_(block),
        parts_(parts),
        adapts_(adapts),
        part_(parts.of_book(shape)),
        storage_(storage),
        places_({kCodes}, place_interval(block)) {}

  /// The part that the document is coded with, adapted or not; after refresh().
  const TransformPart& part() const { return *part_; }
  /// Levels of the last block if it is incomplete: (components, tokens); else no columns.
  Matrix<int32_t> unfinished() const;

 protected:
  uint64_t take_in() override;
  void decode_rows(uint64_t first, MatrixView<float> out) const override;
  Block block_of(uint64_t token) const override {
    const uint64_t lead = this->lead();
    if (token < lead || token - lead >= quantized_) return {token, token + 1};
    const uint64_t begin = lead + (token - lead) / block_ * block_;
    return {begin, std::min(begin + block_, lead + quantized_)};
  }

 private:
  /// Consecutive blocks, in memory.
  struct Blocks {
    std::vector<uint32_t> bytes;
    std::vector<uint8_t> payload;
  };
  Blocks read(uint64_t first, uint64_t last) const;
  /// Tokens before those that are quantized in blocks.
  uint64_t lead() const { return firsts_ + ends_.sinks_of(tokens() - firsts_); }
  void decode_first(std::span<float> out) const;
  void decode_quantized(uint64_t first, MatrixView<float> out) const;
  void take_in_exact();
  uint64_t exact_below(uint64_t token) const;
  void decode_exact(uint64_t first, MatrixView<float> out) const;
  uint64_t tokens_of(uint64_t block) const { return std::min(block_, quantized_ - block * block_); }

  ExactEnds ends_;
  uint64_t block_;
  const TransformParts& parts_;
  bool adapts_, adapted_ = false;
  std::shared_ptr<const TransformPart> part_;
  DType storage_;
  Places<BlockHead> places_;
  uint64_t firsts_ = 0, quantized_ = 0, exact_ = 0;  // firsts_: 1 if the first token is coded by itself
};

class TransformCodec final : public Codec {
 public:
  TransformCodec(const TransformOptions& options, TransformBook book, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        ends_(storage_, static_cast<uint64_t>(options.sink), options.window),
        block_(static_cast<uint64_t>(options.block)),
        layer_group_(static_cast<int>(book.options.layer_group)),
        joint_(book.options.sides == SideCoding::joint),
        unbias_(book.options.unbias),
        learned_bits_(book.measures[static_cast<size_t>(options.rung)].bits),
        tables_(std::move(book.classes),
                options.rate_distortion < 0 ? book.options.rate_distortion : options.rate_distortion),
        features_(std::move(book.features)),
        engine_(context.engine) {
    const double first_finer = options.sink == 0 && book.knows_first_tokens() ? book.options.first_finer : 0;
    codes_first_ = first_finer > 0;
    for (TransformBook::Part& part : book.parts) {
      const Side side = part.side;
      const int first_layer = part.first_layer;
      parts_.add(
          side, first_layer,
          std::make_shared<TransformPart>(std::move(part), static_cast<size_t>(options.rung), tables_,
                                          features_ ? &*features_ : nullptr, first_finer, context.engine));
    }
  }

  Record parameters() const override {
    TransformOptions copy = options_;
    return to_record(copy);
  }
  int layer_group() const override { return layer_group_; }
  bool joint() const override { return joint_; }
  std::optional<LearnedRate> learned_rate() const override {
    return LearnedRate{{kCodes, kExact}, learned_bits_};
  }
  uint64_t predicts_from() const override { return features_ ? features_->vocabulary() : 0; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    std::vector<StreamSpec> specs{ends_.sink_stream(shape),
                                  {std::string(kBlocks), DType::u32, {2}, Category::offsets},
                                  {std::string(kCodes), DType::u8, {}, Category::payload},
                                  places_stream(1),
                                  {std::string(kExactIds), DType::u32, {}, Category::offsets},
                                  exact_stream(std::string(kExact), shape, storage_, Category::exempt),
                                  ends_.tail_stream(shape)};
    if (codes_first_) specs.insert(specs.begin(), {std::string(kFirst), DType::u8, {}, Category::payload});
    if (options_.adapt)
      specs.insert(specs.begin(), {.name = std::string(kAdapted),
                                   .type = DType::u8,
                                   .row_shape = {},
                                   .category = Category::tables,
                                   .shared = true});
    return specs;
  }
  /// 16-bit rows and rows less their mean; components as floats, levels and symbols; for a device rows as it gives them,
  /// twice.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (engine_ ? 24 : 16);
  }

  SurveyScope survey_scope(const GroupShape&) const override {
    return options_.adapt ? SurveyScope::file : SurveyScope::none;
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    check_block();
    return std::make_unique<TransformSurvey>(*parts_.of_book(shape), kAdapted,
                                             static_cast<uint64_t>(options_.sink) + (codes_first_ ? 1 : 0),
                                             unbias_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<TransformView>(ends_, block_, parts_, options_.adapt, shape, storage_, document);
  }

 private:
  void check_block() const;
  void append_first(const TransformPart& part, MatrixView<const float> row, StreamStore& document) const;
  void append_blocks(const GroupShape& shape, std::span<const uint16_t> halves, StreamStore& document) const;

  TransformOptions options_;
  DType storage_;
  ExactEnds ends_;
  uint64_t block_;
  int layer_group_;
  bool joint_, codes_first_ = false;
  double unbias_, learned_bits_;
  LevelTables tables_;
  std::optional<TokenFeatures> features_;
  Engine* engine_;
  TransformParts parts_;
};

// Encoding
// ---------------------------------------------------------------------------------------------------------

/// Throws Error(usage) if a block might have more levels than can be coded together. A decoder need not ask: a document may
/// be shorter than a block.
void TransformCodec::check_block() const {
  const size_t components = parts_.most_components(options_.adapt);
  if (const size_t most = kMaxSegmentSymbols / std::max<size_t>(components, 1); block_ > most)
    throw usage_error("--block is {}; of {} components at this step, it is at most {}", block_, components,
                      most);
}

void TransformCodec::append_first(const TransformPart& part, MatrixView<const float> row,
                                  StreamStore& document) const {
  std::vector<float> stored(part.width());
  widen(storage_, to_storage(storage_, row), stored);
  std::vector<uint8_t> bytes;
  part.first()->encode(stored, bytes);
  document.append_values<uint8_t>(kFirst, bytes);
}

/// halves: 16-bit rows of the tokens that fell out of the window, (n, width).
void TransformCodec::append_blocks(const GroupShape& shape, std::span<const uint16_t> halves,
                                   StreamStore& document) const {
  const size_t width = shape.width(), tokens = halves.size() / width, block = static_cast<size_t>(block_);
  if (engine_) engine_->fall_back("transform: encoding");
  TransformView view(ends_, block_, parts_, options_.adapt, shape, storage_, document);
  view.refresh();
  const TransformPart& part = view.part();
  // The last block, if tokens can be added to it, is coded anew with them.
  const Matrix<int32_t> unfinished = view.unfinished();
  uint64_t complete = document.rows(kBlocks);
  if (unfinished.cols() > 0) {
    --complete;
    const auto head = document.read<uint32_t>(kBlocks, complete, 1, 2);
    document.truncate(kCodes, document.rows(kCodes) - head[1]);
    document.truncate(kBlocks, complete);
  }
  struct Coded {
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> head, exact_ids;
    std::vector<uint16_t> exact;
  };
  const uint64_t quantized = complete * block + unfinished.cols();
  const std::vector<uint32_t> ids =
      part.ids(document, static_cast<uint64_t>(options_.sink) + (codes_first_ ? 1 : 0) + quantized, tokens);
  const size_t before = unfinished.cols(), blocks = (before + tokens + block - 1) / block;
  std::vector<Coded> coded(blocks);
  parallel_for(blocks, 1, [&](size_t begin, size_t end, int) {
    for (size_t b = begin; b < end; ++b) {
      // Block b: `old` tokens whose levels were read back, then `count` new ones, from token `from` of halves on.
      const size_t old = b == 0 ? before : 0, from = b == 0 ? 0 : b * block - before,
                   count = std::min(block - old, tokens - from);
      const auto of_block = halves.subspan(from * width, count * width);
      Matrix<float> rows(count, width);
      widen(storage_, of_block, {rows.data(), rows.size()});
      Matrix<int32_t> levels(part.components(), old + count);
      for (size_t i = 0; i < (old > 0 ? levels.rows() : 0); ++i)
        std::ranges::copy(unfinished.row(i), levels.row(i).begin());
      const auto added = levels.view().columns(old, count);
      std::vector<double> errors(count);
      part.quantize(old, std::span(ids).subspan(ids.empty() ? 0 : from), rows, added, errors);
      for (const size_t t : part.costly(added, errors)) {
        for (size_t i = 0; i < added.rows(); ++i) added(i, t) = 0;
        coded[b].exact_ids.push_back(static_cast<uint32_t>((complete + b) * block + old + t));
        const auto row = of_block.subspan(t * width, width);
        coded[b].exact.insert(coded[b].exact.end(), row.begin(), row.end());
      }
      const uint32_t bytes = part.coder().encode(levels, coded[b].bytes);
      coded[b].head = {static_cast<uint32_t>(levels.cols()), bytes};
    }
  });
  constexpr std::string_view kPlaced[] = {kCodes};
  PlaceWriter places(kPlaced, place_interval(block), document, complete);
  for (const Coded& of_block : coded) {
    document.append_values<uint8_t>(kCodes, of_block.bytes);
    document.append_values<uint32_t>(kBlocks, of_block.head);
    document.append_values<uint32_t>(kExactIds, of_block.exact_ids);
    document.append_values<uint16_t>(kExact, of_block.exact);
    if (of_block.head[0] == block) places.add(std::array{uint64_t{of_block.head[1]}});
  }
  places.store(document);
}

void TransformCodec::append(const GroupShape& shape, MatrixView<const float> rows,
                            StreamStore& document) const {
  check_width(shape, rows.cols());
  check_block();
  if (rows.rows() == 0) return;
  uint64_t before = open(shape, document)->tokens();
  if (codes_first_) {
    if (before == 0) append_first(*parts_.of_book(shape), rows.rows(0, 1), document);
    const size_t taken = before == 0 ? 1 : 0;
    rows = rows.rows(taken, rows.rows() - taken);
    before -= 1 - taken;
    if (rows.rows() == 0) return;
  }
  if (ends_.quantized_of(before + rows.rows()) > kMostQuantized)
    throw bad_input("a document of {} tokens; the codec transform takes 2^32", before + rows.rows());
  ends_.append(rows, before, document,
               [&](std::span<const uint16_t> halves) { append_blocks(shape, halves, document); });
}

// Decoding
// ---------------------------------------------------------------------------------------------------------

uint64_t TransformView::take_in() {
  // The adaptation is written before the first token and never changes.
  if (const uint64_t bytes = adapts_ && !adapted_ ? document().rows(kAdapted) : 0; bytes > 0) {
    with_context(fmt::format("stream '{}'", kAdapted),
                 [&] { part_ = parts_.adapted(shape(), document().read<uint8_t>(kAdapted, 0, bytes, 1)); });
    adapted_ = true;
  }
  const uint64_t blocks = document().rows(kBlocks);
  quantized_ = 0;
  if (blocks > 0) {
    const auto last = document().read<uint32_t>(kBlocks, blocks - 1, 1, 2);
    if (last[0] == 0 || last[0] > block_)
      throw bad_input("stream '{}', row {}: {} tokens; a block has 1 to {}", kBlocks, blocks - 1, last[0],
                      block_);
    quantized_ = checked_add(checked_mul(blocks - 1, block_), last[0]);
  }
  const uint64_t others = ends_.tokens(document(), quantized_);
  firsts_ = part_->first() && document().rows(kFirst) > 0 ? 1 : 0;
  if (part_->first() && firsts_ == 0 && others > 0)
    throw bad_input("stream '{}' is empty, and there are {} other tokens", kFirst, others);
  places_.grow(document(), blocks, quantized_ / block_);
  take_in_exact();
  return firsts_ + others;
}

void TransformView::decode_first(std::span<float> out) const {
  const auto bytes = document().read<uint8_t>(kFirst, 0, document().rows(kFirst), 1);
  with_context(fmt::format("stream '{}'", kFirst), [&] { part_->first()->decode(bytes, out); });
}

/// Exact tokens are looked up when they are asked for: how many there are says nothing of where they lie.
void TransformView::take_in_exact() {
  exact_ = document().rows(kExactIds);
  if (document().rows(kExact) != exact_ || exact_ > quantized_)
    throw bad_input("{} ids of exact tokens and {} of these, of {} quantized", exact_,
                    document().rows(kExact), quantized_);
}

/// How many exact ids are below `token`, by bisection: few ids are read.
uint64_t TransformView::exact_below(uint64_t token) const {
  uint64_t low = 0, high = exact_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (document().read<uint32_t>(kExactIds, middle, 1, 1)[0] < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// Writes the exact ones among quantized tokens [first, first + out.rows()) over what their levels gave.
void TransformView::decode_exact(uint64_t first, MatrixView<float> out) const {
  if (exact_ == 0) return;
  const uint64_t begin = exact_below(first), end = exact_below(first + out.rows());
  if (begin > end) throw bad_input("stream '{}': ids do not rise", kExactIds);
  const auto ids = document().read<uint32_t>(kExactIds, begin, end - begin, 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < first || ids[i] - first >= out.rows() || (i > 0 && ids[i] <= ids[i - 1]))
      throw bad_input("stream '{}', row {}: {}; ids rise and are below {}", kExactIds, begin + i, ids[i],
                      quantized_);
    read_exact(kExact, storage_, document(), begin + i, out.rows(ids[i] - first, 1));
  }
}

TransformView::Blocks TransformView::read(uint64_t first, uint64_t last) const {
  const auto heads = [&](Interval<BlockHead>& interval, uint64_t end) {
    const uint64_t begin = interval.end();
    const auto stored = document().read<uint32_t>(kBlocks, begin, end - begin, 2);
    for (uint64_t i = begin; i < end; ++i) {
      const BlockHead head{stored[2 * (i - begin)], stored[2 * (i - begin) + 1]};
      if (head.tokens != tokens_of(i))
        throw bad_input("stream '{}', row {}: {} tokens; this block has {}", kBlocks, i, head.tokens,
                        tokens_of(i));
      interval.add(head, std::array{uint64_t{head.bytes}});
    }
  };
  Blocks blocks;
  uint64_t begin = 0, end = 0;
  for (uint64_t i = first; i < last; ++i) {
    const Interval<BlockHead>& interval = places_.at(i, document(), heads);
    if (i == first) begin = interval.begin(i, 0);
    end = interval.begin(i + 1, 0);
    blocks.bytes.push_back(interval[i].bytes);
  }
  blocks.payload = document().read<uint8_t>(kCodes, begin, end - begin, 1);
  return blocks;
}

Matrix<int32_t> TransformView::unfinished() const {
  const auto tokens = static_cast<size_t>(quantized_ % block_);
  Matrix<int32_t> levels(part_->components(), tokens);
  if (tokens == 0) return levels;
  const uint64_t last = quantized_ / block_;
  const Blocks blocks = read(last, last + 1);
  part_->coder().decode(blocks.payload, blocks.bytes, tokens, levels);
  return levels;
}

/// Writes quantized tokens [first, first + out.rows()), counted from the first of them.
void TransformView::decode_quantized(uint64_t first, MatrixView<float> out) const {
  const uint64_t end = first + out.rows(), first_block = first / block_,
                 last_block = (end + block_ - 1) / block_;
  const Blocks blocks = read(first_block, last_block);
  const std::vector<uint32_t> ids = part_->ids(document(), lead() + first, out.rows());
  std::vector<uint64_t> begins{0};
  for (const uint32_t bytes : blocks.bytes) begins.push_back(begins.back() + bytes);
  // `count` blocks of `tokens` tokens each, the first of them `block`, and those of their tokens that are wanted.
  struct Wanted {
    std::span<const uint8_t> payload;
    std::span<const uint32_t> bytes;
    uint64_t from, begin, stop;  // the blocks' first token; those wanted
  };
  const auto wanted = [&](uint64_t block, size_t count, uint64_t tokens) {
    const size_t at = block - first_block;
    const uint64_t from = block * block_;
    return Wanted{std::span(blocks.payload).subspan(begins[at], begins[at + count] - begins[at]),
                  std::span(blocks.bytes).subspan(at, count), from, std::max(first, from),
                  std::min(end, from + count * tokens)};
  };
  const auto decode_there = [&](const SynthesisEngine& device, uint64_t block, size_t count,
                                uint64_t tokens) {
    const Wanted of = wanted(block, count, tokens);
    Matrix<float> rows(count * tokens, out.cols());
    if (!device.decode(of.payload, of.bytes, tokens, rows)) return false;
    for (uint64_t t = of.begin; t < of.stop; ++t)
      std::ranges::copy(rows.row(t - of.from), out.row(t - first).begin());
    return true;
  };
  const auto decode = [&](uint64_t block, size_t count, uint64_t tokens) {
    const Wanted of = wanted(block, count, tokens);
    Matrix<int32_t> levels(part_->components(), count * tokens);
    with_context(fmt::format("stream '{}', blocks from {} on", kCodes, block),
                 [&] { part_->coder().decode(of.payload, of.bytes, tokens, levels); });
    part_->reconstruct(levels.view().columns(of.begin - of.from, of.stop - of.begin),
                       std::span(ids).subspan(ids.empty() ? 0 : of.begin - first),
                       out.rows(of.begin - first, of.stop - of.begin));
  };
  // Complete blocks, several at a time, then the incomplete one.
  const uint64_t complete = std::min(last_block, quantized_ / block_);
  const size_t whole = complete - std::min(complete, first_block);
  const SynthesisEngine* const device = part_->device();
  const bool there = whole > 0 && device && decode_there(*device, first_block, whole, block_);
  const size_t pieces = there ? 0 : (whole + kTogether - 1) / kTogether;
  parallel_for(pieces, 1, [&](size_t begin, size_t piece_end, int) {
    for (size_t piece = begin; piece < piece_end; ++piece) {
      const uint64_t block = first_block + piece * kTogether;
      decode(block, std::min<uint64_t>(kTogether, complete - block), block_);
    }
  });
  if (const uint64_t tokens = last_block > complete ? tokens_of(complete) : 0;
      tokens > 0 && !(device && decode_there(*device, complete, 1, tokens)))
    decode(complete, 1, tokens);
  decode_exact(first, out);
}

void TransformView::decode_rows(uint64_t first, MatrixView<float> out) const {
  const size_t taken = first < firsts_ && out.rows() > 0 ? 1 : 0;
  if (taken > 0) decode_first(out.row(0));
  if (taken == out.rows()) return;
  ends_.decode(document(), quantized_, first + taken - firsts_, out.rows(taken, out.rows() - taken),
               [&](uint64_t at, MatrixView<float> rows) { decode_quantized(at, rows); });
}

std::unique_ptr<Options> make_transform_options() { return std::make_unique<TransformOptions>(); }

std::unique_ptr<Codec> make_transform(const Options& options, const CodecContext& context) {
  check_context(context);
  if (!context.book)
    throw usage_error("codec transform needs a book: give it with --book (train-transform makes one)");
  TransformBook book = transform_book_from(*context.book);
  if (book.num_layers != context.num_layers || book.heads != context.heads ||
      book.head_dim != context.head_dim)
    throw bad_input("the transform is for {} layers, {} heads of {}; the cache has {}, {} of {}",
                    book.num_layers, book.heads, book.head_dim, context.num_layers, context.heads,
                    context.head_dim);
  TransformOptions chosen = dynamic_cast<const TransformOptions&>(options);
  if (chosen.sink < 0) chosen.sink = book.knows_first_tokens() ? 0 : kTransformSink;
  if (chosen.rung < 0) chosen.rung = static_cast<int64_t>(book.rung_for(chosen.bits));
  if (chosen.rung >= static_cast<int64_t>(book.steps()))
    throw usage_error("--rung is {}; the book has {}, from 0 on", chosen.rung, book.steps());
  return std::make_unique<TransformCodec>(chosen, std::move(book), context);
}

/// Whole settings are the book's rungs. Between two of them the finer rung is used, with a rate-distortion that accepts more
/// error for fewer bits.
void turn_transform(Options& options, double setting, bool) {
  auto& own = dynamic_cast<TransformOptions&>(options);
  const double rung = std::ceil(setting);
  own.rung = static_cast<int64_t>(rung);
  own.rate_distortion = rounded_setting(0.12 * (1 + 2.5 * (rung - setting)));
}

}  // namespace

CodecEntry transform_codec() {
  return {
      .name = "transform",
      .summary = "components of a learned basis, one step for all, entropy-coded, first tokens finer",
      .capabilities = {.needs_book = true, .device_twin = true, .device_pays = true},
      .book_type = "transform",
      .make_options = make_transform_options,
      .make = make_transform,
      .before_rope = true,
      .dial = {.sets = {"bits", "rung", "rate-distortion"}, .least = 0, .most = 1023, .turn = turn_transform},
      .promise = 1,
      .on_demand = false,
      .place = 10};
}

}  // namespace kvcodec
