#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "lib/codec/document_view.hpp"
#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/levels.hpp"
#include "lib/transform/rounding.hpp"
#include "lib/transform/train.hpp"
#include "test/counting_reader.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace transform_test {

using namespace kvcodec;

namespace {

/// Vectors in few directions: `rank` of them, each half as loud as the one before, and a little noise.
Matrix<float> correlated(size_t tokens, size_t width, size_t rank, uint64_t seed) {
  Rng directions_rng(99), rng(seed);
  Matrix<float> directions(rank, width), rows(tokens, width);
  for (size_t i = 0; i < rank; ++i)
    for (size_t c = 0; c < width; ++c)
      directions(i, c) = static_cast<float>(directions_rng.normal() * std::exp2(-static_cast<double>(i)));
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < width; ++c) rows(t, c) = static_cast<float>(3 + 0.01 * rng.normal());
    for (size_t i = 0; i < rank; ++i) {
      const auto loudness = static_cast<float>(rng.normal());
      for (size_t c = 0; c < width; ++c) rows(t, c) += loudness * directions(i, c);
    }
  }
  return rows;
}

/// Vectors with these components, (components.size(), n), and scores, (n, rank).
Matrix<float> synthesis_of(const TransformBasis& basis, std::span<const uint32_t> components,
                           const Matrix<float>& values, const Matrix<float>& scores) {
  const Synthesis synthesis(basis, basis.mean, components);
  RowCoefficients coefficients = synthesis.coefficients(scores.rows());
  for (size_t i = 0; i < values.rows(); ++i) coefficients.append_row(values.row(i));
  Matrix<float> by_score(scores.cols(), scores.rows()), rows(scores.rows(), basis.width());
  transpose(scores.view(), by_score.view());
  for (size_t k = 0; k < by_score.rows(); ++k) coefficients.append_row(by_score.row(k));
  synthesis.apply(coefficients, rows);
  return rows;
}

class Vectors final : public VectorSource {
 public:
  /// features: of each token, or none. firsts: first tokens, the same in all parts.
  explicit Vectors(std::vector<Matrix<float>> parts, Matrix<float> features = {}, Matrix<float> firsts = {})
      : parts_(std::move(parts)), features_(std::move(features)), firsts_(std::move(firsts)) {}
  size_t parts() const override { return parts_.size(); }
  size_t width(size_t part) const override { return parts_[part].cols(); }
  size_t head_dim(size_t /*part*/) const override { return 16; }
  uint64_t tokens() const override { return parts_[0].rows(); }
  void read(size_t part, uint64_t first, MatrixView<float> out) const override {
    for (size_t t = 0; t < out.rows(); ++t)
      std::ranges::copy(parts_[part].row(first + t), out.row(t).begin());
  }
  size_t features() const override { return features_.cols(); }
  void read_features(uint64_t first, MatrixView<float> out) const override {
    for (size_t t = 0; t < out.rows(); ++t) std::ranges::copy(features_.row(first + t), out.row(t).begin());
  }
  uint64_t first_tokens() const override { return firsts_.rows(); }
  void read_first_tokens(size_t /*part*/, uint64_t first, MatrixView<float> out) const override {
    for (size_t t = 0; t < out.rows(); ++t) std::ranges::copy(firsts_.row(first + t), out.row(t).begin());
  }

 private:
  std::vector<Matrix<float>> parts_;
  Matrix<float> features_, firsts_;
};

std::vector<uint32_t> all_of(size_t count) {
  std::vector<uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

/// Rows through a basis and back, by plain sums; only the first components.
Matrix<double> projected(const TransformBasis& basis, const Matrix<float>& rows, size_t components) {
  const Matrix<float> analysis = basis.metric.times_root(floats_of(basis.vectors)),
                      synthesis = basis.synthesis(all_of(components));
  Matrix<double> back(rows.rows(), rows.cols());
  for (size_t t = 0; t < rows.rows(); ++t) {
    for (size_t c = 0; c < rows.cols(); ++c) back(t, c) = basis.mean[c];
    for (size_t i = 0; i < components; ++i) {
      double y = 0;
      for (size_t c = 0; c < rows.cols(); ++c)
        y += double(analysis(i, c)) * (double(rows(t, c)) - double(basis.mean[c]));
      for (size_t c = 0; c < rows.cols(); ++c) back(t, c) += y * double(synthesis(i, c));
    }
  }
  return back;
}

double squared_error(const Matrix<float>& rows, const Matrix<double>& back, size_t first, size_t count) {
  double sum = 0;
  for (size_t t = 0; t < rows.rows(); ++t)
    for (size_t c = first; c < first + count; ++c) sum += std::pow(double(rows(t, c)) - back(t, c), 2);
  return sum / static_cast<double>(rows.rows());
}

LevelTables plain_tables(double lambda = 0) {
  std::vector<LevelClass> classes;
  for (size_t c = 0; c < kLevelClasses; ++c) {
    std::vector<uint64_t> counts(kLevelSymbols);
    for (size_t k = 0; k < kLevelSymbols; ++k)
      counts[k] =
          static_cast<uint64_t>(1e6 * std::exp(-std::abs(static_cast<double>(k) - kLargestSymbol) * 0.7)) + 1;
    classes.push_back({RansModel::from_counts(counts, {.escape_bits = kEscapedBits}), {}});
  }
  return {std::move(classes), lambda};
}

}  // namespace

TEST_CASE("eigenvectors: a matrix is the sum of theirs") {
  Rng rng(3);
  const size_t n = 40;
  Matrix<double> a(n, n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j <= i; ++j) a(i, j) = a(j, i) = rng.normal();
  const Eigen eigen = symmetric_eigen(a);
  CHECK(std::ranges::is_sorted(eigen.values));
  double worst = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k) sum += eigen.values[k] * eigen.vectors(k, i) * eigen.vectors(k, j);
      worst = std::max(worst, std::abs(sum - a(i, j)));
    }
  CHECK_LT(worst, 1e-12);
  CHECK_EQ(symmetric_eigenvalues(a).size(), n);
  // Positive definite from its smallest eigenvalue on.
  const double least = symmetric_eigenvalues(a).front();
  const auto with_diagonal = [&](double more) {
    Matrix<double> shifted = a;
    for (size_t i = 0; i < n; ++i) shifted(i, i) += more;
    return shifted;
  };
  CHECK(positive_definite(with_diagonal(1e-6 - least)));
  CHECK_FALSE(positive_definite(with_diagonal(-1e-6 - least)));
  Matrix<double> one(1, 1);
  CHECK_FALSE(positive_definite(one));
  one(0, 0) = 1e-300;
  CHECK(positive_definite(one));
  CHECK_THROWS_AS(positive_definite(Matrix<double>(2, 3)), Error);
  a(1, 2) = NAN;
  CHECK_FALSE(positive_definite(a));
  CHECK_THROWS_AS(symmetric_eigen(a), Error);
}

