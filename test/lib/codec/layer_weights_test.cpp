// Costs of errors in layers, and the codecs that use them.
#include "lib/codec/layer_weights.hpp"

#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/test.hpp"

namespace layer_weights_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr int kHeads = 2, kDims = 16;

CodecContext context_of(int layers) {
  return {.num_layers = layers, .heads = kHeads, .head_dim = kDims, .storage = DType::bf16};
}

GroupShape layer_of(int layer, Side side) { return usual_group(layer, 1, kHeads, kDims, side); }

Matrix<float> normal_rows(size_t tokens, Rng& rng) {
  Matrix<float> rows(tokens, kHeads * kDims);
  for (float& value : std::span(rows.data(), rows.size()))
    value = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return rows;
}

double largest_error(const Codec& codec, const GroupShape& shape, const Matrix<float>& rows) {
  const Encoded encoded = encode_in_memory(codec, shape, {{DocumentRows(rows)}});
  Matrix<float> back(rows.rows(), rows.cols());
  codec.open(shape, encoded.document(0))->decode(0, back);
  double largest = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    largest = std::max(largest, std::abs(double(rows.data()[i]) - double(back.data()[i])));
  return largest;
}

std::unique_ptr<Options> bounded_kvcomp(double bound) {
  auto options = find_codec("kvcomp").make_options();
  for (const OptionField& field : options->fields())
    if (field.name == "max-error") set_value(field, bound);
  return options;
}

Record with_scales(const std::string& text) {
  Record record;
  record.set(kErrorScales, text);
  return record;
}

}  // namespace

TEST_CASE("layer weights: errors go with the inverse root of what they cost") {
  const std::vector<std::array<double, 2>> costs{{16, 1}, {1, 1}};
  const LayerWeights weights(costs);
  CHECK_EQ(weights.layers(), 2);
  CHECK(weights.error_scale(0, Side::key) == doctest::Approx(std::sqrt(2.0) / 4).epsilon(5e-3));
  CHECK(weights.error_scale(0, Side::value) == doctest::Approx(std::sqrt(2.0)).epsilon(5e-3));
  CHECK(weights.error_scale(1, Side::key) == weights.error_scale(1, Side::value));
  CHECK_EQ(LayerWeights().error_scale(7, Side::key), 1);
  for (const double bad : {0.0, -1.0, double(INFINITY), double(NAN)})
    CHECK_THROWS(LayerWeights(std::vector<std::array<double, 2>>{{bad, 1}}));
}

TEST_CASE("layer weights: a record gives what was written") {
  Rng rng(70);
  std::vector<std::array<double, 2>> costs;
  for (int layer = 0; layer < 7; ++layer)
    costs.push_back({std::exp2(rng.uniform(-20, 20)), std::exp2(rng.uniform(-20, 20))});
  const LayerWeights weights(costs);
  Record record, again;
  weights.write(record);
  const LayerWeights read = LayerWeights::read(record);
  REQUIRE_EQ(read.layers(), 7);
  for (int layer = 0; layer < 7; ++layer)
    for (const Side side : kSides) CHECK_EQ(read.error_scale(layer, side), weights.error_scale(layer, side));
  read.write(again);
  CHECK(record == again);
  CHECK_NOTHROW(read.check_layers(7));
  CHECK_THROWS(read.check_layers(6));
  Record none;
  LayerWeights().write(none);
  CHECK(none.items().empty());
  CHECK(LayerWeights::read(none).alike());
  for (const char* bad :
       {"", "1", "1 2 3", "1 x", "1 2 +", "1 -1", "1 0", "inf 1", "1 nan", "1e-60 1", "1 1e300", "1 1e999"})
    CHECK_THROWS_AS(LayerWeights::read(with_scales(bad)), Error);
  CHECK_EQ(LayerWeights::read(with_scales("1 2 ")).error_scale(0, Side::value), 2);
}

