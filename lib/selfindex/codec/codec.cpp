// The codec `selfindex`: Self-Indexing KVCache, where the compressed key is its own index.
//
// Keys are centred by channel; the signs of the centred key are stored as one bit per channel, from which scores for all tokens come by
// table look-up (lib/selfindex), and its magnitudes, relative to the channel's largest, in 2 bits. Values are stored in 2 bits. Both are
// quantized token by token in groups of 32 channels, so that any token decodes alone. Some tokens of each head are also kept exactly: those
// that the last queries attend to most, after SnapKV (Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS
// 2024).
//
// Centre, largest magnitudes and codebooks come from a first pass over the tokens that a document starts with
// (its prefill), and serve all that is appended later, as in the paper. Which tokens are kept exactly is
// decided by keys and queries alone, so that both sides decide alike.
//
// Streams of one document, H heads of d channels, T tokens, e of them kept exactly
//   coded      u8  [0 or 1]            1 row: the document is coded; none: it would not shrink, and "exact"
//                                      holds it all
//   of keys
//     center, alpha  f32 [1][H][d]
//     codebooks      f16 [1][H][d/4][16][4], relative to alpha
//     signs          u8  [T][H][ceil(d/8)]
//   levels         u8  [T][H][ceil(d/4)]   2-bit levels
//   scales, zeros  f16 [T][H][ceil(d/32)]
//   exact_ids  u32 [e][H]              of each head, rising
//   exact      bf16|f16 [e * H][d]     token by token, of each token head by head
// With store 16bit, "exact" holds all tokens of all heads, and there are no levels, scales, zeros and exact_ids.
#include <cmath>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/codec/document.hpp"