TEST_CASE("eigenvectors in floats: those of doubles but for rounding, the same for any number of threads") {
  // 1 and 2 need no reflection, 66 has two panels of them, 300 and 700 more than one block of rows and of columns.
  for (const size_t n : test::kSanitized ? std::vector<size_t>{1, 2, 3, 66, 300}
                                         : std::vector<size_t>{1, 2, 3, 66, 300, 700}) {
    CAPTURE(n);
    Rng rng(n);
    // Variances that fall by eight orders of magnitude, as those of keys do, in turned directions.
    Matrix<double> factors(n, n), a(n, n);
    for (size_t k = 0; k < n; ++k) {
      const double loudness = 1e6 * std::pow(1e-4, static_cast<double>(k) / static_cast<double>(n));
      for (size_t i = 0; i < n; ++i) factors(k, i) = loudness * rng.normal();
    }
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j <= i; ++j) {
        for (size_t k = 0; k < n; ++k) a(i, j) += factors(k, i) * factors(k, j);
        a(j, i) = a(i, j);
      }
    Matrix<float> floats(n, n);
    std::copy_n(a.data(), a.size(), floats.data());
    set_num_threads(3);
    const FloatEigen eigen = symmetric_eigen(floats);
    set_num_threads(1);
    const FloatEigen alone = symmetric_eigen(floats);
    set_num_threads(0);
    CHECK(eigen.values == alone.values);
    CHECK(std::ranges::equal(std::span(eigen.vectors.data(), n * n), std::span(alone.vectors.data(), n * n)));
    const std::vector<double> exact = symmetric_eigenvalues(a);
    const double largest = exact.back();
    CHECK(std::ranges::is_sorted(eigen.values));
    double wrong_value = 0, wrong_product = 0, wrong_vector = 0;
    for (size_t k = 0; k < n; ++k) {
      wrong_value = std::max(wrong_value, std::abs(eigen.values[k] - exact[k]) / largest);
      for (size_t l = 0; l <= k; ++l) {
        double product = k == l ? -1 : 0;
        for (size_t i = 0; i < n; ++i) product += double{eigen.vectors(k, i)} * double{eigen.vectors(l, i)};
        wrong_product = std::max(wrong_product, std::abs(product));
      }
      for (size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (size_t j = 0; j < n; ++j) sum += a(i, j) * double{eigen.vectors(k, j)};
        wrong_vector =
            std::max(wrong_vector, std::abs(sum - exact[k] * double{eigen.vectors(k, i)}) / largest);
      }
    }
    CHECK_LT(wrong_value, 0x1p-20);
    CHECK_LT(wrong_product, 0x1p-18);
    CHECK_LT(wrong_vector, 0x1p-20);
  }
}

TEST_CASE("eigenvectors in floats: of matrices of rank 0 and 1, of any size of values, and of none") {
  const size_t n = 70;
  for (const float size : {0.0f, 1e-38f, 1.0f, 1e37f}) {
    Matrix<float> a(n, n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) a(i, j) = size;  // one eigenvalue, n times the size
    const FloatEigen eigen = symmetric_eigen(a);
    const double expected = static_cast<double>(n) * double{size};
    CHECK(eigen.values.back() == doctest::Approx(expected).epsilon(1e-5));
    for (size_t k = 0; k + 1 < n; ++k) CHECK_LE(std::abs(eigen.values[k]), expected * 0x1p-20);
    for (size_t k = 0; k < n; ++k) {
      double squares = 0;
      for (const float x : eigen.vectors.row(k)) squares += double{x} * double{x};
      CHECK(squares == doctest::Approx(1).epsilon(1e-5));
    }
  }
  CHECK(symmetric_eigen(Matrix<float>()).values.empty());
  CHECK_THROWS_AS(symmetric_eigen(Matrix<float>(2, 3)), Error);
  Matrix<float> bad(3, 3);
  bad(1, 2) = NAN;
  CHECK_THROWS_AS(symmetric_eigen(bad), Error);
}

TEST_CASE("error metric: what has no inverse of use is the file's fault, and is found on opening") {
  const auto opened = [](float least) {
    Matrix<float> blocks(2, 2);
    blocks(0, 0) = 1, blocks(1, 1) = least;
    try {
      return std::optional(ErrorMetric::from_inverse_roots(blocks));
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return std::optional<ErrorMetric>();
    }
  };
  // The worst accepted matrix has roots that undo it.
  for (const float least : {1e-3f, 1e-11f}) {
    const auto metric = opened(least);
    REQUIRE(metric);
    CHECK_EQ(metric->roots()(1, 1) * least, doctest::Approx(1));
  }
  for (const float least : {1e-13f, -1e-3f, INFINITY, 1e30f}) CHECK_FALSE(opened(least));
  Matrix<float> tiny(1, 1);
  tiny(0, 0) = 1e-30f;
  CHECK_THROWS_AS(ErrorMetric::from_inverse_roots(tiny), Error);
}

TEST_CASE("transform basis: components hold the energy in order, and all of them give the vectors back") {
  const Matrix<float> rows = correlated(600, 24, 6, 1);
  CovarianceSums moments(24);
  moments.add(rows);
  const LearnedBasis learned = learn_basis(moments, ErrorMetric(std::vector<float>(24, 1.0f)));
  CHECK(std::ranges::is_sorted(learned.variances, std::greater()));
  const TransformBasis basis = basis_of_first(learned, 24);
  // Up to the rounding of vectors to bytes.
  const double all = std::reduce(learned.variances.begin(), learned.variances.end());
  CHECK_LT(squared_error(rows, projected(basis, rows, 24), 0, 24), 1e-3 * all);
  // The error of the first components is the variance of the others.
  for (const size_t kept : {1u, 3u, 6u}) {
    const double left = std::accumulate(learned.variances.begin() + kept, learned.variances.end(), 0.0);
    CHECK_EQ(squared_error(rows, projected(basis, rows, kept), 0, 24), doctest::Approx(left).epsilon(0.01));
  }
}

TEST_CASE("error metric: roots and their inverses undo each other, and what costs much is kept better") {
  const size_t width = 24, block = 6;
  Rng rng(7);
  Matrix<double> blocks(width, block);
  for (size_t first = 0; first < width; first += block) {
    Matrix<float> directions(3, block);
    for (float& value : std::span(directions.data(), directions.size()))
      value = static_cast<float>(rng.normal());
    for (size_t i = 0; i < block; ++i)
      for (size_t j = 0; j < block; ++j) {
        blocks(first + i, j) = i == j ? 0.1 : 0;
        for (size_t k = 0; k < 3; ++k)
          blocks(first + i, j) += double(directions(k, i)) * double(directions(k, j));
      }
  }
  const ErrorMetric metric{Matrix<double>(blocks)};
  CHECK_EQ(metric.block(), block);
  const Matrix<float> rows = correlated(600, width, 12, 1);
  const Matrix<float> there = metric.times_root(rows), back = metric.times_inverse_root(there);
  double worst = 0, energy = 0, cost = 0;
  for (size_t t = 0; t < rows.rows(); ++t)
    for (size_t c = 0; c < width; ++c) {
      worst = std::max(worst, std::abs(double(rows(t, c)) - double(back(t, c))));
      energy += std::pow(double(there(t, c)), 2);
      for (size_t k = 0; k < block; ++k)
        cost += double(rows(t, c)) * blocks(c, k) * double(rows(t, c / block * block + k));
    }
  CHECK_LT(worst, 1e-4);
  CHECK_EQ(energy, doctest::Approx(cost).epsilon(1e-4));

  // With as many components, errors cost less where the basis knows what they cost.
  CovarianceSums moments(width);
  moments.add(rows);
  const auto cost_left = [&](const TransformBasis& basis) {
    const Matrix<double> found = projected(basis, rows, 5);
    Matrix<float> errors(rows.rows(), width);
    for (size_t i = 0; i < errors.size(); ++i)
      errors.data()[i] = static_cast<float>(double(rows.data()[i]) - found.data()[i]);
    const Matrix<float> weighted = metric.times_root(errors);
    double sum = 0;
    for (const float value : std::span(weighted.data(), weighted.size()))
      sum += double(value) * double(value);
    return sum;
  };
  const ErrorMetric plain(std::vector<float>(width, 1.0f));
  CHECK_LT(cost_left(basis_of_first(learn_basis(moments, metric), 5)),
           0.8 * cost_left(basis_of_first(learn_basis(moments, plain), 5)));

  blocks(3, 2) += 1;  // no longer symmetric
  CHECK_THROWS_AS(ErrorMetric{Matrix<double>(blocks)}, Error);
  for (size_t j = 0; j < block; ++j) blocks(3, j) = blocks(j, 3) = j == 3 ? -1 : 0;
  CHECK_THROWS_AS(ErrorMetric{Matrix<double>(blocks)}, Error);
}

