#include <algorithm>
#include <deque>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/selection.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace cluster_test {

using namespace kvcodec;

namespace {

Matrix<float> random_keys(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j)
      matrix(i, j) = static_cast<float>(rng.normal() + (j == i * 7 % 5 ? 4 : 0));
  return matrix;
}

ClusterIndex make_index(MatrixView<const float> keys, std::span<const uint64_t> ends,
                        const ClusterOptions& options, uint64_t seed = 1) {
  ClusterIndex index(keys.cols(), static_cast<uint64_t>(options.sink));
  const ClusterTask task{&index, keys.rows(0, ends.empty() ? 0 : ends.back()), ends, 3};
  add_batches({&task, 1}, options, seed);
  return index;
}

ClusterIndex::Parts parts_of(const ClusterIndex& index) {
  ClusterIndex::Parts parts{index.sink(),
                            {index.batch_ends().begin(), index.batch_ends().end()},
                            Matrix<float>(index.clusters(), index.dims()),
                            {index.offsets().begin(), index.offsets().end()},
                            {index.ids().begin(), index.ids().end()}};
  std::copy_n(index.centroids().data(), parts.centroids.size(), parts.centroids.data());
  return parts;
}

/// Every token is in the sink or in exactly one cluster of its batch, whose centroid is its tokens' mean.
void check_index(const ClusterIndex& index, MatrixView<const float> keys) {
  std::vector<int> times(index.end());
  for (uint64_t t = 0; t < std::min(index.sink(), index.end()); ++t) ++times[t];
  const auto batch_of = [&](uint64_t token) {
    const auto ends = index.batch_ends();
    return std::upper_bound(ends.begin(), ends.end(), token) - ends.begin();
  };
  for (size_t c = 0; c < index.clusters(); ++c) {
    const auto tokens = index.tokens_of(c);
    REQUIRE_FALSE(tokens.empty());
    CHECK(std::is_sorted(tokens.begin(), tokens.end()));
    for (const uint32_t token : tokens) {
      REQUIRE_LT(token, index.end());
      CHECK_EQ(batch_of(token), batch_of(tokens[0]));
      ++times[token];
    }
    for (size_t j = 0; j < index.dims(); ++j) {
      double sum = 0;
      for (const uint32_t token : tokens) sum += keys(token, j);
      CHECK_EQ(index.centroids()(c, j), static_cast<float>(sum / double(tokens.size())));
    }
  }
  CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
  CHECK_NOTHROW(ClusterIndex(parts_of(index)));
}

/// The choice by its definition: the sink, waiting tokens from the newest on, then clusters one by one, always the best of the
/// rest.
std::vector<uint32_t> reference(const ClusterIndex& index, std::span<const float> query, size_t tokens,
                                size_t budget) {
  std::vector<uint32_t> all;
  std::vector<Scored> others;
  std::vector<float> scores(index.clusters());
  index.centroid_scores(query, scores);
  for (uint32_t token = 0; token < tokens && token < index.sink(); ++token) all.push_back(token);
  for (size_t token = tokens; token > std::max(index.end(), index.sink()); --token)
    all.push_back(static_cast<uint32_t>(token - 1));
  for (size_t c = 0; c < scores.size(); ++c)
    for (const uint32_t token : index.tokens_of(c)) others.push_back({scores[c], token});
  std::ranges::sort(others, [](const Scored& a, const Scored& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  });
  for (const Scored& token : others) all.push_back(token.id);
  all.resize(std::min(budget, all.size()));
  return all;
}

std::vector<uint32_t> ids_of(std::span<const Scored> selected) {
  std::vector<uint32_t> ids;
  for (const Scored& token : selected) ids.push_back(token.id);
  return ids;
}

/// The best tokens of one query, by its scores for all.
std::vector<Scored> select(const Selector& selector, MatrixView<const float> query, size_t budget,
                           Order order = Order::by_score) {
  Matrix<float> scores(1, selector.tokens());
  selector.scores(query, scores);
  return top_k(scores.row(0), budget, order);
}

/// Ids of ranges [begin, end), in order.
std::vector<uint32_t> ranges(std::initializer_list<std::pair<uint32_t, uint32_t>> parts) {
  std::vector<uint32_t> ids;
  for (const auto& [begin, end] : parts)
    for (uint32_t id = begin; id < end; ++id) ids.push_back(id);
  return ids;
}

