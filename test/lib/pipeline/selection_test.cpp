// Choosing tokens for queries (lib/pipeline/selection.hpp), and the use of queries by the codec selfindex.
#include "lib/pipeline/selection.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace selection_test {

using namespace kvcodec;

namespace {

Matrix<float> random_rows(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i)
    matrix.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return matrix;
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * b[i];
  return sum;
}

/// The ids of the largest values below `visible`, rising.
std::set<uint32_t> largest(const std::vector<double>& values, size_t visible, size_t budget) {
  std::vector<uint32_t> ids(visible);
  for (uint32_t t = 0; t < visible; ++t) ids[t] = t;
  std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  return {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(std::min(visible, budget))};
}

/// Codes give these keys and values back as they are.
SelectionTask exact_task(const Selector& selector, MatrixView<const float> keys,
                         MatrixView<const float> values, MatrixView<const float> queries, size_t per_step,
                         std::span<const uint64_t> visible) {
  return {.selector = &selector,
          .keys = keys,
          .values = values,
          .stored_keys = keys,
          .stored_values = values,
          .queries = queries,
          .per_step = per_step,
          .visible = visible};
}

std::unique_ptr<Codec> make_selfindex(int heads, int query_heads, int dims,
                                      const std::vector<std::pair<std::string, Scalar>>& values = {},
                                      const ScoreForms& scores = {}) {
  const CodecEntry& entry = find_codec("selfindex");
  const auto options = entry.make_options();
  for (const auto& [name, value] : values)
    for (const OptionField& field : options->fields())
      if (field.name == name) set_value(field, value);
  return entry.make(
      *options,
      {.num_layers = 1, .heads = heads, .head_dim = dims, .query_heads = query_heads, .scores = scores});
}

}  // namespace

TEST_CASE(
    "selection: the oracle selects the largest products among visible tokens, at every sharing and budget") {
  Rng rng(1);
  const size_t tokens = 300, dims = 16, per_step = 3, steps = 5;
  const Matrix<float> keys = random_rows(tokens, dims, rng), values = random_rows(tokens, dims, rng);
  const Matrix<float> queries = random_rows(steps * per_step, dims, rng);
  const std::vector<uint64_t> visible = {1, 17, 150, 299, 300};
  const OracleSelector oracle(keys);
  for (const Share share : {Share::max, Share::mean, Share::each})
    for (const uint64_t budget : {0, 1, 20, 1000}) {
      CAPTURE(share);
      CAPTURE(budget);
      SelectionRule rule;
      rule.share = share;
      rule.budget = budget;
      rule.ratio = 0.1;
      const Selections result =
          select_tokens(exact_task(oracle, keys, values, queries, per_step, visible), rule);
      const bool each = share == Share::each;
      REQUIRE_EQ(result.chosen.size(), each ? steps * per_step : steps);
      CHECK_EQ(result.quality.recall, doctest::Approx(double(result.chosen.size())));
      CHECK_EQ(result.quality.outputs, steps * per_step);
      for (size_t i = 0; i < result.chosen.size(); ++i) {
        const size_t step = each ? i / per_step : i, seen = visible[step];
        const size_t wanted =
            budget > 0 ? std::min<size_t>(budget, seen) : size_t(std::ceil(0.1 * double(seen)));
        REQUIRE_EQ(result.chosen[i].size(), wanted);
        std::vector<double> scores(seen);
        for (size_t t = 0; t < seen; ++t) {
          double best = -INFINITY, sum = 0;
          for (size_t head = 0; head < per_step; ++head) {
            const double score = product(queries.row(step * per_step + head), keys.row(t));
            best = std::max(best, score);
            sum += score;
          }
          scores[t] = each ? product(queries.row(i), keys.row(t)) : share == Share::max ? best : sum;
        }
        std::set<uint32_t> found;
        for (const Scored& scored : result.chosen[i]) found.insert(scored.id);
        CHECK(found == largest(scores, seen, wanted));
        CHECK(std::ranges::is_sorted(result.chosen[i], std::greater{}, &Scored::score));
      }
      if (budget == 1000) {  // everything that is visible
        CHECK_EQ(result.quality.mass, doctest::Approx(double(steps * per_step)));
        CHECK_LT(result.quality.output_error, 1e-4);
        CHECK_EQ(result.quality.stored_error, result.quality.output_error);
      }
    }
}

