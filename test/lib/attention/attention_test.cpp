#include "lib/attention/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace attention_test {

using namespace kvcodec;

namespace {

/// Sizes around the width of a vector and of a slice (128), odd sizes, and more than one slice.
constexpr size_t kDims[] = {1, 8, 16, 20, 64, 80, 127, 128, 129, 200, 256};

/// Sizes around the lanes of a vector, a block (64) and a stretch (512).
constexpr size_t kTokens[] = {1, 2, 15, 17, 63, 64, 65, 511, 512, 513, 1500};

Matrix<float> gaussian(size_t rows, size_t cols, double deviation, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(deviation * rng.normal());
  return matrix;
}

/// Softmax attention in double.
Matrix<double> reference(MatrixView<const float> queries, MatrixView<const float> keys,
                         MatrixView<const float> values, std::span<const uint32_t> tokens, double scale) {
  Matrix<double> out(queries.rows(), queries.cols());
  for (size_t q = 0; q < queries.rows(); ++q) {
    std::vector<double> logits;
    for (const uint32_t token : tokens) {
      double product = 0;
      for (size_t j = 0; j < keys.cols(); ++j) product += double{queries(q, j)} * keys(token, j);
      logits.push_back(product * scale);
    }
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double weight = std::exp(logits[i] - max);
      sum += weight;
      for (size_t j = 0; j < values.cols(); ++j) out(q, j) += weight * values(tokens[i], j);
    }
    for (double& value : out.row(q)) value /= sum;
  }
  return out;
}

bool same_bits(const Matrix<float>& a, const Matrix<float>& b) {
  return std::equal(a.data(), a.data() + a.size(), b.data(), b.data() + b.size(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

std::vector<uint32_t> all_tokens(size_t count) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  return ids;
}

struct Threads {
  explicit Threads(int threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(0); }
};

}  // namespace

TEST_CASE(
    "attention: softmax in double, over all tokens and over chosen ones, at every level and thread count") {
  Rng rng(21);
  for (const size_t dims : kDims)
    for (const size_t tokens : kTokens) {
      const size_t count = 1 + rng.below(9);
      CAPTURE(dims);
      CAPTURE(tokens);
      CAPTURE(count);
      const Matrix<float> queries = gaussian(count, dims, 2, rng), keys = gaussian(tokens, dims, 1, rng),
                          values = gaussian(tokens, dims, 1, rng);
      const CacheRows rows(keys, values);
      std::vector<uint32_t> chosen = all_tokens(tokens);
      rng.shuffle(chosen);
      chosen.resize((tokens + 2) / 3);
      for (const bool sparse : {false, true}) {
        CAPTURE(sparse);
        Matrix<float> first(count, dims);
        for (const SimdLevel level : test::simd_levels())
          for (const int threads : {1, 3}) {
            const test::AtLevel at(level);
            const Threads with(threads);
            Matrix<float> out(count, dims);
            Attention head{queries, &rows, out};
            if (sparse) head.tokens = chosen;
            attend(head);
            if (level == SimdLevel::scalar && threads == 1) first = out;
            CHECK(same_bits(out, first));
          }
        const auto expected = reference(queries, keys, values, sparse ? chosen : all_tokens(tokens),
                                        1 / std::sqrt(double(dims)));
        // Logits up to about 2 * 5 sigma are off by 1e-5 at most, hence the weights; the values are within 5.
        double worst = 0;
        for (size_t i = 0; i < first.size(); ++i)
          worst = std::max(worst, std::abs(first.data()[i] - expected.data()[i]));
        CHECK_LE(worst, 5e-5);
      }
    }
}

TEST_CASE("attention: logits that are far apart, no tokens, one head of several in a cache") {
  Rng rng(23);
  // Logits of +-1e4 that change from block to block: the maximum jumps and all earlier weights vanish, nothing is NaN.
  const size_t tokens = 300, dims = 16;
  Matrix<float> keys(tokens, dims), values = gaussian(tokens, dims, 1, rng), query(1, dims), out(1, dims);
  query(0, 0) = 4;  // the root of dims
  for (size_t t = 0; t < tokens; ++t) keys(t, 0) = t / 64 % 2 ? 1e4f : -1e4f;
  keys(299, 0) = 2e4f;
  const CacheRows rows(keys, values);
  attend({query, &rows, out});
  for (size_t j = 0; j < dims; ++j) CHECK_EQ(out(0, j), values(299, j));

  out(0, 3) = 7;
  attend({query, &rows, out, std::span<const uint32_t>()});
  CHECK_EQ(std::count(out.data(), out.data() + dims, 0.0f), dims);

  const Matrix<float> all_keys = gaussian(tokens, 3 * dims, 1, rng),
                      all_values = gaussian(tokens, 3 * dims, 1, rng);
  Matrix<float> copied_keys(tokens, dims), copied_values(tokens, dims), expected(1, dims);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < dims; ++j)
      copied_keys(t, j) = all_keys(t, dims + j), copied_values(t, j) = all_values(t, dims + j);
  const CacheRows one(all_keys.view().columns(dims, dims), all_values.view().columns(dims, dims));
  const CacheRows copy(copied_keys, copied_values);
  attend({query, &one, out});
  attend({query, &copy, expected});
  CHECK(same_bits(out, expected));
}

