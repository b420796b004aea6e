#include "cuda/attention/attention.hpp"

#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace attention_test {

using namespace kvcodec;

namespace {

/// How far attention by floats may be off: a logit by dims + 4 roundings of the size of its terms, in either
/// implementation; a weight by that, relatively, and so the mean of the values; and the sums over the tokens
/// by their own roundings, with weights that exp gives to 4 units.
float bound(MatrixView<const float> queries, MatrixView<const float> keys, MatrixView<const float> values) {
  double logit = 0, largest = 0;
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t t = 0; t < keys.rows(); ++t) {
      double terms = 0;
      for (size_t j = 0; j < keys.cols(); ++j) terms += std::abs(double{queries(q, j)} * double{keys(t, j)});
      logit = std::max(logit, terms);
    }
  for (size_t t = 0; t < values.rows(); ++t)
    for (const float value : values.row(t)) largest = std::max(largest, std::abs(double{value}));
  const double dims = static_cast<double>(keys.cols()), tokens = static_cast<double>(keys.rows());
  const double of_weights = 2 * (dims + 4) * logit / std::sqrt(dims) + 8;
  return static_cast<float>(2 * (of_weights + tokens) * 0x1p-24 * largest);
}

void check_near(const Matrix<float>& found, const Matrix<float>& expected, float tolerance) {
  for (size_t i = 0; i < found.rows(); ++i)
    for (size_t j = 0; j < found.cols(); ++j)
      CHECK_MESSAGE(std::abs(found(i, j) - expected(i, j)) <= tolerance, "row ", i, " dimension ", j, ": ",
                    found(i, j), " for ", expected(i, j));
}

void device_attend(const std::vector<Attention>& heads) { cuda::attend(heads); }

}  // namespace

TEST_CASE("device: attention over rows of floats") {
  NEEDS_DEVICE();
  const uint64_t seed = 3;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t dims : {4, 50, 64, 128, 200})
    for (const size_t tokens : {1, 3, 256, 300})
      for (const size_t count : {1, 3}) {
        CAPTURE(dims);
        CAPTURE(tokens);
        CAPTURE(count);
        const Matrix<float> queries = test::random_rows(rng, count, dims);
        const Matrix<float> keys = test::random_rows(rng, tokens, dims),
                            values = test::random_rows(rng, tokens, dims);
        Matrix<float> expected(count, dims), found(count, dims);
        const CacheRows rows(keys, values);
        for (const uint64_t visible : {UINT64_MAX, uint64_t{tokens / 2}}) {  // none of one token
          attend(Attention{queries, &rows, expected, std::nullopt, visible});
          device_attend({{queries, &rows, found, std::nullopt, visible}});
          check_near(found, expected, bound(queries, keys, values));
        }
      }
}

TEST_CASE("device: an infinite value stays one where parts of a head are added up") {
  NEEDS_DEVICE();
  Rng rng(4);
  const Matrix<float> queries = test::random_rows(rng, 1, 16), keys = test::random_rows(rng, 700, 16);
  Matrix<float> values = test::random_rows(rng, 700, 16);
  values(5, 3) = INFINITY;
  const CacheRows rows(keys, values);
  Matrix<float> expected(1, 16), found(1, 16);
  attend(Attention{queries, &rows, expected});
  device_attend({{queries, &rows, found}});
  for (size_t j = 0; j < 16; ++j) CHECK(std::isinf(found(0, j)) == (j == 3));
  CHECK(found(0, 3) == expected(0, 3));
}

TEST_CASE("device: attention over chosen rows, and none, of several heads at once") {
  NEEDS_DEVICE();
  const uint64_t seed = 4;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t dims : {32, 128, 20}) {
    CAPTURE(dims);
    const Matrix<float> keys = test::random_rows(rng, 430, dims), values = test::random_rows(rng, 430, dims);
    const Matrix<float> queries = test::random_rows(rng, 11, dims);
    std::vector<uint32_t> chosen;
    for (uint32_t t = 0; t < 400; ++t)
      if (rng.below(4) > 0) chosen.push_back(t);
    chosen.insert(chosen.end(), {429, 403});
    const auto later_keys = keys.view().rows(400, 30), later_values = values.view().rows(400, 30);
    const CacheRows rows(keys, values), later(later_keys, later_values);
    Matrix<float> expected(11, dims), found(11, dims), nothing(11, dims), few(2, dims), few_expected(2, dims);
    const MatrixView<const float> two = queries.view().rows(3, 2);
    attend(Attention{queries, &rows, expected, chosen});
    attend(Attention{two, &later, few_expected});
    for (size_t j = 0; j < dims; ++j) nothing(10, j) = 7;
    device_attend({{queries, &rows, found, chosen},
                   {queries, &rows, nothing, std::span<const uint32_t>()},
                   {two, &later, few}});
    check_near(found, expected, bound(queries, keys, values));
    check_near(few, few_expected, bound(two, later_keys, later_values));
    for (size_t q = 0; q < 11; ++q)
      for (size_t j = 0; j < dims; ++j) CHECK(nothing(q, j) == 0);
  }
}

TEST_CASE("device: attention refuses what does not fit") {
  NEEDS_DEVICE();
  const Matrix<float> keys(3, 8), queries(1, 8), other(1, 16), wide(3, 257);
  Matrix<float> out(1, 8), wide_out(3, 257);
  const CacheRows rows(keys, keys), wide_rows(wide, wide);
  CHECK_THROWS_AS(device_attend({{wide, &wide_rows, wide_out}}), Error);
  CHECK_THROWS_AS(device_attend({{other, &rows, out}}), Error);
  const std::vector<uint32_t> beyond{3};
  CHECK_THROWS_AS(device_attend({{queries, &rows, out, beyond}}), Error);
}

}  // namespace attention_test
