#include "lib/linalg/nearest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace nearest_test {

using namespace kvcodec;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// The score by the definition in nearest.hpp.
float score_of(std::span<const float> row, std::span<const float> entry, float bias) {
  float lanes[16] = {};
  for (size_t j = 0; j < row.size(); ++j) {
    const float product = row[j] * entry[j];
    lanes[j % 16] = lanes[j % 16] + product;
  }
  for (size_t half = 8; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0] + bias;
}

using Match = ProductSearch::Match;

/// The result by scoring and sorting all pairs.
std::vector<Match> naive_best(MatrixView<const float> rows, std::span<const float> offsets,
                              MatrixView<const float> entries, std::span<const float> bias, size_t width) {
  std::vector<Match> all;
  for (size_t r = 0; r < rows.rows(); ++r)
    for (size_t e = 0; e < entries.rows(); ++e) {
      const float score = score_of(rows.row(r), entries.row(e), bias.empty() ? 0.0f : bias[e]) +
                          (offsets.empty() ? 0.0f : offsets[r]);
      if (score > kNone) all.push_back({score, static_cast<uint32_t>(r), static_cast<uint32_t>(e)});
    }
  std::ranges::stable_sort(all, [](const Match& a, const Match& b) { return a.score > b.score; });
  all.resize(width, Match{kNone, 0, 0});
  return all;
}

enum class Kind {
  normal,
  few_values,
  same,
  far_from_zero,
  loud_channels,
  one_loud_channel,  // in bytes the others are nearly nothing
  signs,             // each row beside its opposite: no mean, and bytes say exactly what they are
  tiny,
  beyond_float
};
constexpr Kind kKinds[] = {Kind::normal,        Kind::few_values,    Kind::same,
                           Kind::far_from_zero, Kind::loud_channels, Kind::one_loud_channel,
                           Kind::signs,         Kind::tiny,          Kind::beyond_float};

Matrix<float> make(size_t n, size_t d, Kind kind, Rng& rng) {
  Matrix<float> out(n, d);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < d; ++j) switch (kind) {
        case Kind::normal:
          out(i, j) = static_cast<float>(rng.normal());
          break;
        case Kind::few_values:
          out(i, j) = static_cast<float>(rng.below(3)) - 1;
          break;
        case Kind::same:
          out(i, j) = 0.37f;
          break;
        case Kind::far_from_zero:
          out(i, j) = static_cast<float>(1000 + rng.normal());
          break;
        case Kind::loud_channels:
          out(i, j) = static_cast<float>(rng.normal() * (j % 7 == 3 ? 300 : 1));
          break;
        case Kind::one_loud_channel:
          out(i, j) = static_cast<float>(rng.normal() * (j == 0 ? 300 : 1));
          break;
        case Kind::signs:
          out(i, j) = i % 2 == 1 ? -out(i - 1, j) : static_cast<float>(rng.below(2) * 2) - 1;
          break;
        case Kind::tiny:
          out(i, j) = static_cast<float>(rng.normal() * 1e-20);
          break;
        case Kind::beyond_float:
          out(i, j) = static_cast<float>(rng.normal() * (rng.below(9) == 0 ? 1e25 : 1));
          break;
      }
  return out;
}

/// The distribution of entries for rows of `kind`: the same, or any. Bounds of rows and of entries can be distinguished by data in
/// which one of them is large and the other is not.
Kind kind_or_other(Kind kind, Rng& rng) {
  return rng.below(2) == 0 ? kind : kKinds[rng.below(std::size(kKinds))];
}

}  // namespace