/// Peak memory of the process since the last call, in MiB; -1 if the system does not report it.
double take_peak_memory() {
  double peak = -1;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:" && status >> peak) peak /= 1024;
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  return reset ? peak : -1;
}

}  // namespace

TEST_CASE("cluster index: a partition for any length, sink and metric, and batches never move a token") {
  Rng rng(70);
  for (const Metric metric : {Metric::cosine, Metric::l2, Metric::inner_product})
    for (const int64_t sink : {0, 1, 16})
      for (const size_t tokens : {1, 2, 15, 16, 17, 18, 100, 700}) {
        const Matrix<float> keys = random_keys(tokens + 200, 12, rng);
        ClusterOptions options;
        options.metric = metric, options.sink = sink, options.batch = 60;
        const uint64_t prompt[] = {tokens};
        ClusterIndex index = make_index(keys, prompt, options);
        check_index(index, keys);
        CHECK_LE(index.clusters(), std::max<size_t>(1, tokens / 80));
        const auto before = parts_of(index);

        // Later: existing data stay, bit for bit, and two appends give the same as one.
        const auto ends = next_batches(index.end(), tokens + 200, 0, options);
        REQUIRE_EQ(ends.size(), 3);
        ClusterIndex one_by_one = index;
        const ClusterTask task{&index, keys.view().rows(tokens, 180), ends, 3};
        add_batches({&task, 1}, options, 1);
        check_index(index, keys);
        const auto after = parts_of(index);
        CHECK(std::equal(before.ids.begin(), before.ids.end(), after.ids.begin()));
        CHECK(std::equal(before.offsets.begin(), before.offsets.end(), after.offsets.begin()));
        CHECK(std::equal(before.centroids.data(), before.centroids.data() + before.centroids.size(),
                         after.centroids.data()));
        for (const uint64_t batch_end : ends) {
          const uint64_t begin = one_by_one.end();
          const ClusterTask step{&one_by_one, keys.view().rows(begin, batch_end - begin), {&batch_end, 1}, 3};
          add_batches({&step, 1}, options, 1);
        }
        CHECK_EQ(parts_of(one_by_one).ids, after.ids);
        CHECK_EQ(parts_of(one_by_one).offsets, after.offsets);
      }
}

TEST_CASE("cluster index: which batches there can be, and what a query has of them") {
  ClusterOptions options;  // m = 320
  using Ends = std::vector<uint64_t>;
  CHECK_EQ(next_batches(0, 0, 0, options), Ends{});
  CHECK_EQ(next_batches(0, 1000, 0, options), Ends{1000});
  CHECK_EQ(next_batches(0, 1000, 400, options), Ends{400, 720});
  CHECK_EQ(next_batches(0, 1000, 2000, options), Ends{1000});
  CHECK_EQ(next_batches(1000, 1319, 0, options), Ends{});
  CHECK_EQ(next_batches(1000, 1960, 0, options), Ends{1320, 1640, 1960});
  CHECK_EQ(options.clusters_of(32768), 409);
  CHECK_EQ(options.clusters_of(79), 1);

  Rng rng(71);
  const Matrix<float> keys = random_keys(900, 8, rng);
  const uint64_t ends[] = {200, 520, 840};
  const ClusterIndex index = make_index(keys, ends, options);
  CHECK_EQ(index.end(), 840);
  for (const auto& [visible, covered] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 1}, {199, 199}, {200, 200}, {519, 200}, {520, 520}, {839, 520}, {840, 840}, {900, 840}})
    CHECK_EQ(index.covered(visible), covered);
  CHECK_EQ(ClusterIndex(8, 16).covered(300), 16);
  CHECK_EQ(ClusterIndex(8, 16).covered(3), 3);
}

