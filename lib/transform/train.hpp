// Learning a transform: bases of all parts, then steps and tables that they share.
//
// Bases are learned from the covariance of most tokens. Steps form a ladder, four to an octave, between the requested rates. Parameters
// of a step (dead components, classes, gains, tables) are learned from held-out tokens: every n-th run of 256, n at least 8. A basis
// compacts the energy of its training tokens better than that of others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/levels.hpp"
#include "lib/transform/rounding.hpp"

namespace kvcodec {

/// Vectors to learn from: each part has tokens() vectors of width(part) values.
class VectorSource {
 public:
  virtual ~VectorSource() = default;
  virtual size_t parts() const = 0;
  virtual size_t width(size_t part) const = 0;
  /// Values of a vector that share a class in first tokens; a divisor of its width.
  virtual size_t head_dim(size_t /*part*/) const { return 1; }
  virtual uint64_t tokens() const = 0;
  /// Vectors [first, first + out.rows()) of a part to out: (n, width), finite. Called from one thread.
  virtual void read(size_t part, uint64_t first, MatrixView<float> out) const = 0;
  /// Number of features of a token that predict its vectors (basis.hpp); 0: they are not predicted.
  virtual size_t features() const { return 0; }
  /// The features of tokens [first, first + out.rows()): (n, features()).
  virtual void read_features(uint64_t /*first*/, MatrixView<float> /*out*/) const {}
  /// Number of first tokens of documents (levels.hpp); tokens() does not count them.
  virtual uint64_t first_tokens() const { return 0; }
  /// First tokens [first, first + out.rows()) of a part: out (n, width).
  virtual void read_first_tokens(size_t /*part*/, uint64_t /*first*/, MatrixView<float> /*out*/) const {}
};

struct TransformTraining {
  double max_bits = 2, least_bits = 0.1;  ///< per value, about: the ends of the ladder
  double vector_error = kVectorError;  ///< bound of rounding.hpp, of a component's error at the finest step
  LevelOptions levels = {};
  size_t rank = 0;          ///< of predictions; 0: as learn_prediction chooses
  double first_finer = 16;  ///< 0: first tokens are not learned
};

struct LearnedTransform {
  std::vector<TransformBasis> bases;  ///< of each part
  LearnedLevels levels;               ///< of each part and step, coarsest step first; bits per value
  std::vector<FirstTokens> firsts;    ///< of each part; none where the source has fewer than kMinFirstTokens
  double values = 0;                  ///< of a token, over all parts
  /// The variance of each value of each part, and that of its residual after prediction.
  std::vector<std::vector<double>> energies, left;
};

/// metrics: of each part. Throws Error(bad_input) if there are too few tokens to learn from. team: each rank reads
/// its share of the tokens and adds up their covariances in slices, solves the eigenproblems of every size-th part,
/// and learns the levels of its share of parts and steps. The result is that of one rank.
LearnedTransform learn_transform(const VectorSource& source, std::span<const ErrorMetric> metrics,
                                 const TransformTraining& training, const Progress& progress = {},
                                 const Team& team = alone());

/// Approximate maximum of the bytes that learn_transform() takes for so many tokens, of parts with vectors of these widths and with so many
/// features.
uint64_t learn_transform_bytes(std::span<const size_t> widths, uint64_t features, uint64_t tokens);

}  // namespace kvcodec
