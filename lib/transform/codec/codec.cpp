// The codec `transform`: a token's keys and values of some layers, all heads, together or each side by itself, as components of a learned
// orthonormal basis (lib/transform/basis.hpp), quantized with one step (lib/transform/levels.hpp) and coded by rANS with tables of the book
// (lib/transform/levels.hpp). Transform coding with reverse water-filling is the textbook's (Goyal, "Theoretical foundations of transform
// coding", 2001); of caches KVTC ("KV Cache Transform Coding for Compact Storage in LLM Inference", 2025) has it per layer without weights.
//
// The first `sink` tokens of a document and its newest `window` tokens are kept at 16 bits. With a sink of 0 and a book
// that knows first tokens, the first one is coded by itself (lib/transform/levels.hpp); what is said below of
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
//   rungs   u8 [Q]                     of each token, from the coarsest one in use on; there only where tokens have rungs of their own
//   places  u64                        where blocks begin in codes (lib/codec/places.hpp); complete ones count
//   exact_ids u32 [E]                  which of the Q tokens are kept exactly beside the codes, rising
//   exact   bf16|f16 [E][as sink]
//   tail    bf16|f16 [T - sink - Q][as sink]
//
// Tokens unlike all that the book learned from, whose levels would take more bits than their values, or that lie so far
// outside its components that their bits would be worth their error, are kept exactly; their levels are 0.
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/codec/part.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kAdapted = "adapted", kFirst = "first", kBlocks = "blocks", kCodes = "codes",
                           kRungs = "rungs", kExactIds = "exact_ids", kExact = "exact";
constexpr uint64_t kMaxQuantized = uint64_t{1} << 32;  // what exact_ids can name
constexpr std::string_view kImportance = "importance";
/// Blocks decoded side by side.
constexpr size_t kTogether = RansDecoder<uint8_t>::kTogether;

/// The source of weights by which some tokens are coded more finely than others.
enum class Importance : uint8_t { none, queries };
constexpr auto names_of(Importance) { return std::to_array<std::string_view>({"none", "queries"}); }

struct TransformOptions final : Options {
  double bits = 0.7;  ///< what costs a small model as much as 4.5 bits without a transform
  int64_t rung = -1;
  double rate_distortion = -1;
  int64_t sink = -1;
  int64_t window = 0;
  int64_t block = 256;  ///< a block's states and its length are below a thousandth of its bits
  bool adapt = true;
  Importance importance = Importance::none;
  double importance_power = 0.65;

  std::vector<OptionField> fields() override {
    return {
        {"bits", "about this many bits per value: uses the book's step that came nearest in training", &bits,
         0.001, 16},
        {"rung", "number of the book's step to use, 0 is the coarsest; -1: the one that --bits chooses",
         &rung, -1, 1023},
        {"rate-distortion",
         "squared error, in squared steps, that the encoder accepts to save one bit: larger values lower the rate between two steps; "
         "-1: the book's value",
         &rate_distortion, -1, 1},
        {"sink",
         "first tokens of a document kept exactly; -1: none if the book knows first tokens, and the first one is "
         "then coded finer than others, else 1",
         &sink, -1, 1 << 24},
        {"window", "newest tokens of a document kept exactly", &window, 0, 1 << 24},
        {"block", "tokens of a block, which is coded and decoded alone", &block, 1, 1 << 16},
        {"adapt",
         "take the book's classes and means as they are; by default they are fitted to the "
         "tokens, which are read once more, if that saves more bits than it takes",
         &adapt},
        {std::string(kImportance),
         "queries: code tokens more finely the more the document's last queries attend to them, and others more coarsely; for "
         "documents that go on where they end, as sessions and prompts do",
         &importance},
        {"importance-power",
         "how far: with --importance, a token's step is that of the rung times its weight to the power of -X / 2",
         &importance_power, 0, 2}};
  }
  bool by_token() const { return importance != Importance::none; }
};

/// A block as the stream `blocks` has it.
struct BlockHead {
  uint32_t tokens = 0, bytes = 0;
};

