#include "lib/pipeline/closed_loop.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/engine/engine.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/test.hpp"

namespace closed_loop_test {

using namespace kvcodec;

namespace {

/// A model with random weights, documents of random tokens, codecs by name.
struct Bench {
  ModelConfig config = test::small_config(2);
  WeightsInMemory weights = test::random_weights(config, DType::f32, 5);
  LlamaModel model{config, weights};
  std::vector<LoopDocument> documents;
  std::vector<std::unique_ptr<Codec>> codecs;

  Bench() {
    Rng rng(6);
    for (const auto& [tokens, prefix] :
         std::vector<std::pair<size_t, size_t>>{{90, 40}, {3, 1}, {200, 150}, {70, 68}}) {
      LoopDocument document{{}, prefix};
      for (size_t i = 0; i < tokens; ++i) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
      documents.push_back(document);
    }
  }

  LoopSetting setting(const char* name, DType dtype, Record options = {}) {
    const CodecContext context{
        .num_layers = 2,
        .heads = 2,
        .head_dim = 16,
        .query_heads = 4,
        .storage = dtype == DType::f32 && std::string_view(name) != "none" ? DType::bf16 : dtype};
    codecs.push_back(codec_from_record(find_codec(name), options, context));
    return {codecs.back().get(), dtype, {}};
  }

