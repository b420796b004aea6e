// The order of a key's dimensions in other programs' files: found, undone by import, and made again by export.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "formats/interop/foreign.hpp"
#include "lib/core/error.hpp"
#include "lib/core/names.hpp"
#include "test/formats/interop/foreign_source.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace pair_order_test {

using namespace kvcodec;
using namespace kvcodec::interop;
using test::ForeignSource;

namespace {

constexpr int kHeads = 2, kDims = 8;
constexpr size_t kWidth = size_t{kHeads} * kDims;

/// Keys of the tokens as a model has them in its first layer: a vector for each token, turned by its position.
Matrix<float> turned_keys(const std::vector<uint32_t>& tokens) {
  const RopeTable rope({.theta = 100}, kDims, tokens.size());
  Matrix<float> keys(tokens.size(), kWidth);
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::ranges::copy(test::random_rows(1, kWidth, static_cast<int>(tokens[t])).row(0), keys.row(t).begin());
    rope.turn(t, keys.row(t));
  }
  return keys;
}

/// A cache of one layer with these keys, in that order of the file, of a model of that family.
ForeignCache cache_of(const std::vector<uint32_t>& tokens, PairOrder order, const std::string& family) {
  ForeignCache cache;
  cache.model = model_of({usual_layer(kHeads, kDims)}, {}, "test", cache.notes);
  cache.model.family = family;
  Matrix<float> keys = turned_keys(tokens);
  if (order == PairOrder::neighbours) order_pairs(order, cache.model.layer_shape(0), keys.view());
  const ReadRows read = [keys = std::move(keys)](uint64_t first, MatrixView<float> out) {
    for (size_t t = 0; t < out.rows(); ++t)
      std::ranges::copy(keys.row(static_cast<size_t>(first) + t), out.row(t).begin());
  };
  ForeignDocument document{.name = "d", .tokens = tokens};
  for (uint64_t t = 0; t < tokens.size(); ++t) document.positions.push_back(t);
  document.layers.emplace(0, ForeignLayer{.rows = tokens.size(), .sides = {read, read}});
  cache.documents.push_back(std::move(document));
  return cache;
}

const std::vector<uint32_t> kRepeats{5, 6, 7, 5, 8, 6}, kNone{1, 2, 3, 4, 5, 6};

struct Settled {
  bool as_computed = false;  ///< keys are in the order of kv files, values as they came
  size_t notes = 0;
  std::string pairs;  ///< in `imported`
};

Settled settled(ForeignCache cache, const char* format, const ImportOptions& options = {}) {
  const Matrix<float> expected = turned_keys(cache.documents[0].tokens);
  Matrix<float> values(expected.rows(), kWidth);
  cache.documents[0].layers.at(0).sides[1](0, values.view());
  settle_pairs(cache, foreign_format(format), options);
  Settled result{.notes = cache.notes.size()};
  if (!cache.model.imported.empty())
    result.pairs = nlohmann::json::parse(cache.model.imported).value("pairs", "");
  const ForeignSource source(std::move(cache));
  const auto equal = [](const Matrix<float>& a, const Matrix<float>& b) {
    return std::equal(a.data(), a.data() + a.size(), b.data(), b.data() + b.size());
  };
  result.as_computed =
      equal(source.all(Side::key, 0, 0), expected) && equal(source.all(Side::value, 0, 0), values);
  return result;
}

std::string written(ForeignCache cache, const char* format, size_t& notes) {
  std::vector<std::string> said;
  try {
    const PairOrder order = pairs_to_write(ForeignSource(std::move(cache)), foreign_format(format), {}, said);
    notes = said.size();
    return std::string(name_of(order));
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::usage);
    return "refused";
  }
}

}  // namespace

