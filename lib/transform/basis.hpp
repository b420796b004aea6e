// The transform: an orthonormal basis of weighted vectors (Karhunen and Loeve) and the way back.
//
// A vector x is what a token has in some layers, keys and values of all their heads. Errors of its values do not
// cost a model the same; the metric M (metric.hpp) says what they cost. With W = M^(1/2), C the covariance of x and
// W C W = U L U', the rows of U' W x are uncorrelated, and a unit of squared error in any of them costs the same: one
// quantizer step serves all, which is what reverse water-filling asks for (Cover and Thomas, "Elements of Information
// Theory", section 10.3.3).
//   y = U' W (x - mean)          analysis
//   x = mean + W^-1 U y          synthesis
// Where vectors are predicted from their tokens' ids (prediction.hpp), the prediction is taken off with the mean, and C
// is the covariance of what is left.
// A book stores the columns of U, in bytes, and W^-1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/row_sums.hpp"
#include "lib/transform/byte_rows.hpp"
#include "lib/transform/metric.hpp"
#include "lib/transform/prediction.hpp"

namespace kvcodec {

struct TransformBasis {
  std::vector<float> mean;  ///< (width)
  ErrorMetric metric;       ///< of as many columns
  Prediction prediction;    ///< of rank 0: none
  ByteRows vectors;         ///< the columns of U: (components, width), those of largest variance first

  size_t width() const { return mean.size(); }
  size_t components() const { return vectors.levels.rows(); }

  /// U' W and U' W^-1 for these components: (components.size(), width).
  Matrix<float> analysis(std::span<const uint32_t> components) const;
  Matrix<float> synthesis(std::span<const uint32_t> components) const;
};

/// The way from vectors to some of a basis' components.
class Analysis {
 public:
  Analysis(const TransformBasis& basis, std::span<const uint32_t> components);

  /// Components [first, first + out.rows()) of those chosen: out (.., n). centred: vectors less the mean, (n, width);
  /// scores: of their tokens, (n, rank of the prediction).
  void apply(size_t first, MatrixView<const float> centred, MatrixView<const float> scores,
             MatrixView<float> out) const;

 private:
  Matrix<float> of_vectors_, of_scores_;
};

/// The way back, from components to vectors. The bits of a vector depend on its own components and scores
/// only, and are the same on every processor (row_sums.hpp).
class Synthesis {
 public:
  /// mean: of the vectors, in place of the basis' own.
  Synthesis(const TransformBasis& basis, std::span<const float> mean, std::span<const uint32_t> components);

  /// Empty coefficients for that many tokens. For apply(), append a row for each chosen component, then a row
  /// for each score.
  RowCoefficients coefficients(size_t tokens) const { return {rows_.rows(), tokens}; }
  /// Vectors: out (n, width).
  void apply(const RowCoefficients& coefficients, MatrixView<float> out) const {
    rows_.add(coefficients, mean_, out);
  }

 private:
  std::vector<float> mean_;
  RowSums rows_;  // of components, of scores
};

/// What training learns of one group of vectors.
struct LearnedBasis {
  TransformBasis basis;           ///< without its vectors
  Matrix<float> vectors;          ///< of all components, before they are rounded to bytes: (width, width)
  std::vector<double> variances;  ///< of all components, falling: those that the basis has and those beyond
  std::vector<double> energies;   ///< of each column of the vectors: its variance
  std::vector<double> left;       ///< likewise, of what prediction leaves
};

/// The basis of weighted vectors with these moments, with all components. Columns of the moments beyond the metric's are
/// features (prediction.hpp), which vectors are predicted from with this rank. Throws Error(failed) for a metric of more
/// columns. Variances are right to some 2^-20 of the largest.
LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric, size_t rank = 0,
                         const Progress& progress = {});

/// The basis of these components' vectors, the first ones, rounded to bytes as a book stores them.
TransformBasis basis_of_first(LearnedBasis learned, size_t components);

}  // namespace kvcodec