  std::vector<LoopResult> run(std::vector<LoopSetting> settings, const LoopOptions& options = {}) {
    return ClosedLoop(model, std::move(settings), options).run(documents);
  }
};

/// Largest difference of the mean surprise of a document from the reference's.
double largest_rise(const std::vector<LoopResult>& results, size_t setting) {
  double largest = 0;
  for (const LoopResult& result : results) {
    const auto n = static_cast<double>(result.reference.sums.tokens);
    CHECK_EQ(result.settings[setting].sums.tokens, result.reference.sums.tokens);
    largest = std::max(largest,
                       std::abs(result.settings[setting].sums.surprise - result.reference.sums.surprise) / n);
  }
  return largest;
}

double total_divergence(const std::vector<LoopResult>& results, size_t setting) {
  double total = 0;
  for (const LoopResult& result : results) total += result.settings[setting].sums.divergence;
  return total;
}

bool same(const LoopScore& a, const LoopScore& b) {
  return std::memcmp(&a.sums.surprise, &b.sums.surprise, sizeof(double)) == 0 &&
         std::memcmp(&a.sums.divergence, &b.sums.divergence, sizeof(double)) == 0 && a.right == b.right &&
         a.stored.category == b.stored.category;
}

/// Two settings with which the model gives the same answers, except for how the rows of a batch are rounded: products of matrices
/// depend on a row's place by 1e-6, which is 1e-3 of the effect of caches that are rounded to bf16.
bool alike(const LoopScore& a, const LoopScore& b) {
  return a.right == b.right && a.sums.surprise == doctest::Approx(b.sums.surprise).epsilon(1e-5) &&
         a.sums.divergence == doctest::Approx(b.sums.divergence).epsilon(2e-3);
}

}  // namespace

TEST_CASE("closed loop: the reference is the naive pass's likelihood of the continuation") {
  Bench bench;
  const auto results = bench.run({bench.setting("none", DType::f32)});
  const test::NaiveLlama naive(bench.config, bench.weights);
  for (size_t d = 0; d < bench.documents.size(); ++d) {
    const LoopDocument& document = bench.documents[d];
    const auto expected = naive.run(document.tokens);
    double surprise = 0;
    for (size_t t = document.prefix; t + 1 < document.tokens.size(); ++t) {
      double sum = 0;
      for (const double logit : expected.logits[t]) sum += std::exp(logit);
      surprise += std::log(sum) - expected.logits[t][document.tokens[t + 1]];
    }
    CHECK_EQ(results[d].reference.sums.tokens, document.tokens.size() - 1 - document.prefix);
    CHECK(results[d].reference.sums.surprise == doctest::Approx(surprise).epsilon(1e-5));
  }
}

TEST_CASE(
    "closed loop: a cache kept in 32 bits changes nothing, streamed or not, and 16 bits change little") {
  Bench bench;
  for (const size_t stream : {0, 1, 7, 1000}) {
    CAPTURE(stream);
    const auto results = bench.run({bench.setting("none", DType::f32), bench.setting("none", DType::bf16),
                                    bench.setting("none", DType::f16)},
                                   {.stream = stream});
    CHECK_LE(largest_rise(results, 0), 1e-6);
    CHECK_LE(total_divergence(results, 0), 1e-6);
    CHECK_GT(total_divergence(results, 2), 1e-8);
    CHECK_GT(total_divergence(results, 1),
             4 * total_divergence(results, 2));  // 3 bits fewer, 8 times the error
    CHECK_LE(largest_rise(results, 1), 0.05);
    for (const LoopResult& result : results)
      for (const LoopScore& score : result.settings) {
        CHECK_EQ(score.right.size(), score.sums.tokens);
        CHECK_EQ(score.divergences.size(), score.sums.tokens);
        CHECK(std::accumulate(score.divergences.begin(), score.divergences.end(), 0.0) ==
              doctest::Approx(score.sums.divergence).epsilon(1e-5));
      }
  }
}

TEST_CASE("closed loop: progress goes from what is read first to all that is read, the survey included") {
  Bench bench;
  uint64_t expected = 0;
  for (const LoopDocument& document : bench.documents)
    expected +=
        document.prefix + (document.tokens.size() - 1) + 2 * (document.tokens.size() - 1 - document.prefix);
  double last = 0, all = 0;
  ClosedLoop loop(bench.model, {bench.setting("lossless", DType::bf16), bench.setting("fp8", DType::bf16)},
                  {});
  (void)loop.run(bench.documents, [&](double done, double total, std::string_view) {
    CHECK_GE(done, last);
    last = done, all = total;
  });
  CHECK_EQ(last, static_cast<double>(expected));
  CHECK_EQ(all, static_cast<double>(expected));
}

TEST_CASE("closed loop: what is stored is counted, with what is appended in streams, and books once") {
  Bench bench;
  Record plain;  // a byte for each value, and a scale for each head
  plain.set("sink", int64_t{0});
  plain.set("center", std::string("none"));
  ClosedLoop loop(bench.model, {bench.setting("none", DType::bf16), bench.setting("fp8", DType::bf16, plain)},
                  {});
  const auto results = loop.run(bench.documents);
  const auto streamed = bench.run({bench.setting("none", DType::bf16)}, {.stream = 5});
  for (size_t d = 0; d < results.size(); ++d) {
    const LoopDocument& document = bench.documents[d];
    const uint64_t values = document.prefix * 2 * 2 * 32, all = (document.tokens.size() - 1) * 2 * 2 * 32;
    CHECK_EQ(results[d].settings[0].stored.values, values);
    CHECK_EQ(results[d].settings[0].stored.bits(), 16 * values);
    CHECK_EQ(results[d].settings[1].stored.bits(), 8 * values);
    CHECK_EQ(streamed[d].settings[0].stored.values, all);
    CHECK_EQ(streamed[d].settings[0].stored.bits(), 16 * all);
  }
  StoredBits both = results[0].settings[1].stored;
  both.add(results[0].settings[0].stored);
  CHECK_EQ(both.bits_per_value(), 12);
  CHECK_EQ(both.bits_per_value(both.values), 20);  // a byte for each value
  CHECK_EQ(loop.shared(0).bits(), 0);
  CHECK_EQ(loop.shared(1).bits(), 2 * 2 * 2 * 32);  // a scale per head, side and layer
}

TEST_CASE("closed loop: coarser codes are farther away, and streams wait as the codec says") {
  Bench bench;
  Record two, four, patient;
  two.set("bits", int64_t{2});
  four.set("bits", int64_t{4});
  patient.set("bits", int64_t{2});
  patient.set("key-group", int64_t{8});
  patient.set("window", int64_t{500});
  const auto results =
      bench.run({bench.setting("q4", DType::f32, two), bench.setting("q4", DType::f32, four),
                 bench.setting("kivi", DType::bf16, patient), bench.setting("none", DType::bf16)},
                {.stream = 3});
  CHECK_GT(total_divergence(results, 0), 4 * total_divergence(results, 1));
  CHECK_GT(total_divergence(results, 1), 0);
  // All of it waits: the result is the uncompressed cache in 16 bits.
  CHECK(total_divergence(results, 2) == total_divergence(results, 3));
}

TEST_CASE("closed loop: selecting all there is changes nothing, few of them does, the oracle least") {
  Bench bench;
  std::vector<LoopSetting> settings;
  for (const uint64_t budget : {uint64_t{1000}, uint64_t{6}})
    for (const SelectBy by : kStepSelectors)
      for (const Share share : {Share::max, Share::each}) {
        settings.push_back(bench.setting("none", DType::f32));
        settings.back().selection = {.by = by, .budget = budget, .newest = 2, .share = share};
      }
  const size_t half = settings.size() / 2;
  for (const size_t stream : {0, 20}) {
    const auto results = bench.run(settings, {.stream = stream});
    for (size_t i = 0; i < half; ++i) CHECK_LE(largest_rise(results, i), 1e-5);
    for (size_t i = half; i < settings.size(); ++i) CHECK_GT(total_divergence(results, i), 0.1);
    CHECK_LT(total_divergence(results, half), total_divergence(results, half + 2));
  }
  settings[0].selection.by = SelectBy::codes;
  CHECK_THROWS_AS(bench.run(settings), Error);
  settings[0].selection = {.by = SelectBy::quest, .dense_layers = {2}};
  CHECK_THROWS_AS(bench.run(settings), Error);
}

TEST_CASE(
    "closed loop: answers are what the naive pass holds for likeliest, behind any cache that loses nothing") {
  Bench bench;
  const test::NaiveLlama naive(bench.config, bench.weights);
  LoopDocument document{bench.documents[0].tokens, 40};
  document.tokens.resize(40);
  for (int i = 0; i < 2; ++i)
    document.questions.push_back({{7, 8, 9, 10, 11}, 6, [](auto) { return false; }});
  document.questions[1].tokens.resize(1);
  document.questions[1].whole = [](std::span<const uint32_t> written) { return written.size() == 3; };
  bench.documents = {document};
  std::vector<std::vector<uint32_t>> expected;
  for (const LoopQuestion& question : document.questions) {
    std::vector<uint32_t> text = document.tokens, answer;
    text.insert(text.end(), question.tokens.begin(), question.tokens.end());
    while (answer.size() < 6 && !(answer.size() > 0 && question.whole(answer))) {
      const auto logits = naive.run(text).logits.back();
      answer.push_back(static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin()));
      text.push_back(answer.back());
    }
    expected.push_back(answer);
  }
  CHECK_EQ(expected[1].size(), 3);
  for (const size_t stream : {0, 1, 4, 100}) {
    CAPTURE(stream);
    double last = 0, all = 0;
    std::vector<LoopSetting> settings(3, bench.setting("none", DType::f32));
    settings[1].selection = {.by = SelectBy::oracle, .budget = 1000};
    settings[2] = bench.setting("none", DType::bf16);
    ClosedLoop loop(bench.model, settings, {.stream = stream});
    const auto results = loop.run(
        bench.documents, [&](double done, double total, std::string_view) { last = done, all = total; });
    CHECK_EQ(last, all);
    CHECK_EQ(results[0].reference.answers, expected);
    CHECK_EQ(results[0].settings[0].answers, expected);
    CHECK_EQ(results[0].settings[1].answers, expected);
    CHECK_GT(results[0].settings[1].selected.selections, 0);
    // Without streams the prefix is stored, once; else with each question and what was read of its answer, in whole pieces.
    const auto read = [&](size_t tokens) { return tokens / stream * stream; };
    const uint64_t tokens = stream == 0 ? 40 : 80 + read(10) + read(3);
    CHECK_EQ(results[0].settings[2].stored.values, tokens * 2 * 2 * 32);
    CHECK_EQ(results[0].settings[2].stored.bits(), 16 * tokens * 2 * 2 * 32);
  }
}

