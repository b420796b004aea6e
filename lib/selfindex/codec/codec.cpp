// The codec `selfindex`: Self-Indexing KVCache, where the compressed key is its own index.
//
// Keys are centred by channel; the signs of the centred key are stored as one bit per channel, from which
// scores for all tokens come by table look-up (lib/selfindex), and its magnitudes, relative to the channel's
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
// With store 16bit, "exact" holds all tokens of all heads, and there are no levels, scales, zeros and
// exact_ids.
#include <algorithm>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/selfindex/codec/encode.hpp"
#include "lib/selfindex/codec/reader.hpp"
#include "lib/selfindex/codec/survey.hpp"
#include "lib/selfindex/codec/view.hpp"

namespace kvcodec {
namespace selfindex {

bool Form::pays(Side side, uint64_t tokens) const {
  if (at_16_bits) return true;
  const bool key = side == Side::key;
  const uint64_t exact = exact_of(tokens) * (4 + 2 * dims);
  const uint64_t tables = key ? dims * (4 + 4 + 2 * kSignCodes) : 0;
  const uint64_t token = level_bytes() + 4 * groups() + (key ? sign_bytes() : 0);
  return exact + tables + 1 + tokens * token < tokens * 2 * dims;
}

namespace {

class SelfIndexCodec final : public Codec {
 public:
  SelfIndexCodec(const SelfIndexOptions& options, const CodecContext& context)
      : options_(options), form_(options, context), engine_(context.engine) {
    if (form_.dims % kSignGroup != 0)
      throw usage_error("heads of {} dimensions; selfindex needs a multiple of {}", form_.dims, kSignGroup);
  }

  Record parameters() const override {
    SelfIndexOptions copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const std::vector<uint64_t> channels{form_.heads, form_.dims}, per_group{form_.heads, form_.groups()};
    std::vector<StreamSpec> specs;
    if (form_.has_choice(shape.side))
      specs.push_back({std::string(kCoded), DType::u8, {}, Category::offsets});
    if (shape.side == Side::key) {
      specs.push_back({std::string(kCenter), DType::f32, channels, Category::scales});
      specs.push_back({std::string(kAlpha), DType::f32, channels, Category::scales});
      specs.push_back({std::string(kCodebooks),
                       DType::f16,
                       {form_.heads, form_.dims / kSignGroup, kSignCodes, kSignGroup},
                       Category::tables});
      specs.push_back({std::string(kSigns), DType::u8, {form_.heads, form_.sign_bytes()}, Category::payload});
    }
    if (form_.has_levels()) {
      specs.push_back(
          {std::string(kLevels), DType::u8, {form_.heads, form_.level_bytes()}, Category::payload});
      specs.push_back({std::string(kScales), DType::f16, per_group, Category::scales});
      specs.push_back({std::string(kZeros), DType::f16, per_group, Category::scales});
      specs.push_back({std::string(kExactIds), DType::u32, {form_.heads}, Category::exempt});
    }
    specs.push_back({std::string(kExact),
                     form_.storage,
                     {form_.dims},
                     form_.at_16_bits ? Category::payload : Category::exempt});
    return specs;
  }

  /// 16-bit rows, centred rows and magnitudes as floats, what is stored.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 14; }

  SurveyScope survey_scope(const GroupShape&) const override { return SurveyScope::document; }
  GroupShape surveyed(const GroupShape& shape) const override { return of_side(shape, Side::key); }
  bool wants_queries() const override {
    return form_.exact_tokens != 0 && !form_.at_16_bits && options_.exact_by != ExactBy::first;
  }
  std::string without_queries() const override {
    return "the first tokens are kept exactly instead of those that queries attend to most";
  }
  std::string needs_rope() const override {
    return "selfindex stores an index of them, which queries are held against as they are";
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return make_survey(options_, form_, engine_, shape.side);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    append_rows(form_, engine_, shape, rows, document);
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<SelfIndexView>(form_, engine_, shape, document);
  }

 private:
  SelfIndexOptions options_;
  Form form_;
  Engine* engine_;
};

std::unique_ptr<Options> make_options() { return std::make_unique<SelfIndexOptions>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<SelfIndexCodec>(dynamic_cast<const SelfIndexOptions&>(options), context);
}

}  // namespace
}  // namespace selfindex

CodecEntry selfindex_codec() {
  return {.name = "selfindex",
          .summary = "2-bit keys and values whose sign bits are an index of the keys; needs no training",
          .capabilities = {.has_index = true, .device_twin = true},
          .book_type = "",
          .make_options = selfindex::make_options,
          .make = selfindex::make,
          .paper = {{"exact-tokens", selfindex::kPaperExactTokens}},
          .dial = {.why_not = "it stores 2 bits and what its index takes"},
          .promise = 7,
          .on_demand = false,
          .place = 5};
}

}  // namespace kvcodec
