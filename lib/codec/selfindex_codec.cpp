// The codec `selfindex`: Self-Indexing KVCache, where the compressed key is its own index.
//
// Keys are centred by channel; the signs of the centred key are stored as one bit per channel, from which
// scores for all tokens come by table look-up (lib/signvq), and its magnitudes, relative to the channel's
// largest, in 2 bits. Values are stored in 2 bits. Both are quantized token by token in groups of 32
// channels, so that any token decodes alone. Some tokens of each head are also kept exactly: those that the
// last queries attend to most, after SnapKV (Li et al., "SnapKV: LLM Knows What You are Looking for Before
// Generation", NeurIPS 2024).
//
// Centre, largest magnitudes and codebooks come from a first pass over the tokens that a document starts with
// (its prefill), and serve all that is appended later, as in the paper. Which tokens are kept exactly is
// decided by keys and queries alone, so that both sides decide alike.
//
// Streams of one document, H heads of d channels, T tokens, e of them kept exactly
//   coded      u8  [0 or 1]            1 row: the document is coded; none: it would not shrink, "exact" holds
//   it all keys: center, alpha   f32 [1][H][d]         codebooks  f16 [1][H][d/4][16][4], relative to alpha
//         signs           u8  [T][H][ceil(d/8)]
//   levels     u8  [T][H][ceil(d/4)]   2-bit levels; scales, zeros  f16 [T][H][ceil(d/32)]
//   exact_ids  u32 [e][H]              of each head, rising
//   exact      bf16|f16 [e * H][d]     token by token, of each token head by head
// With store 16bit, "exact" holds all tokens of all heads, and there are no levels, scales, zeros and
// exact_ids.
#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>

#include "lib/attention/attention.hpp"
#include "lib/attention/row_source.hpp"
#include "lib/codec/engine.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/quant/two_bit.hpp"
#include "lib/signvq/sign_codes.hpp"
#include "lib/signvq/sign_index.hpp"

namespace kvcodec {
namespace {

struct SelfIndexOptions final : Options {
  std::string store = "2bit";
  std::string center = "mean";        ///< the paper's; its code has the median
  int64_t full_tokens = 64;           ///< the paper's number
  std::string full_by = "attention";  ///< the paper's choice, after SnapKV
  std::string key_levels = "magnitude";