TEST_CASE("error metric: measured blocks are tempered") {
  Matrix<double> blocks(4, 2);  // of 3 and 1 in the axes; of 2 in one diagonal
  blocks(0, 0) = 3, blocks(1, 1) = 1;
  blocks(2, 0) = blocks(2, 1) = blocks(3, 0) = blocks(3, 1) = 1;
  const double floor = 0.01 * 6 / 4;
  const auto close = [](double value) { return doctest::Approx(value).epsilon(1e-5); };
  const Matrix<double> same = tempered_blocks(blocks, 1);
  CHECK_EQ(same(0, 0), close(3 + floor));
  CHECK_EQ(same(2, 1), close(1));
  const Matrix<double> half = tempered_blocks(blocks, 0.5);
  CHECK_EQ(half(0, 0), close(4 * std::sqrt(3) / (std::sqrt(3) + 1) + floor));
  CHECK_EQ(half(0, 0) + half(1, 1), close(4 + 2 * floor));
  const Matrix<double> none = tempered_blocks(blocks, 0);
  for (const size_t i : {2u, 3u}) {
    CHECK_EQ(none(i, i % 2), close(1 + floor));
    CHECK_EQ(none(i, 1 - i % 2) + 1, close(1));
  }
  ErrorMetric metric{tempered_blocks(blocks, 0.5)};  // which is one
  CHECK_EQ(metric.width(), size_t{4});
  CHECK_THROWS_AS(tempered_blocks(Matrix<double>(4, 2), 0.5), Error);
}

TEST_CASE("transform basis: columns of larger weight are kept better") {
  const Matrix<float> rows = correlated(600, 24, 12, 1);
  CovarianceSums moments(24);
  moments.add(rows);
  std::vector<float> weights(24, 1.0f);
  const LearnedBasis alike = learn_basis(moments, ErrorMetric(weights));
  std::fill_n(weights.begin(), 8, 100.0f);
  const LearnedBasis weighted = learn_basis(moments, ErrorMetric(weights));
  const auto error = [&](const LearnedBasis& of, size_t first, size_t count) {
    return squared_error(rows, projected(basis_of_first(of, 5), rows, 5), first, count);
  };
  CHECK_LT(error(weighted, 0, 8), 0.7 * error(alike, 0, 8));
  CHECK_GT(error(weighted, 8, 16), error(alike, 8, 16));
  weights[3] = 0;
  CHECK_THROWS_AS(ErrorMetric{weights}, Error);
}

namespace {

/// Tokens of a small vocabulary whose vectors follow from their own id and, less loudly, from the one before.
struct PredictableText {
  static constexpr size_t kVocabulary = 40, kFeatures = 6, kWidth = 24, kLags = 2;
  std::vector<uint32_t> ids;
  TokenFeatures features;
  Matrix<float> lagged, rows;

  PredictableText(size_t tokens, double noise, uint64_t seed) {
    Rng of_model(31), rng(seed);
    Matrix<float> table(kVocabulary, kFeatures), map(kLags * kFeatures, kWidth);
    for (float& value : std::span(table.data(), table.size())) value = static_cast<float>(of_model.normal());
    for (size_t i = 0; i < map.rows(); ++i)
      for (float& value : map.row(i))
        value = static_cast<float>(of_model.normal() * (i < kFeatures ? 1 : 0.3));
    features = TokenFeatures(round_to_byte_rows(table), kLags);
    for (size_t t = 0; t < tokens; ++t) ids.push_back(static_cast<uint32_t>(rng.below(kVocabulary)));
    lagged = Matrix<float>(tokens, features.width());
    features.gather(lagged_ids(0, tokens), lagged);
    rows = Matrix<float>(tokens, kWidth);
    for (size_t t = 0; t < tokens; ++t)
      for (size_t c = 0; c < kWidth; ++c) {
        double sum = 5 + noise * rng.normal();
        for (size_t i = 0; i < map.rows(); ++i) sum += double(lagged(t, i)) * double(map(i, c));
        rows(t, c) = static_cast<float>(sum);
      }
  }

  std::vector<uint32_t> lagged_ids(uint64_t first, uint64_t count) const {
    return ids_with_lags(
        [&](uint64_t from, uint64_t n) {
          return std::vector<uint32_t>(ids.begin() + static_cast<ptrdiff_t>(from),
                                       ids.begin() + static_cast<ptrdiff_t>(from + n));
        },
        first, count, kLags);
  }
};

}  // namespace

TEST_CASE("token features: a token has its own and those of the tokens before, the first ones of the first") {
  const PredictableText text(30, 0, 3);
  const Matrix<float> table = floats_of(text.features.rows());
  const size_t f = PredictableText::kFeatures;
  for (size_t t = 0; t < 30; ++t)
    for (size_t i = 0; i < f; ++i) {
      CHECK_EQ(text.lagged(t, i), table(text.ids[t], i));
      CHECK_EQ(text.lagged(t, f + i), table(text.ids[t > 0 ? t - 1 : 0], i));
    }
  Matrix<float> some(7, 2 * f);
  text.features.gather(text.lagged_ids(11, 7), some);
  CHECK(std::equal(some.data(), some.data() + some.size(), text.lagged.row(11).data()));
  CHECK_EQ(text.lagged_ids(0, 0).size(), size_t{1});
  const std::vector<uint32_t> beyond{0, PredictableText::kVocabulary};
  Matrix<float> one(1, 2 * f);
  CHECK_THROWS_AS(text.features.gather(beyond, one), Error);
  CHECK_THROWS_AS(text.features.gather(std::span(beyond).first(1), one), Error);
}