TEST_CASE("kvcomp: with weights errors stay below the bound of each layer and side, and come near it") {
  Rng rng(71);
  const std::vector<std::array<double, 2>> costs{{64, 1}, {1, 0.25}};
  CodecContext context = context_of(2);
  context.weights = LayerWeights(costs);
  const CodecEntry& entry = find_codec("kvcomp");
  const double bound = 0.05;
  const auto options = bounded_kvcomp(bound);
  const auto codec = make_codec(entry, *options, context, RopeChoice::keep);
  const auto rebuilt = codec_from_record(entry, codec->parameters(), context_of(2));
  CHECK(rebuilt->parameters() == codec->parameters());
  for (int layer = 0; layer < 2; ++layer)
    for (const Side side : kSides) {
      const Matrix<float> rows = normal_rows(256, rng);
      const double own = bound * double(context.weights.error_scale(layer, side));
      const double largest = largest_error(*codec, layer_of(layer, side), rows);
      CHECK_LE(largest, own);
      CHECK_GE(largest, own / 2);
      CHECK_EQ(largest_error(*rebuilt, layer_of(layer, side), rows), largest);
    }
  CHECK_THROWS_WITH(make_codec(entry, *entry.make_options(), context, RopeChoice::keep),
                    "weights scale the bound --max-error of each layer: give --max-error too");
  CHECK_THROWS_WITH(codec_from_record(entry, codec->parameters(), context_of(3)),
                    doctest::Contains("error-scales are of 2 layers; the model has 3"));
}

TEST_CASE("weights are refused by codecs that have no use for them") {
  CodecContext context = context_of(2);
  context.weights = LayerWeights(std::vector<std::array<double, 2>>{{1, 2}, {3, 4}});
  for (const CodecEntry& entry : codecs()) {
    if (entry.capabilities.takes_weights) continue;
    CHECK_THROWS_WITH(make_codec(entry, *entry.make_options(), context, RopeChoice::keep),
                      doctest::Contains("takes no weights"));
  }
}

TEST_CASE("rvq: weights of powers of two scale what is quantized, and nothing else") {
  Rng rng(72);
  RvqSettings settings{.sink = 2, .window = 5};
  const CodecContext base = context_of(2);
  RvqBook book = random_rvq_book(settings, base, rng);
  const Book plain = to_book(book);
  book.weights = sample_weights(2);
  const Book weighed = to_book(book);
  const auto codec_with = [&](const Book& of) {
    CodecContext context = base;
    context.book = &of;
    return make_codec(find_codec("rvq"), *find_codec("rvq").make_options(), context, RopeChoice::keep);
  };
  const auto one = codec_with(plain), other = codec_with(weighed);
  for (int layer = 0; layer < 2; ++layer)
    for (const Side side : kSides) {
      const GroupShape shape = layer_of(layer, side);
      const Matrix<float> rows = normal_rows(2000, rng);
      const float scale = book.weights.error_scale(layer, side);
      CHECK((scale == 0.5f || scale == 2.0f));
      Matrix<float> scaled(rows.rows(), rows.cols());
      for (size_t i = 0; i < rows.size(); ++i) scaled.data()[i] = rows.data()[i] / scale;
      const auto decoded = [&](const Codec& codec, const Matrix<float>& of) {
        const Encoded encoded = encode_in_memory(codec, shape, {{DocumentRows(of)}});
        Matrix<float> back(of.rows(), of.cols());
        codec.open(shape, encoded.document(0))->decode(0, back);
        return back;
      };
      Matrix<float> expected = decoded(*one, scaled);
      for (size_t i = 0; i < expected.size(); ++i) expected.data()[i] *= scale;
      const Matrix<float> found = decoded(*other, rows);
      CHECK(same_bits(found, expected));
      CHECK_FALSE(same_bits(found, decoded(*one, rows)));
    }
}

}  // namespace layer_weights_test