  std::vector<OptionField> fields() override {
    return {
        {"store",
         "what is stored beside the index: 2bit keys and values, or all of them at 16bit",
         &store,
         {},
         {},
         {"2bit", "16bit"}},
        {"center", "what keys are centred by, per channel", &center, {}, {}, {"mean", "median"}},
        {"full-tokens", "tokens of each head that are kept exactly", &full_tokens, 0, 1 << 20},
        {"full-by",
         "which: those the last 32 dumped queries attend to most, those the last one scores highest, or the "
         "first",
         &full_by,
         {},
         {},
         {"attention", "last-query", "first"}},
        {"key-levels",
         "what the 2 bits of a key say: its magnitude beside the sign bit, or (to see what that gains) its "
         "signed value",
         &key_levels,
         {},
         {},
         {"magnitude", "signed"}}};
  }
};

constexpr std::string_view kCoded = "coded", kCenter = "center", kAlpha = "alpha", kCodebooks = "codebooks",
                           kSigns = "signs", kLevels = "levels", kScales = "scales", kZeros = "zeros",
                           kExactIds = "exact_ids", kExact = "exact";

/// SnapKV's: weights of the last so many queries, averaged over so many neighbouring tokens.
constexpr size_t kObservedQueries = 32;
constexpr size_t kPooledTokens = 5;

/// Tokens centred or decoded by one thread at a time.
constexpr size_t kPieceTokens = 64;

/// What the keys of a document share.
struct HeadTables {
  std::vector<float> center, alpha;  // (heads, dims)
};

class SelfIndexCodec final : public Codec {
 public:
  SelfIndexCodec(const SelfIndexOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        engine_(context.engine),
        signs_(engine_ ? engine_->signs() : nullptr),
        heads_(static_cast<size_t>(context.heads)),
        dims_(static_cast<size_t>(context.head_dim)),
        query_heads_(static_cast<size_t>(context.query_heads)),
        full_tokens_(static_cast<size_t>(options.full_tokens)),
        at_16_bits_(options.store == "16bit"),
        signed_levels_(options.key_levels == "signed") {
    if (dims_ % kSignGroup != 0)
      throw usage_error("heads of {} dimensions; selfindex needs a multiple of {}", dims_, kSignGroup);
  }

  Record parameters() const override {
    SelfIndexOptions copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override;

  /// 16-bit rows, centred rows and magnitudes as floats, what is stored.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 14; }

  SurveyScope survey_scope() const override { return SurveyScope::document; }
  GroupShape surveyed(const GroupShape& shape) const override {
    GroupShape keys = shape;
    keys.side = Side::key;
    return keys;
  }
  bool wants_queries() const override {
    return full_tokens_ > 0 && !at_16_bits_ && options_.full_by != "first";
  }
  std::string without_queries() const override {
    return "the first tokens are kept exactly instead of those that queries attend to most";
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override;

  uint64_t tokens(const GroupShape& shape, const StreamReader& document) const override;
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;
  std::unique_ptr<Selector> selector(const GroupShape& shape, const StreamReader& document, size_t head,
                                     bool signs_only) const override;

 private:
  friend class PrefillSurvey;

  size_t width() const { return heads_ * dims_; }
  size_t level_bytes() const { return two_bit_row_bytes(dims_); }
  size_t groups() const { return two_bit_groups(dims_); }
  bool has_levels() const { return !at_16_bits_; }
  /// Values at 16 bits are kept exactly and nothing else.
  bool has_choice(Side side) const { return has_levels() || side == Side::key; }

  /// Whether a document of so many tokens becomes smaller by coding this side; always with an index asked for
  /// on top.
  bool pays(Side side, uint64_t tokens) const;

  /// A token of a head.
  struct Place {
    uint32_t token = 0, head = 0;
    auto operator<=>(const Place&) const = default;
  };

  bool is_coded(Side side, const StreamReader& document) const;
  HeadTables read_tables(const StreamReader& document) const;
  std::vector<float> read_finite(std::string_view stream, const StreamReader& document) const;
  std::vector<uint16_t> read_scales(std::string_view stream, const StreamReader& document, uint64_t first,
                                    uint64_t count) const;
  std::vector<Place> exact_places(const StreamReader& document, uint64_t tokens) const;
  void append_signs(MatrixView<float> rows, StreamStore& document) const;
  void append_levels(MatrixView<const float> rows, StreamStore& document) const;
  void decode_levels(Side side, const StreamReader& document, uint64_t first, MatrixView<float> out) const;
  void put_exact(const StreamReader& document, uint64_t first, uint64_t tokens, MatrixView<float> out) const;
  std::vector<SignCodebook> read_codebooks(const StreamReader& document, const HeadTables& tables) const;

  SelfIndexOptions options_;
  DType storage_;
  Engine* engine_;
  const SignEngine* signs_;
  size_t heads_, dims_, query_heads_, full_tokens_;
  bool at_16_bits_, signed_levels_;
};

std::vector<StreamSpec> SelfIndexCodec::streams(const GroupShape& shape) const {
  const std::vector<uint64_t> channels{heads_, dims_}, per_group{heads_, groups()};
  std::vector<StreamSpec> specs;
  if (has_choice(shape.side)) specs.push_back({std::string(kCoded), DType::u8, {}, Category::offsets});
  if (shape.side == Side::key) {
    specs.push_back({std::string(kCenter), DType::f32, channels, Category::scales});
    specs.push_back({std::string(kAlpha), DType::f32, channels, Category::scales});
    specs.push_back({std::string(kCodebooks),
                     DType::f16,
                     {heads_, dims_ / kSignGroup, kSignCodes, kSignGroup},
                     Category::tables});
    specs.push_back({std::string(kSigns), DType::u8, {heads_, sign_row_bytes(dims_)}, Category::payload});
  }
  if (has_levels()) {
    specs.push_back({std::string(kLevels), DType::u8, {heads_, level_bytes()}, Category::payload});
    specs.push_back({std::string(kScales), DType::f16, per_group, Category::scales});
    specs.push_back({std::string(kZeros), DType::f16, per_group, Category::scales});
    specs.push_back({std::string(kExactIds), DType::u32, {heads_}, Category::exempt});
  }
  specs.push_back(
      {std::string(kExact), storage_, {dims_}, at_16_bits_ ? Category::payload : Category::exempt});
  return specs;
}

bool SelfIndexCodec::pays(Side side, uint64_t tokens) const {
  if (at_16_bits_) return true;
  const bool key = side == Side::key;
  const uint64_t exact = std::min<uint64_t>(full_tokens_, tokens) * (4 + 2 * dims_);
  const uint64_t tables = key ? dims_ * (4 + 4 + 2 * kSignCodes) : 0;
  const uint64_t token = level_bytes() + 4 * groups() + (key ? sign_row_bytes(dims_) : 0);
  return exact + tables + 1 + tokens * token < tokens * 2 * dims_;
}

// Survey
// ----------------------------------------------------------------------------------------------------------

/// The median of every column of 16-bit floats, exactly, in two passes over them: which high byte the middle
/// value has, then which low byte.
class ColumnMedians {
 public:
  explicit ColumnMedians(size_t columns)
      : columns_(columns), counts_(columns * 256), high_(columns), rank_(columns) {}

  void count_high(std::span<const uint16_t> row) {
    ++rows_;
    for (size_t j = 0; j < columns_; ++j) ++counts_[j * 256 + (ordered(row[j]) >> 8)];
  }
  /// Between the passes.
  void choose_high() {
    for (size_t j = 0; j < columns_; ++j) {
      rank_[j] = rows_ > 0 ? (rows_ - 1) / 2 : 0;
      high_[j] = find(j);
    }
    std::ranges::fill(counts_, 0);
  }
  void count_low(std::span<const uint16_t> row) {
    for (size_t j = 0; j < columns_; ++j) {
      const uint16_t value = ordered(row[j]);
      if (value >> 8 == high_[j]) ++counts_[j * 256 + (value & 255)];
    }
  }
  uint16_t median(size_t column) {
    if (rows_ == 0) return 0;
    return restored(static_cast<uint16_t>(high_[column] << 8 | find(column)));
  }

 private:
  /// Patterns of floats in the order of their values, and back.
  static uint16_t ordered(uint16_t bits) {
    return static_cast<uint16_t>(bits & 0x8000 ? ~bits : bits | 0x8000);
  }
  static uint16_t restored(uint16_t value) {
    return static_cast<uint16_t>(value & 0x8000 ? value & 0x7fff : ~value);
  }
  /// The byte that holds the value of rank_[column]; the rank becomes that within it.
  uint8_t find(size_t column) {
    size_t byte = 0;
    while (byte < 255 && rank_[column] >= counts_[column * 256 + byte])
      rank_[column] -= counts_[column * 256 + byte++];
    return static_cast<uint8_t>(byte);
  }

  size_t columns_;
  uint64_t rows_ = 0;
  std::vector<uint64_t> counts_;
  std::vector<uint8_t> high_;
  std::vector<uint64_t> rank_;
};

/// Softmax weights that some queries of one head give to tokens, summed over the queries: the first pass
/// finds the sums of exponentials, the second the weights. Token by token, so that pieces do not matter.
class AttentionSums {
 public:
  /// queries: (n, dims), the token of each.
  AttentionSums(Matrix<float> queries, std::vector<uint64_t> query_tokens)
      : queries_(std::move(queries)),
        query_tokens_(std::move(query_tokens)),
        largest_(queries_.rows(), -std::numeric_limits<double>::infinity()),
        sums_(queries_.rows()) {}

  void first_pass(uint64_t first, MatrixView<const float> keys) {
    for_each_score(first, keys, [&](size_t q, uint64_t, double score) {
      if (score > largest_[q]) {
        sums_[q] = sums_[q] * std::exp(largest_[q] - score) + 1;
        largest_[q] = score;
      } else {
        sums_[q] += std::exp(score - largest_[q]);
      }
    });
  }
  void second_pass(uint64_t first, MatrixView<const float> keys) {
    weights_.resize(first + keys.rows());
    for_each_score(first, keys, [&](size_t q, uint64_t token, double score) {
      weights_[token] += std::exp(score - largest_[q]) / sums_[q];
    });
  }
  const std::vector<double>& weights() const { return weights_; }

 private:
  template <class Body>
  void for_each_score(uint64_t first, MatrixView<const float> keys, const Body& body) {
    Matrix<float> scores(queries_.rows(), keys.rows());
    dot_products(queries_, CacheRows(keys, keys), scores);
    const double scale = 1 / std::sqrt(static_cast<double>(keys.cols()));
    for (size_t t = 0; t < keys.rows(); ++t)
      for (size_t q = 0; q < queries_.rows(); ++q)
        if (first + t <= query_tokens_[q]) body(q, first + t, static_cast<double>(scores(q, t)) * scale);
  }

  Matrix<float> queries_;
  std::vector<uint64_t> query_tokens_;
  std::vector<double> largest_, sums_, weights_;
};

/// What a document's prefill says: the tables of the keys, and which tokens are kept exactly. Sees keys,
/// whichever side it is for.
class PrefillSurvey final : public Survey {
 public:
  PrefillSurvey(const SelfIndexCodec& codec, Side side)
      : codec_(codec),
        side_(side),
        medians_(needs_tables() && codec.options_.center == "median" ? codec.width() : 0),
        sums_(codec.width()),
        alpha_(codec.width()),
        sums_of_codes_(codec.heads_, codec.dims_) {
    center_.resize(codec.width());
  }

  /// The median takes one pass more than the mean before keys can be centred.
  int passes() const override { return needs_tables() && codec_.options_.center == "median" ? 3 : 2; }

  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override;

  void observe(MatrixView<const float> rows) override {
    const std::vector<uint16_t> halves = to_storage(codec_.storage_, rows);
    const size_t width = codec_.width();
    Matrix<float> keys(rows.rows(), width);
    widen(codec_.storage_, halves, {keys.data(), keys.size()});
    parallel_for(attention_.size(), 1, [&](size_t head, size_t, int) {
      const auto of_head = keys.view().columns(head * codec_.dims_, codec_.dims_);
      if (pass_ == 0) attention_[head].first_pass(seen_, of_head);
      if (pass_ == 1) attention_[head].second_pass(seen_, of_head);
    });
    if (needs_tables()) observe_keys(halves, keys);
    seen_ += rows.rows();
  }

  void end_document() override {
    tokens_ = seen_;
    seen_ = 0;
  }

  void end_pass() override {
    if (needs_tables() && codec_.options_.center == "mean" && pass_ == 0)
      for (size_t j = 0; j < sums_.size(); ++j)
        center_[j] = tokens_ > 0 ? static_cast<float>(sums_[j] / static_cast<double>(tokens_)) : 0;
    if (needs_tables() && codec_.options_.center == "median") {
      if (pass_ == 0) medians_.choose_high();
      if (pass_ == 1)
        for (size_t j = 0; j < center_.size(); ++j) {
          const uint16_t half = medians_.median(j);
          widen(codec_.storage_, {&half, 1}, {&center_[j], 1});
        }
    }
    ++pass_;
  }

  void finish(StreamStore& document) override;

 private:
  bool needs_tables() const { return side_ == Side::key; }
  void observe_keys(std::span<const uint16_t> halves, MatrixView<float> keys);
  std::vector<uint32_t> chosen_tokens(size_t head) const;

  const SelfIndexCodec& codec_;
  Side side_;
  int pass_ = 0;
  uint64_t seen_ = 0, tokens_ = 0;
  ColumnMedians medians_;
  std::vector<double> sums_;
  std::vector<float> center_, alpha_;
  CodebookSums sums_of_codes_;
  std::vector<SignCodebook> codebooks_;   // of a device
  std::vector<AttentionSums> attention_;  // per head; empty without queries
};

void PrefillSurvey::observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) {
  const std::string& by = codec_.options_.full_by;
  if (pass_ > 0 || by == "first" || codec_.full_tokens_ == 0 || codec_.at_16_bits_) return;
  const size_t d = codec_.dims_, per_head = codec_.query_heads_ / codec_.heads_;
  if (queries.cols() != codec_.query_heads_ * d || queries.rows() != tokens.size())
    throw failed("{} x {} queries of {} tokens for {} query heads of {} dimensions", queries.rows(),
                 queries.cols(), tokens.size(), codec_.query_heads_, d);
  const size_t used = std::min<size_t>(by == "attention" ? kObservedQueries : 1, tokens.size());
  const size_t first = tokens.size() - used;
  for (size_t head = 0; head < codec_.heads_; ++head) {
    Matrix<float> own(used * per_head, d);
    std::vector<uint64_t> own_tokens;
    for (size_t i = 0; i < own.rows(); ++i) {
      const size_t row = first + i / per_head, query_head = head * per_head + i % per_head;
      std::ranges::copy(queries.row(row).subspan(query_head * d, d), own.row(i).begin());
      own_tokens.push_back(tokens[row]);
    }
    attention_.emplace_back(std::move(own), std::move(own_tokens));
  }
}

void PrefillSurvey::observe_keys(std::span<const uint16_t> halves, MatrixView<float> keys) {
  const size_t width = codec_.width();
  const bool median = codec_.options_.center == "median";
  if (median && pass_ < 2) {
    for (size_t t = 0; t < keys.rows(); ++t)
      pass_ == 0 ? medians_.count_high(halves.subspan(t * width, width))
                 : medians_.count_low(halves.subspan(t * width, width));
    return;
  }
  if (pass_ == 0) {
    for (size_t t = 0; t < keys.rows(); ++t)
      for (size_t j = 0; j < width; ++j) sums_[j] += static_cast<double>(keys(t, j));
    return;
  }
  for (size_t t = 0; t < keys.rows(); ++t)
    for (size_t j = 0; j < width; ++j) {
      keys(t, j) -= center_[j];
      alpha_[j] = std::max(alpha_[j], std::abs(keys(t, j)));
    }
  // A device makes codebooks of rows that are all there.
  if (codec_.signs_ && keys.rows() == tokens_)
    if (auto codebooks = codec_.signs_->codebooks(keys, codec_.heads_)) {
      codebooks_ = std::move(*codebooks);
      return;
    }
  if (codec_.engine_ && keys.rows() != tokens_)
    codec_.engine_->fall_back("selfindex: codebooks of documents that come in several pieces");
  Matrix<uint8_t> codes(keys.rows(), codec_.heads_ * sign_row_bytes(codec_.dims_));
  encode_signs(keys, codec_.heads_, codes);
  sums_of_codes_.add(keys, codes);
}

/// Those of the largest pooled weight, rising; without queries the first.
std::vector<uint32_t> PrefillSurvey::chosen_tokens(size_t head) const {
  const auto count = std::min<uint64_t>(codec_.full_tokens_, tokens_);
  std::vector<uint32_t> chosen;
  if (attention_.empty()) {
    for (uint32_t t = 0; t < count; ++t) chosen.push_back(t);
    return chosen;
  }
  const std::vector<double>& weights = attention_[head].weights();
  const size_t reach = codec_.options_.full_by == "attention" ? kPooledTokens / 2 : 0;
  std::vector<float> pooled(weights.size());
  for (size_t t = 0; t < weights.size(); ++t) {
    double sum = 0;
    for (size_t i = t - std::min(t, reach); i < std::min(t + reach + 1, weights.size()); ++i)
      sum += weights[i];
    pooled[t] = static_cast<float>(sum);
  }
  for (const Scored& scored : top_k(pooled, count)) chosen.push_back(scored.id);
  std::ranges::sort(chosen);
  return chosen;
}

void PrefillSurvey::finish(StreamStore& document) {
  if (tokens_ == 0 || !codec_.has_choice(side_) || !codec_.pays(side_, tokens_)) return;
  const uint8_t coded = 1;
  document.append_values<uint8_t>(kCoded, {&coded, 1});
  if (needs_tables()) {
    for (float& alpha : alpha_)
      if (!(alpha > 0)) alpha = 1;  // a constant channel: tokens appended later need not be
    document.append_values<float>(kCenter, center_);
    document.append_values<float>(kAlpha, alpha_);
    const std::vector<SignCodebook> codebooks = codebooks_.empty() ? sums_of_codes_.codebooks() : codebooks_;
    std::vector<float> relative;
    for (size_t head = 0; head < codebooks.size(); ++head)
      for (size_t group = 0; group < codebooks[head].groups(); ++group)
        for (size_t code = 0; code < kSignCodes; ++code)
          for (size_t i = 0; i < kSignGroup; ++i) {
            const size_t channel = group * kSignGroup + i;
            relative.push_back(codebooks[head].centroids(channel, code) /
                               alpha_[head * codec_.dims_ + channel]);
          }
    std::vector<uint16_t> halves(relative.size());
    narrow(DType::f16, relative, halves);
    document.append_values<uint16_t>(kCodebooks, halves);
  }
  if (codec_.at_16_bits_) return;
  Matrix<uint32_t> ids(std::min<uint64_t>(codec_.full_tokens_, tokens_), codec_.heads_);
  for (size_t head = 0; head < codec_.heads_; ++head) {
    const std::vector<uint32_t> chosen = chosen_tokens(head);
    for (size_t i = 0; i < chosen.size(); ++i) ids(i, head) = chosen[i];
  }
  document.append_values<uint32_t>(kExactIds, {ids.data(), ids.size()});
}

std::unique_ptr<Survey> SelfIndexCodec::survey(const GroupShape& shape) const {
  return std::make_unique<PrefillSurvey>(*this, shape.side);
}

// Encoding
// --------------------------------------------------------------------------------------------------------

std::vector<float> SelfIndexCodec::read_finite(std::string_view stream, const StreamReader& document) const {
  std::vector<float> values = document.read<float>(stream, 0, 1, width());
  for (const float value : values)
    if (!std::isfinite(value)) throw bad_input("stream '{}' holds {}, which is not finite", stream, value);
  return values;
}

HeadTables SelfIndexCodec::read_tables(const StreamReader& document) const {
  HeadTables tables{read_finite(kCenter, document), read_finite(kAlpha, document)};
  for (const float alpha : tables.alpha)
    if (!(alpha > 0)) throw bad_input("stream '{}' holds {}; it must be positive", kAlpha, alpha);
  return tables;
}

bool SelfIndexCodec::is_coded(Side side, const StreamReader& document) const {
  if (!has_choice(side)) return false;
  const uint64_t rows = document.rows(kCoded);
  if (rows > 1) throw bad_input("stream '{}' has {} rows; it has at most one", kCoded, rows);
  return rows == 1;
}

uint64_t SelfIndexCodec::tokens(const GroupShape& shape, const StreamReader& document) const {
  const uint64_t exact = document.rows(kExact);
  const auto same = [](std::string_view stream, uint64_t rows, uint64_t wanted) {
    if (rows != wanted) throw bad_input("stream '{}' has {} rows, not {}", stream, rows, wanted);
  };
  const bool coded = is_coded(shape.side, document);
  uint64_t count = exact / heads_;
  if (coded && has_levels()) {
    count = document.rows(kLevels);
    same(kScales, document.rows(kScales), count);
    same(kZeros, document.rows(kZeros), count);
    same(kExact, exact, exact_places(document, count).size());
  } else {
    same(kExact, exact, count * heads_);
    if (has_levels())
      for (const std::string_view stream : {kLevels, kScales, kZeros, kExactIds})
        same(stream, document.rows(stream), 0);
  }
  if (shape.side == Side::key) {
    same(kSigns, document.rows(kSigns), coded ? count : 0);
    for (const std::string_view stream : {kCenter, kAlpha, kCodebooks})
      same(stream, document.rows(stream), coded ? 1 : 0);
  }
  return count;
}

/// Which token of which head each row of "exact" holds, for the document's first `tokens` tokens: rising,
/// token before head.
std::vector<SelfIndexCodec::Place> SelfIndexCodec::exact_places(const StreamReader& document,
                                                                uint64_t tokens) const {
  const uint64_t rows = document.rows(kExactIds);
  const auto ids = document.read<uint32_t>(kExactIds, 0, rows, heads_);
  std::vector<Place> places;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i >= heads_ && ids[i] <= ids[i - heads_])
      throw bad_input("stream '{}', row {}: token {} does not come after {}", kExactIds, i / heads_, ids[i],
                      ids[i - heads_]);
    if (ids[i] < tokens) places.push_back({ids[i], static_cast<uint32_t>(i % heads_)});
  }
  std::ranges::sort(places);
  return places;
}

/// Signs, and the rows whose levels are stored instead of these.
void SelfIndexCodec::append_signs(MatrixView<float> rows, StreamStore& document) const {
  const HeadTables tables = read_tables(document);
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < width(); ++j) rows(t, j) -= tables.center[j];
  });
  Matrix<uint8_t> signs(rows.rows(), heads_ * sign_row_bytes(dims_));
  encode_signs(rows, heads_, signs);
  document.append_values<uint8_t>(kSigns, {signs.data(), signs.size()});
  if (!has_levels()) return;
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < width(); ++j)
        rows(t, j) = (signed_levels_ ? rows(t, j) : std::abs(rows(t, j))) / tables.alpha[j];
  });
}

