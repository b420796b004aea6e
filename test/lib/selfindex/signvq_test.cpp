#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/selfindex/sign_index.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace signvq_test {

using namespace kvcodec;

namespace {

/// 4 dimensions with half a byte of codes, one word, odd words, as many as stay in registers, more, and rows
/// whose byte sums need more than 16 bits (above 1028).
constexpr size_t kDims[] = {4, 8, 12, 20, 32, 64, 100, 128, 256, 300, 1284};

constexpr size_t kTokens[] = {0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 5003};

/// Keys with loud and quiet channels, zeros of both signs among them.
Matrix<float> make_rows(size_t tokens, size_t columns, Rng& rng) {
  Matrix<float> rows(tokens, columns);
  std::vector<double> loudness(columns);
  for (auto& value : loudness) value = std::exp2(rng.uniform(-4, 4));
  for (size_t i = 0; i < tokens; ++i)
    for (size_t j = 0; j < columns; ++j)
      rows(i, j) =
          rng.below(30) == 0 ? (rng.below(2) ? 0.0f : -0.0f) : static_cast<float>(loudness[j] * rng.normal());
  return rows;
}

std::vector<float> make_query(size_t dims, Rng& rng) {
  std::vector<float> query(dims);
  for (auto& value : query) value = static_cast<float>(rng.normal());
  return query;
}

/// One head's keys with everything that is derived from them.
struct Head {
  Matrix<float> rows;
  Matrix<uint8_t> codes;
  SignCodebook codebook;

  Head(size_t tokens, size_t dims, Rng& rng)
      : rows(make_rows(tokens, dims, rng)), codes(tokens, sign_row_bytes(dims)) {
    encode_signs(rows, 1, codes);
    codebook = build_codebooks(rows, codes, 1)[0];
  }

  SignIndex index() const {
    SignIndex index(codebook.dims());
    index.append(codes);
    return index;
  }
};

size_t code_of(const Head& head, size_t token, size_t group) {
  const uint8_t byte = head.codes(token, group / 2);
  return group % 2 == 0 ? byte >> 4 : byte & 15;
}

/// Scores in floats by the documentation, token by token.
std::vector<float> reference_scores(const Head& head, const SignTable& table) {
  std::vector<float> scores(head.rows.rows());
  for (size_t token = 0; token < scores.size(); ++token)
    for (size_t group = 0; group < table.groups(); ++group)
      scores[token] += table.exact()[group * kSignCodes + code_of(head, token, group)];
  return scores;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

/// A number of threads for a scope; other cases do not depend on it afterwards.
struct Threads {
  explicit Threads(int threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(0); }
};

}  // namespace

TEST_CASE("sign codes: the signs, zero as +, first dimension highest, at every level") {
  const float row[12] = {1, -1, 0, -0.0f, -2, -3, 4, -1e-40f, -1, -1, -1, 5};
  uint8_t expected[2] = {0b10110010, 0b00010000};
  Matrix<uint8_t> codes(1, 2);
  encode_signs({row, 1, 12}, 1, codes);
  CHECK_EQ(codes(0, 0), expected[0]);
  CHECK_EQ(codes(0, 1), expected[1]);

  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    Rng rng(1);
    for (const size_t dims : kDims)
      for (const size_t heads : {1, 3}) {
        const Matrix<float> rows = make_rows(37, heads * dims, rng);
        const size_t row_bytes = sign_row_bytes(dims);
        Matrix<uint8_t> got(37, heads * row_bytes);
        encode_signs(rows, heads, got);
        test::Mismatch wrong;
        for (size_t i = 0; i < rows.rows(); ++i)
          for (size_t head = 0; head < heads; ++head)
            for (size_t bit = 0; bit < row_bytes * 8; ++bit) {
              const bool set = (got(i, head * row_bytes + bit / 8) >> (7 - bit % 8)) & 1;
              wrong.compare(set, bit < dims && !(rows(i, head * dims + bit) < 0), i, head, bit);
            }
        CHECK_EQ(wrong.report(), "");
      }
  }
}