TEST_CASE("prediction: takes what ids explain, leaves the rest, and errors count by the metric") {
  const double noise = 0.2;
  const PredictableText text(4000, noise, 5), fresh(1000, noise, 6);
  const size_t width = PredictableText::kWidth, n = text.features.width();
  CovarianceSums moments(width + n);
  Matrix<float> together(text.rows.rows(), width + n);
  for (size_t t = 0; t < together.rows(); ++t) {
    std::ranges::copy(text.rows.row(t), together.row(t).begin());
    std::ranges::copy(text.lagged.row(t), together.row(t).begin() + width);
  }
  moments.add(together);
  std::vector<float> weights(width, 1.0f);
  std::fill_n(weights.begin(), 8, 9.0f);
  const ErrorMetric plain(std::vector<float>(width, 1.0f)), weighted(weights);
  // Squared error of the prediction of fresh tokens, in columns [0, last).
  const auto error = [&](const LearnedBasis& learned, size_t last) {
    const Matrix<float> back = synthesis_of(learned.basis, {}, Matrix<float>(0, fresh.rows.rows()),
                                            Scores(learned.basis.prediction).of(fresh.lagged));
    double sum = 0;
    for (size_t t = 0; t < back.rows(); ++t)
      for (size_t c = 0; c < last; ++c) sum += std::pow(double(fresh.rows(t, c)) - double(back(t, c)), 2);
    return sum / static_cast<double>(back.rows() * last);
  };
  const LearnedBasis all = learn_basis(moments, plain);
  CHECK_EQ(error(all, width), doctest::Approx(noise * noise).epsilon(0.1));
  // The reported residual is correct, and its components contain it.
  const double left = std::reduce(all.left.begin(), all.left.end());
  CHECK_EQ(left, doctest::Approx(noise * noise * width).epsilon(0.1));
  CHECK_EQ(std::reduce(all.variances.begin(), all.variances.end()), doctest::Approx(left).epsilon(1e-3));
  CHECK_GT(std::reduce(all.energies.begin(), all.energies.end()), 50 * left);
  // Fewer scores explain less; by the metric, more of what counts.
  const LearnedBasis few = learn_basis(moments, plain, 3), few_weighted = learn_basis(moments, weighted, 3);
  CHECK_EQ(few.basis.prediction.rank(), size_t{3});
  CHECK_GT(error(few, width), 3 * error(all, width));
  CHECK_LT(error(few_weighted, 8), 0.8 * error(few, 8));
  // Analysis subtracts the prediction: with all components, nothing more is lost.
  const std::vector<uint32_t> every = all_of(width);
  const Matrix<float> scores = Scores(few.basis.prediction).of(fresh.lagged);
  Matrix<float> centred(fresh.rows.rows(), width), components(width, fresh.rows.rows());
  for (size_t t = 0; t < centred.rows(); ++t)
    for (size_t c = 0; c < width; ++c) centred(t, c) = fresh.rows(t, c) - few.basis.mean[c];
  const TransformBasis basis = basis_of_first(few, width);
  const Analysis analysis(basis, every);
  Matrix<float> to_analyse = analysis.weighted(centred, scores);
  analysis.apply(to_analyse, components);
  const Matrix<float> back = synthesis_of(basis, every, components, scores);
  double lost = 0, energy = 0;
  for (size_t i = 0; i < back.size(); ++i) {
    lost += std::pow(double(back.data()[i]) - double(fresh.rows.data()[i]), 2);
    energy += std::pow(double(fresh.rows.data()[i]), 2);
  }
  CHECK_LT(lost, 1e-4 * energy);  // up to the rounding of vectors to bytes
}

TEST_CASE("transform training: what ids tell is not coded") {
  const PredictableText text(6000, 0.1, 8);
  const Vectors blind({text.rows}), told({text.rows}, text.lagged);
  const std::vector<ErrorMetric> metrics{ErrorMetric(std::vector<float>(PredictableText::kWidth, 1.0f))};
  const TransformTraining training{.max_bits = 3, .least_bits = 1};
  const LearnedTransform plain = learn_transform(blind, metrics, training),
                         predicted = learn_transform(told, metrics, training);
  CHECK_EQ(plain.bases[0].prediction.rank(), size_t{0});
  CHECK_GT(predicted.bases[0].prediction.rank(), size_t{10});
  // At the same rates, errors of a tenth and less.
  const auto at = [](const LearnedTransform& learned, double bits) {
    const auto& measures = learned.levels.measures;
    return std::ranges::min(measures, {}, [&](const RungMeasure& m) { return std::abs(m.bits - bits); })
        .error;
  };
  CHECK_LT(10 * at(predicted, 2), at(plain, 2));
}

TEST_CASE("levels: classes follow the mean level, shifts the class") {
  CHECK_EQ(class_of_mean_level(0.001), kDeadClass);
  CHECK_EQ(class_of_mean_level(NAN), kDeadClass);
  CHECK_EQ(int(class_of_mean_level(1)), int(class_of_mean_level(0.5)) + 2);
  CHECK_EQ(int(class_of_mean_level(1e30)), int(kLevelClasses) - 1);
  CHECK_EQ(shift_of_class(class_of_mean_level(1)), 0u);
  CHECK_EQ(shift_of_class(class_of_mean_level(4)), 1u);
  CHECK_EQ(shift_of_class(class_of_mean_level(64)), 5u);
}

TEST_CASE("levels: without a price of bits the nearest is taken, with one the cheaper of two") {
  const LevelTables nearest = plain_tables(), priced = plain_tables(0.2);
  Rng rng(5);
  std::vector<float> values(4000), back(values.size());
  for (float& value : values) value = static_cast<float>(rng.normal() * 3);
  std::vector<int32_t> levels(values.size()), cheaper(values.size());
  const size_t c = class_of_mean_level(1);
  nearest.quantize(c, 0.5f, values, levels);
  priced.quantize(c, 0.5f, values, cheaper);
  nearest.reconstruct(c, 0.5f, 1, levels, back);
  size_t lower = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK_LE(std::abs(values[i] - back[i]), 0.2500001f);
    CHECK_LE(std::abs(cheaper[i]), std::abs(levels[i]));
    lower += cheaper[i] != levels[i];
  }
  CHECK_GT(lower, values.size() / 50);
  std::vector<float> bits(values.size()), cheaper_bits(values.size());
  nearest.add_bits(c, levels, bits);
  nearest.add_bits(c, cheaper, cheaper_bits);
  CHECK_LT(std::reduce(cheaper_bits.begin(), cheaper_bits.end()), std::reduce(bits.begin(), bits.end()));
  const std::vector<float> beyond{1e7f};
  CHECK_THROWS_AS(nearest.quantize(c, 0.5f, beyond, std::span(levels).first(1)), Error);
}

TEST_CASE("levels: sizes that would be rounded to 2^23 are refused") {
  const LevelTables tables = plain_tables();
  int32_t level = 0;
  const auto quantized = [&](float value) {
    tables.quantize(24, 1, {&value, 1}, {&level, 1});
    return level;
  };
  CHECK_EQ(quantized(8388607.0f), (1 << 23) - 1);
  CHECK_EQ(quantized(-8388607.0f), 1 - (1 << 23));
  for (const float value : {8388607.5f, -8388607.5f, 8388608.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()})
    CHECK_THROWS_WITH_AS(quantized(value), doctest::Contains("too fine"), Error);
}