TEST_CASE("pair order: a token that occurs twice shows it, else the family says it") {
  using enum PairOrder;
  struct Row {
    const std::vector<uint32_t>* tokens;
    PairOrder order;
    const char* family;
    bool as_computed;
    size_t notes;
    const char* pairs;
  };
  for (const Row& row :
       {Row{&kRepeats, neighbours, "", true, 0, "neighbours"},
        {&kRepeats, halves, "", true, 0, "halves"},
        {&kRepeats, neighbours, "llama", true, 0, "neighbours"},
        {&kRepeats, neighbours, "qwen2", true, 1, "neighbours"},  // of another model than was said
        {&kRepeats, halves, "llama", true, 1, "halves"},
        {&kNone, neighbours, "granite", true, 0, "neighbours"},
        {&kNone, neighbours, "mixtral", true, 0, "neighbours"},
        {&kNone, halves, "qwen3", true, 0, "halves"},
        {&kNone, halves, "", true, 1, ""},
        {&kNone, neighbours, "", false, 1, ""}}) {
    CAPTURE(row.family);
    CAPTURE(name_of(row.order));
    const Settled found = settled(cache_of(*row.tokens, row.order, row.family), "llama");
    CHECK_EQ(found.as_computed, row.as_computed);
    CHECK_EQ(found.notes, row.notes);
    CHECK_EQ(found.pairs, row.pairs);
  }
}

TEST_CASE("pair order: of other programs, and as the user says it") {
  using enum PairOrder;
  for (const char* format : {"transformers", "mlx", "vllm", "lmcache", "sglang"}) {
    CAPTURE(format);
    const Settled found = settled(cache_of(kNone, halves, "llama"), format);
    CHECK(found.as_computed);
    CHECK_EQ(found.notes, 0);
    CHECK_EQ(found.pairs, "");
  }
  CHECK(settled(cache_of(kNone, neighbours, ""), "llama", {.pairs = neighbours}).as_computed);
  CHECK_FALSE(settled(cache_of(kNone, halves, ""), "llama", {.pairs = neighbours}).as_computed);
  CHECK(settled(cache_of(kNone, neighbours, ""), "vllm", {.pairs = neighbours}).as_computed);
}

TEST_CASE("pair order: behind a latent vector") {
  const LayerShape shape{.heads = 1, .key_dim = 10, .value_dim = 4, .values_in_keys = true};
  Matrix<float> keys(2, 10);
  for (size_t i = 0; i < 20; ++i) keys.data()[i] = static_cast<float>(i);
  order_pairs(PairOrder::neighbours, shape, keys.view());
  const std::vector<float> expected{0, 1, 2, 3, 4, 7, 5, 8, 6, 9, 10, 11, 12, 13, 14, 17, 15, 18, 16, 19};
  CHECK(std::equal(expected.begin(), expected.end(), keys.data()));
  order_pairs(PairOrder::halves, shape, keys.view());
  for (size_t i = 0; i < 20; ++i) CHECK_EQ(keys.data()[i], static_cast<float>(i));
  size_t notes = 0;
  for (const char* family : {"deepseek_v3", ""})
    for (const char* format : {"vllm", "sglang", "lmcache", "llama"}) {
      CAPTURE(family);
      CAPTURE(format);
      ForeignCache cache = cache_of(kNone, PairOrder::halves, family);
      cache.model = with_layer_shapes(cache.model, {shape});
      CHECK_EQ(written(std::move(cache), format, notes), *family ? "neighbours" : "refused");
    }
}

TEST_CASE("pair order: of an export, as imported, else as the family has it") {
  size_t notes = 0;
  const auto of = [&](const char* family, const char* imported, const char* format) {
    ForeignCache cache = cache_of(kNone, PairOrder::halves, family);
    cache.model.imported = imported;
    notes = 0;
    return written(std::move(cache), format, notes);
  };
  CHECK_EQ(of("llama", "", "llama"), "neighbours");
  CHECK_EQ(of("qwen2", "", "llama"), "halves");
  CHECK_EQ(of("", "", "llama"), "refused");
  CHECK_EQ(of("", R"({"format":"mlx"})", "llama"), "refused");
  CHECK_EQ(of("", "", "mlx"), "halves");
  CHECK_EQ(of("", "", "vllm"), "halves");
  CHECK_EQ(of("", R"({"format":"llama","pairs":"neighbours"})", "llama"), "neighbours");
  CHECK_EQ(of("llama", R"({"format":"llama","pairs":"halves"})", "llama"), "halves");
  CHECK_EQ(of("", R"({"format":"llama"})", "llama"), "halves");
  CHECK_EQ(notes, 0);
  CHECK_EQ(of("llama", R"({"format":"llama"})", "transformers"), "halves");
  CHECK_EQ(notes, 1);
  CHECK_EQ(of("", R"({"format":"llama","pairs":"neighbours"})", "transformers"), "halves");
  CHECK_EQ(notes, 0);
}

}  // namespace pair_order_test