TEST_CASE("cluster selection equals its definition and fills the budget exactly") {
  Rng rng(72);
  for (const size_t tokens : {1, 5, 40, 333}) {
    const size_t dims = 16;
    Matrix<float> keys = random_keys(tokens, dims, rng);
    if (tokens == 40) std::fill_n(keys.data(), keys.size(), 0.5f);  // one cluster
    ClusterOptions options;
    options.sink = 6, options.clusters = 9, options.batch = 30;
    const uint64_t prompt = tokens > 50 ? tokens - 50 : tokens;
    const auto ends = next_batches(0, tokens, prompt, options);  // some tokens wait
    ClusterIndex index = make_index(keys, ends, options);
    if (tokens == 333) {  // two centroids alike: their tokens are one another's equals
      auto parts = parts_of(index);
      std::ranges::copy(parts.centroids.row(2), parts.centroids.row(5).begin());
      index = ClusterIndex(std::move(parts));
    }
    const ClusterSelector selector(index, tokens);
    CHECK_EQ(selector.tokens(), tokens);
    const Matrix<float> queries = random_keys(3, dims, rng);
    Matrix<float> scores(3, tokens);
    selector.scores(queries, scores);
    for (size_t budget = 0; budget <= tokens + 2; budget += tokens > 100 ? 13 : 1) {
      for (size_t q = 0; q < 3; ++q) {
        const auto expected = reference(index, queries.row(q), tokens, budget);
        CHECK_EQ(ids_of(top_k(scores.row(q), budget)), expected);
        CHECK_EQ(expected.size(), std::min(budget, tokens));
      }
    }
  }
}

TEST_CASE("cluster index: one cluster for 80 tokens of the prompt, sink included, and 4 for a later batch") {
  Rng rng(76);
  const Matrix<float> keys = random_keys(820 + 640, 12, rng);
  for (const Metric metric : {Metric::cosine, Metric::l2})
    for (const uint64_t prompt : {17, 80, 159, 160, 175, 800, 815, 820}) {
      ClusterOptions options;
      options.metric = metric;
      const uint64_t ends[] = {prompt, prompt + 320, prompt + 640};
      const ClusterIndex index = make_index(keys, ends, options);
      const size_t of_prompt = std::max<uint64_t>(1, prompt / 80);
      REQUIRE_EQ(index.clusters(), of_prompt + 4 + 4);
      CHECK_EQ(index.offsets()[of_prompt], prompt - 16);
      CHECK_EQ(index.offsets()[of_prompt + 4], prompt - 16 + 320);
    }
}

TEST_CASE("cluster selection: where the budget is too small, the sink, then the newest that wait") {
  CHECK((kept_anyway(1319, 16, 319, 256) == KeptAnyway{16, 240}));
  CHECK((kept_anyway(1319, 16, 319, 2000) == KeptAnyway{16, 319}));
  CHECK((kept_anyway(1319, 16, 319, 10) == KeptAnyway{10, 0}));
  CHECK((kept_anyway(20, 16, 19, 100) == KeptAnyway{16, 4}));
  CHECK((kept_anyway(7, 16, 3, 100) == KeptAnyway{7, 0}));
  CHECK((kept_anyway(0, 16, 3, 100) == KeptAnyway{0, 0}));

  Rng rng(77);
  const size_t tokens = 1319, dims = 8;
  const Matrix<float> keys = random_keys(tokens, dims, rng), queries = random_keys(2, dims, rng);
  const uint64_t ends[] = {1000};
  const ClusterIndex index = make_index(keys, ends, ClusterOptions());
  const ClusterSelector selector(index, tokens);
  const auto expected = [&](uint64_t budget, uint64_t visible) {
    const auto newest =
        static_cast<uint32_t>(std::min(budget - std::min<uint64_t>(budget, 16), visible - 1000));
    const auto end = static_cast<uint32_t>(visible);
    return ranges({{0, static_cast<uint32_t>(std::min<uint64_t>(budget, 16))}, {end - newest, end}});
  };
  for (const uint64_t budget : {3, 16, 17, 256, 334, 335}) {
    CAPTURE(budget);
    CHECK_EQ(ids_of(select(selector, queries.view().rows(0, 1), budget, Order::by_id)),
             expected(budget, tokens));

    // Two steps: one that sees few of the waiting tokens, and one that sees all. Beside the budget all that wait are chosen.
    const uint64_t visible[] = {1100, tokens}, waiting[] = {100, tokens - 1000};
    Matrix<float> of_steps(4, dims);
    for (size_t i = 0; i < 4; ++i) std::ranges::copy(queries.row(i % 2), of_steps.row(i).begin());
    for (const Share share : {Share::max, Share::mean, Share::each}) {
      SelectionRule rule;
      rule.budget = budget, rule.share = share, rule.beside = Beside::waiting;
      const Selections result = select_tokens({.selector = &selector,
                                               .keys = keys,
                                               .values = keys,
                                               .stored_keys = keys,
                                               .stored_values = keys,
                                               .queries = of_steps,
                                               .per_step = 2,
                                               .visible = visible,
                                               .waiting = waiting,
                                               .sink = 16},
                                              rule);
      for (size_t i = 0; i < result.chosen.size(); ++i) {
        const auto seen = static_cast<uint32_t>(visible[i * 2 / result.chosen.size()]);
        const auto ids = ids_in_order(result.chosen[i]),
                   kept = ranges({{0, static_cast<uint32_t>(std::min<uint64_t>(budget, 16))}, {1000, seen}});
        CHECK_EQ(ids.size(), budget + seen - 1000);
        CHECK(std::ranges::includes(ids, kept));
      }
      CHECK_EQ(result.quality.count.tokens, result.chosen.size() * budget);
      CHECK_EQ(result.quality.count.beside, result.chosen.size() / 2 * (100 + tokens - 1000));
    }
  }
  // A sink that is larger than the index, and no index yet.
  const ClusterIndex none(dims, 16);
  CHECK_EQ(ids_of(select(ClusterSelector(none, 40), queries.view().rows(0, 1), 20)),
           std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 39, 38, 37, 36});
}