TEST_CASE("levels: what is learned takes about the bits of the source, and gains give energy back") {
  // Laplacian components of deviations from far below a step to far above it.
  Rng rng(8);
  const size_t components = 120, tokens = 3000;
  Matrix<float> sample(components, tokens), fresh(components, tokens);
  for (Matrix<float>* matrix : {&sample, &fresh})
    for (size_t i = 0; i < components; ++i)
      for (size_t t = 0; t < tokens; ++t) {
        const double scale = std::exp2(6 - 12.0 * static_cast<double>(i) / components);
        (*matrix)(i, t) =
            static_cast<float>(scale * std::log(1 - rng.uniform(0, 1)) * (rng.below(2) ? 1 : -1));
      }
  const std::vector<float> steps{1.0f};
  const LearnedLevels learned = learn_levels({&sample, 1}, steps, {.lambda = 0});
  const LevelRung& rung = learned.rungs[0][0];
  const LevelTables tables(learned.classes, 0);
  double bits = 0, entropy = 0, biased = 0, gained = 0;
  for (size_t i = 0; i < components; ++i) {
    if (rung.classes[i] == kDeadClass) continue;
    std::vector<int32_t> levels(tokens);
    std::vector<float> taken(tokens), back(tokens);
    tables.quantize(rung.classes[i], 1, fresh.row(i), levels);
    tables.add_bits(rung.classes[i], levels, taken);
    for (const float of_level : taken) bits += double(of_level);
    // The entropy of this component's own levels.
    std::vector<int32_t> sorted = levels;
    std::ranges::sort(sorted);
    for (size_t a = 0, b = 0; a < sorted.size(); a = b) {
      while (b < sorted.size() && sorted[b] == sorted[a]) ++b;
      entropy +=
          static_cast<double>(b - a) * std::log2(static_cast<double>(tokens) / static_cast<double>(b - a));
    }
    for (const bool with_gain : {false, true}) {
      tables.reconstruct(rung.classes[i], 1, with_gain ? rung.gains[i] : 1, levels, back);
      double energy = 0, product = 0;
      for (size_t t = 0; t < tokens; ++t)
        energy += double(fresh(i, t)) * double(fresh(i, t)), product += double(fresh(i, t)) * double(back[t]);
      (with_gain ? gained : biased) += std::abs(1 - product / energy);
    }
  }
  CHECK_GT(bits, entropy);
  CHECK_LT(bits, 1.03 * entropy);
  CHECK_LT(gained, 0.8 * biased);
  CHECK_EQ(rung.classes.back(), kDeadClass);
  CHECK_GT(rung.live().size(), components / 2);
}

TEST_CASE("level coder: levels come back, whatever they are and however many tokens") {
  const LevelTables tables = plain_tables();
  Rng rng(6);
  const std::vector<uint8_t> classes{30, 26, 22, 20, 20, 20, 15, 15, 3};
  const LevelCoder coder(tables, classes);
  for (const size_t tokens : {1u, 7u, 8u, 64u, 129u}) {
    const size_t blocks = 6;
    Matrix<int32_t> levels(classes.size(), tokens * blocks), back(classes.size(), tokens * blocks);
    for (size_t i = 0; i < classes.size(); ++i)
      for (size_t t = 0; t < levels.cols(); ++t)
        levels(i, t) = static_cast<int32_t>(rng.normal() * (8 << shift_of_class(classes[i]))) *
                       (rng.below(100) == 0 ? 1000 : 1);
    levels(0, 0) = (1 << 23) - 1, levels(1, 0) = 1 - (1 << 23), levels(3, 0) = 1 - (1 << 23);
    levels(8, 0) = -(1 << 22);
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> sizes;
    for (size_t b = 0; b < blocks; ++b)
      sizes.push_back(coder.encode(levels.view().columns(b * tokens, tokens), bytes));
    CHECK_EQ(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), bytes.size());
    coder.decode(bytes, sizes, tokens, back);
    CHECK(std::equal(levels.data(), levels.data() + levels.size(), back.data()));
    // One block by itself, from the middle.
    Matrix<int32_t> one(classes.size(), tokens);
    coder.decode(std::span(bytes).subspan(sizes[0] + sizes[1], sizes[2]), std::span(sizes).subspan(2, 1),
                 tokens, one);
    for (size_t i = 0; i < classes.size(); ++i)
      CHECK(std::ranges::equal(one.row(i), levels.row(i).subspan(2 * tokens, tokens)));
  }
}

TEST_CASE("level coder: blocks take what the tables say that levels take, and at most 2% more") {
  // Components from some steps to a hundredth of one, as a basis has them: most levels are 0.
  Rng rng(12);
  const size_t components = 600, tokens = 256;
  Matrix<float> sample(components, 2048), fresh(components, tokens);
  for (Matrix<float>* matrix : {&sample, &fresh})
    for (size_t i = 0; i < components; ++i)
      for (float& value : matrix->row(i))
        value = static_cast<float>(std::exp2(2 - 8.0 * static_cast<double>(i) / components) * rng.normal());
  const std::vector<float> steps{1.0f, 0.25f};
  const LearnedLevels learned = learn_levels({&sample, 1}, steps, {});
  const LevelTables tables(learned.classes, LevelOptions().lambda);
  for (const LevelRung& rung : learned.rungs[0]) {
    const auto live = rung.live();
    Matrix<int32_t> levels(live.size(), tokens);
    std::vector<float> taken(tokens);
    std::vector<uint8_t> classes, bytes;
    for (size_t i = 0; i < live.size(); ++i) {
      classes.push_back(rung.classes[live[i]]);
      tables.quantize(classes.back(), rung.step, fresh.row(live[i]), levels.row(i));
      tables.add_bits(classes.back(), levels.row(i), taken);
    }
    const double ideal = std::accumulate(taken.begin(), taken.end(), 0.0);
    const double stored = 8.0 * LevelCoder(tables, classes).encode(levels, bytes);
    CAPTURE(ideal / double(components * tokens));
    CHECK_GE(stored, 0.999 * ideal);
    CHECK_LE(stored, 1.02 * ideal);
  }
}

TEST_CASE("level coder: bytes that no encoder writes are refused") {
  const LevelTables tables = plain_tables();
  const LevelCoder coder(tables, {24, 20, 15});
  Matrix<int32_t> levels(3, 50), back(3, 50);
  for (size_t t = 0; t < 50; ++t) levels(0, t) = static_cast<int32_t>(t), levels(2, t) = t % 3 == 0;
  std::vector<uint8_t> bytes;
  const uint32_t size = coder.encode(levels, bytes);
  const auto refused = [&](std::vector<uint8_t> damaged, uint32_t bytes_said) {
    try {
      coder.decode(damaged, {&bytes_said, 1}, 50, back);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::bad_input;
    }
    return false;
  };
  CHECK_FALSE(refused(bytes, size));
  CHECK(refused(bytes, size - 1));
  CHECK(refused(bytes, size + 1));
  CHECK(refused(bytes, 5));
  for (const size_t cut : {size_t{0}, size_t{31}, bytes.size() - 1})
    CHECK(refused({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut)}, size));
  // An escape's value of more than 23 bits, which an encoder never makes.
  Matrix<int32_t> large(3, 50);
  large(1, 7) = (1 << 23) - 1;
  std::vector<uint8_t> escapes;
  const uint32_t escape_size = coder.encode(large, escapes);
  CHECK_FALSE(refused(escapes, escape_size));
  large(1, 7) = -(1 << 23);
  escapes.clear();
  const uint32_t beyond_size = coder.encode(large, escapes);
  CHECK(refused(escapes, beyond_size));
  large(1, 7) = 0;
  for (const int32_t level : {1 - (1 << 23), -(1 << 23), 1 << 23}) {
    CAPTURE(level);
    large(0, 7) = level;  // of a class with low bits
    escapes.clear();
    const uint32_t size_of_large = coder.encode(large, escapes);
    CHECK_EQ(refused(escapes, size_of_large), std::abs(level) == 1 << 23);
  }
  std::vector<uint8_t> padded = bytes;
  padded.at(padded.size() - 1) |= 1;  // 150 low bits: two are padding
  CHECK(refused(padded, size));
}