void SelfIndexCodec::append_levels(MatrixView<const float> rows, StreamStore& document) const {
  const size_t count = rows.rows() * heads_;
  Matrix<uint8_t> levels(count, level_bytes());
  Matrix<uint16_t> scales(count, groups()), zeros(count, groups());
  quantize_two_bit({rows.data(), count, dims_}, {levels.view(), scales.view(), zeros.view()});
  document.append_values<uint8_t>(kLevels, {levels.data(), levels.size()});
  document.append_values<uint16_t>(kScales, {scales.data(), scales.size()});
  document.append_values<uint16_t>(kZeros, {zeros.data(), zeros.size()});
}

void SelfIndexCodec::append(const GroupShape& shape, MatrixView<const float> rows,
                            StreamStore& document) const {
  check_width(shape, rows.cols());
  const std::vector<uint16_t> halves = to_storage(storage_, rows);
  if (rows.rows() == 0) return;
  const bool coded = is_coded(shape.side, document);
  const uint64_t before = tokens(shape, document);
  if (!coded || !has_levels()) {
    document.append_values<uint16_t>(kExact, halves);
    if (!coded) return;
  } else {
    std::vector<uint16_t> exact;
    for (const Place& place : exact_places(document, before + rows.rows()))
      if (place.token >= before) {
        const auto first =
            halves.begin() + static_cast<ptrdiff_t>((place.token - before) * width() + place.head * dims_);
        exact.insert(exact.end(), first, first + static_cast<ptrdiff_t>(dims_));
      }
    document.append_values<uint16_t>(kExact, exact);
  }
  Matrix<float> values(rows.rows(), width());
  widen(storage_, halves, {values.data(), values.size()});
  if (engine_) engine_->fall_back("selfindex: signs and levels, once there are codebooks");
  if (shape.side == Side::key) append_signs(values, document);
  if (has_levels()) append_levels(values, document);
}

