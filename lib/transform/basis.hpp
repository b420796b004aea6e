// The parts of a transform: matrices in bytes, the metric of errors, prediction from token ids, and bases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/lazy.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/linalg/row_sums.hpp"
#include "lib/transform/level_rows.hpp"

namespace kvcodec {

// An error e of a vector costs e' M e. M is symmetric, positive definite and block-diagonal: every b
// consecutive columns of a vector, those of a head, make one block, and errors in columns of different blocks
// are independent. b = 1: every column has a weight of its own.
//
// Only the root W = M^(1/2) and its inverse V = W^-1 are needed; decoding needs V, which is given.

class ErrorMetric {
 public:
  ErrorMetric() = default;
  /// M = diag(weights). Throws Error(failed) for weights that are not positive and finite.
  explicit ErrorMetric(std::span<const float> weights);
  /// M from its blocks, one below the other: (width, b), each symmetric. Throws Error(failed) for blocks that are not
  /// symmetric and positive definite, and for a width that is not a multiple of b.
  explicit ErrorMetric(Matrix<double> blocks);
  /// From V, likewise (width, b), as a book has it. Throws Error(bad_input) for blocks that are not symmetric, with an
  /// eigenvalue that is not above 2^-40 of the block's trace, or with a trace outside of 2^-80 to 2^80.
  static ErrorMetric from_inverse_roots(Matrix<float> inverse_roots);

  size_t width() const { return inverse_roots_.rows(); }
  size_t block() const { return inverse_roots_.cols(); }
  /// W and V, (width, b). W is computed on first use, since only encoding and training need it.
  const Matrix<float>& roots() const;
  const Matrix<float>& inverse_roots() const { return inverse_roots_; }

  /// rows times `blocks`, the blocks of W or V: out (n, width).
  static void times(MatrixView<const float> rows, MatrixView<const float> blocks, MatrixView<float> out);
  /// rows W and rows V: (n, width) each.
  Matrix<float> times_root(MatrixView<const float> rows) const { return product(rows, roots()); }
  Matrix<float> times_inverse_root(MatrixView<const float> rows) const {
    return product(rows, inverse_roots_);
  }
  /// `rows W` for vectors that are 0 outside of the columns [first, first + rows.cols()), which are whole
  /// blocks. rows has only these columns, and so has the result: (n, rows.cols()).
  Matrix<float> times_root(MatrixView<const float> rows, size_t first) const;
  /// W matrix W, for a symmetric matrix.
  Matrix<double> between_roots(MatrixView<const double> matrix) const;

 private:
  static Matrix<float> product(MatrixView<const float> rows, MatrixView<const float> blocks);

  Matrix<float> inverse_roots_;  // (width, b)
  // Copies share it.
  std::shared_ptr<const Lazy<Matrix<float>>> roots_ = std::make_shared<Lazy<Matrix<float>>>();
};

/// Regularizes measured blocks for a metric, (width, b), symmetric: from few samples they are unreliable.
/// Each block is raised to `power` and scaled so that its trace stays (power 1: no change; 0: the trace is
/// spread evenly over the diagonal). Then a hundredth of the mean weight is added to the diagonal: errors in
/// directions that no sample had cost something too. Throws Error(failed) if all blocks are zeros.
Matrix<double> tempered_blocks(Matrix<double> blocks, double power);

// Predicting the vectors of a transform from the ids of their tokens. The cache of a token depends in part on its id
// and on those of the tokens before it: the first layer's keys and values depend only on the token's own id, those of
// later layers less and less. So where ids are stored anyway, a vector is predicted from them, and only the residual
// is transformed (linear prediction with side information: Gersho and Gray, "Vector Quantization and Signal
// Compression", chapter 4).
//
// A token's id names a row of features (TokenFeatures). z, of a token, are its features and those of the tokens before
// it, `lags` in all; the first token of a document also takes the place of those before it. The prediction is of low rank:
//   x - mean  ~  L' (R z)           R z: the scores
// with L and R from reduced-rank regression (Izenman, 1975), ridged, by the metric: of all predictions of that rank it
// has the smallest e' M e.

/// Features of tokens, known by their ids.
class TokenFeatures {
 public:
  TokenFeatures() = default;
  /// rows: (vocabulary, features of a token). Throws Error(failed) if there are no features, or no lags.
  TokenFeatures(LevelRows rows, size_t lags);

  size_t vocabulary() const { return rows_.rows(); }
  size_t of_token() const { return rows_.cols(); }
  size_t lags() const { return lags_; }
  /// Features of a token and those before it.
  size_t width() const { return lags_ * of_token(); }
  const LevelRows& rows() const { return rows_; }

  /// z of consecutive tokens: out (n, width()). ids: of the lags() - 1 tokens before them, then theirs.
  /// Throws Error(bad_input) for an id beyond the vocabulary.
  void gather(std::span<const uint32_t> ids, MatrixView<float> out) const;

 private:
  LevelRows rows_;
  size_t lags_ = 0;
};

/// The ids that gather() takes for tokens [first, first + count) of a document. read(first, count): its ids.
std::vector<uint32_t> ids_with_lags(
    const std::function<std::vector<uint32_t>(uint64_t first, uint64_t count)>& read, uint64_t first,
    uint64_t count, size_t lags);

struct Prediction {
  LevelRows scores;    ///< R: (rank, width of z)
  LevelRows loadings;  ///< L: (rank, width of x)