TEST_CASE("cluster index: the same for any number of threads and SIMD level, and for heads apart") {
  Rng rng(73);
  const Matrix<float> keys = random_keys(500, 32, rng);
  ClusterOptions options;
  options.batch = 100;
  const uint64_t ends[] = {300, 400, 500};
  const auto expected = parts_of(make_index(keys, ends, options, 9));
  for (const int threads : {1, 3})
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      set_num_threads(threads);
      ClusterIndex indices[2] = {{32, 16}, {32, 16}};
      const ClusterTask tasks[] = {{&indices[0], keys, ends, 8}, {&indices[1], keys, ends, 3}};
      add_batches(tasks, options, 9);
      const auto parts = parts_of(indices[1]);
      CHECK_EQ(parts.ids, expected.ids);
      CHECK_EQ(parts.offsets, expected.offsets);
      CHECK(std::equal(parts.centroids.data(), parts.centroids.data() + parts.centroids.size(),
                       expected.centroids.data()));
      CHECK_NE(parts_of(indices[0]).ids, expected.ids);  // another stream, other starts
    }
  set_num_threads(0);
}

TEST_CASE("cluster index refuses parts that are no partition") {
  Rng rng(74);
  const Matrix<float> keys = random_keys(60, 4, rng);
  ClusterOptions options;
  options.clusters = 5, options.batch = 10, options.sink = 3, options.batch_clusters = 2;
  const uint64_t ends[] = {40, 50, 60};
  const auto good = parts_of(make_index(keys, ends, options));
  CHECK_NOTHROW(ClusterIndex(ClusterIndex::Parts(good)));
  const auto refused = [&](const char* why, const auto& damage) {
    auto parts = good;
    damage(parts);
    CHECK_THROWS_WITH_AS(ClusterIndex(std::move(parts)), doctest::Contains(why), Error);
  };
  refused("not of its batch", [](auto& p) { p.ids[0] = 2; });
  refused("not of its batch", [](auto& p) { p.ids[p.offsets[1] - 1] = 45; });
  refused("not of its batch", [](auto& p) { p.ids.back() = 70; });
  refused("out of order", [](auto& p) { std::swap(p.ids[0], p.ids[1]); });
  refused("twice", [](auto& p) { p.ids[p.offsets[1]] = p.ids[0]; });
  refused("none is empty", [](auto& p) { p.offsets[2] = p.offsets[1]; });
  refused("none is empty", [](auto& p) { p.offsets[1] = 1000; });
  refused("fit together", [](auto& p) { p.offsets.back() = 3; });
  refused("fit together", [](auto& p) { p.offsets.pop_back(); });
  refused("tokens in clusters", [](auto& p) { p.sink = 4; });
  refused("tokens in clusters", [](auto& p) { p.batch_ends.back() = 61; });
  refused("not before the next", [](auto& p) { p.batch_ends[1] = 40; });
  refused("no offsets of clusters", [](auto& p) { p.offsets.clear(); });
  refused("no offsets of clusters", [](auto& p) { p = {}, p.offsets.clear(); });
  refused("not a finite number",
          [](auto& p) { p.centroids(1, 1) = std::numeric_limits<float>::quiet_NaN(); });
}