/// The parts of a book, and those fitted to files.
class TransformParts {
 public:
  TransformParts(std::vector<TransformBook::Part> parts, const RungRange& range, const PartContext& context) {
    for (TransformBook::Part& part : parts) {
      const Key key(part.side, part.first_layer);
      parts_[key] = std::make_shared<const TransformPart>(std::move(part), range, context);
    }
  }

  /// The part of that side from the shape's first layer on, as the book has it. Throws Error(bad_input) where the book has
  /// none, Error(failed) if the shape has another width.
  const std::shared_ptr<const TransformPart>& of_book(const GroupShape& shape) const {
    const auto found = parts_.find(Key(shape.side, shape.first_layer()));
    if (found == parts_.end())
      throw bad_input("the transform has no part for the {}s of layers from {} on", shape.side,
                      shape.first_layer());
    check_width(shape, found->second->width());
    return found->second;
  }

  /// The most components that a part of the book codes, or, adapted by an encoder, may come to code.
  size_t max_components(bool adapted) const {
    size_t highest = 0;
    for (const auto& [place, part] : parts_)
      highest = std::max(highest, !adapted            ? part->components()
                                  : part->rungs() > 1 ? part->basis().components()
                                                      : part->surveyed());
    return highest;
  }

  /// The part fitted to a file by its adaptation, given as bytes (write_adaptation). The last one made of
  /// each part is kept, since all documents of a file share it. Throws Error(bad_input) for bytes that no encoder writes.
  std::shared_ptr<const TransformPart> adapted(const GroupShape& shape, std::vector<uint8_t> bytes) const {
    const TransformPart& part = *of_book(shape);
    const std::lock_guard lock(mutex_);
    auto& [kept_bytes, kept] = adapted_[Key(shape.side, shape.first_layer())];
    if (!kept || kept_bytes != bytes) {
      kept = part.adapted(read_adaptation(bytes, part.tables(), part.rung().classes));
      kept_bytes = std::move(bytes);
    }
    return kept;
  }

 private:
  using Key = std::pair<Side, int>;
  std::map<Key, std::shared_ptr<const TransformPart>> parts_;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::pair<std::vector<uint8_t>, std::shared_ptr<const TransformPart>>> adapted_;
};

/// Fits an adaptation (lib/transform/adaptation.hpp) to the tokens that are about to be coded. It looks at a sample: all of
/// the first 1,024 tokens, and 512 more with each doubling of their number, in runs of 64 spread evenly.
class TransformSurvey final : public Survey {
 public:
  /// The part outlives it. lead: how many first tokens of each document are not coded in blocks, and so not surveyed. unbias: of the book.
  TransformSurvey(const TransformPart& part, uint64_t lead, double unbias)
      : part_(part),
        lead_(lead),
        analysis_(part.analysis(numbers_below<uint32_t>(part.surveyed()))),
        scores_(part.basis().prediction),
        survey_(part.tables(), part.rung(), part.surveyed(), part.width(), unbias),
        rows_(kBatch, part.width()),
        features_(kBatch, part.features() ? part.features()->width() : 0) {}

  void observe_ids(std::span<const uint32_t> ids) override { ids_.assign(ids.begin(), ids.end()); }

  Look look(uint64_t left) override {
    Look look;
    for (; look.skipped < left && weight_of_next() == 0; ++look.skipped) pass();
    const uint64_t token = token_, seen = seen_;
    for (; look.skipped + look.shown < left && weight_of_next() > 0; ++look.shown) pass();
    token_ = token, seen_ = seen;
    return look;
  }

  void observe(MatrixView<const float> rows) override {
    for (size_t i = 0; i < rows.rows(); ++i, pass())
      if (const uint32_t weight = weight_of_next(); weight > 0) keep(rows.row(i), weight);
  }

  void end_document() override {
    token_ = 0;
    ids_.clear();
  }

  void finish(StreamStore& document) override {
    count_batch();
    if (const auto adaptation = survey_.finish())
      document.append_values<uint8_t>(kAdapted,
                                      write_adaptation(*adaptation, part_.tables(), part_.rung().classes));
  }

 private:
  static constexpr size_t kTile = TransformPart::kTile, kBatch = 16 * kTile;
  static constexpr uint64_t kRun = 64, kWholeRuns = 16;

