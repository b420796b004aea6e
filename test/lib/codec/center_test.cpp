// Centred channels: what the outer codec subtracts, keeps and adds again (lib/codec/outer_codecs.hpp).
#include <cmath>
#include <cstring>

#include "lib/codec/encoded.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/rope.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/test.hpp"

namespace center_test {

using namespace kvcodec;

namespace {

constexpr int kHeads = 2, kDims = 32;
constexpr size_t kWidth = size_t{kHeads} * kDims;
const GroupShape kKeys = usual_group(0, 1, kHeads, kDims);
const GroupShape kValues = usual_group(0, 1, kHeads, kDims, Side::value);

CodecContext context() {
  CodecContext made{.num_layers = 1, .heads = kHeads, .head_dim = kDims, .query_heads = 2 * kHeads};
  made.storage = DType::bf16;
  made.rope = test::sample_rope(1, kDims);
  return made;
}

std::unique_ptr<Codec> made(const std::string& name, std::vector<std::pair<std::string, Scalar>> options,
                            RopeChoice rope = RopeChoice::keep) {
  return test::codec_of({.label = name, .codec = name, .options = std::move(options), .rope = rope},
                        context());
}

/// Noise around means that differ by channel and lie up to 50 deviations from 0, as keys of Qwen2.5 have them; in bf16.
Matrix<float> rows_with_means(size_t tokens, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> rows(tokens, kWidth);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < kWidth; ++j)
      rows(t, j) =
          round_to(DType::bf16,
                   static_cast<float>(rng.normal() + (t == 0 ? 0.0 : std::exp2(j % 7) * (j % 2 ? 1 : -1))));
  return rows;
}

Encoded coded(const Codec& codec, const GroupShape& shape, const std::vector<Matrix<float>>& documents) {
  return encode_in_memory(codec, shape, std::vector<DocumentRows>(documents.begin(), documents.end()));
}

Matrix<float> decoded(const Codec& codec, const GroupShape& shape, const Encoded& encoded,
                      size_t document = 0) {
  const auto view = codec.open(shape, encoded.document(document));
  Matrix<float> out(static_cast<size_t>(view->tokens()), shape.width());
  view->decode(0, out);
  return out;
}

double squared_error(const Matrix<float>& a, const Matrix<float>& b, size_t first = 1) {
  double sum = 0;
  for (size_t i = first * a.cols(); i < a.size(); ++i)
    sum += std::pow(double{a.data()[i]} - double{b.data()[i]}, 2);
  return sum;
}

}  // namespace

