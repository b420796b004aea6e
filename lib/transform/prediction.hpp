// Predicting the vectors of a transform from the ids of their tokens.
//
// What a token's cache holds follows in part from which token it is and which ones stand before it: the first layer's
// keys and values wholly from the token's own id, those of later layers less and less. So where ids are stored anyway,
// a vector is predicted from them, and only what is left is transformed (linear prediction with side information:
// Gersho and Gray, "Vector Quantization and Signal Compression", chapter 4).
//
// A token's id names a row of features (TokenFeatures). z, of a token, are its features and those of the tokens before
// it, `lags` in all; before a document's first token the first one stands again. The prediction is of low rank:
//   x - mean  ~  L' (R z)           R z: the scores
// with L and R from reduced-rank regression (Izenman, 1975), ridged, by the metric: of all predictions of that rank it
// leaves the least e' M e.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/linalg/row_sums.hpp"
#include "lib/transform/byte_rows.hpp"
#include "lib/transform/metric.hpp"

namespace kvcodec {

/// What is known of a token by its id.
class TokenFeatures {
 public:
  TokenFeatures() = default;
  /// rows: (vocabulary, features of a token). Throws Error(failed) without any, or without lags.
  TokenFeatures(ByteRows rows, size_t lags);

  size_t vocabulary() const { return rows_.levels.rows(); }
  size_t of_token() const { return rows_.levels.cols(); }
  size_t lags() const { return lags_; }
  /// Of a token and those before it.
  size_t width() const { return lags_ * of_token(); }
  const ByteRows& rows() const { return rows_; }

  /// z of consecutive tokens: out (n, width()). ids: of lags() - 1 tokens before them, and theirs. Throws
  /// Error(bad_input) for an id beyond the vocabulary.
  void gather(std::span<const uint32_t> ids, MatrixView<float> out) const;

 private:
  ByteRows rows_;
  size_t lags_ = 0;
};

/// The ids that gather() takes for tokens [first, first + count) of a document. read(first, count): its ids.
std::vector<uint32_t> ids_with_lags(
    const std::function<std::vector<uint32_t>(uint64_t first, uint64_t count)>& read, uint64_t first,
    uint64_t count, size_t lags);

struct Prediction {
  ByteRows scores;    ///< R: (rank, width of z)
  ByteRows loadings;  ///< L: (rank, width of x)

  size_t rank() const { return scores.levels.rows(); }
};

/// A prediction's scores, ready to be computed: a token's bits depend on its own features alone (row_sums.hpp).
class Scores {
 public:
  explicit Scores(const Prediction& prediction);
  size_t rank() const { return none_.size(); }
  /// R z of each row of z: (n, rank).
  Matrix<float> of(MatrixView<const float> features) const;

 private:
  RowSums columns_;  // R', (width of z, rank)
  std::vector<float> none_;
};

/// The prediction from these moments, rounded to bytes. covariance: of x followed by z. rank 0: the smallest
/// rank at which the dropped scores would explain at most 0.5% as much energy as all scores together leave
/// unexplained.
Prediction learn_prediction(const Matrix<double>& covariance, const ErrorMetric& metric, size_t rank);

/// The covariance of x - L' R z.
Matrix<double> residual_covariance(const Matrix<double>& covariance, const Prediction& prediction);

}  // namespace kvcodec