  /// Number of tokens that the next one stands for: one in so many runs around this one is looked at. 0: it is not.
  uint32_t weight_of_next() const {
    if (token_ < lead_) return 0;
    const uint64_t run = seen_ / kRun, apart = std::max<uint64_t>(1, 2 * std::bit_floor(run / kWholeRuns));
    return run % apart == 0 ? static_cast<uint32_t>(apart) : 0;
  }

  void pass() {
    if (token_++ >= lead_) ++seen_;
  }

  void keep(std::span<const float> row, uint32_t weight) {
    const size_t at = weights_.size();
    for (size_t c = 0; c < row.size(); ++c) rows_(at, c) = row[c] - part_.mean()[c];
    if (const TokenFeatures* const features = part_.features()) {
      const auto read = [&](uint64_t first, uint64_t count) { return ids_within(ids_, first, count); };
      features->gather(ids_with_lags(read, token_, 1, features->lags()), features_.view().rows(at, 1));
    }
    weights_.push_back(weight);
    if (weights_.size() == kBatch) count_batch();
  }

  /// Components are computed in whole tiles, so that they do not depend on how observe() was given the tokens.
  void count_batch() {
    const size_t tokens = weights_.size(), tiles = (tokens + kTile - 1) / kTile;
    if (tokens == 0) return;
    for (size_t t = tokens; t < tiles * kTile; ++t) std::ranges::fill(rows_.row(t), 0.0f);
    Matrix<float> components(part_.surveyed(), tiles * kTile);
    parallel_each(tiles, 1, [&](size_t tile) {
      Matrix<float> weighted = analysis_.weighted(rows_.view().rows(tile * kTile, kTile),
                                                  scores_.of(features_.view().rows(tile * kTile, kTile)));
      analysis_.apply(weighted, components.view().columns(tile * kTile, kTile));
    });
    survey_.add(components.view().columns(0, tokens), weights_);
    weights_.clear();
  }

  const TransformPart& part_;
  uint64_t lead_;
  Analysis analysis_;
  Scores scores_;
  AdaptationSurvey survey_;
  Matrix<float> rows_, features_;  // of those kept
  std::vector<uint32_t> weights_;
  std::vector<uint32_t> ids_;      // of the document in work
  uint64_t token_ = 0, seen_ = 0;  // in the document; in all
};

/// Settings for coding documents; outlives all views.
struct Coding {
  ExactEnds ends;
  uint64_t block;
  bool adapts, codes_first, by_token;
  DType storage;
  TransformParts parts;
};

class TransformView final : public DocumentView {
 public:
  TransformView(const Coding& coding, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document),
        coding_(coding),
        part_(coding.parts.of_book(shape)),
        places_({kCodes}, place_interval(coding.block)) {}

  /// The part that the document is coded with, adapted or not; after refresh().
  const TransformPart& part() const { return *part_; }
  /// Levels of the last block if it is incomplete: (components, tokens); else no columns.
  Matrix<int32_t> unfinished() const {
    const auto tokens = static_cast<size_t>(quantized_ % block_);
    Matrix<int32_t> levels(part_->components(), tokens);
    if (tokens == 0) return levels;
    const uint64_t last = quantized_ / block_;
    const Blocks blocks = read(last, last + 1);
    part_->decode(blocks.payload, blocks.bytes, tokens, rungs(last * block_, tokens), levels);
    return levels;
  }
  /// Rungs of quantized tokens [first, first + count), counted from the first of them; empty where all have the codec's.
  std::vector<uint8_t> rungs(uint64_t first, uint64_t count) const {
    if (!coding_.by_token) return {};
    std::vector<uint8_t> rungs = document().read<uint8_t>(kRungs, first, count, 1);
    for (size_t i = 0; i < rungs.size(); ++i)
      if (rungs[i] >= part_->rungs())
        throw bad_input("stream '{}', row {}: {}; there are {}", kRungs, first + i, rungs[i], part_->rungs());
    return rungs;
  }