TEST_CASE(
    "sign codebooks: means of the groups with a code, and codes without groups get signs times magnitudes") {
  Rng rng(2);
  const size_t dims = 8, heads = 2, tokens = 9001;  // more than are summed together
  Matrix<float> rows = make_rows(tokens, heads * dims, rng);
  // Head 1, group 1: only codes 15 and 0.
  for (size_t i = 0; i < tokens; ++i)
    for (size_t j = 12; j < 16; ++j)
      rows(i, j) = (i % 3 == 0 ? -1.0f : 1.0f) * (std::abs(rows(i, j)) + 1e-3f);
  Matrix<uint8_t> codes(tokens, heads);
  encode_signs(rows, heads, codes);
  const auto codebooks = build_codebooks(rows, codes, heads);
  REQUIRE_EQ(codebooks.size(), heads);
  for (size_t head = 0; head < heads; ++head)
    for (size_t group = 0; group < 2; ++group) {
      double sums[kSignCodes][4] = {}, magnitudes[4] = {};
      size_t counts[kSignCodes] = {};
      for (size_t i = 0; i < tokens; ++i) {
        const float* values = rows.row(i).data() + head * dims + group * 4;
        size_t code = 0;
        for (size_t j = 0; j < 4; ++j) code = code * 2 + (values[j] >= 0);
        ++counts[code];
        for (size_t j = 0; j < 4; ++j) sums[code][j] += values[j], magnitudes[j] += std::abs(values[j]);
      }
      for (size_t code = 0; code < kSignCodes; ++code)
        for (size_t j = 0; j < 4; ++j) {
          const double magnitude = magnitudes[j] / double(tokens);
          const double expected = counts[code] > 0        ? sums[code][j] / double(counts[code])
                                  : (code >> (3 - j)) & 1 ? magnitude
                                                          : -magnitude;
          CHECK_EQ(codebooks[head].centroids(group * 4 + j, code),
                   doctest::Approx(expected).epsilon(1e-6).scale(1e-6));
        }
      if (head == 1 && group == 1) CHECK_EQ(counts[7], 0);
    }

  SUBCASE("the same bits at every level and thread count") {
    for (const SimdLevel level : test::simd_levels())
      for (const int threads : {1, 2, 3}) {
        const test::AtLevel at(level);
        const Threads with(threads);
        const auto again = build_codebooks(rows, codes, heads);
        for (size_t head = 0; head < heads; ++head)
          CHECK(same_bits({codebooks[head].centroids.data(), codebooks[head].centroids.size()},
                          {again[head].centroids.data(), again[head].centroids.size()}));
      }
  }
  SUBCASE("without tokens they are zero") {
    const auto none = build_codebooks({rows.data(), 0, heads * dims}, {codes.data(), 0, heads}, heads);
    CHECK_EQ(std::count(none[0].centroids.data(), none[0].centroids.data() + none[0].centroids.size(), 0.0f),
             dims * kSignCodes);
  }
}

TEST_CASE("sign scores: a table score is the query times the key that the centroids give, to rounding") {
  Rng rng(3);
  for (const size_t dims : kDims) {
    CAPTURE(dims);
    const Head head(300, dims, rng);
    const std::vector<float> query = make_query(dims, rng);
    const SignTable table(head.codebook, query);
    const SignIndex index = head.index();
    std::vector<float> scores(index.tokens());
    index.scores(table, scores);
    for (size_t token = 0; token < 300; ++token) {
      double product = 0, magnitude = 0;
      for (size_t j = 0; j < dims; ++j) {
        const float key = head.codebook.centroids(j, code_of(head, token, j / kSignGroup));
        product += double{query[j]} * key;
        magnitude += std::abs(double{query[j]} * key);
      }
      // A product and up to groups + 3 additions, each within half a unit in the last place.
      CHECK_LE(std::abs(scores[token] - product), magnitude * (double(dims) / 4 + 4) * 0x1p-24);
    }
  }
}