TEST_CASE("nearest entries: the highest score, ties by the lowest id, the same bits at every level") {
  Rng rng(11);
  for (const Kind kind : kKinds)
    for (const size_t d : {1, 3, 15, 16, 17, 64, 80, 128, 131})
      for (const size_t k : {1, 2, 15, 16, 63, 64, 65, 200, 256, 257, 700}) {
        const size_t n = std::vector<size_t>{0, 1, 5, 6, 7, 13, 40}[rng.below(7)];
        CAPTURE(int(kind));
        CAPTURE(d);
        CAPTURE(k);
        CAPTURE(n);
        const Matrix<float> rows = make(n, d, kind, rng), entries = make(k, d, kind_or_other(kind, rng), rng);
        std::vector<float> bias;
        if (rng.below(3) > 0) bias = nearest_bias(entries);
        std::vector<uint32_t> expected_ids(n);
        std::vector<float> expected_scores(n);
        for (size_t i = 0; i < n; ++i) {
          const Match match = naive_best(rows.view().rows(i, 1), {}, entries, bias, 1)[0];
          expected_ids[i] = match.id, expected_scores[i] = match.score;
        }
        for (const SimdLevel level : test::simd_levels()) {
          const test::AtLevel at(level);
          CAPTURE(name_of(level));
          std::vector<uint32_t> ids(n), without_scores(n);
          std::vector<float> scores(n);
          const ProductSearch search(entries, bias);
          search.best(rows, ids, scores);
          CHECK((ids == expected_ids));
          CHECK((scores == expected_scores));
          search.best(rows, without_scores, {});
          CHECK((without_scores == ids));
        }
      }
}

TEST_CASE("best_of_groups: the best pairs of row and entry, with offsets, at every level (long)") {
  Rng rng(12);
  for (const Kind kind : kKinds)
    for (const size_t d : {1, 17, 80, 128})
      for (const size_t group : {1, 2, 5, 100})
        for (const size_t width : {1, 2, 5, 16, 70}) {
          const size_t k = std::vector<size_t>{1, 3, 64, 256, 300, 1000}[rng.below(test::kSanitized ? 3 : 6)];
          const size_t groups = group == 100 ? 2 : 9;
          CAPTURE(int(kind));
          CAPTURE(d);
          CAPTURE(k);
          CAPTURE(group);
          CAPTURE(width);
          const Matrix<float> rows = make(groups * group, d, kind, rng);
          const Matrix<float> entries = make(k, d, kind_or_other(kind, rng), rng);
          const std::vector<float> bias = nearest_bias(entries);
          std::vector<float> offsets(rng.below(4) > 0 ? rows.rows() : 0);
          for (size_t i = 0; i < offsets.size(); ++i)
            offsets[i] = rng.below(5) == 0 ? kNone : static_cast<float>(rng.normal());
          std::vector<std::vector<Match>> expected;
          for (size_t g = 0; g < groups; ++g)
            expected.push_back(naive_best(rows.view().rows(g * group, group),
                                          offsets.empty()
                                              ? std::span<const float>()
                                              : std::span<const float>(offsets).subspan(g * group, group),
                                          entries, bias, width));
          for (const SimdLevel level : test::simd_levels()) {
            const test::AtLevel at(level);
            CAPTURE(name_of(level));
            Matrix<Match> out(groups, width);
            ProductSearch::Scratch scratch;
            ProductSearch(entries, bias).best_of_groups(rows, offsets, group, out, scratch);
            for (size_t g = 0; g < groups; ++g) CHECK(std::ranges::equal(out.row(g), expected[g]));
          }
        }
}

TEST_CASE("nearest entries: rows and entries of any two kinds, at every level") {
  Rng rng(15);
  for (const Kind of_rows : kKinds)
    for (const Kind of_entries : kKinds)
      for (const size_t d : {16, 80}) {
        const size_t n = 40, k = 200;
        CAPTURE(int(of_rows));
        CAPTURE(int(of_entries));
        CAPTURE(d);
        const Matrix<float> rows = make(n, d, of_rows, rng), entries = make(k, d, of_entries, rng);
        std::vector<uint32_t> expected(n);
        for (size_t i = 0; i < n; ++i)
          expected[i] = naive_best(rows.view().rows(i, 1), {}, entries, {}, 1)[0].id;
        for (const SimdLevel level : test::simd_levels()) {
          const test::AtLevel at(level);
          CAPTURE(name_of(level));
          std::vector<uint32_t> ids(n);
          ProductSearch(entries, {}).best(rows, ids, {});
          CHECK((ids == expected));
        }
      }
}

