// Models that go on from a cache, against transformers (make_generation_fixtures.py), and caches that are put together of pieces.
#include "lib/pipeline/generation.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "formats/io/json_file.hpp"
#include "formats/models/model_config.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/codec/model_layers.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/model/rope.hpp"
#include "test/test.hpp"

namespace generation_test {

using namespace kvcodec;

namespace {

struct Fixture {
  explicit Fixture(const std::string& name)
      : folder(test::source_dir() + "/test/golden/model/" + name),
        config(read_model_config(folder).config),
        weights(Safetensors::open_model(folder)),
        model(config, weights) {}

  std::vector<uint32_t> prompt(uint32_t count) const {
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < count; ++i)
      ids.push_back(i * i * 7 % static_cast<uint32_t>(config.vocabulary_size));
    return ids;
  }

  std::string folder;
  ModelConfig config;
  Safetensors weights;
  LlamaModel model;
};

nlohmann::json expected() {
  return read_json_object(test::source_dir() + "/test/golden/generation.json", uint64_t{1} << 20)["models"];
}

/// The largest difference of keys over the largest key.
double largest_difference(const Matrix<float>& a, const Matrix<float>& b, size_t first) {
  double difference = 0, largest = 0;
  for (size_t t = first; t < b.rows(); ++t)
    for (size_t i = 0; i < b.cols(); ++i) {
      difference = std::max(difference, std::abs(double{a(t, i)} - double{b(t, i)}));
      largest = std::max(largest, std::abs(double{b(t, i)}));
    }
  return difference / largest;
}

}  // namespace

TEST_CASE("generation: the likeliest tokens behind a cache are those of transformers, in every family") {
  size_t families = 0;
  const nlohmann::json models = expected();
  for (const auto& item : models.items()) {
    const std::string& name = item.key();
    const auto& fixture = item.value();
    CAPTURE(name);
    const Fixture given(name);
    const auto wanted = fixture["tokens"].get<std::vector<uint32_t>>();
    const auto prompt = given.prompt(40);
    // The first 25 tokens come as a cache from another run; but caches have no states of layers without attention.
    const size_t cached = given.config.delta.layers.empty() ? 25 : 0;
    GrowingDocument document(given.model, prompt.size() + wanted.size());
    document.start(cached);
    if (cached > 0) {
      const Prefix cache = run_prefix(given.model, {prompt, cached}, 0);
      for (const Side side : kSides)
        for (size_t layer = 0; layer < static_cast<size_t>(given.config.num_layers); ++layer)
          for (size_t t = 0; t < cached; ++t)
            std::ranges::copy(cache.rows.of(side)[layer].row(t),
                              document.rows().of(side)[layer].row(t).begin());
    }
    Rng rng(0);
    std::vector<uint32_t> found{choose_token(document.read(std::span(prompt).subspan(cached)), {}, rng)};
    while (found.size() < wanted.size())
      found.push_back(choose_token(document.read({&found.back(), 1}), {}, rng));
    CHECK_GT(fixture["margin"].get<double>(), 1e-5);  // or rounding may choose
    CHECK_EQ(found, wanted);
    CHECK_EQ(document.tokens(), prompt.size() + wanted.size() - 1);
    ++families;
    if (cached == 0) continue;

    // The same behind codes that grow.
    const auto codec = codec_from_record(find_codec("none"), {},
                                         {.num_layers = given.config.num_layers,
                                          .heads = given.config.num_kv_heads,
                                          .head_dim = given.config.head_dim,
                                          .layer_shapes = layer_shapes_of(given.config),
                                          .query_heads = given.config.num_q_heads,
                                          .storage = DType::f32});
    const CodedLayout layout(*codec, given.config, DType::f32);
    CodedDocument codes(layout, {}, std::vector<size_t>(layout.parts()));
    codes.encode(run_prefix(given.model, {prompt, cached}, 0),
                 std::vector<CodedDocument::Shared>(layout.parts()));
    GrowingDocument growing(given.model, prompt.size() + wanted.size(), codes);
    found = {choose_token(growing.read(std::span(prompt).subspan(cached)), {}, rng)};
    while (found.size() < wanted.size())
      found.push_back(choose_token(growing.read({&found.back(), 1}), {}, rng));
    CHECK_EQ(found, wanted);
  }
  CHECK_GE(families, 8);
}