  size_t rank() const { return scores.rows(); }
};

/// A prediction's scores, ready to be computed: a token's bits depend on its own features alone (row_sums.hpp).
class Scores {
 public:
  explicit Scores(const Prediction& prediction);
  /// R z of each row of z: (n, rank).
  Matrix<float> of(MatrixView<const float> features) const;

 private:
  RowSums columns_;  // R', (width of z, rank)
  std::vector<float> none_;
};

/// The prediction from these moments, rounded to bytes. covariance: of x followed by z. rank 0: the smallest rank at which the dropped
/// scores would explain at most 0.5% as much energy as all scores together leave unexplained.
Prediction learn_prediction(const Matrix<double>& covariance, const ErrorMetric& metric, size_t rank);

/// The covariance of x - L' R z.
Matrix<double> residual_covariance(const Matrix<double>& covariance, const Prediction& prediction);

// The transform: an orthonormal basis of weighted vectors (Karhunen and Loeve) and the way back.
// A vector x is a token's data in some layers, keys and values of all their heads. Errors of its values cost a model
// differently; the metric M gives their cost. With W = M^(1/2), C the covariance of x and W C W = U L U', the rows of U' W x are
// uncorrelated, and a unit of squared error in any of them costs the same: one quantizer step serves all, as reverse
// water-filling requires (Cover and Thomas, "Elements of Information Theory", section 10.3.3).
//   y = U' W (x - mean)          analysis
//   x = mean + W^-1 U y          synthesis
// If vectors are predicted from their tokens' ids, the prediction is subtracted with the mean, and C is the covariance of the
// residual. A book stores the columns of U, in bytes, and W^-1.

struct TransformBasis {
  std::vector<float> mean;  ///< (width)
  ErrorMetric metric;       ///< of as many columns
  Prediction prediction;    ///< of rank 0: none
  LevelRows vectors;        ///< the columns of U: (components, width), those of largest variance first

  size_t width() const { return mean.size(); }
  size_t components() const { return vectors.rows(); }

  /// U' W^-1 for these components: (components.size(), width).
  Matrix<float> synthesis(std::span<const uint32_t> components) const;
};

/// Computes some of a basis' components from vectors. Rounding has left the basis' vectors a little of each other, and those in few bits bring
/// much of loud components into quiet ones. So components are computed in stages, the loud ones first, and each stage sees what those
/// before it leave.
class Analysis {
 public:
  /// components: rising. brought: what rounding may bring into a component, in bounds of rounding.hpp; with less there are more stages.
  Analysis(const TransformBasis& basis, std::span<const uint32_t> components, double brought = 0);

  /// W times the vectors less their prediction, (n, width). centred: vectors less the mean, (n, width), which are overwritten; scores: of their
  /// tokens, (n, rank of the prediction).
  Matrix<float> weighted(MatrixView<float> centred, MatrixView<const float> scores) const;
  /// The chosen components, (components, n), of weighted vectors, (n, width), of which is left what no component has. The bits of a result depend on all
  /// vectors: callers cut by fixed sizes.
  void apply(MatrixView<float> weighted, MatrixView<float> out) const;

 private:
  struct Stage {
    size_t first, end;                         // of the components
    std::optional<PackedMatrix> packed, back;  // the vectors, and less their transpose
  };

  ErrorMetric metric_;
  Matrix<float> loadings_;
  Matrix<float> vectors_;  // of stages that are not packed
  std::vector<Stage> stages_;
};

/// `brought` of Analysis for a quantizer with this step: a small part of that quantizer's error. vector_error, finest: of the training (train.hpp) that
/// gave vectors their bits.
double brought_at(double vector_error, double step, double finest);

/// The way back, from components to vectors. The bits of a vector depend only on its own components and
/// scores, and are the same on every processor (row_sums.hpp).
class Synthesis {
 public:
  /// mean: of the vectors, in place of the basis' own.
  Synthesis(const TransformBasis& basis, std::span<const float> mean, std::span<const uint32_t> components);

  /// Empty coefficients for that many tokens. For apply(), append a row for each chosen component, then a row for each score.
  RowCoefficients coefficients(size_t tokens) const { return {rows_.rows(), tokens}; }
  /// Vectors: out (n, width).
  void apply(const RowCoefficients& coefficients, MatrixView<float> out) const {
    rows_.add(coefficients, mean_, out);
  }

 private:
  std::vector<float> mean_;
  RowSums rows_;  // of components, of scores
};

/// The result of learning one group of vectors.
struct LearnedBasis {
  TransformBasis basis;           ///< without its vectors
  Matrix<float> vectors;          ///< of all components, before they are rounded to bytes: (width, width)
  std::vector<double> variances;  ///< of all components, falling, also of those that the basis drops
  std::vector<double> energies;   ///< of each column of the vectors: its variance
  std::vector<double> left;       ///< likewise, of the residual after prediction
};

/// The basis of weighted vectors with these moments, with all components. Columns of the moments beyond the metric's are
/// features, from which vectors are predicted with this rank. Throws Error(failed) for a metric of more columns.
/// Variances are right to some 2^-20 of the largest.
LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric, size_t rank = 0,
                         const Progress& progress = {});

/// The basis of these components' vectors, the first ones, in bits by this bound (rounding.hpp).
TransformBasis basis_of_first(LearnedBasis learned, size_t components, double bound = 0);

}  // namespace kvcodec