TEST_CASE("transform: learning finds the directions of the data, and more bits buy less error") {
  const size_t width = 48;
  std::vector<Matrix<float>> parts;
  parts.push_back(correlated(6000, width, 8, 1));
  parts.push_back(correlated(6000, width, 8, 2));
  const Vectors source(std::move(parts));
  const std::vector<ErrorMetric> metrics(2, ErrorMetric(std::vector<float>(width, 1.0f)));
  const LearnedTransform learned = learn_transform(source, metrics, {.max_bits = 2, .least_bits = 0.2});
  const auto& measures = learned.levels.measures;
  REQUIRE_GT(measures.size(), size_t{6});
  for (size_t i = 1; i < measures.size(); ++i) {
    CHECK_GT(measures[i].bits, measures[i - 1].bits);
    CHECK_LT(measures[i].error, measures[i - 1].error);
  }
  CHECK_LT(measures.front().bits, 0.4);
  CHECK_GT(measures.back().bits, 1.0);
  CHECK_LT(measures.back().bits, 3.0);
  // If 8 directions hold all but noise far below the step, the others are dead.
  const size_t middle = measures.size() / 2;
  CHECK_LE(learned.levels.rungs[0][middle].live().size(), size_t{10});
  CHECK_THROWS_AS(learn_transform(Vectors({correlated(1000, width, 8, 1)}), {metrics.data(), 1}, {}), Error);
}

TEST_CASE("transform training: rungs at which nothing lives are left out") {
  constexpr size_t kWidth = 64;
  const std::vector<ErrorMetric> metrics(1, ErrorMetric(std::vector<float>(kWidth, 1.0f)));
  // One component, of one magnitude: by its variance it takes bits at steps at which all its levels are 0.
  const auto learn = [&](double max_bits) {
    Rng rng(8);
    std::vector<Matrix<float>> parts;
    Matrix<float>& rows = parts.emplace_back(2304, kWidth);
    for (size_t t = 0; t < rows.rows(); ++t) std::ranges::fill(rows.row(t), rng.below(2) == 0 ? 1.0f : -1.0f);
    return learn_transform(Vectors(std::move(parts)), metrics, {.max_bits = max_bits, .least_bits = 0.005});
  };
  const LearnedTransform learned = learn(0.1);
  CHECK_GT(learned.levels.measures.front().bits, 0);
  CHECK_EQ(learned.levels.rungs.at(0).size(), learned.levels.measures.size());
  CHECK_THROWS_WITH_AS(learn(0.01), doctest::Contains("0 bits at every step"), Error);
}

TEST_CASE("transform training: tokens that hardly differ, or not at all") {
  constexpr size_t kWidth = 64;
  const std::vector<ErrorMetric> metrics(1, ErrorMetric(std::vector<float>(kWidth, 1.0f)));
  Matrix<float> rows(2304, kWidth);
  const auto learn = [&] {
    Matrix<float> copy(rows.rows(), kWidth);
    std::ranges::copy(std::span(rows.data(), rows.size()), copy.data());
    std::vector<Matrix<float>> parts;
    parts.push_back(std::move(copy));
    return learn_transform(Vectors(std::move(parts)), metrics, {});
  };
  for (const float constant : {0.0f, 1.5f}) {
    std::ranges::fill(std::span(rows.data(), rows.size()), constant);
    CHECK_THROWS_WITH_AS(learn(), doctest::Contains("all tokens have the same keys and values"), Error);
  }
  // In one direction all the bits of a token cannot be spent.
  Rng rng(3);
  for (size_t t = 0; t < rows.rows(); ++t) {
    const auto loudness = static_cast<float>(rng.normal());
    for (size_t c = 0; c < kWidth; ++c) rows(t, c) = loudness * static_cast<float>(c + 1);
  }
  const LearnedTransform learned = learn();
  const auto& rungs = learned.levels.rungs.at(0);
  CHECK_LT(rungs.size(), size_t{100});
  for (const LevelRung& rung : rungs) CHECK_GE(rung.live().size(), size_t{1});
}

TEST_CASE("first tokens: each head's class fits what is left of them, errors are below the finer step") {
  // Heads of 4: the first differs from document to document, the second hardly.
  const size_t width = 8;
  Rng rng(5);
  const auto some = [&](size_t count) {
    Matrix<float> rows(count, width);
    for (size_t i = 0; i < count; ++i)
      for (size_t c = 0; c < width; ++c)
        rows(i, c) = static_cast<float>(30 + (c < 4 ? 2 : 0.001) * rng.normal());
    return rows;
  };
  Matrix<double> blocks(width, 4);
  for (size_t c = 0; c < width; ++c)
    for (size_t k = 0; k < 4; ++k) blocks(c, k) = c % 4 == k ? 3 : 1;
  const ErrorMetric metric(std::move(blocks));
  const std::vector<float> steps{2, 0.5f};
  const FirstTokens learned = learn_first_tokens(some(400), metric, 2, steps, 8);
  REQUIRE_EQ(learned.classes.size(), size_t{2});
  REQUIRE_EQ(learned.mean.size(), width);
  for (const float mean : learned.mean) CHECK_LT(std::abs(mean - 30), 0.4f);
  // Levels of |N(0, 2 * root of about 3)| in steps of 2 / 8: a mean of some 11.
  CHECK_GE(learned.classes[0][0], class_of_mean_level(8));
  CHECK_LE(learned.classes[0][0], class_of_mean_level(14));
  CHECK_EQ(learned.classes[1][0], learned.classes[0][0] + 4);
  CHECK_EQ(learned.classes[0][1], 0);  // the least, but not dead

  Rng of_book(2);
  const CodecContext context{.num_layers = 4, .heads = 2, .head_dim = 8};
  const LevelTables tables(test::random_transform_book({}, context, of_book).classes, 0);
  for (size_t rung = 0; rung < 2; ++rung) {
    const FirstTokenCoder coder(metric, tables, learned.mean, learned.classes[rung], steps[rung], 8);
    Matrix<float> rows = some(3);
    rows(2, 7) = -1000;  // like none that was learned from
    for (size_t i = 0; i < rows.rows(); ++i) {
      std::vector<uint8_t> bytes;
      coder.encode(rows.row(i), bytes);
      std::vector<float> back(width);
      coder.decode(bytes, back);
      // Weights are 2 at least, so that an error of a head is below half a step for each value.
      for (size_t c = 0; c < width; ++c)
        CHECK_LT(std::abs(back[c] - rows(i, c)), steps[rung] / 8 / 2 * 2 / std::sqrt(2.0f) + 1e-3f);
      bytes.pop_back();
      CHECK_THROWS_AS(coder.decode(bytes, back), Error);
    }
  }
}

