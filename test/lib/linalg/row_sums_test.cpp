#include "lib/linalg/row_sums.hpp"

#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace row_sums_test {

using namespace kvcodec;

namespace {

Matrix<float> normal(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (float& value : std::span(matrix.data(), matrix.size())) value = static_cast<float>(rng.normal());
  return matrix;
}

/// (rows, sums), of which the given part is zero, of either sign.
Matrix<float> sparse(size_t rows, size_t sums, double zeros, Rng& rng) {
  Matrix<float> matrix = normal(rows, sums, rng);
  for (float& value : std::span(matrix.data(), matrix.size()))
    if (rng.uniform() < zeros) value = std::copysign(0.0f, value);
  return matrix;
}

/// The definition in row_sums.hpp.
Matrix<float> expected(const Matrix<float>& rows, const Matrix<float>& coefficients,
                       std::span<const float> start) {
  Matrix<float> out(coefficients.cols(), rows.cols());
  for (size_t i = 0; i < out.rows(); ++i)
    for (size_t c = 0; c < out.cols(); ++c) {
      out(i, c) = start[c];
      for (size_t k = 0; k < rows.rows(); ++k)
        out(i, c) = std::fma(coefficients(k, i), rows(k, c), out(i, c));
    }
  return out;
}

Matrix<float> sums_of(const RowSums& sums, const Matrix<float>& rows, std::span<const float> start) {
  RowCoefficients coefficients(sums.rows(), rows.cols());
  for (size_t k = 0; k < rows.rows(); ++k) coefficients.append_row(rows.row(k));
  Matrix<float> out(rows.cols(), sums.width());
  sums.add(coefficients, start, out);
  return out;
}

bool same(const Matrix<float>& a, const Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && std::equal(a.data(), a.data() + a.size(), b.data());
}

}  // namespace

TEST_CASE("row sums: every bit as written down, at every level") {
  Rng rng(1);
  for (const size_t n : {0, 1, 63, 64, 65, 200})
    for (const size_t width : {1, 15, 128, 300})
      for (const size_t count : {1, 7, 600})
        for (const double zeros : {0.0, 0.7, 1.0}) {
          CAPTURE(n);
          CAPTURE(width);
          CAPTURE(count);
          CAPTURE(zeros);
          const Matrix<float> rows = normal(n, width, rng), start = normal(1, width, rng),
                              coefficients = sparse(n, count, zeros, rng);
          if (n * width * count > 4000000) continue;
          const Matrix<float> right = expected(rows, coefficients, start.row(0));
          for (const SimdLevel level : test::simd_levels()) {
            const test::AtLevel at(level);
            CAPTURE(std::string(name_of(level)));
            REQUIRE(same(sums_of(RowSums(rows), coefficients, start.row(0)), right));
          }
        }
}

TEST_CASE("row sums: rows that are not appended count as zeros, and shapes are checked") {
  Rng rng(2);
  const Matrix<float> rows = normal(100, 20, rng), few = normal(70, 5, rng), start(1, 20);
  Matrix<float> all(100, 5);
  std::copy_n(few.data(), few.size(), all.data());
  const RowSums sums(rows);
  CHECK(same(sums_of(sums, few, start.row(0)), sums_of(sums, all, start.row(0))));

  RowCoefficients coefficients(100, 5);
  CHECK_THROWS_AS(coefficients.append_row(few.row(0).first(4)), Error);
  for (size_t k = 0; k < 100; ++k) coefficients.append_row(all.row(k));
  CHECK_THROWS_AS(coefficients.append_row(all.row(0)), Error);
  Matrix<float> out(5, 20), narrow(5, 19);
  CHECK_THROWS_AS(sums.add(coefficients, start.row(0), narrow), Error);
  CHECK_THROWS_AS(sums.add(coefficients, start.row(0).first(19), out), Error);
  CHECK_THROWS_AS(sums.add(RowCoefficients(99, 5), start.row(0), out), Error);
}

}  // namespace row_sums_test
