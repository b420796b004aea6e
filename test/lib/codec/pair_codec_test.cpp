// Pairs of codecs: their names, their streams, and impossible pairs. The table of codecs tests that they are codecs like any other.
#include <algorithm>
#include <array>
#include <memory>

#include "lib/codec/encoded.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace pair_codec_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr int kLayers = 4, kHeads = 2, kDims = 32;

CodecContext plain_context() {
  return {.num_layers = kLayers, .heads = kHeads, .head_dim = kDims, .rope = sample_rope(kLayers, kDims)};
}

Matrix<float> some_rows(uint64_t seed) {
  Rng rng(seed);
  Matrix<float> rows(100, kHeads * kDims);
  for (size_t i = 0; i < rows.size(); ++i)
    rows.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return rows;
}

std::unique_ptr<Codec> made(const char* name, const Record& options, const CodecContext& context,
                            RopeChoice rope = RopeChoice::keep) {
  const CodecEntry& entry = find_codec(name);
  const auto chosen = entry.make_options();
  from_record(options, *chosen);
  return make_codec(entry, *chosen, context, rope);
}

}  // namespace

TEST_CASE("pairs: two names with a + between them, in order, and no more of them") {
  const CodecEntry* pair = known_codec("kvcomp+kivi");
  REQUIRE(pair != nullptr);
  CHECK(pair->is_pair());
  CHECK_EQ(pair->name, "kvcomp+kivi");
  CHECK_EQ(&pair->of(Side::key), &find_codec("kvcomp"));
  CHECK_EQ(&pair->of(Side::value), &find_codec("kivi"));
  CHECK_EQ(known_codec("kvcomp+kivi"), pair);
  CHECK_NE(known_codec("kivi+kvcomp"), pair);
  CHECK(known_codec("kivi+kivi") != nullptr);
  for (const char* none : {"kvcomp+", "+kivi", "+", "kvcomp+nine", "kvcomp+kivi+q4"})
    CHECK(known_codec(none) == nullptr);
  CHECK_FALSE(find_codec("kivi").is_pair());
  CHECK_EQ(&find_codec("kivi").of(Side::value), &find_codec("kivi"));
}

TEST_CASE("pairs: what both can the pair can, and it needs what either needs") {
  for (const CodecEntry& keys : codecs())
    for (const CodecEntry& values : codecs()) {
      const Capabilities pair = find_codec(keys.name + "+" + values.name).capabilities;
      const Capabilities &a = keys.capabilities, &b = values.capabilities;
      CHECK_EQ(pair.lossless, a.lossless && b.lossless);
      CHECK_EQ(pair.needs_book, a.needs_book || b.needs_book);
      CHECK_EQ(pair.has_index, a.has_index);
    }
}

TEST_CASE(
    "pairs: each side has the streams of its own codec, byte for byte, and parameters say whose they are") {
  const CodecContext context = plain_context();
  Record of_keys, of_values, of_pair;
  of_keys.set("key-rel", 0.3);
  of_values.set("bits", int64_t{3});
  of_pair.set("key.key-rel", 0.3);
  of_pair.set("value.bits", int64_t{3});
  for (const RopeChoice rope : {RopeChoice::keep, RopeChoice::undo}) {
    const auto pair = made("kvcomp+kivi", of_pair, context, rope);
    const std::unique_ptr<Codec> alone[] = {made("kvcomp", of_keys, context, rope),
                                            made("kivi", of_values, context, rope)};
    for (const Side side : kSides) {
      const GroupShape shape = usual_group(1, 1, kHeads, kDims, side);
      const Matrix<float> rows = some_rows(3);
      const DocumentRows documents[] = {DocumentRows(rows)};
      CHECK(same_streams(encode_in_memory(*pair, shape, documents),
                         encode_in_memory(*alone[side == Side::value], shape, documents)));
    }
    const Record parameters = pair->parameters();
    CHECK_EQ(parameters.get_double("key.key-rel"), 0.3);
    CHECK_EQ(parameters.get_int("value.bits"), 3);
    CHECK_EQ(parameters.find("rope") != nullptr, rope == RopeChoice::undo);
    CHECK(codec_from_record(find_codec("kvcomp+kivi"), parameters, context)->parameters() == parameters);
  }
}

TEST_CASE("pairs: weights go to the codec that takes them, and stand once in the parameters") {
  CodecContext context = plain_context();
  const std::array<double, 2> costs[] = {{1, 4}, {2, 1}, {1, 1}, {8, 1}};
  context.weights = LayerWeights(costs);
  Record options;
  options.set("key.max-error", 0.1);
  options.set("key.key-quant", std::string("block"));
  const auto pair = made("kvcomp+kivi", options, context);
  const Record parameters = pair->parameters();
  CHECK(parameters.find(kErrorScales) != nullptr);
  CHECK(parameters.find("key.error-scales") == nullptr);
  context.weights = {};
  CHECK(codec_from_record(find_codec("kvcomp+kivi"), parameters, context)->parameters() == parameters);
  context.weights = LayerWeights(costs);
  CHECK_THROWS_WITH_AS(made("q4+kivi", {}, context), doctest::Contains("takes no weights"), Error);
}

TEST_CASE("pairs: keys before the rotary embedding are a matter of the codec of keys") {
  const CodecContext context = plain_context();
  CHECK_EQ(choose_rope(find_codec("kivi+lossless"), {}, context),
           choose_rope(find_codec("kivi"), {}, context));
  CHECK_EQ(choose_rope(find_codec("fp8+kivi"), {}, context), choose_rope(find_codec("fp8"), {}, context));
  CHECK_NOTHROW(made("none+lossless", {}, context, RopeChoice::undo));  // values are exact, whatever keys are
  CHECK_THROWS_WITH_AS(made("lossless+none", {}, context, RopeChoice::undo),
                       doctest::Contains("lossless gives"), Error);
  // An index of keys beside values needs them as queries meet them.
  CHECK_EQ(choose_rope(find_codec("kivi+selfindex"), {}, context), RopeChoice::keep);
  CHECK_THROWS_WITH_AS(made("none+selfindex", {}, context, RopeChoice::undo), doctest::Contains("an index"),
                       Error);
}

TEST_CASE("pairs: what cannot serve one side is refused with the reason") {
  CodecContext context = plain_context();
  Rng rng(4);
  const auto book = [&](SideCoding sides, int layers) {
    return to_book(random_transform_book({.sides = sides, .layer_group = layers}, context, rng));
  };
  const Book joint = book(SideCoding::joint, 1), wide = book(SideCoding::apart, 2),
             apart = book(SideCoding::apart, 1);
  context.book = &joint;
  CHECK_THROWS_WITH_AS(made("kivi+transform", {}, context),
                       doctest::Contains("codes keys and values jointly"), Error);
  context.book = &wide;
  CHECK_THROWS_WITH_AS(made("transform+kivi", {}, context), doctest::Contains("groups of the same size"),
                       Error);
  CHECK_THROWS_WITH_AS(made("transform+sparse", {}, context), doctest::Contains("one book at most"), Error);
  context.book = &apart;
  CHECK_EQ(made("transform+kivi", {}, context)->group_of(2), std::vector{2});
  // A book of values alone contains nothing about keys.
  CHECK_EQ(choose_rope(find_codec("none+transform"), RopeChoice::undo, context), RopeChoice::undo);
}

}  // namespace pair_codec_test