TEST_CASE("transform training: first tokens are learned where there are enough") {
  const size_t width = 48;
  const std::vector<ErrorMetric> metrics(1, ErrorMetric(std::vector<float>(width, 1.0f)));
  const auto learned_from = [&](size_t count, double finer) {
    return learn_transform(Vectors({correlated(4000, width, 8, 1)}, {}, correlated(count, width, 4, 3)),
                           metrics, {.max_bits = 2, .least_bits = 0.2, .first_finer = finer});
  };
  const LearnedTransform learned = learned_from(20, 16);
  REQUIRE_EQ(learned.firsts.size(), size_t{1});
  CHECK_EQ(learned.firsts[0].classes.size(), learned.levels.measures.size());
  CHECK_EQ(learned.firsts[0].classes[0].size(), width / 16);
  CHECK(learned_from(kMinFirstTokens - 1, 16).firsts.empty());
  CHECK(learned_from(20, 0).firsts.empty());
}

TEST_CASE("transform book: what is stored comes back, and what does not fit is refused") {
  Rng rng(2);
  const CodecContext context{.num_layers = 4, .heads = 2, .head_dim = 8};
  TransformBook made = test::random_transform_book({.predict_tokens = 2, .first_tokens = true}, context, rng);
  LevelRows& vectors = made.parts[1].basis.vectors;  // in all numbers of bits
  std::vector<uint8_t> bits(vectors.rows());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint8_t>(i % kMaxLevelBits + 1);
  vectors = round_vectors(floats_of(vectors), bits);
  const Book book = to_book(made);
  const TransformBook read = transform_book_from(book);
  CHECK(to_book(read).digest() == book.digest());
  CHECK(read.parts[1].basis.vectors.bits() == bits);
  const Matrix<float> floats = floats_of(vectors), read_floats = floats_of(read.parts[1].basis.vectors);
  CHECK(std::ranges::equal(std::span(floats.data(), floats.size()),
                           std::span(read_floats.data(), read_floats.size())));
  CHECK_EQ(read.parts.size(), size_t{2});
  CHECK_EQ(read.steps(), size_t{2});
  REQUIRE(read.features.has_value());
  CHECK_EQ(read.features->lags(), size_t{2});
  CHECK_EQ(read.features->vocabulary(), size_t{test::kSampleVocabulary});
  CHECK_EQ(read.parts[0].basis.prediction.rank(), made.parts[0].basis.prediction.rank());
  CHECK_EQ(read.rung_for(0.01), size_t{0});
  CHECK_EQ(read.rung_for(1.9), size_t{1});

  const auto refused = [&](const std::string& array, const std::function<void(Array&)>& change) {
    Book damaged = book;
    for (Array& one : damaged.arrays)
      if (one.name == array) change(one);
    try {
      transform_book_from(damaged);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::bad_input;
    }
    return false;
  };
  const auto set = [](size_t byte, int value) {
    return [=](Array& array) { array.bytes.at(byte) = static_cast<std::byte>(value); };
  };
  CHECK(refused("features", set(3, 0)));
  CHECK(refused("both/0/vectors", [](Array& array) { array.bytes.pop_back(), --array.shape[0]; }));
  CHECK(refused("both/0/vector_bits", set(3, 0)));
  CHECK(refused("both/0/vector_bits", set(3, 16)));
  CHECK(refused("both/0/vector_bits", set(3, 4)));  // fewer bytes than there are
  CHECK(refused("both/0/classes", set(3, 40)));
  CHECK(refused("both/0/classes", [](Array& array) { array.shape = {1, 64}; }));
  CHECK(refused("both/2/inverse_roots", set(3, 0x80)));  // the sign of the first
  CHECK(refused("both/2/vector_scales", set(3, 0xbf)));
  CHECK(refused("steps", [](Array& array) { array.shape = {0}, array.bytes.clear(); }));
  CHECK(refused("shrinks", set(3, 0x40)));  // 2 and more
  CHECK(refused("tables", [](Array& array) { array.bytes.push_back(std::byte{0}), ++array.shape[0]; }));
  CHECK(refused("tables", [](Array& array) { array.bytes.pop_back(), --array.shape[0]; }));
  CHECK(refused("bits", [](Array& array) { std::ranges::fill(array.bytes, std::byte{0}); }));
  CHECK(refused("both/0/first_mean", [](Array& array) { std::ranges::fill(array.bytes, std::byte{0xff}); }));
  CHECK(refused("both/2/first_classes", set(3, 40)));
  CHECK(refused("both/2/first_classes", [](Array& array) { array.shape = {1, 16}; }));
  CHECK(refused("both/2/first_mean", [](Array& array) { array.name = "elsewhere"; }));
  CHECK(refused("features", set(3, 0)));
  CHECK(refused("features", [](Array& array) { array.shape = {50, 0}, array.bytes.clear(); }));
  CHECK(refused("feature_scales", set(3, 0xbf)));
  CHECK(refused("both/2/scores", set(0, 0)));
  CHECK(refused("both/2/loadings", [](Array& array) {  // a row fewer than there are scores
    array.bytes.resize(array.bytes.size() - array.shape[1]);
    --array.shape[0];
  }));
}

