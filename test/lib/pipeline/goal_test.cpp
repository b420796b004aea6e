// The components of the search for options that reach a rate: dials, bits by layer, their allocation, presets.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/sensitivity.hpp"
#include "test/lib/codec/stored_bytes.hpp"
#include "test/test.hpp"

namespace goal_test {

using namespace kvcodec;

namespace {

double cost_of(std::span<const double> costs, std::span<const int64_t> bits) {
  double sum = 0;
  for (size_t i = 0; i < costs.size(); ++i) sum += costs[i] * std::exp2(-2.0 * static_cast<double>(bits[i]));
  return sum;
}

/// The least cost of all ways to give `total` bits to quantizers from `first` on.
double least_cost(std::span<const double> costs, int64_t total, int64_t least, int64_t limit) {
  if (costs.empty()) return total == 0 ? 0 : INFINITY;
  double best = INFINITY;
  for (int64_t bits = least; bits <= limit; ++bits)
    best = std::min(best, costs[0] * std::exp2(-2.0 * static_cast<double>(bits)) +
                              least_cost(costs.subspan(1), total - bits, least, limit));
  return best;
}

Matrix<float> random_rows(size_t rows, size_t columns, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> x(rows, columns);
  for (size_t i = 0; i < x.size(); ++i) x.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return x;
}

uint64_t bytes_of(const Codec& codec, Side side, int layer, const Matrix<float>& rows) {
  const GroupShape shape = usual_group(layer, 1, 2, 32, side);
  const DocumentRows documents[] = {DocumentRows(rows)};
  const Encoded encoded = encode_in_memory(codec, shape, documents);
  uint64_t bytes = 0;
  for (const Category category : kCategories) bytes += test::stored_bytes(encoded, category);
  return bytes;
}

}  // namespace

TEST_CASE("allocation of bits: as good as the best of all ways, of as many bits as there are") {
  Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    std::vector<double> costs;
    for (int i = 0; i < 5; ++i) costs.push_back(std::exp2(rng.uniform(-8, 8)));
    for (const int64_t total : {5, 9, 14, 20}) {
      const auto bits = allocate_bits(costs, total, 1, 4);
      int64_t sum = 0;
      for (const int64_t one : bits) {
        CHECK_GE(one, 1);
        CHECK_LE(one, 4);
        sum += one;
      }
      CHECK_EQ(sum, total);
      CHECK_LE(cost_of(costs, bits), least_cost(costs, total, 1, 4) * (1 + 1e-12));
    }
  }
}

TEST_CASE("allocation of bits: what the limits allow, and of equals the first") {
  const std::vector<double> costs{1, 1, 1};
  CHECK_EQ(allocate_bits(costs, 100, 2, 4), std::vector<int64_t>{4, 4, 4});
  CHECK_EQ(allocate_bits(costs, 0, 2, 4), std::vector<int64_t>{2, 2, 2});
  CHECK_EQ(allocate_bits(costs, 7, 2, 4), std::vector<int64_t>{3, 2, 2});
  CHECK(allocate_bits({}, 7, 2, 4).empty());
}

namespace {

/// The least cost of two settings that take no more bits.
double least_of_pairs(const std::array<std::vector<RatePoint>, 2>& curves, double bits) {
  double best = INFINITY;
  for (const RatePoint& a : curves[0])
    for (const RatePoint& b : curves[1])
      if (a.bits + b.bits <= bits) best = std::min(best, a.cost + b.cost);
  return best;
}

}  // namespace

TEST_CASE("best pairs: of all that take no more bits none costs less, and each step changes one of the two") {
  Rng rng(8);
  for (int round = 0; round < 30; ++round) {
    std::array<std::vector<RatePoint>, 2> curves;
    for (auto& curve : curves)
      for (int i = 0; i < 8; ++i) curve.push_back({rng.uniform(0.5, 8), std::exp2(rng.uniform(-8, 8))});
    const auto pairs = best_pairs(curves);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const RatePoint &a = curves[0][pairs[i][0]], &b = curves[1][pairs[i][1]];
      CHECK_EQ(a.cost + b.cost, least_of_pairs(curves, a.bits + b.bits));
      if (i == 0) continue;
      CHECK_NE(pairs[i][0] == pairs[i - 1][0], pairs[i][1] == pairs[i - 1][1]);
      CHECK_GT(a.bits + b.bits, curves[0][pairs[i - 1][0]].bits + curves[1][pairs[i - 1][1]].bits);
    }
    CHECK_EQ(curves[0][pairs.back()[0]].cost + curves[1][pairs.back()[1]].cost,
             least_of_pairs(curves, INFINITY));
  }
  // A setting above the line between two others is not among the pairs; a quantizer of one setting keeps it.
  const std::array<std::vector<RatePoint>, 2> curves{std::vector<RatePoint>{{4, 1}, {1, 10}, {2, 9}},
                                                     std::vector<RatePoint>{{3, 2}}};
  CHECK_EQ(best_pairs(curves), std::vector<std::array<size_t, 2>>{{1, 0}, {0, 0}});
}