namespace kvcodec {
namespace selfindex {

bool Form::pays(Side side, uint64_t tokens) const {
  if (!has_levels()) return true;
  const bool key = side == Side::key;
  const uint64_t exact = exact_of(tokens) * (4 + 2 * dims);
  const uint64_t tables = key ? dims * (4 + 4 + 2 * kSignCodes) : 0;
  const uint64_t token = level_bytes() + 4 * groups() + (key ? sign_bytes() : 0);
  return exact + tables + 1 + tokens * token < tokens * 2 * dims;
}

namespace {

/// The largest size that a level's f16 zero point and scale can hold.
constexpr float kMaxLevelled = 65504;

/// Rows as they are stored, beside those kept exactly.
struct Coded {
  Matrix<uint8_t> signs, levels;
  Matrix<uint16_t> scales, zeros;
};

/// Sets the signs of keys, and turns these into what has levels instead.
void take_signs(const Form& form, const HeadTables& tables, MatrixView<float> rows, Coded& coded) {
  parallel_each(rows.rows(), kPieceTokens, [&](size_t t) {
    for (size_t j = 0; j < form.width(); ++j) rows(t, j) -= tables.center[j];
  });
  coded.signs = Matrix<uint8_t>(rows.rows(), form.heads * form.sign_bytes());
  encode_signs(rows, form.heads, coded.signs);
  if (!form.has_levels()) return;
  parallel_each(rows.rows(), kPieceTokens, [&](size_t t) {
    for (size_t j = 0; j < form.width(); ++j)
      rows(t, j) = (form.signed_levels() ? rows(t, j) : std::abs(rows(t, j))) / tables.alpha[j];
  });
}

void check_levels(const Form& form, Side side, MatrixView<const float> rows, uint64_t first_token) {
  for (size_t t = 0; t < rows.rows(); ++t)
    for (size_t j = 0; j < form.width(); ++j)
      if (const float value = rows(t, j); !(std::abs(value) <= kMaxLevelled))
        throw bad_input(
            "token {}, head {}, dimension {}: {} {}; 2-bit levels hold up to {}, and --store 16bit keeps all values",
            first_token + t, j / form.dims, j % form.dims, value,
            side == Side::key ? "times the largest among the tokens that the codes began with"
                              : "is too large",
            kMaxLevelled);
}

/// weights: of squared errors of channels; empty for the grids of the paper.
void take_levels(const Form& form, MatrixView<const float> rows, MatrixView<const float> weights,
                 Coded& coded) {
  const size_t count = rows.rows() * form.heads;
  coded.levels = Matrix<uint8_t>(count, form.level_bytes());
  coded.scales = coded.zeros = Matrix<uint16_t>(count, form.groups());
  quantize_two_bit({rows.data(), count, form.dims}, weights,
                   {coded.levels.view(), coded.scales.view(), coded.zeros.view()});
}

template <class T>
void append_all(std::string_view stream, const Matrix<T>& values, StreamStore& document) {
  document.append_values<T>(stream, {values.data(), values.size()});
}

/// Codec::append; engine: or nullptr. Nothing is appended before all is known to fit.
void append_rows(const Form& form, Engine* engine, const GroupShape& shape, MatrixView<const float> rows,
                 StreamStore& document) {
  const auto halves = to_storage(form.storage, rows);
  if (rows.rows() == 0) return;
  SelfIndexView view(form, engine, shape, document);
  view.refresh();
  if (!view.is_coded()) return document.append_values<uint16_t>(kExact, halves);
  const uint64_t before = view.tokens();
  Matrix<float> values(rows.rows(), form.width());
  widen(form.storage, halves, {values.data(), values.size()});
  if (engine) engine->fall_back("selfindex: signs and levels, once there are codebooks");
  Coded coded;
  if (shape.side == Side::key) take_signs(form, view.tables(), values, coded);
  if (form.has_levels()) {
    check_levels(form, shape.side, values, before);
    Matrix<float> weights;  // levels count in a channel's largest magnitude
    if (shape.side == Side::key && form.options.key_fit == KeyFit::least_squares) {
      weights = Matrix<float>(form.heads, form.dims);
      std::ranges::transform(view.tables().alpha, weights.data(), [](float alpha) { return alpha * alpha; });
    }
    take_levels(form, values, weights, coded);
  }
  std::vector<uint16_t> exact;
  if (form.has_levels())
    for (const HeadToken& place : view.exact_places(before, before + rows.rows())) {
      const size_t first = (place.token - before) * form.width() + place.head * form.dims;
      append_to(exact, std::span(halves).subspan(first, form.dims));
    }
  document.append_values<uint16_t>(
      kExact, form.has_levels() ? std::span<const uint16_t>(exact) : std::span<const uint16_t>(halves));
  if (shape.side == Side::key) append_all(kSigns, coded.signs, document);
  if (!form.has_levels()) return;
  append_all(kLevels, coded.levels, document);
  append_all(kScales, coded.scales, document);
  append_all(kZeros, coded.zeros, document);
}

class SelfIndexCodec final : public Codec {
 public:
  SelfIndexCodec(const SelfIndexOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        query_heads_(context.query_heads),
        engine_(context.engine),
        scores_(context.scores) {
    for (int layer = 0; layer < context.num_layers; ++layer)
      if (const int dims = context.layer_shape(layer).key_dim; as_size(dims) % kSignGroup != 0)
        throw usage_error("heads of {} dimensions; selfindex needs a multiple of {}", dims, kSignGroup);
  }

  Record parameters() const override { return record_of(options_); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const Form form = form_of(shape);
    std::vector<StreamSpec> specs;
    const auto add = [&](std::string_view name, DType type, std::vector<uint64_t> row, Category category) {
      specs.push_back({std::string(name), type, std::move(row), category});
    };
    const uint64_t heads = form.heads, dims = form.dims;
    if (form.has_choice(shape.side)) add(kCoded, DType::u8, {}, Category::offsets);
    if (shape.side == Side::key) {
      add(kCenter, DType::f32, {heads, dims}, Category::scales);
      add(kAlpha, DType::f32, {heads, dims}, Category::scales);
      add(kCodebooks, DType::f16, {heads, dims / kSignGroup, kSignCodes, kSignGroup}, Category::tables);
      add(kSigns, DType::u8, {heads, form.sign_bytes()}, Category::payload);
    }
    if (form.has_levels()) {
      add(kLevels, DType::u8, {heads, form.level_bytes()}, Category::payload);
      add(kScales, DType::f16, {heads, form.groups()}, Category::scales);
      add(kZeros, DType::f16, {heads, form.groups()}, Category::scales);
      add(kExactIds, DType::u32, {heads}, Category::exempt);
    }
    add(kExact, form.storage, {dims}, form.has_levels() ? Category::exempt : Category::payload);
    return specs;
  }

  /// 16-bit rows, centred rows and magnitudes as floats, what is stored.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 14; }

  SurveyScope survey_scope(const GroupShape&) const override { return SurveyScope::document; }
  GroupShape surveyed(const GroupShape& shape) const override { return of_side(shape, Side::key); }
  bool wants_queries() const override { return form_of({}).wants_queries(); }
  std::string without_queries() const override {
    return "the first tokens are kept exactly instead of those that queries attend to most";
  }
  std::string needs_rope() const override {
    return "selfindex stores an index of them, which queries are held against as they are";
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return make_survey(form_of(surveyed(shape)), form_of(shape), engine_, shape, scores_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    append_rows(form_of(shape), engine_, shape, rows, document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<SelfIndexView>(form_of(shape), engine_, shape, document);
  }

 private:
  Form form_of(const GroupShape& shape) const { return {options_, shape, storage_, query_heads_}; }

  SelfIndexOptions options_;
  DType storage_;
  int query_heads_;
  Engine* engine_;
  ScoreForms scores_;  // of queries
};

}  // namespace
}  // namespace selfindex

CodecEntry selfindex_codec() {
  return {.name = "selfindex",
          .summary = "2-bit keys and values whose sign bits are an index of the keys; needs no training",
          .capabilities = {.has_index = true, .device_twin = true},
          .book_type = "",
          .make_options = [] { return std::make_unique<selfindex::SelfIndexOptions>(); },
          .make = make_checked<selfindex::SelfIndexOptions, selfindex::SelfIndexCodec>,
          .paper = {{"exact-tokens", selfindex::kPaperExactTokens}, {"key-fit", "range"}},
          .dial = {.why_not = "it stores 2 bits and what its index takes"},
          .promise = 7,
          .on_demand = false,
          .place = 5};
}

}  // namespace kvcodec