TEST_CASE("generation: a document cannot grow beyond its room") {
  const Fixture given("llama-1");
  const auto prompt = given.prompt(5);
  GrowingDocument document(given.model, 4);
  CHECK_THROWS_AS(document.read(prompt), Error);
  CHECK_THROWS_AS(document.read({}), Error);
  CHECK_THROWS_AS(document.start(5), Error);
  document.read(std::span(prompt).first(4));
  CHECK_THROWS_AS(document.read(std::span(prompt).first(1)), Error);
}

TEST_CASE("generation: drawn tokens have the probabilities of the distribution that is left") {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto shares = [&](const Sampling& sampling) {
    Rng rng(3);
    std::vector<double> share(4);
    for (int i = 0; i < 20000; ++i) share[choose_token(logits, sampling, rng)] += 1.0 / 20000;
    return share;
  };
  const auto near = [](const std::vector<double>& found, const std::vector<double>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) CHECK_LE(std::abs(found[i] - wanted[i]), 0.015);
  };
  Sampling sampling;
  near(shares(sampling), {0, 1, 0, 0});
  sampling.temperature = 1;
  near(shares(sampling), {0.1, 0.4, 0.2, 0.3});
  sampling.top_k = 3;
  near(shares(sampling), {0, 4. / 9, 2. / 9, 3. / 9});
  sampling.top_p = 0.6;  // of nine tenths: the first two
  near(shares(sampling), {0, 4. / 7, 0, 3. / 7});
  sampling = {};
  sampling.temperature = 0.5;  // squares
  near(shares(sampling), {1. / 30, 16. / 30, 4. / 30, 9. / 30});
  const std::vector<float> wild = {0, std::nanf("")};
  Rng rng(0);
  CHECK_THROWS_AS(choose_token(wild, sampling, rng), Error);
}

TEST_CASE("joining: keys of a piece are those of a model that reads it at that place, in every family") {
  size_t families = 0, refused = 0;
  const nlohmann::json models = expected();
  for (const auto& item : models.items()) {
    const std::string& name = item.key();
    CAPTURE(name);
    const Fixture given(name);
    const auto ids = given.prompt(60);
    const bool keeps_state = !given.config.delta.layers.empty();
    if (keeps_state || !KeyRope::of(given.config).known()) {
      CHECK_THROWS_AS(read_in_pieces(given.model, ids, {.pieces = 3}), Error);
      refused += !keeps_state && given.config.names.positions.empty();
      continue;
    }
    // Layer 0 has seen the token alone, wherever it stands.
    const Prefix whole = run_prefix(given.model, {ids, 60}, 0);
    const LayerRows joined = read_in_pieces(given.model, ids, {.pieces = 3});
    CHECK_LE(largest_difference(joined.keys[0], whole.rows.keys[0], 0), 2e-6);
    CHECK_GT(largest_difference(joined.keys.back(), whole.rows.keys.back(), 20), 1e-3);
    // Tokens before a piece that are left out change what it sees, but not where it stands.
    const LayerRows begun = read_in_pieces(given.model, ids, {.pieces = 3, .begin = {1, 2}});
    CHECK_LE(largest_difference(begun.keys[0], whole.rows.keys[0], 0), 2e-6);
    CHECK_GT(largest_difference(begun.keys.back(), joined.keys.back(), 20), 1e-3);
    // Pieces that are read again from end to end have seen all.
    const LayerRows again = read_in_pieces(given.model, ids, {.pieces = 3, .recomputed = 20});
    for (size_t layer = 0; layer < again.keys.size(); ++layer)
      CHECK_LE(largest_difference(again.keys[layer], whole.rows.keys[layer], 0), 1e-4);
    ++families;
  }
  CHECK_GE(families, 8);
  CHECK_LE(refused, 1);
  const Fixture given("llama-1");
  CHECK_THROWS_AS(read_in_pieces(given.model, given.prompt(2), {.pieces = 3}), Error);
}

}  // namespace generation_test