TEST_CASE("closed loop: an answer behind coarse codes is all likeliest behind them, streamed or not") {
  Bench bench;
  LoopDocument document{bench.documents[0].tokens, 40};
  document.tokens.resize(40);
  document.questions.push_back({{7, 8, 9, 10, 11}, 20, [](auto) { return false; }});
  Record two;
  two.set("bits", int64_t{2});
  for (const size_t stream : {0, 1, 3}) {
    CAPTURE(stream);
    const std::vector<LoopSetting> settings = {bench.setting("q4", DType::bf16, two)};
    bench.documents = {document};
    const auto asked = bench.run(settings, {.stream = stream});
    const std::vector<uint32_t>& answer = asked[0].settings[0].answers[0];
    CHECK_EQ(answer.size(), 20);
    CHECK(answer != asked[0].reference.answers[0]);
    LoopDocument whole{document.tokens, 40};
    append_to(whole.tokens, document.questions[0].tokens);
    append_to(whole.tokens, answer);
    bench.documents = {whole};
    const std::vector<uint8_t> right = bench.run(settings, {.stream = stream})[0].settings[0].right;
    CHECK_EQ(right.size(), 24);
    CHECK(std::ranges::all_of(std::span(right).subspan(4), [](uint8_t each) { return each == 1; }));
  }
}

TEST_CASE("closed loop: what selects stands on the prefix alone, however the rest is streamed") {
  // Long enough behind the prefix for a batch of clusters to close.
  Bench bench;
  bench.documents.resize(1);
  Rng rng(9);
  LoopDocument& document = bench.documents[0];
  document.prefix = 60;
  while (document.tokens.size() < 60 + 340) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
  std::vector<LoopSetting> settings;
  for (const SelectBy by : kStepSelectors) {
    settings.push_back(bench.setting("none", DType::f32));
    settings.back().selection = {.by = by, .budget = 12};
  }
  const auto whole = bench.run(settings);
  for (const size_t stream : {1, 333}) {
    const auto streamed = bench.run(settings, {.stream = stream});
    for (size_t d = 0; d < whole.size(); ++d)
      for (size_t i = 0; i < settings.size(); ++i) {
        CAPTURE(stream);
        CAPTURE(d);
        CAPTURE(settings[i].selection.by);
        const PredictionSums &a = whole[d].settings[i].sums, &b = streamed[d].settings[i].sums;
        CHECK(b.divergence == doctest::Approx(a.divergence).epsilon(1e-5));
        CHECK(b.surprise == doctest::Approx(a.surprise).epsilon(1e-6));
      }
  }
}

TEST_CASE("closed loop: the same for any number of threads and little memory") {
  Bench bench;
  const auto settings = [&] {
    std::vector<LoopSetting> all = {bench.setting("kvcomp", DType::bf16),
                                    bench.setting("selfindex", DType::bf16), bench.setting("q4", DType::f16),
                                    bench.setting("lossless", DType::bf16)};
    all[2].selection = {.by = SelectBy::quest, .budget = 10, .newest = 1};
    return all;
  };
  set_num_threads(1);
  const auto one = bench.run(settings());
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    for (const uint64_t memory : {uint64_t{0}, uint64_t{64} << 20}) {
      const auto other = bench.run(settings(), {.memory = memory});
      for (size_t d = 0; d < one.size(); ++d) {
        CHECK(same(one[d].reference, other[d].reference));
        for (size_t i = 0; i < one[d].settings.size(); ++i)
          CHECK(same(one[d].settings[i], other[d].settings[i]));
      }
    }
  }
  set_num_threads(0);
  CHECK(alike(one[2].settings[3], bench.run({bench.setting("none", DType::bf16)})[2].settings[0]));
}

TEST_CASE("closed loop: what does not fit the memory is refused with the bytes needed, and fits with these") {
  Bench bench;
  for (const char* codec : {"none", "kvcomp"}) {
    CAPTURE(codec);
    uint64_t memory = 1;
    for (int refusals = 0;; ++refusals) {
      REQUIRE_LE(refusals, 5);  // one for each larger document, and the survey
      try {
        bench.run({bench.setting(codec, DType::bf16)}, {.memory = memory});
        CHECK_GE(refusals, 1);
        break;
      } catch (const Error& error) {
        const std::string text = error.what(), before = "about ";
        REQUIRE(text.find(before) != std::string::npos);
        const uint64_t needed = std::stoull(text.substr(text.find(before) + before.size()));
        REQUIRE_GT(needed, memory);
        memory = needed;
        CHECK_THROWS_AS(bench.run({bench.setting(codec, DType::bf16)}, {.memory = needed - 1}), Error);
      }
    }
  }
}