// Decoding
// --------------------------------------------------------------------------------------------------------

/// Tokens [first, first + out.rows()) as signs and levels say.
void SelfIndexCodec::decode_levels(Side side, const StreamReader& document, uint64_t first,
                                   MatrixView<float> out) const {
  if (engine_) engine_->fall_back("selfindex: decoding");
  const size_t count = out.rows();
  const auto levels = document.read<uint8_t>(kLevels, first, count, heads_ * level_bytes());
  const auto scales = read_scales(kScales, document, first, count),
             zeros = read_scales(kZeros, document, first, count);
  const bool key = side == Side::key;
  const size_t sign_bytes = sign_row_bytes(dims_);
  const auto signs =
      key ? document.read<uint8_t>(kSigns, first, count, heads_ * sign_bytes) : std::vector<uint8_t>();
  const HeadTables tables = key ? read_tables(document) : HeadTables{};
  const ConstTwoBitRows coded{{levels.data(), count * heads_, level_bytes()},
                              {scales.data(), count * heads_, groups()},
                              {zeros.data(), count * heads_, groups()}};
  parallel_for(count, kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t head = 0; head < heads_; ++head) {
        const size_t row = t * heads_ + head;
        const auto own = out.row(t).subspan(head * dims_, dims_);
        if (key && !signed_levels_) {
          dequantize_signed_row(coded, row, std::span(signs).subspan(row * sign_bytes, sign_bytes),
                                std::span(tables.alpha).subspan(head * dims_, dims_),
                                std::span(tables.center).subspan(head * dims_, dims_), own);
          continue;
        }
        dequantize_two_bit({coded.levels.rows(row, 1), coded.scales.rows(row, 1), coded.zeros.rows(row, 1)},
                           {own.data(), 1, dims_});
        if (!key) continue;
        for (size_t c = 0; c < dims_; ++c)
          own[c] = tables.center[head * dims_ + c] + tables.alpha[head * dims_ + c] * own[c];
      }
  });
}

