#include "lib/linalg/topk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace topk_test {

using namespace kvcodec;

namespace {

/// All of them, the largest first.
std::vector<Scored> sorted_by_score(std::span<const float> scores) {
  std::vector<Scored> all;
  for (size_t i = 0; i < scores.size(); ++i) all.push_back({scores[i], static_cast<uint32_t>(i)});
  std::stable_sort(all.begin(), all.end(),
                   [](const Scored& a, const Scored& b) { return a.score > b.score; });
  return all;
}

enum class Kind { normal, rising, falling, few_values, constant, extreme };

std::vector<float> make_scores(size_t n, Kind kind, Rng& rng) {
  std::vector<float> scores(n);
  for (size_t i = 0; i < n; ++i) switch (kind) {
      case Kind::normal:
        scores[i] = static_cast<float>(rng.normal());
        break;
      case Kind::rising:
        scores[i] = static_cast<float>(i) - 100;
        break;
      case Kind::falling:
        scores[i] = 100 - static_cast<float>(i);
        break;
      case Kind::few_values:
        scores[i] = static_cast<float>(rng.below(5)) - 2;
        break;
      case Kind::constant:
        scores[i] = rng.below(2) ? 0.0f : -0.0f;
        break;  // the two zeros are equal
      case Kind::extreme:
        scores[i] = std::ldexp(static_cast<float>(rng.normal()), static_cast<int>(rng.below(250)) - 125);
        if (rng.below(20) == 0) scores[i] = std::copysign(std::numeric_limits<float>::infinity(), scores[i]);
        break;
    }
  return scores;
}

constexpr Kind kKinds[] = {Kind::normal,     Kind::rising,   Kind::falling,
                           Kind::few_values, Kind::constant, Kind::extreme};

}  // namespace

TEST_CASE("top_k: what sorting gives, ties by the lower id, at every level") {
  Rng rng(3);
  for (const Kind kind : kKinds)
    for (const size_t n : {0, 1, 2, 15, 16, 17, 100, 255, 256, 257, 1024, 1025, 4099, 20011}) {
      const std::vector<float> scores = make_scores(n, kind, rng);
      const std::vector<Scored> sorted = sorted_by_score(scores);
      for (const size_t k :
           {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{100}, size_t{513}, n, n + 1}) {
        CAPTURE(int(kind));
        CAPTURE(n);
        CAPTURE(k);
        const std::vector<Scored> expected(sorted.begin(),
                                           sorted.begin() + static_cast<ptrdiff_t>(std::min(k, n)));
        std::vector<Scored> by_id = expected;
        std::sort(by_id.begin(), by_id.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
        for (const SimdLevel level : test::simd_levels()) {
          const test::AtLevel at(level);
          CAPTURE(name_of(level));
          CHECK((top_k(scores, k) == expected));
          CHECK((top_k(scores, k, Order::by_id) == by_id));
        }
      }
    }
}

TEST_CASE("ordered_key: the order of the floats") {
  const float values[] = {-std::numeric_limits<float>::infinity(), -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 3e38f,
                          std::numeric_limits<float>::infinity()};
  for (size_t i = 0; i + 1 < std::size(values); ++i)
    CHECK_LT(ordered_key(values[i]), ordered_key(values[i + 1]));
  CHECK_EQ(ordered_key(-0.0f), ordered_key(0.0f));
}

TEST_CASE("rank: larger first, of equal ones the lower id, from any order") {
  Rng rng(6);
  for (const size_t n : {0, 1, 2, 100, 512, 513, 2000}) {
    std::vector<Scored> items(n);
    for (size_t i = 0; i < n; ++i) items[i] = {static_cast<float>(rng.below(20)), static_cast<uint32_t>(i)};
    rng.shuffle(items);
    std::vector<Scored> expected = items;
    std::sort(expected.begin(), expected.end(), [](const Scored& a, const Scored& b) {
      return a.score != b.score ? a.score > b.score : a.id < b.id;
    });
    std::vector<Scored> by_id = items;
    std::sort(by_id.begin(), by_id.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
    rank(items);
    CHECK((items == expected));
    for (const size_t k : {size_t{0}, size_t{1}, n / 3, n, n + 1}) {
      std::vector<Scored> kept = by_id, unranked = by_id;
      keep_top(kept, k);
      CHECK((kept == std::vector<Scored>(expected.begin(),
                                         expected.begin() + static_cast<std::ptrdiff_t>(std::min(k, n)))));
      keep_top(unranked, k, Order::by_id);
      std::sort(kept.begin(), kept.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
      CHECK((unranked == kept));
    }
  }
}

}  // namespace topk_test