TEST_CASE("transform: what is predicted from ids needs them, those that the book knows") {
  Rng rng(2);
  const CodecContext plain{.num_layers = 4, .heads = 2, .head_dim = 8};
  const Book book = to_book(test::random_transform_book({.sink = 1, .predict_tokens = 2}, plain, rng));
  CodecContext context = plain;
  context.book = &book;
  const auto codec = codec_from_record(find_codec("transform"), {}, context);
  CHECK_EQ(codec->predicts_from(), uint64_t{test::kSampleVocabulary});
  const GroupShape shape = usual_group(0, 2, 2, 8, Side::both);
  Matrix<float> rows(20, shape.width());
  for (float& value : std::span(rows.data(), rows.size())) value = static_cast<float>(rng.normal());
  const auto error_with = [&](std::vector<uint32_t> ids) {
    Encoded encoded(codec->streams(shape));
    try {
      codec->append(shape, rows, encoded.add_document(std::move(ids)));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  std::vector<uint32_t> ids(20, 3);
  CHECK_EQ(error_with(ids), "");
  CHECK_EQ(error_with({}), "the ids of the document's tokens are not known");
  ids.pop_back();
  CHECK_NE(error_with(ids).find("are not all there"), std::string::npos);
  ids.push_back(test::kSampleVocabulary);
  CHECK_EQ(error_with(ids), "token id 50; tokens are predicted from ids below 50");
}

TEST_CASE(
    "transform: blocks of more levels than can be coded together are refused before anything is coded") {
  Rng rng(5);
  const CodecContext plain{.num_layers = 1, .heads = 1, .head_dim = 513};  // 1,026 components
  const Book book = to_book(test::random_transform_book({.layer_group = 1, .sink = 0}, plain, rng));
  CodecContext context = plain;
  context.book = &book;
  const GroupShape shape = usual_group(0, 1, 1, 513, Side::both);
  Matrix<float> rows(3, shape.width());
  for (const bool adapt : {false, true})
    for (const int64_t block : {65408, 65536}) {
      Record record;
      record.set("adapt", adapt);
      record.set("block", block);
      const auto codec = codec_from_record(find_codec("transform"), record, context);
      Encoded encoded(codec->streams(shape));
      StreamStore& document = encoded.add_document();
      CAPTURE(block);
      if (block == 65408) {
        codec->append(shape, rows, document);
        continue;
      }
      const char* const message = "--block is 65536; of 1026 components at this step, it is at most 65408";
      CHECK_THROWS_WITH_AS(codec->append(shape, rows, document), message, Error);
      if (adapt) CHECK_THROWS_WITH_AS(codec->survey(shape), message, Error);
    }
}

TEST_CASE(
    "transform: tokens that lie outside the components are kept exactly, so that no error is unbounded") {
  Rng rng(61);
  const CodecContext plain{.num_layers = 2, .heads = 2, .head_dim = 8};
  const test::TransformSettings settings{.sink = 0};
  for (const double lambda : {0.0, 0.001}) {  // the usual price of a bit stands in for these
    CAPTURE(lambda);
    TransformBook book = test::random_transform_book(settings, plain, rng);
    book.options.rate_distortion = lambda;
    const size_t width = book.width(Side::both);
    // The second half of the components is dead, and only they affect the second half of the columns.
    for (auto& part : book.parts)
      for (auto& rung : part.rungs)
        for (size_t i = width / 2; i < width; ++i) rung.classes[i] = kDeadClass;
    const std::vector<float> mean = book.parts.front().basis.mean;
    const Book stored = to_book(book);
    CodecContext context = plain;
    context.book = &stored;
    const auto options = find_codec("transform").make_options();
    for (const OptionField& field : options->fields()) {
      if (field.name == "sink") set_value(field, int64_t{0});
      if (field.name == "rung") set_value(field, int64_t{1});
      if (field.name == "adapt") set_value(field, false);
    }
    const auto codec = make_codec(find_codec("transform"), *options, context, RopeChoice::keep);
    const GroupShape shape = usual_group(0, 2, 2, 8, Side::both);
    // Token t has so much there that its error is 2^(t - 4) times what is kept exactly: weights are 1 and 4.
    const double step = double{settings.step},
                 bound = LevelOptions{}.lambda * 16 * double(width) * step * step;
    const size_t tokens = 9;
    Matrix<float> rows(tokens, width);
    for (size_t t = 0; t < tokens; ++t)
      for (size_t c = 0; c < width; ++c) {
        const double energy = bound * std::exp2(double(t) - 4) / double(width / 2);
        const double away = c < width / 2 ? 0 : std::sqrt(energy / (c % 2 == 0 ? 1 : 4));
        rows(t, c) = round_to(DType::bf16, static_cast<float>(double{mean[c]} + away));
      }
    const Encoded encoded = encode_in_memory(*codec, shape, {{DocumentRows(rows)}});
    Matrix<float> back(tokens, width);
    codec->open(shape, encoded.document(0))->decode(0, back);
    for (size_t t = 0; t < tokens; ++t) {
      CAPTURE(t);
      const bool exact = std::ranges::equal(back.row(t), std::as_const(rows).row(t));
      if (t != 4) CHECK_EQ(exact, t > 4);  // of as much, bits and rounding decide
      double error = 0;
      for (size_t c = 0; c < width; ++c)
        error += (c % 2 == 0 ? 1 : 4) * std::pow(double{back(t, c)} - double{rows(t, c)}, 2);
      CHECK_LE(error, 1.01 * bound);
    }
    // Components beyond all levels do not make a token fail.
    Matrix<float> huge(2, width);
    for (size_t c = 0; c < width; ++c) huge(0, c) = huge(1, c) = rows(0, c);
    huge(1, 0) = 1e12f;
    for (float& value : std::span(huge.data(), huge.size())) value = round_to(DType::bf16, value);
    const Encoded of_huge = encode_in_memory(*codec, shape, {{DocumentRows(huge)}});
    Matrix<float> huge_back(2, width);
    codec->open(shape, of_huge.document(0))->decode(0, huge_back);
    CHECK(std::ranges::equal(huge_back.row(1), std::as_const(huge).row(1)));
    CHECK_FALSE(std::ranges::equal(huge_back.row(0), std::as_const(huge).row(0)));
  }
}

TEST_CASE("transform: who reads keys and values in turns has both decoded once") {
  Rng rng(4);
  CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 8};
  const Book book = to_book(test::random_transform_book({}, context, rng));
  context.book = &book;
  const auto codec = codec_from_record(find_codec("transform"), {}, context);
  const GroupShape shape = usual_group(0, 2, 2, 8, Side::both);
  constexpr size_t kTokens = 5000;  // more than what is left is kept of
  Matrix<float> rows(kTokens, shape.width());
  for (float& value : std::span(rows.data(), rows.size())) value = static_cast<float>(rng.normal());
  const DocumentRows views[] = {std::as_const(rows).view()};
  const Encoded encoded = encode_in_memory(*codec, shape, views);
  const test::CountingReader document(encoded.document(0));
  Matrix<float> keys(kTokens, shape.side_width(Side::key)), values = keys, keys_alone = keys,
                                                            values_alone = keys;
  codec->open(of_side(shape, Side::key), document)->decode(0, keys_alone);
  codec->open(of_side(shape, Side::value), document)->decode(0, values_alone);
  const auto same = [](const Matrix<float>& a, const Matrix<float>& b) {
    return std::equal(a.data(), a.data() + a.size(), b.data());
  };

  const auto both = codec->open(shape, document);
  both->decode(0, rows);
  document.take();
  both->decode(0, rows);
  const uint64_t once = document.take();
  const SideViews sides = codec->open_sides(shape, document, document);
  document.take();
  decode_sides(*sides.keys, *sides.values, 0, keys, values);
  CHECK_LT(document.take(), once + once / 4);
  CHECK(same(keys, keys_alone));
  CHECK(same(values, values_alone));

  // The order of attention: 2,048 tokens of one side, then of the other.
  std::fill_n(keys.data(), keys.size(), 0.0f);
  std::fill_n(values.data(), values.size(), 0.0f);
  for (size_t first = 0; first < kTokens; first += 2048) {
    const size_t count = std::min<size_t>(2048, kTokens - first);
    sides.keys->decode(first, keys.view().rows(first, count));
    document.take();
    sides.values->decode(first, values.view().rows(first, count));
    CHECK_EQ(document.take(), uint64_t{0});
  }
  CHECK(same(keys, keys_alone));
  CHECK(same(values, values_alone));
  // The source of tokens is gone; other pieces are still decoded, and so are tokens that were left before others came.
  sides.values->decode(0, values.view().rows(0, 100));
  CHECK_GT(document.take(), uint64_t{0});
  sides.keys->decode(100, keys.view().rows(100, 50));
  CHECK_GT(document.take(), uint64_t{0});
  sides.keys->decode(0, keys);
  document.take();
  sides.values->decode(0, values.view().rows(0, 1024));
  CHECK_GT(document.take(), uint64_t{0});
  CHECK(same(keys, keys_alone));
  CHECK(same(values, values_alone));
}

}  // namespace transform_test