 protected:
  uint64_t take_in() override {
    // The adaptation is written before the first token and never changes.
    if (const uint64_t bytes = coding_.adapts && !adapted_ ? document().rows(kAdapted) : 0; bytes > 0) {
      with_context(fmt::format("stream '{}'", kAdapted), [&] {
        part_ = coding_.parts.adapted(shape(), document().read<uint8_t>(kAdapted, 0, bytes, 1));
      });
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
    if (const uint64_t rungs = coding_.by_token ? document().rows(kRungs) : quantized_; rungs != quantized_)
      throw bad_input("stream '{}' has {} rows, and {} tokens are quantized", kRungs, rungs, quantized_);
    const uint64_t others = ends_.tokens(document(), quantized_);
    firsts_ = part_->first() && document().rows(kFirst) > 0 ? 1 : 0;
    if (part_->first() && firsts_ == 0 && others > 0)
      throw bad_input("stream '{}' is empty, and there are {} other tokens", kFirst, others);
    places_.grow(document(), blocks, quantized_ / block_);
    // Exact tokens are looked up when they are asked for: how many there are says nothing of where they lie.
    exact_ = document().rows(kExactIds);
    if (document().rows(kExact) != exact_ || exact_ > quantized_)
      throw bad_input("{} ids of exact tokens and {} of these, of {} quantized", exact_,
                      document().rows(kExact), quantized_);
    return firsts_ + others;
  }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    const size_t taken = first < firsts_ && out.rows() > 0 ? 1 : 0;
    if (taken > 0) {
      const auto bytes = document().read<uint8_t>(kFirst, 0, document().rows(kFirst), 1);
      with_context(fmt::format("stream '{}'", kFirst), [&] { part_->first()->decode(bytes, out.row(0)); });
    }
    if (taken == out.rows()) return;
    ends_.decode(document(), quantized_, first + taken - firsts_, out.rows(taken, out.rows() - taken),
                 [&](uint64_t at, MatrixView<float> rows) { decode_quantized(at, rows); });
  }

  Block block_of(uint64_t token) const override {
    const uint64_t lead = this->lead();
    if (token < lead || token - lead >= quantized_) return {token, token + 1};
    const uint64_t begin = lead + (token - lead) / block_ * block_;
    return {begin, std::min(begin + block_, lead + quantized_)};
  }