TEST_CASE(
    "closed loop: where all chosen tokens are the newest, who chooses does not matter, and who shares does") {
  Bench bench;
  std::vector<LoopSetting> newest, shares;
  for (const SelectBy by : kStepSelectors) {
    if (by == SelectBy::clusters) continue;  // keeps its sink
    newest.push_back(bench.setting("none", DType::f32));
    newest.back().selection = {.by = by, .budget = 6, .newest = 6};
  }
  for (const Share share : {Share::max, Share::mean, Share::each}) {
    shares.push_back(bench.setting("none", DType::f32));
    shares.back().selection = {.by = SelectBy::oracle, .budget = 6, .share = share};
  }
  const auto alike = bench.run(newest), apart = bench.run(shares);
  for (size_t i = 1; i < newest.size(); ++i) {
    CAPTURE(newest[i].selection.by);
    CHECK(total_divergence(alike, i) == doctest::Approx(total_divergence(alike, 0)).epsilon(1e-6));
  }
  for (const auto& [a, b] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}}) {
    const double one = total_divergence(apart, static_cast<size_t>(a)),
                 other = total_divergence(apart, static_cast<size_t>(b));
    CHECK_GT(std::abs(one - other), 1e-3 * one);
  }
}

TEST_CASE(
    "closed loop: heavy tokens are those of the prefix, and products decide between candidates, whoever scores") {
  Bench bench;
  std::vector<LoopSetting> settings;
  const auto select = [&](SelectionRule rule) {
    settings.push_back(bench.setting("none", DType::f32));
    settings.back().selection = std::move(rule);
  };
  const SelectBy others[] = {SelectBy::quest, SelectBy::signs};
  select({.by = SelectBy::oracle, .budget = 6, .heavy = 6});
  for (const SelectBy by : others) select({.by = by, .budget = 6, .heavy = 6});
  select({.by = SelectBy::oracle, .budget = 6});
  for (const SelectBy by : others) select({.by = by, .budget = 6, .candidates = 100});
  for (const SelectBy by : others) select({.by = by, .budget = 6});
  const auto results = bench.run(settings);
  for (const size_t first : {0, 3})
    for (const size_t other : {1, 2})
      CHECK(total_divergence(results, first + other) ==
            doctest::Approx(total_divergence(results, first)).epsilon(1e-6));
  for (const size_t other : {0, 6, 7})
    CHECK_GT(total_divergence(results, other), 1.01 * total_divergence(results, 3));
}

TEST_CASE("closed loop: a share of the weights takes as many tokens as have it") {
  Bench bench;
  std::vector<LoopSetting> settings;
  for (const double mass : {0.5, 0.9, 0.99, 1.0}) {
    settings.push_back(bench.setting("none", DType::f32));
    settings.back().selection = {.by = SelectBy::oracle, .mass = mass};
  }
  const auto results = bench.run(settings);
  for (size_t i = 1; i < settings.size(); ++i)
    CHECK_LT(total_divergence(results, i), total_divergence(results, i - 1));
  CHECK_LT(total_divergence(results, 3), 1e-3 * total_divergence(results, 0));
}

TEST_CASE("closed loop: clusters keep their sink, however many of the newest tokens are asked for") {
  Bench bench;
  // A budget of the sink of 16 and two more, which are always the newest of those asked for.
  std::vector<LoopSetting> settings;
  for (const auto& [by, newest] :
       {std::pair{SelectBy::clusters, 18}, {SelectBy::clusters, 2}, {SelectBy::oracle, 18}}) {
    settings.push_back(bench.setting("none", DType::f32));
    settings.back().selection = {.by = by, .budget = 18, .newest = static_cast<uint64_t>(newest)};
  }
  for (const size_t stream : {0, 1}) {
    const auto results = bench.run(settings, {.stream = stream});
    CHECK(alike(results[2].settings[0], results[2].settings[1]));
    CHECK_FALSE(alike(results[2].settings[0], results[2].settings[2]));
  }
}

TEST_CASE("closed loop: first tokens are attended to whoever chooses, and dense layers to all") {
  Bench bench;
  std::vector<LoopSetting> settings;
  const auto select = [&](SelectionRule selection) {
    settings.push_back(bench.setting("none", DType::f32));
    settings.back().selection = std::move(selection);
  };
  // With 4 first tokens and 2 newest in a budget of 6 the selector does not matter: tokens that clusters keep are no longer counted.
  select({.by = SelectBy::oracle, .budget = 6, .newest = 2, .first = 4});
  select({.by = SelectBy::quest, .budget = 6, .newest = 2, .first = 4});
  select({.by = SelectBy::signs, .budget = 6, .newest = 2, .first = 4});
  select({.by = SelectBy::oracle, .budget = 6, .newest = 2});
  // All layers dense is no selection; one of them is something between.
  select({.by = SelectBy::oracle, .budget = 2, .dense_layers = {0, 1}});
  select({.by = SelectBy::oracle, .budget = 2, .dense_layers = {0}});
  select({.by = SelectBy::oracle, .budget = 2, .dense_layers = {1}});
  select({.by = SelectBy::oracle, .budget = 2});
  const auto results = bench.run(settings);
  for (const size_t i : {1, 2})
    CHECK(total_divergence(results, i) == doctest::Approx(total_divergence(results, 0)).epsilon(1e-6));
  CHECK_GT(std::abs(total_divergence(results, 3) - total_divergence(results, 0)),
           1e-3 * total_divergence(results, 0));
  CHECK_LE(largest_rise(results, 4), 1e-5);
  for (const size_t i : {5, 6}) {
    CHECK_GT(total_divergence(results, i), 100 * total_divergence(results, 4));
    CHECK_LT(total_divergence(results, i), total_divergence(results, 7));
  }
  settings.back().selection.dense_layers = {2};
  CHECK_THROWS_WITH(bench.run(settings),
                    doctest::Contains("layer 2 is to attend to all tokens; the model has layers 0 to 1"));
}

