// The transform: an orthonormal basis of weighted vectors (Karhunen and Loeve) and the way back.
//
// A vector x is what a token has in some layers, keys and values of all their heads. Errors of its values do not
// cost a model the same; the metric M (metric.hpp) says what they cost. With W = M^(1/2), C the covariance of x and W C W = U L U', the rows of U' W x are uncorrelated, and a unit
// of squared error in any of them costs the same: one quantizer step serves all, which is what reverse
// water-filling asks for (Cover and Thomas, "Elements of Information Theory", section 10.3.3).
//   y = U' W (x - mean)          analysis
//   x = mean + W^-1 U y          synthesis
// A book stores the columns of U, in bytes, and W^-1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/transform/metric.hpp"

namespace kvcodec {

struct TransformBasis {
  std::vector<float> mean;  ///< (width)
  ErrorMetric metric;       ///< of as many columns
  Matrix<float> vectors;    ///< the columns of U: (components, width), those of largest variance first

  size_t width() const { return mean.size(); }
  size_t components() const { return vectors.rows(); }

  /// U' W and U' W^-1 for these components: (components.size(), width).
  Matrix<float> analysis(std::span<const uint32_t> components) const;
  Matrix<float> synthesis(std::span<const uint32_t> components) const;
};

/// What training learns of one group of vectors.
struct LearnedBasis {
  TransformBasis basis;
  std::vector<double> variances;  ///< of all components, falling: those that the basis has and those beyond
};

/// The basis of weighted vectors with these moments, with all components. Throws Error(failed) for a metric of
/// another width.
LearnedBasis learn_basis(const CovarianceSums& moments, const ErrorMetric& metric);

/// Keeps the first components.
void keep_components(TransformBasis& basis, size_t components);

/// Rows in bytes: value = level * scale of its row, levels from -127 to 127.
struct ByteRows {
  Matrix<int8_t> levels;
  std::vector<float> scales;  ///< one a row, positive
};
ByteRows round_to_byte_rows(MatrixView<const float> rows);
Matrix<float> floats_of(const ByteRows& rows);

}  // namespace kvcodec