 private:
  struct Blocks {
    std::vector<uint32_t> bytes;
    std::vector<uint8_t> payload;
  };
  Blocks read(uint64_t first, uint64_t last) const {
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
  /// Tokens before those that are quantized in blocks.
  uint64_t lead() const { return firsts_ + ends_.sinks_of(tokens() - firsts_); }
  /// Writes quantized tokens [first, first + out.rows()), counted from the first of them.
  void decode_quantized(uint64_t first, MatrixView<float> out) const {
    const uint64_t end = first + out.rows(), first_block = first / block_,
                   last_block = (end + block_ - 1) / block_;
    const Blocks blocks = read(first_block, last_block);
    const std::vector<uint32_t> ids = part_->ids(document(), lead() + first, out.rows());
    const std::vector<uint8_t> rungs =
        this->rungs(first_block * block_, std::min(last_block * block_, quantized_) - first_block * block_);
    std::vector<uint64_t> begins{0};
    for (const uint32_t bytes : blocks.bytes) begins.push_back(begins.back() + bytes);
    struct Piece {
      uint64_t block;
      size_t count;     // of blocks from that one on
      uint64_t tokens;  // of each
    };
    // Writes those of a piece's tokens that are wanted. False: the device declines; without one, it is true.
    const auto decode = [&](const Piece& piece, const SynthesisFunction* device) {
      const size_t at = piece.block - first_block;
      const auto payload =
          std::span(blocks.payload).subspan(begins[at], begins[at + piece.count] - begins[at]);
      const auto bytes = std::span(blocks.bytes).subspan(at, piece.count);
      const uint64_t from = piece.block * block_, begin = std::max(first, from),
                     stop = std::min(end, from + piece.count * piece.tokens);
      if (device) {
        Matrix<float> rows(piece.count * piece.tokens, out.cols());
        if (!(*device)(payload, bytes, piece.tokens, rows)) return false;
        for (uint64_t t = begin; t < stop; ++t)
          std::ranges::copy(rows.row(t - from), out.row(t - first).begin());
        return true;
      }
      Matrix<int32_t> levels(part_->components(), piece.count * piece.tokens);
      const TokenRungs own = some_of(rungs, at * block_, levels.cols());
      with_context(fmt::format("stream '{}', blocks from {} on", kCodes, piece.block),
                   [&] { part_->decode(payload, bytes, piece.tokens, own, levels); });
      part_->reconstruct(levels.view().columns(begin - from, stop - begin),
                         std::span(ids).subspan(ids.empty() ? 0 : begin - first),
                         some_of(own, begin - from, stop - begin), out.rows(begin - first, stop - begin));
      return true;
    };
    // Complete blocks, several at a time, then the incomplete one.
    const uint64_t complete = std::min(last_block, quantized_ / block_);
    const size_t whole = complete - std::min(complete, first_block);
    const SynthesisFunction* const device = part_->device();
    if (whole > 0 && !(device && decode({first_block, whole, block_}, device)))
      parallel_each((whole + kTogether - 1) / kTogether, 1, [&](size_t i) {
        const uint64_t block = first_block + i * kTogether;
        decode({block, std::min<uint64_t>(kTogether, complete - block), block_}, nullptr);
      });
    if (last_block > complete)
      if (const Piece rest{complete, 1, tokens_of(complete)}; !(device && decode(rest, device)))
        decode(rest, nullptr);
    decode_exact(first, out);
  }

  /// Number of exact ids below `token`, by bisection: few ids are read.
  uint64_t exact_below(uint64_t token) const {
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
  void decode_exact(uint64_t first, MatrixView<float> out) const {
    if (exact_ == 0) return;
    const uint64_t begin = exact_below(first), end = exact_below(first + out.rows());
    if (begin > end) throw bad_input("stream '{}': ids do not rise", kExactIds);
    const auto ids = document().read<uint32_t>(kExactIds, begin, end - begin, 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < first || ids[i] - first >= out.rows() || (i > 0 && ids[i] <= ids[i - 1]))
        throw bad_input("stream '{}', row {}: {}; ids rise and are below {}", kExactIds, begin + i, ids[i],
                        quantized_);
      read_exact(kExact, coding_.storage, document(), begin + i, out.rows(ids[i] - first, 1));
    }
  }

  uint64_t tokens_of(uint64_t block) const { return std::min(block_, quantized_ - block * block_); }

  const Coding& coding_;
  const ExactEnds& ends_ = coding_.ends;
  const uint64_t block_ = coding_.block;
  std::shared_ptr<const TransformPart> part_;
  bool adapted_ = false;
  Places<BlockHead> places_;
  uint64_t firsts_ = 0, quantized_ = 0, exact_ = 0;  // firsts_: 1 if the first token is coded by itself
};

class TransformCodec final : public Codec {
 public:
  TransformCodec(const TransformOptions& options, TransformBook book, const CodecContext& context)
      : options_(options),
        layer_group_(static_cast<int>(book.options.layer_group)),
        joint_(book.options.sides == SideCoding::joint),
        unbias_(book.options.unbias),
        measures_(book.measures),
        tables_(std::move(book.classes),
                options.rate_distortion < 0 ? book.options.rate_distortion : options.rate_distortion),
        features_(std::move(book.features)),
        engine_(context.engine),
        coding_([&]() -> Coding {
          const bool codes_first = options.sink == 0 && book.knows_first_tokens();
          const std::vector<LevelRung>& rungs = book.parts.front().rungs;
          const double brought =
              brought_at(book.options.vector_error, double{rungs[as_size(options.rung)].step},
                         double{rungs.back().step});
          return {.ends = {context.storage, static_cast<uint64_t>(options.sink), options.window},
                  .block = static_cast<uint64_t>(options.block),
                  .adapts = options.adapt,
                  .codes_first = codes_first,
                  .by_token = options.by_token(),
                  .storage = context.storage,
                  .parts = {std::move(book.parts),
                            options.by_token() ? RungRange::around(as_size(options.rung), book.steps())
                                               : RungRange{as_size(options.rung)},
                            {.tables = tables_,
                             .features = features_ ? &*features_ : nullptr,
                             .engine = engine_,
                             .first_finer = codes_first ? book.options.first_finer : 0,
                             .brought = brought}}};
        }()) {}