/// Scales or zeros as they are stored, checked.
std::vector<uint16_t> SelfIndexCodec::read_scales(std::string_view stream, const StreamReader& document,
                                                  uint64_t first, uint64_t count) const {
  auto halves = document.read<uint16_t>(stream, first, count, heads_ * groups());
  for (size_t i = 0; i < halves.size(); ++i)
    if ((halves[i] & 0x7c00) == 0x7c00)
      throw bad_input("stream '{}', row {}: a value is not finite", stream, first + i / (heads_ * groups()));
  return halves;
}

/// Puts what is kept exactly over decoded tokens [first, first + out.rows()) of a document of `tokens`.
void SelfIndexCodec::put_exact(const StreamReader& document, uint64_t first, uint64_t tokens,
                               MatrixView<float> out) const {
  const std::vector<Place> places = exact_places(document, tokens);
  const auto begin = std::ranges::lower_bound(places, Place{static_cast<uint32_t>(first), 0});
  const auto end = std::ranges::find_if(
      begin, places.end(), [&](const Place& place) { return place.token >= first + out.rows(); });
  Matrix<float> exact(static_cast<size_t>(end - begin), dims_);
  read_exact(kExact, storage_, document, static_cast<uint64_t>(begin - places.begin()), exact);
  for (size_t i = 0; i < exact.rows(); ++i) {
    const Place& place = begin[static_cast<ptrdiff_t>(i)];
    std::ranges::copy(exact.row(i),
                      out.row(place.token - first).begin() + static_cast<ptrdiff_t>(place.head * dims_));
  }
}

void SelfIndexCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                            MatrixView<float> out) const {
  check_width(shape, out.cols());
  const uint64_t total = tokens(shape, document);
  if (first > total || out.rows() > total - first)
    throw bad_input("there are {} tokens; {} from token {} on are not all there", total, out.rows(), first);
  if (shape.side == Side::key && is_coded(shape.side, document))
    (void)read_codebooks(document, read_tables(document));
  if (is_coded(shape.side, document) && has_levels()) {
    decode_levels(shape.side, document, first, out);
    return put_exact(document, first, total, out);
  }
  Matrix<float> rows(out.rows() * heads_, dims_);
  read_exact(kExact, storage_, document, first * heads_, rows);
  for (size_t t = 0; t < out.rows(); ++t) std::copy_n(rows.data() + t * width(), width(), out.row(t).begin());
}

// Selection
// -------------------------------------------------------------------------------------------------------

std::vector<SignCodebook> SelfIndexCodec::read_codebooks(const StreamReader& document,
                                                         const HeadTables& tables) const {
  const auto halves = document.read<uint16_t>(kCodebooks, 0, 1, width() * kSignCodes);
  std::vector<SignCodebook> codebooks;
  size_t next = 0;
  for (size_t head = 0; head < heads_; ++head) {
    SignCodebook codebook{Matrix<float>(dims_, kSignCodes)};
    for (size_t group = 0; group < codebook.groups(); ++group)
      for (size_t code = 0; code < kSignCodes; ++code)
        for (size_t i = 0; i < kSignGroup; ++i) {
          const size_t channel = group * kSignGroup + i;
          const float relative = f16_to_float(halves[next++]);
          if (!std::isfinite(relative))
            throw bad_input("stream '{}' holds a value that is not finite", kCodebooks);
          codebook.centroids(channel, code) = relative * tables.alpha[head * dims_ + channel];
        }
    codebooks.push_back(std::move(codebook));
  }
  return codebooks;
}

