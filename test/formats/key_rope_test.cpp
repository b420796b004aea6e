// How keys were turned, by what a file's header says.
#include "formats/key_rope.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "formats/model_config.hpp"
#include "lib/core/error.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// What turns a key whose pairs are all (1, 0): the cosines.
std::vector<float> cosines(const KeyRope& rope, int head_dim, uint64_t token) {
  Matrix<float> key(1, static_cast<size_t>(head_dim));
  for (int j = 0; j < head_dim / 2; ++j) key(0, static_cast<size_t>(j)) = 1;
  rope.turn(TurnWay::forward, 0, 1, token, key);
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

TEST_CASE("key rope: what llama3 takes from elsewhere in config.json stands in the text for caches") {
  const auto description = parse_model_config(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "hidden_size":16,"intermediate_size":24,"num_hidden_layers":3,"num_attention_heads":2,"vocab_size":32,
    "head_dim":8,"max_position_embeddings":1000,
    "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0}})",
                                              "config.json");
  const RopeScaling again = parse_rope_scaling(description.rope_scaling);
  CHECK_EQ(description.config.rope_scaling.original_positions, 1000);
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
  CHECK(mentions(key_rope_of(model_of(R"({"type":"yarn"})")), "'yarn'"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear"})")), "factor"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear","factor":0.0})")), "in 0..1"));
  CHECK(mentions(key_rope_of(model_of(R"({"type":"linear","factor":-1.0})")), "in 0..1"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided"})")), "divisors"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2]})")), "2 divisors"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2,"x",4]})")), "divisors"));
  CHECK(mentions(key_rope_of(model_of(R"({"rope_type":"divided","divisors":[1,2,0,4]})")), "in 0..1"));
  CHECK_FALSE(key_rope_of(model_of(R"({"rope_type":"llama3","factor":8.0})")).known());
}