/// Keeps all tokens, and the data shown to its surveys.
class Onlooker final : public Codec {
 public:
  Onlooker(const Codec& keeper, SurveyScope scope) : keeper_(keeper), scope_(scope) {}
  Record parameters() const override { return keeper_.parameters(); }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override { return keeper_.streams(shape); }
  SurveyScope survey_scope(const GroupShape&) const override { return scope_; }
  bool wants_queries() const override { return true; }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<Look>(*this, shape);
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    keeper_.append(shape, rows, document);
  }

  struct Seen {
    GroupShape shape;
    std::vector<uint64_t> tokens;
    Matrix<float> queries, rows;
  };
  mutable std::mutex mutex;
  mutable std::vector<Seen> seen;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return keeper_.open(shape, document);
  }

 private:
  struct Look final : Survey {
    Look(const Onlooker& owner, const GroupShape& of) : onlooker(owner), shape(of) {}
    int passes() const override { return 2; }
    void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
      now = {shape, {tokens.begin(), tokens.end()}, copy(queries), {}};
    }
    void observe(MatrixView<const float> rows) override { now.rows = copy(rows); }
    void end_document() override {
      const std::lock_guard lock(onlooker.mutex);
      onlooker.seen.push_back(std::move(now));
    }
    void finish(StreamStore&) override {}
    static Matrix<float> copy(MatrixView<const float> from) {
      Matrix<float> to(from.rows(), from.cols());
      for (size_t i = 0; i < from.rows(); ++i) std::ranges::copy(from.row(i), to.row(i).begin());
      return to;
    }
    const Onlooker& onlooker;
    GroupShape shape;
    Seen now;
  };
  const Codec& keeper_;
  SurveyScope scope_;
};

/// The result of a model for a prefix, layer by layer.
struct Computed final : PrefillSink {
  std::vector<Matrix<float>> keys, values, queries;
  void layer(const LayerChunk& chunk) override {
    for (auto [to, from] : {std::pair{&keys, chunk.key}, {&values, chunk.value}, {&queries, chunk.query}}) {
      to->emplace_back(from.rows(), from.cols());
      for (size_t i = 0; i < from.rows(); ++i) std::ranges::copy(from.row(i), to->back().row(i).begin());
    }
  }
};

TEST_CASE("closed loop: surveys see each layer's own rows and queries, in the cache's type, in every pass") {
  Bench bench;
  std::vector<Computed> computed(bench.documents.size());
  for (size_t d = 0; d < computed.size(); ++d) {
    const LoopDocument& document = bench.documents[d];
    const uint64_t offsets[] = {0, document.prefix};
    bench.model.prefill({.tokens = std::span(document.tokens).first(document.prefix), .offsets = offsets},
                        {.queries = true}, computed[d]);
  }
  for (const SurveyScope scope : {SurveyScope::file, SurveyScope::document})
    for (const DType type : {DType::f32, DType::bf16}) {
      const Onlooker onlooker(*bench.setting("none", type).codec, scope);
      bench.run({{&onlooker, type, {}}}, {.survey_documents = 3, .queries = 7});
      const size_t documents = scope == SurveyScope::file ? 3 : computed.size();
      CHECK_EQ(onlooker.seen.size(), 2 * documents * 4);
      std::vector<size_t> looks(documents);
      for (const Onlooker::Seen& seen : onlooker.seen) {
        const auto layer = static_cast<size_t>(seen.shape.first_layer());
        const auto document = static_cast<size_t>(
            std::ranges::find_if(bench.documents,
                                 [&](const LoopDocument& each) { return each.prefix == seen.rows.rows(); }) -
            bench.documents.begin());
        REQUIRE_LT(document, documents);
        ++looks[document];
        const Computed& own = computed[document];
        const size_t first = seen.rows.rows() - seen.tokens.size();
        CHECK_EQ(seen.tokens.size(), std::min<size_t>(7, seen.rows.rows()));
        double query_error = 0, row_error = 0;
        for (size_t i = 0; i < seen.tokens.size(); ++i) {
          CHECK_EQ(seen.tokens[i], first + i);
          for (size_t c = 0; c < seen.queries.cols(); ++c)
            query_error = std::max(query_error,
                                   std::abs(double{seen.queries(i, c)} - own.queries[layer](first + i, c)));
        }
        const Matrix<float>& rows = (seen.shape.side == Side::key ? own.keys : own.values)[layer];
        for (size_t t = 0; t < rows.rows(); ++t)
          for (size_t c = 0; c < rows.cols(); ++c)
            row_error = std::max(row_error, std::abs(double{seen.rows(t, c)} - round_to(type, rows(t, c))));
        CHECK_LE(query_error, 1e-5);  // packed with what follows the prefix, or alone
        CHECK_LE(row_error, type == DType::f32 ? 1e-5 : 0.02);  // or a unit of the last bit after that
      }
      for (const size_t count : looks) CHECK_EQ(count, 2 * 4);
    }
}