/// A selector with all it looks at.
class OwnedSignSelector final : public Selector {
 public:
  /// on_device: the same index there, or nullptr.
  OwnedSignSelector(SignCodebook codebook, SignIndex index, std::unique_ptr<SignIndexEngine> on_device)
      : codebook_(std::move(codebook)),
        index_(std::move(index)),
        on_device_(std::move(on_device)),
        selector_(codebook_, index_) {}
  size_t tokens() const override { return selector_.tokens(); }
  size_t dims() const override { return selector_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    if (on_device_ && tokens() > 0) {
      std::vector<SignTable> tables;
      for (size_t i = 0; i < queries.rows(); ++i) tables.emplace_back(codebook_, queries.row(i));
      if (on_device_->scores(tables, out)) return;
    }
    selector_.scores(queries, out);
  }
  std::vector<Scored> select(std::span<const float> query, size_t budget, Order order) const override {
    if (on_device_ && tokens() > 0)
      if (auto best = on_device_->top_k(SignTable(codebook_, query), budget, order)) return *best;
    return selector_.select(query, budget, order);
  }
  std::vector<Scored> select_shared(MatrixView<const float> queries, SharedBy by, size_t budget,
                                    Order order) const override {
    return selector_.select_shared(queries, by, budget, order);
  }