TEST_CASE("center: what is quantized is what channels vary by") {
  const auto rows = rows_with_means(300, 1);
  for (const auto& [name, options] :
       std::vector<std::pair<std::string, std::vector<std::pair<std::string, Scalar>>>>{
           {"q4", {}}, {"fp8", {}}, {"kvcomp", {{"key-quant", "block"}}}}) {
    const std::string codec_name = name;
    CAPTURE(codec_name);
    auto with = options, without = options;
    without.emplace_back("center", "none");
    if (codec_name == "kvcomp") with.emplace_back("center", "keys");  // the form of the paper has none
    const auto plain = made(codec_name, without), own = made(codec_name, with);
    CHECK_EQ(own->parameters().get_string("center"), "keys");
    const Encoded encoded = coded(*own, kKeys, {rows});
    const double before = squared_error(rows, decoded(*plain, kKeys, coded(*plain, kKeys, {rows}))),
                 after = squared_error(rows, decoded(*own, kKeys, encoded));
    CHECK_LT(after, before / 10);
    // The means of all tokens but the first one.
    const auto means = encoded.document(0).read<float>("means", 0, 1, kWidth);
    for (size_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (size_t t = 1; t < rows.rows(); ++t) sum += double{rows(t, j)};
      CHECK_EQ(means[j], doctest::Approx(sum / 299).epsilon(1e-5));
    }
    // Values go through as they are.
    CHECK(std::ranges::none_of(own->streams(kValues),
                               [](const StreamSpec& spec) { return spec.name == "means"; }));
    const Matrix<float> values = decoded(*own, kValues, coded(*own, kValues, {rows})),
                        same = decoded(*plain, kValues, coded(*plain, kValues, {rows}));
    CHECK(std::memcmp(values.data(), same.data(), same.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("center: exact first tokens stay exact, and later documents have the means of the first ones") {
  const auto own = made("q4", {{"sink", int64_t{3}}});
  const auto first = rows_with_means(200, 2), later = rows_with_means(90, 3);
  Encoded encoded = coded(*own, kKeys, {first});
  StreamStore& document = encoded.add_document();
  own->append(kKeys, later.view().rows(0, 1), document);
  own->append(kKeys, later.view().rows(1, 40), document);
  own->append(kKeys, later.view().rows(41, 49), document);
  const Matrix<float> out = decoded(*own, kKeys, encoded, 1);
  for (size_t i = 0; i < 3 * kWidth; ++i) CHECK_EQ(out.data()[i], later.data()[i]);
  CHECK_LT(squared_error(later, out, 3) / double(87 * kWidth), 0.02);
}

TEST_CASE("center: products are those with decoded rows") {
  const auto rows = rows_with_means(150, 4);
  Rng rng(5);
  for (const int64_t sink : {0, 2}) {
    const auto own = made("kvcomp", {{"center", "both"}, {"sink", sink}});
    for (const GroupShape& shape : {kKeys, kValues}) {
      CAPTURE(sink);
      CAPTURE(name_of(shape.side));
      const Encoded encoded = coded(*own, shape, {rows});
      const Matrix<float> out = decoded(*own, shape, encoded);
      const auto view = own->open(shape, encoded.document(0));
      const bool keys = shape.side == Side::key;
      for (const size_t first : {0, 1, 70}) {
        constexpr size_t kCount = 60, kQueries = 3;
        Matrix<float> factors(kHeads * kQueries, keys ? kDims : kCount),
            found(kHeads * kQueries, keys ? kCount : kDims), expected(found.rows(), found.cols());
        for (size_t i = 0; i < factors.size(); ++i) factors.data()[i] = static_cast<float>(rng.normal());
        view->multiply(first, factors, found);
        for (size_t i = 0; i < factors.rows(); ++i)
          for (size_t t = 0; t < kCount; ++t)
            for (size_t j = 0; j < kDims; ++j) {
              const float value = out(first + t, i / kQueries * kDims + j);
              if (keys)
                expected(i, t) += factors(i, j) * value;
              else
                expected(i, j) += factors(i, t) * value;
            }
        for (size_t i = 0; i < found.size(); ++i)
          CHECK_EQ(found.data()[i], doctest::Approx(expected.data()[i]).epsilon(2e-4).scale(500));
      }
    }
  }
}

TEST_CASE("center: keys from before the rotary embedding are not rounded before their means are taken") {
  // A mean that bf16 has in steps of 1, around which values differ by less.
  constexpr size_t kTokens = 200;
  const auto all = context();
  Matrix<float> keys(kTokens, kWidth);
  Rng rng(6);
  for (size_t t = 0; t < kTokens; ++t)
    for (size_t j = 0; j < kWidth; ++j) keys(t, j) = static_cast<float>(150.3 + 0.1 * rng.normal());
  Matrix<float> turned = keys;
  all.rope.turn(TurnWay::forward, consecutive(0, 1), uint64_t{0}, turned);
  const auto own = test::codec_of(
      {.label = "", .codec = "q4", .options = {{"bits", int64_t{6}}}, .rope = RopeChoice::undo}, all);
  const Matrix<float> out = decoded(*own, kKeys, coded(*own, kKeys, {turned}));
  CHECK_LT(std::sqrt(squared_error(turned, out) / double(turned.size())), 0.02);
}

TEST_CASE("center: a survey that is shown what it asks for finds the same means") {
  const auto own = made("q4", {});
  const auto rows = rows_with_means(3000, 7);
  const Encoded whole = coded(*own, kKeys, {rows, rows_with_means(10, 8)});
  Encoded asked(own->streams(kKeys));
  StreamStore& document = asked.add_document();
  const auto survey = own->survey(kKeys);
  uint64_t shown = 0;
  REQUIRE_EQ(survey->passes(), 1);
  for (const Matrix<float>& each : {rows, rows_with_means(10, 8)}) {
    for (uint64_t at = 0; at < each.rows();) {
      const auto look = survey->look(each.rows() - at);
      REQUIRE(look.skipped + look.shown > 0);
      at += look.skipped;
      const uint64_t count = std::min<uint64_t>(look.shown, 300);
      if (count > 0) survey->observe(each.view().rows(static_cast<size_t>(at), static_cast<size_t>(count)));
      at += count, shown += count;
    }
    survey->end_document();
  }
  survey->end_pass();
  survey->finish(document);
  CHECK_EQ(shown, 1024 + 9);
  CHECK_EQ(asked.document(0).read<float>("means", 0, 1, kWidth),
           whole.document(0).read<float>("means", 0, 1, kWidth));
}

TEST_CASE("center: codes that do not say it have none") {
  for (const char* name : {"q4", "fp8", "kvcomp"})
    CHECK_EQ(codec_from_record(find_codec(name), {}, context())->parameters().get_string("center"), "none");
  CHECK_EQ(made("kvcomp", {{"key-quant", "channel"}, {"center", "auto"}})->parameters().get_string("center"),
           "none");
}

}  // namespace center_test