  /// Importance is named only where it has a say: other files are as they were before there was any.
  Record parameters() const override {
    Record named;
    const Record all = record_of(options_);
    for (const auto& [name, value] : all.items())
      if (options_.by_token() || !name.starts_with(kImportance)) named.set(name, value);
    return named;
  }
  bool weighs_tokens() const override { return options_.by_token(); }
  std::vector<int> group_of(int layer) const override {
    return consecutive(layer - layer % layer_group_, layer_group_);
  }
  bool joint() const override { return joint_; }
  std::optional<LearnedRate> learned_rate() const override {
    LearnedRate rate{{kCodes, kExact}, measures_[as_size(options_.rung)].bits};
    for (const RungMeasure& measure : measures_) rate.at.push_back(measure.bits);
    return rate;
  }
  uint64_t predicts_from() const override { return features_ ? features_->vocabulary() : 0; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    std::vector<StreamSpec> specs{coding_.ends.sink_stream(shape),
                                  {std::string(kBlocks), DType::u32, {2}, Category::offsets},
                                  {std::string(kCodes), DType::u8, {}, Category::payload},
                                  places_stream(1),
                                  {std::string(kExactIds), DType::u32, {}, Category::offsets},
                                  exact_stream(kExact, shape, coding_.storage),
                                  coding_.ends.tail_stream(shape)};
    if (coding_.by_token)
      specs.push_back({std::string(kRungs), DType::u8, {}, Category::scales, RungRange::kMost});
    if (coding_.codes_first)
      specs.insert(specs.begin(), {std::string(kFirst), DType::u8, {}, Category::payload});
    if (options_.adapt)
      specs.insert(specs.begin(), {.name = std::string(kAdapted),
                                   .type = DType::u8,
                                   .row_shape = {},
                                   .category = Category::tables,
                                   .shared = true});
    return specs;
  }
  /// 16-bit rows and rows less their mean; components as floats, levels and symbols; for a device rows as it gives them, twice.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (engine_ ? 24 : 16);
  }

