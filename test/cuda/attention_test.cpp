#include "cuda/attention/attention.hpp"

#include <cmath>
#include <vector>

#include "lib/attention/attention.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
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
        Matrix<uint16_t> half_keys(tokens, dims), half_values(tokens, dims);
        for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
          if (type != DType::f32 && tokens == 3) continue;
          Matrix<float> expected(count, dims), found(count, dims);
          const CacheRows all(keys, values);
          attend(Attention{queries, &all, expected});
          float tolerance = bound(queries, keys, values);
          if (type == DType::f32) {
            const cuda::DeviceRows device_rows(keys, values);
            cuda::attend(cuda::Attention{queries, {{&device_rows}}, found});
          } else {
            narrow(type, {keys.data(), keys.size()}, {half_keys.data(), half_keys.size()});
            narrow(type, {values.data(), values.size()}, {half_values.data(), half_values.size()});
            Matrix<float> wide_keys(tokens, dims), wide_values(tokens, dims);
            widen(type, {half_keys.data(), half_keys.size()}, {wide_keys.data(), wide_keys.size()});
            widen(type, {half_values.data(), half_values.size()}, {wide_values.data(), wide_values.size()});
            const CacheRows rows(wide_keys, wide_values);
            const cuda::DeviceRows device_rows(type, half_keys, half_values);
            attend(Attention{queries, &rows, expected});
            cuda::attend(cuda::Attention{queries, {{&device_rows}}, found});
            tolerance = bound(queries, wide_keys, wide_values);
          }
          check_near(found, expected, tolerance);
          if (type != DType::f32) continue;
          const size_t few = tokens / 2;  // none of one token
          const CacheRows rows(keys.view().rows(0, few), values.view().rows(0, few));
          const cuda::DeviceRows device_rows(keys, values);
          attend(Attention{queries, &rows, expected});
          cuda::attend(cuda::Attention{queries, {{.rows = &device_rows, .visible = few}}, found});
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
  const cuda::DeviceRows device_rows(keys, values);
  Matrix<float> expected(1, 16), found(1, 16);
  attend(Attention{queries, &rows, expected});
  cuda::attend(cuda::Attention{queries, {{&device_rows}}, found});
  for (size_t j = 0; j < 16; ++j) CHECK(std::isinf(found(0, j)) == (j == 3));
  CHECK(found(0, 3) == expected(0, 3));
}

TEST_CASE("device: attention over chosen rows, none, and those of several parts as one sequence") {
  NEEDS_DEVICE();
  const uint64_t seed = 4;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t dims : {32, 128, 20}) {
    CAPTURE(dims);
    const Matrix<float> keys = test::random_rows(rng, 430, dims), values = test::random_rows(rng, 430, dims);
    const Matrix<float> queries = test::random_rows(rng, 11, dims);
    std::vector<uint32_t> chosen, all;
    for (uint32_t t = 0; t < 400; ++t)
      if (rng.below(4) > 0) chosen.push_back(t);
    const std::vector<uint32_t> newest{29, 3};
    all = chosen;
    for (const uint32_t token : newest) all.push_back(400 + token);
    const auto later_keys = keys.view().rows(400, 30), later_values = values.view().rows(400, 30);
    const CacheRows rows(keys, values), later(later_keys, later_values);
    const cuda::DeviceRows device_rows(keys, values), device_later(later_keys, later_values);
    Matrix<float> expected(11, dims), found(11, dims), nothing(11, dims), few(2, dims), few_expected(2, dims);
    const MatrixView<const float> two = queries.view().rows(3, 2);
    attend(Attention{queries, &rows, expected, all});
    attend(Attention{two, &later, few_expected});
    for (size_t j = 0; j < dims; ++j) nothing(10, j) = 7;
    cuda::attend(
        std::vector<cuda::Attention>{{queries, {{&device_rows, chosen}, {&device_later, newest}}, found},
                                     {queries, {{&device_rows, std::span<const uint32_t>()}}, nothing},
                                     {two, {{&device_later}}, few}});
    check_near(found, expected, bound(queries, keys, values));
    check_near(few, few_expected, bound(two, later_keys, later_values));
    for (size_t q = 0; q < 11; ++q)
      for (size_t j = 0; j < dims; ++j) CHECK(nothing(q, j) == 0);
  }
}

TEST_CASE("device: attention refuses what does not fit") {
  NEEDS_DEVICE();
  const Matrix<float> keys(3, 8), queries(1, 8), other(1, 16), wide(3, 257);
  Matrix<float> out(1, 8);
  const cuda::DeviceRows rows(keys, keys);
  CHECK_THROWS_AS(cuda::DeviceRows(keys, wide), Error);
  CHECK_THROWS_AS(cuda::DeviceRows(wide, wide), Error);
  CHECK_THROWS_AS(cuda::attend(cuda::Attention{other, {{&rows}}, out}), Error);
  const std::vector<uint32_t> beyond{3};
  CHECK_THROWS_AS(cuda::attend(cuda::Attention{queries, {{&rows, beyond}}, out}), Error);
}

}  // namespace attention_test