TEST_CASE("closed loop: steps that are attended together see no more than each by itself") {
  const ModelConfig config = test::small_config(2);
  Rng rng(8);
  const size_t prefix = 40, steps = 20;
  const auto random = [&](size_t rows, size_t cols) {
    Matrix<float> matrix(rows, cols);
    for (size_t t = 0; t < rows; ++t)
      for (float& value : matrix.row(t))
        value = static_cast<float>(rng.uniform()) - (t < prefix ? 0.5f : 0.1f);
    return matrix;
  };
  const Matrix<float> keys = random(prefix + steps, 32), values = random(prefix + steps, 32),
                      queries = random(steps, 64);
  for (const SelectBy by : kStepSelectors) {
    CAPTURE(by);
    const std::vector<SelectionRule> rules = {{.by = by, .budget = 5}};
    Matrix<float> together(steps, 64), alone(steps, 64);
    SelectedAttention(config, rules, prefix)
        .attend({.past = prefix,
                 .position = prefix,
                 .query = queries,
                 .key = keys,
                 .value = values,
                 .out = together});
    for (size_t i = 0; i < steps; ++i)
      SelectedAttention(config, rules, prefix)
          .attend({.past = prefix + i,
                   .position = prefix + i,
                   .query = queries.view().rows(i, 1),
                   .key = keys.view().rows(0, prefix + i + 1),
                   .value = values.view().rows(0, prefix + i + 1),
                   .out = alone.view().rows(i, 1)});
    for (size_t i = 0; i < steps; ++i) CHECK(std::ranges::equal(together.row(i), alone.row(i)));
  }
}

TEST_CASE("closed loop: clusters of steps that come one by one are those of steps that come together") {
  /// Counts the batches that are clustered.
  struct Counting final : Engine {
    Counting() {
      add<KmeansOnDevice>([this] {
        return [this](std::span<const KmeansTask> tasks, const KmeansOptions& options, const Progress&) {
          batches += tasks.size();
          return kvcodec::kmeans(tasks, options);
        };
      });
    }
    std::atomic<size_t> batches = 0;
  };
  const ModelConfig config = test::small_config(2);
  Rng rng(9);
  const size_t prefix = 40, steps = 700;  // 660 behind the prefix: two whole batches, and some that wait
  const auto random = [&](size_t rows, size_t cols) {
    Matrix<float> matrix(rows, cols);
    for (float& value : std::span(matrix.data(), matrix.size()))
      value = static_cast<float>(rng.uniform()) - 0.5f;
    return matrix;
  };
  const Matrix<float> keys = random(prefix + steps, 32), values = random(prefix + steps, 32),
                      queries = random(steps, 64);
  const std::vector<SelectionRule> rules = {{.by = SelectBy::clusters, .budget = 350}};
  Counting of_all, of_each;
  Matrix<float> together(steps, 64), one_by_one(steps, 64);
  SelectedAttention(config, rules, prefix, nullptr, &of_all)
      .attend({.past = prefix,
               .position = prefix,
               .query = queries,
               .key = keys,
               .value = values,
               .out = together});
  SelectedAttention attention(config, rules, prefix, nullptr, &of_each);
  for (size_t i = 0; i < steps; ++i)
    attention.attend({.past = prefix + i,
                      .position = prefix + i,
                      .query = queries.view().rows(i, 1),
                      .key = keys.view().rows(0, prefix + i + 1),
                      .value = values.view().rows(0, prefix + i + 1),
                      .out = one_by_one.view().rows(i, 1)});
  for (size_t i = 0; i < steps; ++i) CHECK(std::ranges::equal(together.row(i), one_by_one.row(i)));
  CHECK(of_each.batches == static_cast<size_t>(config.num_kv_heads) * (1 + steps / 320));
  CHECK(of_all.batches == of_each.batches);
}

/// One layer of a model whose attention is not plain: its rows, and attention in double to the best tokens by the products.
struct FormedLayer {
  static constexpr size_t kPrefix = 90, kSteps = 40;
  ModelConfig config = test::small_config(1);
  std::vector<float> sinks;
  Matrix<float> keys, values, queries;