TEST_CASE("attention: `visible` tokens of longer rows give what rows that end there give") {
  Rng rng(25);
  const size_t tokens = 800, dims = 64;
  const Matrix<float> queries = gaussian(3, dims, 2, rng), keys = gaussian(tokens, dims, 1, rng),
                      values = gaussian(tokens, dims, 1, rng);
  const CacheRows all(keys, values), first(keys.view().rows(0, 100), values.view().rows(0, 100));
  Matrix<float> out(3, dims), expected(3, dims);
  attend({.queries = queries, .rows = &all, .out = out, .visible = 100});
  attend({queries, &first, expected});
  CHECK(std::equal(out.data(), out.data() + out.size(), expected.data()));
}

TEST_CASE("dot_products: in double, the same bits at every level and thread count") {
  Rng rng(24);
  for (const size_t dims : kDims)
    for (const size_t tokens : {0, 1, 65, 1100}) {
      const Matrix<float> queries = gaussian(11, dims, 1, rng), keys = gaussian(tokens, dims, 1, rng);
      Matrix<float> first(11, tokens);
      for (const SimdLevel level : test::simd_levels())
        for (const int threads : {1, 3}) {
          const test::AtLevel at(level);
          const Threads with(threads);
          Matrix<float> out(11, tokens);
          dot_products(queries, keys, out);
          if (level == SimdLevel::scalar && threads == 1) first = out;
          CHECK(same_bits(out, first));
        }
      // Some tokens have equal keys.
      std::vector<uint32_t> some;
      for (size_t t = 0; t < tokens; t += 1 + t % 5) some.push_back(static_cast<uint32_t>(t));
      Matrix<float> of_some(11, some.size());
      dot_products(queries, keys, some, of_some);
      for (size_t q = 0; q < 11; ++q)
        for (size_t i = 0; i < some.size(); ++i) CHECK_EQ(of_some(q, i), first(q, some[i]));
      for (size_t q = 0; q < 11; ++q)
        for (size_t t = 0; t < tokens; ++t) {
          double product = 0, magnitude = 0;
          for (size_t j = 0; j < dims; ++j) {
            product += double{queries(q, j)} * keys(t, j);
            magnitude += std::abs(double{queries(q, j)} * keys(t, j));
          }
          CHECK_LE(std::abs(first(q, t) - product), magnitude * (double(dims) / 16 + 5) * 0x1p-24);
        }
    }
}

TEST_CASE("attention: scores that are capped, beside sinks, and values of another width, in double") {
  Rng rng(24);
  const size_t dims = 20, value_dims = 37, count = 3;
  for (const size_t tokens : {1, 64, 700}) {
    const Matrix<float> queries = gaussian(count, dims, 2, rng), keys = gaussian(tokens, dims, 1, rng),
                        values = gaussian(tokens, value_dims, 1, rng);
    const float sinks[] = {-3, 0.5f, 9};
    const CacheRows rows(keys, values);
    Matrix<float> out(count, value_dims), first = out;
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      attend(Attention{.queries = queries, .rows = &rows, .out = out, .form = {.cap = 2.5f, .sinks = sinks}});
      if (level == SimdLevel::scalar) first = out;
    }
    for (size_t q = 0; q < count; ++q) {
      std::vector<double> sums(value_dims);
      double all = std::exp(double(sinks[q]));
      for (size_t t = 0; t < tokens; ++t) {
        double product = 0;
        for (size_t j = 0; j < dims; ++j) product += double{queries(q, j)} * keys(t, j);
        const double weight = std::exp(2.5 * std::tanh(product / std::sqrt(double(dims)) / 2.5));
        all += weight;
        for (size_t j = 0; j < value_dims; ++j) sums[j] += weight * values(t, j);
      }
      for (size_t j = 0; j < value_dims; ++j) {
        CHECK(std::abs(double{out(q, j)} - sums[j] / all) <= 1e-5);
        CHECK(std::abs(out(q, j) - first(q, j)) <= 1e-5f);
      }
    }
    const std::vector<uint32_t> none;
    attend(
        Attention{.queries = queries, .rows = &rows, .out = out, .tokens = none, .form = {.sinks = sinks}});
    for (size_t i = 0; i < out.size(); ++i) CHECK_EQ(out.data()[i], 0);
    CHECK_THROWS_AS(
        attend(Attention{
            .queries = queries, .rows = &rows, .out = out, .form = {.sinks = std::span(sinks).first(2)}}),
        Error);
  }
}

TEST_CASE("attention refuses what does not fit") {
  Matrix<float> keys(5, 8), values(5, 8), wide(5, 9), query(2, 8), out(2, 8), other(1, 8);
  CHECK_THROWS_AS(CacheRows(keys, other), Error);
  const CacheRows wide_values(keys, wide);
  CHECK_THROWS_AS(attend({query, &wide_values, out}), Error);
  const CacheRows rows(keys, values);
  CHECK_THROWS_AS(attend({query, &rows, other}), Error);
  CHECK_THROWS_AS(attend({wide, &rows, wide}), Error);
  const uint32_t beyond[] = {1, 5};
  CHECK_THROWS_WITH_AS(attend({query, &rows, out, beyond}), doctest::Contains("token 5 of 5"), Error);
  CHECK_THROWS_AS(dot_products(query, keys, out), Error);
  Matrix<float> two(2, 2);
  CHECK_THROWS_AS(dot_products(query, keys, beyond, two), Error);
  CHECK_THROWS_AS(dot_products(query, keys, std::span(beyond).first(1), two), Error);
}

}  // namespace attention_test