TEST_CASE("selection: the newest tokens are selected within the budget") {
  Rng rng(2);
  const Matrix<float> keys = random_rows(100, 8, rng), values = random_rows(100, 8, rng);
  const Matrix<float> queries = random_rows(1, 8, rng);
  const std::vector<uint64_t> visible = {90};
  const OracleSelector oracle(keys);
  SelectionRule rule;
  rule.budget = 10;
  rule.newest = 4;
  const auto result = select_tokens(exact_task(oracle, keys, values, queries, 1, visible), rule);
  REQUIRE_EQ(result.chosen[0].size(), 10);
  std::set<uint32_t> found;
  for (const Scored& scored : result.chosen[0]) found.insert(scored.id);
  CHECK_EQ(found.size(), 10);
  for (uint32_t t = 86; t < 90; ++t) CHECK(found.contains(t));
  for (const uint32_t id : found) CHECK_LT(id, 90);
}

TEST_CASE("selection: windows, caps, sinks and narrow values count in choices and in all measures") {
  Rng rng(3);
  const size_t tokens = 60, dims = 8, value_dims = 5, per_step = 2;
  const Matrix<float> keys = random_rows(tokens, dims, rng), values = random_rows(tokens, value_dims, rng);
  Matrix<float> queries = random_rows(2 * per_step, dims, rng);
  for (size_t i = 0; i < queries.size(); ++i) queries.data()[i] *= 4;
  const std::vector<uint64_t> visible = {25, 60}, from = {0, 37};
  const std::vector<float> sinks = {1.5f, -0.5f};
  const double cap = 2;
  const OracleSelector oracle(keys);
  for (const Share share : {Share::weight, Share::each}) {
    CAPTURE(share);
    SelectionRule rule;
    rule.budget = 6, rule.share = share;
    SelectionTask task = exact_task(oracle, keys, values, queries, per_step, visible);
    task.from = from, task.form = {static_cast<float>(cap), sinks};
    const Selections result = select_tokens(task, rule);
    double mass = 0, error = 0;
    for (size_t step = 0; step < 2; ++step) {
      const size_t seen = visible[step] - from[step];
      Matrix<double> weights(per_step, seen);
      std::vector<double> sums(per_step), shared(seen);
      for (size_t q = 0; q < per_step; ++q) {
        for (size_t t = 0; t < seen; ++t) {
          const double score =
              product(queries.row(step * per_step + q), keys.row(from[step] + t)) / std::sqrt(8.0);
          sums[q] += weights(q, t) = std::exp(cap * std::tanh(score / cap));
        }
        for (size_t t = 0; t < seen; ++t) shared[t] += weights(q, t) / (sums[q] + std::exp(double(sinks[q])));
      }
      for (size_t q = 0; q < per_step; ++q) {
        const auto& chosen = result.chosen[share == Share::each ? step * per_step + q : step];
        std::set<uint32_t> found, wanted;
        for (const Scored& scored : chosen) found.insert(scored.id);
        const std::vector<double> own(weights.row(q).begin(), weights.row(q).end());
        for (const uint32_t id : largest(share == Share::each ? own : shared, seen, 6))
          wanted.insert(static_cast<uint32_t>(from[step]) + id);
        CHECK(found == wanted);
        double covered = 0, noise = 0, energy = 0;
        for (const uint32_t id : found) covered += weights(q, id - from[step]);
        mass += covered / sums[q];
        for (size_t c = 0; c < value_dims; ++c) {
          double full = 0, some = 0;
          for (size_t t = 0; t < seen; ++t) full += weights(q, t) * values(from[step] + t, c);
          for (const uint32_t id : found) some += weights(q, id - from[step]) * values(id, c);
          full /= sums[q] + std::exp(double(sinks[q])), some /= covered + std::exp(double(sinks[q]));
          noise += (full - some) * (full - some), energy += full * full;
        }
        error += std::sqrt(noise / energy);
      }
    }
    CHECK_EQ(result.quality.recall, doctest::Approx(double(result.chosen.size())));
    CHECK_EQ(result.quality.count.visible, (25 + 23) * (share == Share::each ? 2 : 1));
    CHECK_EQ(result.quality.mass, doctest::Approx(mass).epsilon(1e-5));
    CHECK_EQ(result.quality.output_error, doctest::Approx(error).epsilon(1e-4));
    CHECK_EQ(result.quality.stored_error, result.quality.output_error);
  }
}