 private:
  SignCodebook codebook_;
  SignIndex index_;
  std::unique_ptr<SignIndexEngine> on_device_;
  SignSelector selector_;
};

/// For documents that were not worth coding: their keys are all there.
class ExactSelector final : public Selector {
 public:
  explicit ExactSelector(Matrix<float> keys) : keys_(std::move(keys)), rows_(keys_, keys_), oracle_(rows_) {}
  size_t tokens() const override { return oracle_.tokens(); }
  size_t dims() const override { return oracle_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    oracle_.scores(queries, out);
  }

 private:
  Matrix<float> keys_;
  CacheRows rows_;
  OracleSelector oracle_;
};

std::unique_ptr<Selector> SelfIndexCodec::selector(const GroupShape& shape, const StreamReader& document,
                                                   size_t head, bool signs_only) const {
  if (shape.side != Side::key || head >= heads_) throw failed("no index of {} {}", name_of(shape.side), head);
  const uint64_t count = tokens(shape, document);
  if (!is_coded(shape.side, document)) {
    Matrix<float> all(count * heads_, dims_), own(count, dims_);
    read_exact(kExact, storage_, document, 0, all);
    for (size_t t = 0; t < count; ++t) std::ranges::copy(all.row(t * heads_ + head), own.row(t).begin());
    return std::make_unique<ExactSelector>(std::move(own));
  }
  const size_t sign_bytes = sign_row_bytes(dims_);
  const auto signs = document.read<uint8_t>(kSigns, 0, count, heads_ * sign_bytes);
  SignIndex index(dims_);
  const MatrixView<const uint8_t> codes(signs.data() + head * sign_bytes, count, sign_bytes,
                                        heads_ * sign_bytes);
  index.append(codes);
  auto on_device = signs_ ? signs_->index(dims_, codes) : nullptr;
  auto codebooks = read_codebooks(document, read_tables(document));
  if (signs_only) {  // every centroid at the corner its signs name
    Matrix<float>& centroids = codebooks[head].centroids;
    for (size_t channel = 0; channel < dims_; ++channel)
      for (size_t code = 0; code < kSignCodes; ++code)
        centroids(channel, code) = code >> (kSignGroup - 1 - channel % kSignGroup) & 1 ? 1.0f : -1.0f;
  }
  return std::make_unique<OwnedSignSelector>(std::move(codebooks[head]), std::move(index),
                                             std::move(on_device));
}

std::unique_ptr<Options> make_options() { return std::make_unique<SelfIndexOptions>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<SelfIndexCodec>(dynamic_cast<const SelfIndexOptions&>(options), context);
}

}  // namespace

CodecEntry selfindex_codec() {
  return {.name = "selfindex",
          .summary = "2-bit keys and values whose sign bits are an index of the keys; needs no training",
          .capabilities = {.has_index = true, .device_twin = true},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