TEST_CASE("cluster index: parts of a large sink take no memory for it") {
  constexpr uint64_t kEnd = UINT32_MAX;
  if (take_peak_memory() < 0) SKIP("the system does not say how much memory is held");
  const double before = take_peak_memory();
  const ClusterIndex all_sink({kEnd, {kEnd}, Matrix<float>(0, 4), {0}, {}});
  CHECK_EQ(all_sink.end(), kEnd);
  CHECK_EQ(all_sink.clusters(), 0);
  const auto last = [](std::vector<uint32_t> ids) {
    return ClusterIndex::Parts{kEnd - 3, {kEnd}, Matrix<float>(2, 4), {0, 1, 3}, std::move(ids)};
  };
  const uint32_t first = kEnd - 3;
  CHECK_EQ(ClusterIndex(last({first + 1, first, first + 2})).tokens_of(1)[1], first + 2);
  CHECK_THROWS_WITH_AS(ClusterIndex(last({first + 1, first, first + 1})), doctest::Contains("twice"), Error);
  CHECK_THROWS_WITH_AS(ClusterIndex(last({first - 1, first, first + 1})),
                       doctest::Contains("not of its batch"), Error);
  CHECK_LT(take_peak_memory(), before + 64);
}

TEST_CASE("cluster index refuses what does not fit") {
  ClusterIndex index(8, 2);
  const Matrix<float> keys(20, 8);
  const ClusterOptions options;
  const uint64_t ends[] = {20}, wrong[] = {21}, falling[] = {25, 20};
  const ClusterTask task{&index, keys, ends, 0};
  for (const ClusterTask& refused :
       {ClusterTask{&index, keys.view().columns(0, 4), ends, 0}, ClusterTask{&index, keys, wrong, 0},
        ClusterTask{&index, keys, falling, 0}})
    CHECK_THROWS_AS(add_batches({&refused, 1}, options, 0), Error);
  const auto effort = add_batches({&task, 1}, options, 0);
  CHECK_EQ(effort.runs, 1);
  CHECK_EQ(effort.converged, 1);
  CHECK_EQ(effort.max_rounds, 2);
  CHECK_THROWS_AS(add_batches({&task, 1}, options, 0), Error);
  CHECK_EQ(index.clusters(), 1);  // all keys are zero
  ClusterIndex other(8, 2);
  Matrix<float> large(20, 8);
  large(5, 3) = -1e20f;
  const ClusterTask named{&other, large, ends, 0, "document 'a', head 3"};
  CHECK_THROWS_WITH_AS(add_batches({&named, 1}, options, 0),
                       doctest::Contains("document 'a', head 3: row 5 has a norm of 1e+20"), Error);
  std::vector<float> scores(2);
  CHECK_THROWS_AS(index.centroid_scores(std::vector<float>(8), scores), Error);
  CHECK_THROWS_AS(index.add_batch(30, Clustering{}), Error);
  CHECK_THROWS_AS(ClusterSelector(index, 19), Error);
}

TEST_CASE("selection cache: what the last R steps selected is not fetched again") {
  Rng rng(75);
  for (const uint64_t steps : {0, 1, 2, 5}) {
    SelectionCache cache(steps);
    std::deque<std::set<uint32_t>> last;
    for (int step = 0; step < 200; ++step) {
      std::set<uint32_t> chosen;
      while (chosen.size() < rng.below(20)) chosen.insert(static_cast<uint32_t>(rng.below(60)));
      uint64_t fetched = 0;
      for (const uint32_t token : chosen)
        fetched += std::ranges::none_of(last, [&](const auto& set) { return set.contains(token); });
      const std::vector<uint32_t> ids(chosen.begin(), chosen.end());
      const auto use = cache.step(ids);
      CHECK_EQ(use.selected, ids.size());
      CHECK_EQ(use.fetched, fetched);
      last.push_back(std::move(chosen));
      while (last.size() > steps) last.pop_front();
    }
  }
  CHECK_EQ(SelectionCache::Use{}.hit_rate(), 0);
  CHECK_EQ((SelectionCache::Use{8, 2}).hit_rate(), 0.75);
}

}  // namespace cluster_test