TEST_CASE("selfindex: its selector scores centred keys as their centroids say, and finds planted keys") {
  Rng rng(3);
  const int dims = 64;
  const size_t tokens = 2000;
  Matrix<float> keys = random_rows(tokens, 2 * dims, rng);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < keys.cols(); j += 3) keys(t, j) = round_to(DType::bf16, keys(t, j) + 6);
  const Matrix<float> query = random_rows(1, dims, rng);
  const std::vector<uint32_t> planted = {5, 700, 1999};
  for (const uint32_t t : planted)
    for (int c = 0; c < dims; ++c) {
      float& key = keys(t, static_cast<size_t>(dims + c));
      key = round_to(DType::bf16, key + 2 * query(0, static_cast<size_t>(c)));
    }
  const auto codec = make_selfindex(2, 2, dims);
  const GroupShape shape = usual_group(0, 1, 2, dims, Side::key);
  const Encoded encoded = encode_in_memory(*codec, shape, {{DocumentRows(keys)}});
  const auto selector = codec->open(shape, encoded.document(0))->selector(1, false);
  REQUIRE_EQ(selector->tokens(), tokens);
  std::set<uint32_t> found;
  Matrix<float> of_all(1, tokens);
  selector->scores(query, of_all);
  for (const Scored& scored : top_k(of_all.row(0), 3)) found.insert(scored.id);
  CHECK(found == std::set<uint32_t>(planted.begin(), planted.end()));

  // A short document is kept exactly; its selector knows the true products.
  const Encoded tiny = encode_in_memory(*codec, shape, {{DocumentRows(keys.view().rows(0, 3))}});
  Matrix<float> scores(1, 3);
  codec->open(shape, tiny.document(0))->selector(0, false)->scores(query, scores);
  for (size_t t = 0; t < 3; ++t)
    CHECK_EQ(scores(0, t),
             doctest::Approx(product(query.row(0), keys.row(t).first(size_t(dims)))).epsilon(1e-5));
}

TEST_CASE(
    "selfindex: tokens that do not fit what the codes began with are refused before any of them is stored") {
  Rng rng(14);
  const int dims = 16;
  Matrix<float> prompt = random_rows(150, size_t(dims), rng);
  const Matrix<float> later = random_rows(5, size_t(dims), rng);
  for (size_t t = 0; t < prompt.rows(); ++t) prompt(t, 3) *= 1e-7f;
  const auto codec = make_selfindex(1, 1, dims);
  const GroupShape shape = usual_group(0, 1, 1, dims);
  Encoded encoded(codec->streams(shape));
  StreamStore& document = encoded.add_document();
  const DocumentRows documents[] = {DocumentRows(prompt)};
  run_survey(*codec->survey(shape), documents, document);
  codec->append(shape, prompt, document);
  const auto rows_of_all = [&] {
    std::vector<uint64_t> rows;
    for (const StreamSpec& spec : encoded.specs()) rows.push_back(document.rows(spec.name));
    return rows;
  };
  const std::vector<uint64_t> before = rows_of_all();
  REQUIRE_GT(document.rows("levels"), uint64_t{0});
  CHECK_THROWS_WITH_AS(codec->append(shape, later, document),
                       doctest::Contains("token 150, head 0, dimension 3: "), Error);
  CHECK_THROWS_WITH_AS(codec->append(shape, later, document), doctest::Contains("--store 16bit"), Error);
  CHECK(rows_of_all() == before);
}