  void fill(uint64_t seed) {
    Rng rng(seed);
    const auto random = [&](size_t rows, int cols) {
      Matrix<float> matrix(rows, static_cast<size_t>(cols));
      for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
      return matrix;
    };
    keys = random(kPrefix + kSteps, config.num_kv_heads * config.head_dim);
    values = random(kPrefix + kSteps, config.num_kv_heads * config.value_dim());
    queries = random(kSteps, config.num_q_heads * config.head_dim);
  }
  size_t seen_from(size_t step) const {
    const auto window = static_cast<size_t>(config.window[0]);
    return window > 0 ? kPrefix + step + 1 - window : 0;
  }
  Matrix<float> attended(const SelectionRule& rule) const {
    Matrix<float> out(kSteps, static_cast<size_t>(config.num_q_heads * config.value_dim()));
    SelectedAttention(config, {rule}, kPrefix)
        .attend({.past = kPrefix,
                 .position = kPrefix,
                 .query = queries,
                 .key = keys,
                 .value = values,
                 .out = out,
                 .sinks = sinks});
    return out;
  }
  /// choose(products of query heads of a group with tokens from the first seen on, query head of the group): the tokens, counted alike.
  template <class Choose>
  Matrix<double> expected(const Choose& choose) const {
    const auto dims = static_cast<size_t>(config.head_dim),
               value_dims = static_cast<size_t>(config.value_dim()),
               group = static_cast<size_t>(config.group_size());
    Matrix<double> out(kSteps, static_cast<size_t>(config.num_q_heads) * value_dims);
    for (size_t step = 0; step < kSteps; ++step)
      for (size_t q = 0; q < static_cast<size_t>(config.num_q_heads); ++q) {
        const size_t head = q / group, from = seen_from(step);
        std::vector<double> scores;
        for (size_t t = from; t <= kPrefix + step; ++t) {
          double product = 0;
          for (size_t j = 0; j < dims; ++j)
            product += double{queries(step, q * dims + j)} * keys(t, head * dims + j);
          scores.push_back(product / std::sqrt(double(dims)));
        }
        double all = sinks.empty() ? 0 : std::exp(double{sinks[q]});
        for (const size_t t : choose(scores)) {
          const double cap = config.attention_softcap,
                       weight = std::exp(cap > 0 ? cap * std::tanh(scores[t] / cap) : scores[t]);
          all += weight;
          for (size_t j = 0; j < value_dims; ++j)
            out(step, q * value_dims + j) += weight * values(from + t, head * value_dims + j);
        }
        for (double& value : out.row(step).subspan(q * value_dims, value_dims)) value /= all;
      }
    return out;
  }
};

