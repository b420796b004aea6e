#include "lib/transform/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/transform/basis.hpp"
#include "test/test.hpp"

namespace rounding_test {

using namespace kvcodec;

namespace {

constexpr size_t kWidth = 300;

/// Orthonormal rows: the eigenvectors of a random matrix.
Matrix<float> orthonormal() {
  Rng rng(5);
  Matrix<float> random(kWidth, kWidth);
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t j = 0; j <= i; ++j) random(i, j) = random(j, i) = static_cast<float>(rng.normal());
  return symmetric_eigen(std::move(random)).vectors;
}

/// From 4^8 down to about 1.
std::vector<double> falling() {
  std::vector<double> variances(kWidth);
  for (size_t i = 0; i < kWidth; ++i)
    variances[i] = std::exp2(16 * (1 - std::sqrt(static_cast<double>(i) / kWidth)));
  return variances;
}

/// A basis of these vectors with a mean of 0, whose errors all cost 1.
TransformBasis basis_of(LevelRows vectors) {
  TransformBasis basis;
  basis.mean.resize(kWidth);
  basis.metric = ErrorMetric(std::vector<float>(kWidth, 1.0f));
  basis.vectors = std::move(vectors);
  return basis;
}

/// The error that is left of vectors along the true ones, of these variances, by their components.
double error_of(const Matrix<float>& vectors, const std::vector<double>& variances,
                const TransformBasis& basis, double brought = 0.5) {
  const std::vector<uint32_t> all = numbers_below<uint32_t>(basis.components());
  Matrix<float> rows(kWidth, kWidth), components(all.size(), kWidth);
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t c = 0; c < kWidth; ++c)
      rows(i, c) = vectors(i, c) * static_cast<float>(std::sqrt(variances[i]));
  Matrix<float> copy = rows;
  const Analysis analysis(basis, all, brought);
  Matrix<float> weighted = analysis.weighted(copy, {});
  analysis.apply(weighted, components);
  const Synthesis synthesis(basis, basis.mean, all);
  RowCoefficients coefficients = synthesis.coefficients(kWidth);
  for (size_t i = 0; i < all.size(); ++i) coefficients.append_row(components.row(i));
  Matrix<float> back(kWidth, kWidth);
  synthesis.apply(coefficients, back);
  double sum = 0;
  for (size_t i = 0; i < back.size(); ++i)
    sum += std::pow(double(rows.data()[i]) - double(back.data()[i]), 2);
  return sum;
}

}  // namespace

TEST_CASE(
    "rounding of vectors: those of large variance get more bits, until another bit is worth less than the bound") {
  const std::vector<double> variances = falling();
  const std::vector<uint8_t> fine = bits_of_vectors(variances, 0.1), coarse = bits_of_vectors(variances, 1.6);
  CHECK(std::ranges::is_sorted(fine, std::greater()));
  // 16 times the bound: two bits fewer.
  for (size_t i = 0; i < kWidth; ++i)
    if (fine[i] < kMaxLevelBits && coarse[i] > 1) CHECK_LE(std::abs(fine[i] - coarse[i] - 2), 1);
  CHECK_EQ(bits_of_vectors(variances, 0).back(), kMaxLevelBits);
  CHECK_EQ(bits_of_vectors(variances, 1e9).front(), 1);
  CHECK(bits_of_vectors({}, 3).empty());
}

TEST_CASE("rounding of vectors: levels fit their bits, vectors have length 1, and more bits leave less") {
  const Matrix<float> vectors = orthonormal();
  double before = 2;
  for (uint8_t bits = 1; bits <= kMaxLevelBits; ++bits) {
    const LevelRows rounded = round_vectors(vectors, std::vector<uint8_t>(kWidth, bits));
    double worst = 0, left = 0;
    std::vector<int16_t> levels(kWidth);
    for (size_t i = 0; i < kWidth; ++i) {
      double length = 0;
      rounded.levels(i, levels);
      for (size_t c = 0; c < kWidth; ++c) {
        const int level = levels[c];
        const double value = level * double(rounded.scales()[i]);
        length += value * value, left += std::pow(value - double(vectors(i, c)), 2) / kWidth;
        CHECK((bits > 4 ? std::abs(level) < 1 << (bits - 1) : level % 2 != 0 && std::abs(level) < 1 << bits));
      }
      worst = std::max(worst, std::abs(length - 1));
    }
    CHECK_LT(worst, 1e-5);
    CHECK_LT(left, 0.45 * before);  // a Gaussian's energy falls to less than four tenths with each bit
    before = left;
  }
}

TEST_CASE(
    "analysis: products in bf16 bring less than is allowed, and are made only where something may be brought") {
  // Vectors of equal bits: one stage, whatever may be brought.
  const TransformBasis basis = basis_of(round_to_byte_rows(orthonormal()));
  const Matrix<float> vectors = floats_of(basis.vectors);
  Rng rng(6);
  Matrix<float> rows(70, kWidth);
  for (float& value : std::span(rows.data(), rows.size())) value = static_cast<float>(rng.normal());
  // The mean square error of components, of values whose mean square is 1.
  const auto error = [&](double brought) {
    Matrix<float> weighted = rows, components(kWidth, rows.rows());
    Analysis(basis, numbers_below<uint32_t>(kWidth), brought).apply(weighted, components);
    double sum = 0;
    for (size_t i = 0; i < kWidth; ++i)
      for (size_t t = 0; t < rows.rows(); ++t) {
        double exact = 0;
        for (size_t c = 0; c < kWidth; ++c) exact += double{rows(t, c)} * double{vectors(i, c)};
        sum += std::pow(exact - double{components(i, t)}, 2);
      }
    return sum / static_cast<double>(components.size());
  };
  CHECK_LT(error(0), 0x1p-40);
  CHECK_LT(error(1e6), 0x1p-16);
  if (why_no_bf16().empty()) CHECK_GT(error(1e6), 0x1p-22);
}

TEST_CASE("analysis: components in stages leave what rounding costs, not what it mixes") {
  const Matrix<float> vectors = orthonormal();
  const std::vector<double> variances = falling();
  const std::vector<uint8_t> bits = bits_of_vectors(variances, 0.3);
  const TransformBasis basis = basis_of(round_vectors(vectors, bits));
  const Matrix<float> became = floats_of(basis.vectors);
  double cost = 0;  // variance times the squared error of its vector
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t c = 0; c < kWidth; ++c)
      cost += variances[i] * std::pow(double(vectors(i, c)) - double(became(i, c)), 2);
  CHECK_LT(error_of(vectors, variances, basis), 4 * cost);
  // All at once, quiet components would have more of loud ones than of their own.
  CHECK_GT(error_of(vectors, variances, basis, 1e9), 10 * cost);
  // No component has anything left.
  CHECK_EQ(error_of(vectors, variances, basis_of(LevelRows({}, kWidth))),
           doctest::Approx(std::reduce(variances.begin(), variances.end())).epsilon(1e-4));
}

}  // namespace rounding_test
