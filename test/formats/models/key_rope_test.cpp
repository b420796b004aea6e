// The rotary embedding of keys, according to a file's header.
#include "formats/models/key_rope.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "formats/models/model_config.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace key_rope_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// The cosines of the angles by which a key is turned, shown by a key whose pairs are all (1, 0).
std::vector<float> cosines(const KeyRope& rope, int head_dim, uint64_t token) {
  Matrix<float> key(1, static_cast<size_t>(head_dim));
  for (int j = 0; j < head_dim / 2; ++j) key(0, static_cast<size_t>(j)) = 1;
  rope.turn(TurnWay::forward, consecutive(0, 1), token, key);
  return {key.row(0).begin(), key.row(0).begin() + head_dim / 2};
}

ModelInfo model_of(const std::string& scaling, double theta = 10000) {
  ModelInfo model = sample_model(3, 2, 8);
  model.rope_theta = theta;
  model.rope_scaling = scaling;
  return model;
}

bool mentions(const KeyRope& rope, const std::string& text) {
  CAPTURE(rope.why_not());
  return !rope.known() && rope.why_not().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("key rope: base and scaling of the header turn every layer") {
  const auto check = [](const std::string& scaling, const std::vector<double>& divisors) {
    CAPTURE(scaling);
    const KeyRope rope = key_rope_of(model_of(scaling));
    REQUIRE_MESSAGE(rope.known(), rope.why_not());
    CHECK_EQ(rope.layers(), 3);
    for (const uint64_t token : {0, 1, 50}) {
      const auto found = cosines(rope, 8, token);
      for (size_t j = 0; j < 4; ++j) {
        const double expected =
            std::cos(static_cast<double>(token) / std::pow(10000, static_cast<double>(j) / 4) / divisors[j]);
        CHECK_LE(std::abs(found[j] - expected), 1e-5);
      }
    }
  };
  check("", {1, 1, 1, 1});
  check(R"({"type":"linear","factor":2.0})", {2, 2, 2, 2});
  check(R"({"rope_type":"divided","divisors":[1,1.5,4,8]})", {1, 1.5, 4, 8});
  // Wavelengths are 2 pi times 1, 10, 100 and 1,000: 1,000 positions hold many of the first two, and none of the last.
  check(
      R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":1.25,"original_max_position_embeddings":1000})",
      {1, 1, 1, 8});
}

TEST_CASE("key rope: rows that several threads share are turned as one thread turns them") {
  const KeyRope rope = key_rope_of(model_of(""));
  Matrix<float> rows(20000, 3 * 16);  // more than two pieces of 2^18 values
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i % 101) - 50;
  const Matrix<float> plain = rows;
  set_num_threads(3);
  rope.turn(TurnWay::forward, consecutive(0, 3), 7, rows);
  set_num_threads(0);
  for (size_t i = 0; i < rows.rows(); ++i) {
    Matrix<float> row(1, rows.cols());
    std::ranges::copy(plain.row(i), row.row(0).begin());
    rope.turn(TurnWay::forward, consecutive(0, 3), 7 + i, row);
    REQUIRE(std::ranges::equal(row.row(0), std::as_const(rows).row(i)));
  }
}

TEST_CASE("key rope: layers may turn a part of each head, by a base of their own, or nothing") {
  const KeyRope rope = key_rope_of(
      model_of(R"({"rotary_dims":4,"layers_without_rope":[1],"local":{"rope_theta":100.0,"layers":[2]}})"));
  REQUIRE_MESSAGE(rope.known(), rope.why_not());
  CHECK(rope.turns());
  for (int layer = 0; layer < 3; ++layer) {
    CAPTURE(layer);
    Matrix<float> key(1, 8);
    for (size_t j = 0; j < 8; ++j) key(0, j) = static_cast<float>(j + 1);
    const Matrix<float> before = key;
    rope.turn(TurnWay::forward, consecutive(layer, 1), 5, key);
    const bool is_turned = !std::equal(key.data(), key.data() + 8, before.data());
    CHECK_EQ(is_turned, layer != 1);
    rope.turn(TurnWay::back, consecutive(layer, 1), 5, key);
    for (size_t j = 0; j < 8; ++j) CHECK_LE(std::abs(key(0, j) - before(0, j)), 1e-5f);
  }
  Matrix<float> key(1, 8);
  key(0, 1) = 1, key(0, 5) = 7;  // the second pair of the first four dimensions is 1 and 3; 5 stays
  rope.turn(TurnWay::forward, consecutive(0, 1), 3, key);
  CHECK_LE(std::abs(double(key(0, 1)) - std::cos(3 * std::pow(10000, -0.5))), 1e-6);
  CHECK_LE(std::abs(double(key(0, 3)) - std::sin(3 * std::pow(10000, -0.5))), 1e-6);
  CHECK_EQ(key(0, 5), 7);
}

TEST_CASE("key rope: what llama3 takes from elsewhere in config.json stands in the text for caches") {
  const auto description = parse_model_config(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "hidden_size":16,"intermediate_size":24,"num_hidden_layers":3,"num_attention_heads":2,"vocab_size":32,
    "head_dim":8,"max_position_embeddings":1000,
    "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0}})",
                                              "config.json");
  ModelConfig config;
  config.num_layers = 3, config.head_dim = 8;
  read_rope_description(description.rope_scaling, config);
  const RopeScaling& again = config.rope.scaling;
  CHECK_EQ(description.config.rope.scaling.original_positions, 1000);
  CHECK_EQ(again.original_positions, 1000);
  CHECK_EQ(again.factor, 8);
  CHECK(again.kind == RopeScaling::Kind::llama3);
}

TEST_CASE("key rope: headers that do not say how keys were turned say why") {
  CHECK(mentions(key_rope_of(model_of("", 0)), "rope_theta is 0"));
  ModelInfo model = model_of("");
  model.key_state = "pre-rope";
  CHECK(mentions(key_rope_of(model), "key_state is pre-rope"));
  model = model_of("");
  model.head_dim = 7;
  CHECK(mentions(key_rope_of(model), "7 dimensions"));
  CHECK(mentions(key_rope_of(model_of("", 0.5)), "in 0..1"));
  CHECK(mentions(key_rope_of(model_of("{")), "rope_scaling"));
  CHECK(mentions(key_rope_of(model_of("[]")), "rope_scaling"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"spiral"})")), "'spiral'"));
  CHECK(
      mentions(key_rope_of(model_of(R"({"type":"longrope","factor":4.0,"original_max_position_embeddings":64,
      "attention_factor":1.2,"short_factor":[1,1,1,1],"long_factor":[1,2,3,4]})")),
               "longrope"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear"})")), "factor"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear","factor":0.0})")), "factor"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear","factor":-1.0})")), "factor"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided"})")), "divisors"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2]})")), "2 frequencies"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2,"x",4]})")), "divisors"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2,0,4]})")), "divisor"));
  CHECK_FALSE(key_rope_of(model_of(R"({"rope_type":"llama3","factor":8.0})")).known());
}

}  // namespace key_rope_test