  SurveyScope survey_scope(const GroupShape&) const override {
    return options_.adapt ? SurveyScope::file : SurveyScope::none;
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    check_block();
    return std::make_unique<TransformSurvey>(*coding_.parts.of_book(shape), lead(), unbias_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    check_block();
    if (rows.rows() == 0) return;
    uint64_t before = open(shape, document)->tokens();
    if (coding_.codes_first) {
      if (before == 0) append_first(*coding_.parts.of_book(shape), rows.rows(0, 1), document);
      const size_t taken = before == 0 ? 1 : 0;
      rows = rows.rows(taken, rows.rows() - taken);
      before -= 1 - taken;
      if (rows.rows() == 0) return;
    }
    if (coding_.ends.quantized_of(before + rows.rows()) > kMaxQuantized)
      throw bad_input("a document of {} tokens; the codec transform takes 2^32", before + rows.rows());
    coding_.ends.append(rows, before, document,
                        [&](std::span<const uint16_t> halves) { append_blocks(shape, halves, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<TransformView>(coding_, shape, document);
  }

 private:
  /// Throws Error(usage) if a block might have more levels than can be coded together. A decoder need not ask: a document may
  /// be shorter than a block.
  void check_block() const {
    const size_t components = coding_.parts.max_components(options_.adapt);
    if (const size_t highest = kMaxSegmentSymbols / std::max<size_t>(components, 1); coding_.block > highest)
      throw usage_error("--block is {}; of {} components at this step, it is at most {}", coding_.block,
                        components, highest);
  }

  void append_first(const TransformPart& part, MatrixView<const float> row, StreamStore& document) const {
    std::vector<float> stored(part.width());
    widen(coding_.storage, to_storage(coding_.storage, row), stored);
    std::vector<uint8_t> bytes;
    part.first()->encode(stored, bytes);
    document.append_values<uint8_t>(kFirst, bytes);
  }

  /// halves: 16-bit rows of the tokens that fell out of the window, (n, width).
  void append_blocks(const GroupShape& shape, std::span<const uint16_t> halves, StreamStore& document) const {
    if (engine_) engine_->fall_back("transform: encoding");
    TransformView view(coding_, shape, document);
    view.refresh();
    const TransformPart& part = view.part();
    const size_t width = part.width(), tokens = halves.size() / width, block = as_size(coding_.block);
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
    const std::vector<uint32_t> ids = part.ids(document, lead() + quantized, tokens);
    std::vector<uint8_t> rungs = view.rungs(complete * block, unfinished.cols());
    for (size_t t = 0; t < tokens && coding_.by_token; ++t)
      rungs.push_back(
          part.rung_for(double{document.token_weight(lead() + quantized + t)}, options_.importance_power));
    const size_t before = unfinished.cols(), blocks = (before + tokens + block - 1) / block;
    std::vector<Coded> coded(blocks);
    parallel_each(blocks, 1, [&](size_t b) {
      // Block b: `old` tokens whose levels were read back, then `count` new ones, from token `from` of halves on.
      const size_t old = b == 0 ? before : 0, from = b == 0 ? 0 : b * block - before,
                   count = std::min(block - old, tokens - from);
      const auto of_block = halves.subspan(from * width, count * width);
      Matrix<float> rows(count, width);
      widen(coding_.storage, of_block, {rows.data(), rows.size()});
      Matrix<int32_t> levels(part.components(), old + count);
      for (size_t i = 0; i < (old > 0 ? levels.rows() : 0); ++i)
        std::ranges::copy(unfinished.row(i), levels.row(i).begin());
      const auto added = levels.view().columns(old, count);
      const TokenRungs all = some_of(rungs, b * block, old + count), own = some_of(all, old, count);
      std::vector<double> errors(count);
      part.quantize(old, std::span(ids).subspan(ids.empty() ? 0 : from), rows, own, added, errors);
      for (const size_t t : part.costly(added, own, errors)) {
        for (size_t i = 0; i < added.rows(); ++i) added(i, t) = 0;
        coded[b].exact_ids.push_back(static_cast<uint32_t>((complete + b) * block + old + t));
        append_to(coded[b].exact, of_block.subspan(t * width, width));
      }
      const uint32_t bytes = part.encode(levels, all, coded[b].bytes);
      coded[b].head = {static_cast<uint32_t>(levels.cols()), bytes};
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
    if (coding_.by_token)
      document.append_values<uint8_t>(kRungs, std::span<const uint8_t>(rungs).subspan(before));
  }

  /// Number of first tokens that are not coded in blocks.
  uint64_t lead() const { return static_cast<uint64_t>(options_.sink) + (coding_.codes_first ? 1 : 0); }

  TransformOptions options_;
  int layer_group_;
  bool joint_;
  double unbias_;
  std::vector<RungMeasure> measures_;
  LevelTables tables_;
  std::optional<TokenFeatures> features_;
  Engine* engine_;
  Coding coding_;
};

std::unique_ptr<Codec> make_transform(const Options& options, const CodecContext& context) {
  check_context(context);
  if (!context.book)
    throw usage_error("codec transform needs a book: give it with --book (train-transform makes one)");
  TransformBook book = transform_book_from(*context.book);
  if (book.num_layers != context.num_layers || !book.layer().same_rows(context.layer_shape(0)))
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

/// Whole settings are the book's rungs. Around each the rate-distortion accepts more error for fewer bits, or less: the rate's logarithm is linear
/// in its own. By half a setting it goes beyond the next rung's half, so that every rate can be had.
void turn_transform(Options& options, double setting, bool) {
  auto& own = dynamic_cast<TransformOptions&>(options);
  own.rung = std::lround(setting);
  own.rate_distortion = rounded_setting(0.12 * std::exp(1.7 * (std::round(setting) - setting)));
}

}  // namespace

CodecEntry transform_codec() {
  return {.name = "transform",
          .summary = "components of a learned basis, one step for all, entropy-coded, first tokens finer",
          .capabilities = {.needs_book = true, .device_twin = true, .device_pays = true},
          .book_type = "transform",
          .make_options = [] { return std::make_unique<TransformOptions>(); },
          .make = make_transform,
          .before_rope = true,
          .dial = {.sets = {"bits", "rung", "rate-distortion"},
                   .lowest = 0,
                   .highest = 1023,
                   .usual = 10,
                   .turn = turn_transform},
          .promise = 1,
          .on_demand = false,
          .place = 10};
}

}  // namespace kvcodec