TEST_CASE(
    "selfindex: tokens that the last queries attend to are kept exactly, on both sides, for any pieces") {
  Rng rng(4);
  const int dims = 32, heads = 2, query_heads = 4;
  const size_t tokens = 1500;
  Matrix<float> keys = random_rows(tokens, size_t(heads * dims), rng);
  const Matrix<float> values = random_rows(tokens, size_t(heads * dims), rng);
  Matrix<float> queries = random_rows(40, size_t(query_heads * dims), rng);
  std::vector<uint64_t> query_tokens;
  for (uint64_t i = 0; i < 40; ++i) query_tokens.push_back(tokens - 40 + i);
  // The query heads of head 1 (2 and 3) look for its token 777.
  for (int c = 0; c < dims; ++c) {
    keys(777, size_t(dims + c)) = 4;
    for (size_t i = 0; i < 40; ++i)
      for (const int head : {2, 3}) queries(i, size_t(head * dims + c)) = 3;
  }
  const auto exact_ids = [&](Side side, const std::string& by, size_t piece, const ScoreForms& scores = {}) {
    const auto codec =
        make_selfindex(heads, query_heads, dims, {{"exact-tokens", int64_t{8}}, {"exact-by", by}}, scores);
    const GroupShape shape = usual_group(0, 1, heads, dims, side);
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document();
    const auto survey = codec->survey(shape);
    for (int pass = 0; pass < survey->passes(); ++pass) {
      survey->observe_queries(query_tokens, queries);
      for (size_t first = 0; first < tokens; first += piece)
        survey->observe(keys.view().rows(first, std::min(piece, tokens - first)));
      survey->end_document();
      survey->end_pass();
    }
    survey->finish(document);
    const Matrix<float>& rows = side == Side::key ? keys : values;
    codec->append(shape, rows, document);
    const auto ids = document.read<uint32_t>("exact_ids", 0, document.rows("exact_ids"), size_t(heads));
    Matrix<float> decoded(tokens, rows.cols());
    const auto view = codec->open(shape, document);
    view->decode(0, decoded);
    for (size_t head = 0; head < size_t(heads); ++head) {
      std::vector<uint32_t> own;
      for (size_t i = head; i < ids.size(); i += size_t(heads)) own.push_back(ids[i]);
      CHECK(view->kept_whole(head) == own);
    }
    for (size_t i = 0; i < ids.size(); ++i)
      for (int c = 0; c < dims; ++c) {
        const size_t column = i % size_t(heads) * size_t(dims) + size_t(c);
        CHECK_EQ(decoded(ids[i], column), rows(ids[i], column));
      }
    return ids;
  };
  for (const char* by : {"attention", "last-query", "first"}) {
    CAPTURE(by);
    const auto ids = exact_ids(Side::key, by, tokens);
    REQUIRE_EQ(ids.size(), 16);
    CHECK(exact_ids(Side::value, by, tokens) == ids);
    CHECK(exact_ids(Side::key, by, 77) == ids);
    bool found = false;
    for (size_t i = 1; i < ids.size(); i += 2) found |= ids[i] == 777;
    CHECK_EQ(found, std::string(by) != "first");
  }
  // Tokens that no query sees in its window get no weight.
  for (const uint32_t id : exact_ids(Side::key, "attention", tokens, {.known = true, .windows = {100}}))
    CHECK_GE(id, tokens - 32 - 100);
}

TEST_CASE("selfindex: 896 bits per token and head of 128 dimensions beside its fixed cost") {
  Rng rng(5);
  const auto codec = make_selfindex(2, 2, 128);
  const Matrix<float> rows = random_rows(4096, 256, rng);
  uint64_t bits = 0;
  for (const Side side : kSides) {
    const GroupShape shape = usual_group(0, 1, 2, 128, side);
    const Encoded encoded = encode_in_memory(*codec, shape, {{DocumentRows(rows)}});
    for (const char* stream : {"signs", "levels", "scales", "zeros"})
      if (side == Side::key || std::string(stream) != "signs") bits += encoded.bytes(stream).size() * 8;
  }
  CHECK_EQ(bits, uint64_t{896} * 4096 * 2);
}

