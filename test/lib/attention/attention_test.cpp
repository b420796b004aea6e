#include "lib/attention/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/selfindex/sign_codes.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

using namespace kvcodec;

namespace {

/// Around the width of a vector and of a slice (128), odd ones, more than one slice.
constexpr size_t kDims[] = {1, 8, 16, 20, 64, 80, 127, 128, 129, 200, 256};

/// Around the lanes, a block (64), a stretch (512).
constexpr size_t kTokens[] = {1, 2, 15, 17, 63, 64, 65, 511, 512, 513, 1500};

Matrix<float> gaussian(size_t rows, size_t cols, double loudness, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(loudness * rng.normal());
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

/// Rows that must be decoded: kept as their negatives.
class CodedRows final : public RowSource {
 public:
  CodedRows(MatrixView<const float> keys, MatrixView<const float> values) : rows_(keys, values) {}
  size_t tokens() const override { return rows_.tokens(); }
  size_t dims() const override { return rows_.dims(); }
  void gather(std::span<const uint32_t> ids, MatrixView<float> keys,
              MatrixView<float> values) const override {
    rows_.gather(ids, keys, values);
    for (size_t i = 0; i < ids.size(); ++i)
      for (size_t j = 0; j < dims(); ++j) keys(i, j) = -keys(i, j), values(i, j) = -values(i, j);
  }

 private:
  CacheRows rows_;
};

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
            Attention head{queries, {{&rows}}, out, 0};
            if (sparse) head.parts[0].tokens = chosen;
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

TEST_CASE("attention: 16-bit rows and decoded rows give what the same rows in floats give") {
  Rng rng(22);
  for (const DType type : {DType::f16, DType::bf16})
    for (const size_t dims : {7, 64, 128, 130}) {
      const size_t tokens = 700, count = 3;
      const Matrix<float> queries = gaussian(count, dims, 2, rng);
      Matrix<float> keys = gaussian(tokens, dims, 1, rng), values = gaussian(tokens, dims, 1, rng);
      Matrix<uint16_t> short_keys(tokens, dims), short_values(tokens, dims);
      narrow(type, {keys.data(), keys.size()}, {short_keys.data(), keys.size()});
      narrow(type, {values.data(), values.size()}, {short_values.data(), keys.size()});
      widen(type, {short_keys.data(), keys.size()}, {keys.data(), keys.size()});
      widen(type, {short_values.data(), keys.size()}, {values.data(), keys.size()});
      Matrix<float> negative_keys = keys, negative_values = values;
      for (size_t i = 0; i < keys.size(); ++i) negative_keys.data()[i] *= -1, negative_values.data()[i] *= -1;
      const CacheRows floats(keys, values), halves(type, short_keys, short_values);
      const CodedRows coded(negative_keys, negative_values);
      std::vector<uint32_t> chosen = all_tokens(tokens);
      rng.shuffle(chosen);
      chosen.resize(90);
      for (const SimdLevel level : test::simd_levels())
        for (const bool sparse : {false, true}) {
          const test::AtLevel at(level);
          Matrix<float> expected(count, dims), from_halves(count, dims), from_coded(count, dims);
          std::vector<Attention> heads = {{queries, {{&floats}}, expected, 0.3f},
                                          {queries, {{&halves}}, from_halves, 0.3f},
                                          {queries, {{&coded}}, from_coded, 0.3f}};
          if (sparse)
            for (Attention& head : heads) head.parts[0].tokens = chosen;
          attend(heads);
          CHECK(same_bits(from_halves, expected));
          CHECK(same_bits(from_coded, expected));
        }
    }
}

TEST_CASE("attention: far apart logits, no tokens, one head of several in a cache") {
  Rng rng(23);
  // Logits of +-1e4 in turns of blocks: the maximum jumps and all earlier weights vanish, nothing is NaN.
  const size_t tokens = 300, dims = 16;
  Matrix<float> keys(tokens, dims), values = gaussian(tokens, dims, 1, rng), query(1, dims), out(1, dims);
  query(0, 0) = 1;
  for (size_t t = 0; t < tokens; ++t) keys(t, 0) = t / 64 % 2 ? 1e4f : -1e4f;
  keys(299, 0) = 2e4f;
  const CacheRows rows(keys, values);
  attend({query, {{&rows}}, out, 1});
  for (size_t j = 0; j < dims; ++j) CHECK_EQ(out(0, j), values(299, j));

  out(0, 3) = 7;
  attend({query, {{&rows, std::span<const uint32_t>()}}, out, 1});
  CHECK_EQ(std::count(out.data(), out.data() + dims, 0.0f), dims);

  const Matrix<float> all_keys = gaussian(tokens, 3 * dims, 1, rng),
                      all_values = gaussian(tokens, 3 * dims, 1, rng);
  Matrix<float> copied_keys(tokens, dims), copied_values(tokens, dims), expected(1, dims);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < dims; ++j)
      copied_keys(t, j) = all_keys(t, dims + j), copied_values(t, j) = all_values(t, dims + j);
  const CacheRows one(all_keys.view().columns(dims, dims), all_values.view().columns(dims, dims));
  const CacheRows copy(copied_keys, copied_values);
  attend({query, {{&one}}, out, 0});
  attend({query, {{&copy}}, expected, 0});
  CHECK(same_bits(out, expected));
}

TEST_CASE("attention: several parts are one sequence") {
  Rng rng(25);
  const size_t tokens = 800, dims = 64;
  const Matrix<float> queries = gaussian(3, dims, 2, rng), keys = gaussian(tokens, dims, 1, rng),
                      values = gaussian(tokens, dims, 1, rng);
  const CacheRows all(keys, values);
  const CacheRows first(keys.view().rows(0, 100), values.view().rows(0, 100)),
      rest(keys.view().rows(100, 700), values.view().rows(100, 700));
  std::vector<uint32_t> chosen = {3, 77, 250, 699}, all_of_them = all_tokens(100);
  for (const uint32_t id : chosen) all_of_them.push_back(100 + id);
  Matrix<float> out(3, dims), expected(3, dims);
  attend({queries, {{&first}, {&rest, chosen}, {&rest, std::span<const uint32_t>()}}, out});
  attend({queries, {{&all, all_of_them}}, expected});
  for (size_t i = 0; i < out.size(); ++i) CHECK_LE(std::abs(out.data()[i] - expected.data()[i]), 2e-6);
  // The first tokens of the rows are what rows that end there are.
  attend({queries, {{.rows = &all, .visible = 100}}, out});
  attend({queries, {{&first}}, expected});
  CHECK(std::equal(out.data(), out.data() + out.size(), expected.data()));
}

TEST_CASE("attention straight from signs and 2-bit levels is attention over the decoded rows") {
  Rng rng(26);
  for (const size_t dims : {20, 32, 64, 96, 128, 160, 288}) {
    const size_t tokens = 600, count = 1 + rng.below(9);
    CAPTURE(dims);
    CAPTURE(count);
    Matrix<float> keys = gaussian(tokens, dims, 1, rng), queries = gaussian(count, dims, 1, rng);
    const Matrix<float> values = gaussian(tokens, dims, 1, rng);
    Matrix<uint8_t> signs(tokens, (dims + 7) / 8);
    encode_signs(keys, 1, signs);
    std::vector<float> alpha(dims), center(dims);
    for (size_t j = 0; j < dims; ++j)
      alpha[j] = static_cast<float>(rng.uniform(0.5, 2)), center[j] = static_cast<float>(rng.normal());
    for (size_t i = 0; i < keys.size(); ++i) keys.data()[i] = std::abs(keys.data()[i]) / alpha[i % dims];
    Matrix<uint8_t> levels[2] = {{tokens, two_bit_row_bytes(dims)}, {tokens, two_bit_row_bytes(dims)}};
    Matrix<uint16_t> scales[2] = {{tokens, two_bit_groups(dims)}, {tokens, two_bit_groups(dims)}},
                     zeros[2] = {scales[0], scales[1]};
    quantize_two_bit(keys, {levels[0], scales[0], zeros[0]});
    quantize_two_bit(values, {levels[1], scales[1], zeros[1]});
    const TwoBitCache cache{MatrixView<const uint8_t>(signs),
                            {MatrixView<const uint8_t>(levels[0]), MatrixView<const uint16_t>(scales[0]),
                             MatrixView<const uint16_t>(zeros[0])},
                            {MatrixView<const uint8_t>(levels[1]), MatrixView<const uint16_t>(scales[1]),
                             MatrixView<const uint16_t>(zeros[1])},
                            alpha,
                            center};
    const TwoBitRowSource coded(cache);
    Matrix<float> decoded_keys(tokens, dims), decoded_values(tokens, dims);
    coded.gather(all_tokens(tokens), decoded_keys, decoded_values);
    const CacheRows decoded(decoded_keys, decoded_values);
    std::vector<uint32_t> chosen = all_tokens(tokens);
    rng.shuffle(chosen);
    chosen.resize(130);
    Matrix<float> expected(count, dims), expected_products(count, tokens);
    attend({queries, {{&decoded, chosen}}, expected});
    dot_products(queries, decoded, expected_products);
    Matrix<float> first(count, dims), first_products(count, tokens);
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CAPTURE(name_of(level));
      Matrix<float> out(count, dims), products(count, tokens);
      attend({queries, {{&coded, chosen}}, out});
      dot_products(queries, coded, products);
      if (level == SimdLevel::scalar) first = out, first_products = products;
      CHECK(same_bits(out, first));
      CHECK(same_bits(products, first_products));
    }
    // Products of up to dims terms of about 1; where dims are no whole groups, rows are gathered: the same
    // bits.
    for (size_t i = 0; i < first_products.size(); ++i)
      CHECK_LE(std::abs(first_products.data()[i] - expected_products.data()[i]),
               dims % 32 ? 0.0 : double(dims) * 2e-6);
    for (size_t i = 0; i < first.size(); ++i)
      CHECK_LE(std::abs(first.data()[i] - expected.data()[i]), dims % 32 ? 0.0 : 2e-4);
  }
}