TEST_CASE("sign scores: every thread count gives the same bits") {
  Rng rng(4);
  for (const size_t dims : kDims)
    for (const size_t tokens : kTokens) {
      CAPTURE(dims);
      CAPTURE(tokens);
      const Head head(tokens, dims, rng);
      const SignTable table(head.codebook, make_query(dims, rng));
      const std::vector<float> expected = reference_scores(head, table);
      std::vector<float> scores(tokens);
      head.index().scores(table, scores);
      CHECK(same_bits(scores, expected));
    }
  // Longer than a thread scores at a time.
  const Head head(40001, 64, rng);
  const SignTable table(head.codebook, make_query(64, rng));
  const SignIndex index = head.index();
  for (const int threads : {1, 2, 3}) {
    const Threads with(threads);
    std::vector<float> scores(40001);
    index.scores(table, scores);
    CHECK(same_bits(scores, reference_scores(head, table)));
  }
}

TEST_CASE("sign tables: the products of a query's groups with the centroids") {
  Rng rng(5);
  for (const size_t dims : kDims)
    for (const double loudness : {1.0, 1e-30, 1e-37, 1e-42, 1e15}) {
      CAPTURE(dims);
      CAPTURE(loudness);
      const Head head(500, dims, rng);
      std::vector<float> query = make_query(dims, rng);
      for (auto& value : query) value = static_cast<float>(value * loudness);
      const SignTable table(head.codebook, query);
      for (size_t group = 0; group < table.groups(); ++group)
        for (size_t code = 0; code < kSignCodes; ++code) {
          float expected = 0;
          for (size_t i = 0; i < 4; ++i) {
            const float product = query[4 * group + i] * head.codebook.centroids(4 * group + i, code);
            expected = i == 0 ? product : expected + product;
          }
          CHECK_EQ(table.exact()[group * kSignCodes + code], expected);
        }
    }
}

TEST_CASE("sign index: appended tokens are as if they had been there") {
  Rng rng(9);
  for (const size_t dims : {12, 64, 128}) {
    const Head head(700, dims, rng);
    const SignIndex at_once = head.index();
    SignIndex grown(dims);
    for (size_t first = 0, step = 1; first < 700; first += step, step = step * 2 + 1)
      grown.append(MatrixView<const uint8_t>(head.codes).rows(first, std::min(step, 700 - first)));
    const SignTable table(head.codebook, make_query(dims, rng));
    std::vector<float> a(700), b(700);
    at_once.scores(table, a);
    grown.scores(table, b);
    CHECK(same_bits(a, b));
  }
}

TEST_CASE("sign codes refuse what does not fit") {
  for (const size_t dims : {0, 1, 3, 6, 126}) {
    CHECK_THROWS_WITH_AS(sign_row_bytes(dims), doctest::Contains("groups of 4"), Error);
    CHECK_THROWS_AS(SignIndex{dims}, Error);
  }
  Matrix<float> rows(3, 16);
  Matrix<uint8_t> codes(3, 2), few(2, 2);
  CHECK_THROWS_AS(encode_signs(rows, 3, codes), Error);
  CHECK_THROWS_AS(encode_signs(rows, 1, few), Error);
  CHECK_THROWS_AS(build_codebooks(rows, few, 1), Error);
  encode_signs(rows, 1, codes);
  const SignCodebook codebook = build_codebooks(rows, codes, 1)[0];
  CHECK_THROWS_AS(SignTable(codebook, std::vector<float>(15)), Error);
  SignIndex index(16);
  CHECK_THROWS_AS(index.append(Matrix<uint8_t>(1, 3)), Error);
  index.append(codes);
  const SignTable table(codebook, std::vector<float>(16));
  std::vector<float> short_of_one(2);
  CHECK_THROWS_AS(index.scores(table, short_of_one), Error);
  CHECK_THROWS_AS(SignIndex(8).scores(table, {}), Error);
  SignCodebook loud = codebook;
  for (size_t i = 0; i < loud.centroids.size(); ++i) loud.centroids.data()[i] = 1e30f;
  CHECK_THROWS_WITH_AS(SignTable(loud, std::vector<float>(16, 1e30f)), doctest::Contains("beyond the range"),
                       Error);
}

}  // namespace signvq_test