TEST_CASE("selections: tokens that wait come beside the budget, and caches count what must be fetched") {
  Rng rng(9);
  const size_t tokens = 60, dims = 8, steps = 20;
  Matrix<float> keys(tokens, dims), queries(steps * 2, dims);
  for (Matrix<float>* matrix : {&keys, &queries})
    for (size_t i = 0; i < matrix->size(); ++i) matrix->data()[i] = static_cast<float>(rng.normal());
  const OracleSelector oracle(keys);
  std::vector<uint64_t> visible, waiting;
  for (size_t i = 0; i < steps; ++i) visible.push_back(41 + i), waiting.push_back(i % 10);
  SelectionTask task = exact_task(oracle, keys, keys, queries, 2, visible);
  task.waiting = waiting, task.sink = 3;
  SelectionRule rule;
  rule.budget = 12;
  rule.beside = Beside::waiting;
  for (const Share share : {Share::max, Share::each}) {
    rule.share = share;
    const Selections result = select_tokens(task, rule);
    const size_t per_step = rule.share == Share::each ? 2 : 1;
    SelectionCache::Use expected[std::size(kCacheSteps)];
    for (size_t which = 0; which < per_step; ++which)
      for (size_t step = 0; step < steps; ++step) {
        const auto& chosen = result.chosen[step * per_step + which];
        for (uint64_t t = visible[step] - waiting[step]; t < visible[step]; ++t)
          CHECK(std::ranges::any_of(chosen, [&](const Scored& token) { return token.id == t; }));
        for (const Scored& token : chosen) {
          if (token.id < 3 || token.id >= visible[step] - waiting[step]) continue;
          for (size_t i = 0; i < std::size(kCacheSteps); ++i) {
            bool at_hand = false;
            for (size_t back = 1; back <= kCacheSteps[i] && back <= step; ++back) {
              const size_t before = step - back;
              at_hand |= token.id < visible[before] - waiting[before] &&
                         std::ranges::any_of(result.chosen[before * per_step + which],
                                             [&](const Scored& other) { return other.id == token.id; });
            }
            expected[i].add({1, at_hand ? uint64_t{0} : uint64_t{1}});
          }
        }
      }
    for (size_t i = 0; i < std::size(kCacheSteps); ++i) {
      CHECK_EQ(result.quality.cache[i].selected, expected[i].selected);
      CHECK_EQ(result.quality.cache[i].fetched, expected[i].fetched);
    }
    CHECK_EQ(result.quality.cache[0].hit_rate(), 0);
  }
  // Generated tokens beside the budget, and of the prompt the best; recall is that of the choice among these.
  rule = {.budget = 12, .share = Share::max, .beside = Beside::generated};
  task.sink = 0, task.waiting = {}, task.prompt = 44;
  const Selections generated = select_tokens(task, rule);
  uint64_t beside = 0;
  for (size_t step = 0; step < steps; ++step) {
    std::vector<double> scores(visible[step]);
    for (size_t t = 0; t < scores.size(); ++t)
      scores[t] = std::max(product(queries.row(2 * step), keys.row(t)),
                           product(queries.row(2 * step + 1), keys.row(t)));
    auto expected = largest(scores, std::min<size_t>(visible[step], 44), 12);
    for (uint32_t t = 44; t < visible[step]; ++t) expected.insert(t), ++beside;
    std::set<uint32_t> found;
    for (const Scored& token : generated.chosen[step]) found.insert(token.id);
    CHECK(found == expected);
  }
  CHECK_EQ(generated.quality.count.beside, beside);
  CHECK_EQ(generated.quality.count.tokens, steps * 12);
  CHECK_EQ(generated.quality.recall, doctest::Approx(double(steps)));
  task.waiting = waiting;
  waiting[3] = 100;
  CHECK_THROWS_AS(select_tokens(task, rule), Error);
  task.waiting = std::span(waiting).first(3);
  CHECK_THROWS_AS(select_tokens(task, rule), Error);
}

}  // namespace selection_test