TEST_CASE("dot_products: in double, the same bits at every level and thread count") {
  Rng rng(24);
  for (const size_t dims : kDims)
    for (const size_t tokens : {0, 1, 65, 1100}) {
      const Matrix<float> queries = gaussian(11, dims, 1, rng), keys = gaussian(tokens, dims, 1, rng);
      const CacheRows rows(keys, keys);
      Matrix<float> first(11, tokens);
      for (const SimdLevel level : test::simd_levels())
        for (const int threads : {1, 3}) {
          const test::AtLevel at(level);
          const Threads with(threads);
          Matrix<float> out(11, tokens);
          dot_products(queries, rows, out);
          if (level == SimdLevel::scalar && threads == 1) first = out;
          CHECK(same_bits(out, first));
        }
      // Those of some tokens are the same.
      std::vector<uint32_t> some;
      for (size_t t = 0; t < tokens; t += 1 + t % 5) some.push_back(static_cast<uint32_t>(t));
      Matrix<float> of_some(11, some.size());
      dot_products(queries, rows, some, of_some);
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

TEST_CASE("attention refuses what does not fit") {
  Matrix<float> keys(5, 8), values(5, 8), wide(5, 9), query(2, 8), out(2, 8), other(1, 8);
  CHECK_THROWS_AS(CacheRows(keys, wide), Error);
  Matrix<uint16_t> bits(5, 8);
  CHECK_THROWS_AS(CacheRows(DType::f32, bits, bits), Error);
  const CacheRows rows(keys, values);
  CHECK_THROWS_AS(attend({query, {{&rows}}, other, 0}), Error);
  CHECK_THROWS_AS(attend({wide, {{&rows}}, wide, 0}), Error);
  const uint32_t beyond[] = {1, 5};
  CHECK_THROWS_WITH_AS(attend({query, {{&rows, beyond}}, out, 0}), doctest::Contains("token 5 of 5"), Error);
  CHECK_THROWS_AS(dot_products(query, rows, out), Error);
  Matrix<float> two(2, 2);
  CHECK_THROWS_AS(dot_products(query, rows, beyond, two), Error);
  CHECK_THROWS_AS(dot_products(query, rows, std::span(beyond).first(1), two), Error);
  CHECK_THROWS_AS(
      TwoBitRowSource(TwoBitCache{{nullptr, 5, 1}, {}, {}, std::span<const float>(query.data(), 8), {}}),
      Error);
}
