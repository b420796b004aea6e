#include "lib/pipeline/closed_loop.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>

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
  ClosedLoop loop(bench.model, {bench.setting("none", DType::bf16), bench.setting("fp8", DType::bf16)}, {});
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
        const auto layer = static_cast<size_t>(seen.shape.first_layer);
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

TEST_CASE("selected attention: models whose scores it would not compute are refused") {
  const std::vector<SelectionRule> rules = {{.by = SelectBy::oracle, .budget = 5}};
  const ModelConfig plain = test::small_config(2);
  CHECK_NOTHROW(SelectedAttention(plain, rules, 0));
  ModelConfig config = plain;
  config.window[1] = 20;
  CHECK_THROWS_WITH(SelectedAttention(config, rules, 0),
                    "tokens cannot be selected in models whose layers have sliding windows");
  config = plain;
  config.attention_softcap = 50;
  CHECK_THROWS_WITH(SelectedAttention(config, rules, 0),
                    "tokens cannot be selected in models that cap the scores of attention");
  config = plain;
  config.names.sinks = "self_attn.sinks";
  CHECK_THROWS_WITH(SelectedAttention(config, rules, 0),
                    "tokens cannot be selected in models with attention sinks");
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