TEST_CASE("products: the sums of the definition at every level, of entries with a stride") {
  Rng rng(16);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (const size_t d : {0, 1, 15, 16, 17, 80, 128, 131})
      for (const size_t k : {0, 1, 7, 90}) {
        const Matrix<float> row = make(1, d, Kind::normal, rng), wide = make(k, d + 3, Kind::normal, rng);
        const MatrixView<const float> entries = wide.view().columns(2, d);
        std::vector<float> out(k), expected(k);
        products(row.view().row(0), entries, out);
        for (size_t e = 0; e < k; ++e) expected[e] = score_of(row.view().row(0), entries.row(e), 0);
        CHECK((out == expected));
        CHECK_THROWS_AS(products(row.view().row(0), wide, out), Error);
        std::vector<float> longer(k + 1);
        CHECK_THROWS_AS(products(row.view().row(0), entries, longer), Error);
      }
  }
}

TEST_CASE("nearest entries: rows with a stride, any number of threads, many blocks of entries") {
  Rng rng(13);
  const Matrix<float> wide = make(3000, 96, Kind::normal, rng), entries = make(1500, 48, Kind::normal, rng);
  const std::vector<float> bias = nearest_bias(entries);
  const MatrixView<const float> rows = wide.view().columns(32, 48);
  std::vector<std::vector<uint32_t>> found;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    found.emplace_back(rows.rows());
    ProductSearch(entries, bias).best(rows, found.back(), {});
  }
  set_num_threads(0);
  CHECK((found[0] == found[1]));
  CHECK((found[0] == found[2]));
  for (size_t i = 0; i < rows.rows(); i += 37)
    CHECK_EQ(found[0][i], naive_best(rows.rows(i, 1), {}, entries, bias, 1)[0].id);
}

TEST_CASE("nearest entries: no entry, other shapes, entries made ready at another level") {
  Matrix<float> rows(4, 3), entries(2, 3), none(0, 3), other(2, 4);
  std::vector<uint32_t> ids(4), few(3);
  std::vector<float> bias(1);
  CHECK_THROWS_AS(ProductSearch(none, {}), Error);
  CHECK_THROWS_AS(ProductSearch(other, {}).best(rows, ids, {}), Error);
  CHECK_THROWS_AS(ProductSearch(entries, {}).best(rows, few, {}), Error);
  CHECK_THROWS_AS(ProductSearch(entries, bias), Error);
  Matrix<ProductSearch::Match> out(4, 1);
  const ProductSearch ready(entries, {});
  ProductSearch::Scratch scratch;
  CHECK_THROWS_AS(ready.best_of_groups(rows, {}, 3, out, scratch), Error);
  // Shapes are checked even if there is nothing to search.
  const Matrix<float> no_rows(0, 3), no_others(0, 4);
  CHECK_THROWS_AS(ready.best_of_groups(no_rows, {}, 1, out, scratch), Error);
  CHECK_THROWS_AS(ready.best_of_groups(no_others, {}, 1, out.view().rows(0, 0), scratch), Error);
  CHECK_THROWS_AS(ready.best_of_groups(no_rows, {}, 0, out.view().rows(0, 0), scratch), Error);
  CHECK_THROWS_AS(ready.best(no_others, {}, {}), Error);
  CHECK_NOTHROW(ready.best_of_groups(no_rows, {}, 3, out.view().rows(0, 0), scratch));
  CHECK_NOTHROW(ready.best(no_rows, {}, {}));

  Rng rng(14);
  const Matrix<float> many = make(50, 40, Kind::normal, rng), centers = make(90, 40, Kind::normal, rng);
  std::vector<uint32_t> expected(50), lowered(50);
  const ProductSearch search(centers, nearest_bias(centers));
  search.best(many, expected, {});
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    search.best(many, lowered, {});
    CHECK((lowered == expected));
  }
}

}  // namespace nearest_test