TEST_CASE("selected attention: windows, caps, sinks and latent keys, against attention in double") {
  std::vector<FormedLayer> layers(5);
  layers[0].config.window[0] = 30;
  layers[1].config.attention_softcap = 2;
  layers[2].sinks = {1, -2, 0.5f, 3};
  ModelConfig& latent = layers[3].config;
  latent.num_kv_heads = 1, latent.head_dim = 24;
  latent.latent = {.rank = 20, .plain_dim = 12, .turned_dim = 4, .value_dim = 8};
  layers[4].config.window[0] = 30, layers[4].config.attention_softcap = 2, layers[4].sinks = {1, -2, 0.5f, 3};
  for (size_t i = 0; i < layers.size(); ++i) {
    CAPTURE(i);
    FormedLayer& layer = layers[i];
    layer.fill(40 + i);
    const auto check = [](const Matrix<float>& found, const Matrix<double>& expected) {
      double worst = 0;
      for (size_t k = 0; k < found.size(); ++k)
        worst = std::max(worst, std::abs(double{found.data()[k]} - expected.data()[k]));
      CHECK_LE(worst, 1e-5);
    };
    const auto all = layer.expected([](const std::vector<double>& scores) {
      std::vector<size_t> tokens(scores.size());
      std::iota(tokens.begin(), tokens.end(), size_t{0});
      return tokens;
    });
    const auto best = layer.expected([](const std::vector<double>& scores) {
      std::vector<size_t> tokens(scores.size());
      std::iota(tokens.begin(), tokens.end(), size_t{0});
      std::ranges::stable_sort(tokens, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
      tokens.resize(7);
      return tokens;
    });
    check(layer.attended({.by = SelectBy::oracle, .budget = 7, .share = Share::each}), best);
    check(layer.attended({.by = SelectBy::oracle, .dense_layers = {0}}), all);
    for (const SelectBy by : kStepSelectors) {
      CAPTURE(by);
      check(layer.attended({.by = by, .budget = 1000}), all);
      // Scores of candidates that are products choose what the oracle does.
      if (by != SelectBy::clusters)
        check(layer.attended({.by = by, .budget = 7, .candidates = 100, .share = Share::each}), best);
    }
  }
  // Tokens before the window of all steps do not count, as codes may have left them out.
  FormedLayer& windowed = layers[4];
  std::vector<Matrix<float>> before;
  const auto each = [&](const auto& body) {
    for (const SelectBy by : kStepSelectors) body(windowed.attended({.by = by, .budget = 9, .first = 70}));
  };
  each([&](Matrix<float> out) { before.push_back(std::move(out)); });
  for (size_t t = 0; t < FormedLayer::kPrefix - 30; ++t) {
    std::ranges::fill(windowed.keys.row(t), 0.0f);
    std::ranges::fill(windowed.values.row(t), 0.0f);
  }
  size_t next = 0;
  each([&](const Matrix<float>& out) {
    const Matrix<float>& expected = before[next++];
    CHECK(std::equal(out.data(), out.data() + out.size(), expected.data()));
  });
}

TEST_CASE("selected attention: tokens beside the budget, and how many there are") {
  FormedLayer layer;
  layer.fill(50);
  const size_t prefix = FormedLayer::kPrefix, steps = FormedLayer::kSteps;
  // All generated tokens, and of the prompt the best.
  const auto expected = layer.expected([&](const std::vector<double>& scores) {
    std::vector<size_t> tokens(prefix);
    std::iota(tokens.begin(), tokens.end(), size_t{0});
    std::ranges::stable_sort(tokens, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    tokens.resize(7);
    for (size_t t = prefix; t < scores.size(); ++t) tokens.push_back(t);
    return tokens;
  });
  const SelectionRule generated{
      .by = SelectBy::oracle, .budget = 7, .share = Share::each, .beside = Beside::generated};
  const Matrix<float> found = layer.attended(generated);
  for (size_t k = 0; k < found.size(); ++k)
    CHECK(std::abs(double{found.data()[k]} - expected.data()[k]) <= 1e-5);

  // Batches of 16: those that wait do not take the clusters' budget of 20, of which the sink has 4.
  SelectionRule waiting{
      .by = SelectBy::clusters, .budget = 20, .share = Share::max, .beside = Beside::waiting};
  waiting.clusters.sink = 4, waiting.clusters.batch = 16, waiting.clusters.batch_clusters = 2;
  const auto counted = [&](const SelectionRule& rule) {
    Matrix<float> out(steps, 64);
    SelectedAttention attention(layer.config, {rule}, prefix);
    attention.attend({.past = prefix,
                      .position = prefix,
                      .query = layer.queries,
                      .key = layer.keys,
                      .value = layer.values,
                      .out = out});
    return attention.count(0);
  };
  for (const SelectionRule& rule : {generated, waiting}) {
    const SelectionCount count = counted(rule);
    uint64_t beside = 0;
    for (size_t step = 1; step <= steps; ++step)
      beside += rule.beside == Beside::generated ? step : step % 16;
    const uint64_t heads = rule.share == Share::each ? 4 : 2;
    CHECK_EQ(count.selections, heads * steps);
    CHECK_EQ(count.beside, heads * beside);
    CHECK_EQ(count.tokens, heads * steps * rule.budget);
    CHECK_EQ(count.visible, heads * (steps * prefix + steps * (steps + 1) / 2 - beside));
  }
  // A budget of less than the sink leaves what is beside it alone.
  waiting.budget = 3;
  CHECK_EQ(counted(waiting).tokens, 2 * steps * 3);
}

TEST_CASE("closed loop: codes with an index choose by what is stored in it") {
  Bench bench;
  Record options;
  options.set("exact-tokens", int64_t{0});
  std::vector<LoopSetting> settings;
  for (const SelectBy by : {SelectBy::codes, SelectBy::signs}) {
    settings.push_back(bench.setting("selfindex", DType::bf16, options));
    settings.back().selection = {.by = by, .budget = 12, .share = Share::max};
  }
  // The same attention, by the index of codes that are made here.
  const LoopDocument& document = bench.documents[2];
  const Prefix prefix = run_prefix(bench.model, document, 32);
  const Codec& codec = *settings[0].codec;
  const GroupShape shape = usual_group(0, 1, 2, 16);
  Matrix<float> keys(prefix.rows.keys[0].rows(), 32);
  for (size_t i = 0; i < keys.size(); ++i)
    keys.data()[i] = round_to(DType::bf16, prefix.rows.keys[0].data()[i]);
  const Encoded encoded = encode_in_memory(codec, shape, {{DocumentRows(keys)}});
  const auto view = codec.open(shape, encoded.document(0));
  Matrix<float> decoded(keys.rows() + 5, 32);
  view->decode(0, decoded.view().rows(0, keys.rows()));
  Rng rng(10);
  for (float& value : std::span(decoded.row(keys.rows()).data(), 5 * 32))
    value = static_cast<float>(rng.normal());
  Matrix<float> queries(5, 64), out(5, 64);
  for (float& value : std::span(queries.data(), queries.size())) value = static_cast<float>(rng.normal());
  const SelectionRule rule{.by = SelectBy::codes, .budget = 12, .share = Share::max};
  SelectedAttention(bench.config, {rule}, keys.rows(), nullptr, nullptr,
                    [&](size_t, int, size_t head) { return view->selector(head, false); })
      .attend({.past = keys.rows(),
               .position = keys.rows(),
               .query = queries,
               .key = decoded,
               .value = decoded,
               .out = out});
  for (size_t head = 0; head < 2; ++head) {
    const auto selector = view->selector(head, false);
    selector->append(decoded.view().rows(keys.rows(), 5).columns(head * 16, 16));
    for (size_t i = 0; i < 5; ++i) {
      const size_t seen = keys.rows() + i + 1;
      const auto own_keys = decoded.view().columns(head * 16, 16);
      Matrix<float> scores(2, selector->tokens()), expected(2, 16);
      const MatrixView<const float> asked(queries.row(i).data() + head * 32, 2, 16);
      selector->scores(asked, scores);
      const auto chosen = ids_in_order(choose_tokens({.queries = asked, .visible = seen, .budget = 12},
                                                     {.share = Share::max}, own_keys, scores));
      const CacheRows rows(own_keys, own_keys);
      attend(Attention{
          .queries = asked, .rows = &rows, .out = expected, .tokens = std::span<const uint32_t>(chosen)});
      CHECK(std::equal(expected.data(), expected.data() + 32, out.row(i).data() + head * 32));
    }
  }
  // Signs that are fitted to decoded keys choose others; streamed or not, every token has a score.
  for (const size_t stream : {0, 7}) {
    const auto results = bench.run(settings, {.stream = stream});
    CHECK_FALSE(alike(results[2].settings[0], results[2].settings[1]));
    CHECK_GT(results[2].settings[0].selected.tokens, 0);
  }
}

TEST_CASE("closed loop: documents without a token to judge are refused") {
  Bench bench;
  for (const size_t prefix : {0, 68, 69, 70}) {
    if (prefix == 68) continue;
    bench.documents.back().prefix = prefix;
    CHECK_THROWS_AS(bench.run({bench.setting("none", DType::f32)}), Error);
  }
}

}  // namespace closed_loop_test