TEST_CASE("layer bits: keys of all layers and then values, or one for all") {
  struct Bits final : BitOptions {
    explicit Bits(const std::string& text) : BitOptions(8) { layer_bits = text; }
    std::vector<OptionField> fields() override { return {}; }
  };
  const LayerBits numbers(Bits("1 2 3 4 5 6"), 1, 8, 3);
  CHECK_EQ(numbers.of(0, Side::key), 1u);
  CHECK_EQ(numbers.of(2, Side::key), 3u);
  CHECK_EQ(numbers.of(0, Side::value), 4u);
  CHECK_EQ(numbers.of(2, Side::value), 6u);
  CHECK_EQ(LayerBits(Bits(""), 1, 8, 3).of(1, Side::value), 8u);
  CHECK_EQ(layer_numbers_text(std::vector<int64_t>{3, 1}), "3 1");
  for (const char* bad : {"1 2 3", "1 2 3 4 5 9", "1 2 3 4 5 x", "0 2 3 4 5 6", "1 2 3 4 5 6 7 8"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS(LayerBits(Bits(bad), 1, 8, 3), doctest::Contains("layer-bits"), Error);
  }
}

TEST_CASE("layer bits: each layer and side of kivi and q4 takes its own") {
  const CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 32};
  const Matrix<float> rows = random_rows(128, 64, 3);
  for (const char* name : {"kivi", "q4"}) {
    CAPTURE(name);
    const auto codec = [&](const char* option, const Scalar& value) {
      Record record;
      record.set(option, value);
      return codec_from_record(find_codec(name), record, context);
    };
    const auto mixed = codec("layer-bits", "2 3 4 5");
    const int64_t bits[2][2] = {{2, 3}, {4, 5}};
    for (const Side side : kSides)
      for (const int layer : {0, 1})
        CHECK_EQ(bytes_of(*mixed, side, layer, rows),
                 bytes_of(*codec("bits", bits[side == Side::value][layer]), side, layer, rows));
  }
}

TEST_CASE("dials: every codec has one, and rates rise with settings") {
  const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 32};
  const Matrix<float> rows = random_rows(128, 64, 4);
  size_t turned = 0;
  for (const CodecEntry& entry : codecs()) {
    CAPTURE(entry.name);
    const Dial& dial = entry.dial;
    CHECK_NE(dial.turn == nullptr, dial.why_not.empty());
    const auto names = entry.make_options()->fields();
    for (const std::string_view set : dial.sets)
      CHECK(std::ranges::any_of(names, [&](const OptionField& field) { return field.name == set; }));
    if (!dial.turn || entry.capabilities.needs_book) continue;
    ++turned;
    uint64_t last = 0, first = 0;
    for (const double setting : {2.0, 3.0, 4.0, 6.0}) {
      const auto options = entry.make_options();
      dial.turn(*options, setting, false);
      const auto codec = entry.make(*options, context);
      const uint64_t bytes = bytes_of(*codec, Side::key, 0, rows);
      CHECK_GE(bytes, last);
      if (first == 0) first = bytes;
      last = bytes;
    }
    CHECK_GT(last, first);
  }
  CHECK_GT(turned, 0);
}

TEST_CASE("dials: bounds that were given are scaled, and weights have one of their own") {
  const CodecEntry& entry = find_codec("kvcomp");
  const auto options = entry.make_options();
  Record given;
  given.set("max-error", 0.5);
  from_record(given, *options);
  entry.dial.turn(*options, 1, false);
  CHECK_EQ(to_record(*options).get_double("max-error"), 0.25);
  CHECK_EQ(to_record(*options).get_double("key-rel"), 0);
  const auto weighed = entry.make_options();
  entry.dial.turn(*weighed, 2, true);
  CHECK_EQ(to_record(*weighed).get_double("max-error"), 0.25);
  CHECK_EQ(to_record(*weighed).get_string("key-quant"), "block");
  const auto relative = entry.make_options();
  entry.dial.turn(*relative, 1, false);
  CHECK_EQ(to_record(*relative).get_double("key-rel"), 0.025);
  CHECK_EQ(to_record(*relative).get_double("value-rel"), 0.075);
}

TEST_CASE(
    "presets: a paper's form differs from the defaults in all that it names, and is refused where there is none") {
  for (const CodecEntry& entry : codecs()) {
    CAPTURE(entry.name);
    const auto best = entry.make_options(), paper = entry.make_options();
    if (entry.paper.empty()) {
      CHECK_THROWS_WITH_AS(take_paper_form(entry, *paper), doctest::Contains(entry.name.c_str()), Error);
      continue;
    }
    take_paper_form(entry, *paper);
    const Record before = to_record(*best), after = to_record(*paper);
    for (const auto& item : before.items()) {
      const std::string& name = item.first;
      CAPTURE(name);
      const bool named =
          std::ranges::any_of(entry.paper, [&](const auto& option) { return option.first == name; });
      CHECK_EQ(*after.find(name) == item.second, !named);
    }
  }
}

}  // namespace goal_test
