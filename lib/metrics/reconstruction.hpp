// How far decoded keys or values are from the original ones.
//
// A meter takes one side (keys or values) of all layers, layer by layer and chunk by chunk, and answers
// afterwards for all of it, a layer, a head, a dimension, or any combination. Sums are in double and run over
// the tokens in order, so the result depends neither on the number of threads nor on the chunks.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Errors of a set of values x reconstructed as y.
struct ErrorSums {
  uint64_t values = 0;
  double error_energy = 0;   ///< sum of (x - y)^2
  double signal_energy = 0;  ///< sum of x^2
  double max_error = 0;      ///< largest |x - y|

  /// Mean squared error; 0 for no values.
  double mse() const { return values == 0 ? 0 : error_energy / static_cast<double>(values); }
  /// Error energy over signal energy; 0 without error, infinite for errors on a signal of zeros.
  double nmse() const {
    if (error_energy == 0) return 0;
    return signal_energy == 0 ? std::numeric_limits<double>::infinity() : error_energy / signal_energy;
  }
  /// Signal-to-noise ratio, 10 log10(1 / nmse), in dB; infinite without error, -infinite for errors on a
  /// signal of zeros.
  double snr_db() const;
};

/// Cosine similarities of vectors (one token of one head) with their reconstructions.
struct CosineSummary {
  uint64_t vectors = 0;
  double mean = 1;  ///< 1 for no vectors
  double first_percentile =
      1;  ///< linear between the two order statistics around 1% (NumPy's default); 1 for no vectors
};

class ReconstructionMeter {
 public:
  /// Heads of a layer; 0: nothing of it is compared.
  struct Heads {
    int count = 0, dim = 0;
  };
  /// Memory: 4 bytes per token, layer and head, and 32 bytes per layer, head and dimension.
  explicit ReconstructionMeter(std::vector<Heads> layers);
  /// For `layers` layers of `heads` heads of head_dim dimensions.
  ReconstructionMeter(int layers, int heads, int head_dim);

  /// The layer's next tokens, both (n, heads * dimensions). Throws Error(bad_input) naming token, head and
  /// dimension of the first value that is not finite (nothing is counted then), Error(failed) for other
  /// shapes.
  void add(int layer, MatrixView<const float> original, MatrixView<const float> reconstructed);

  /// Errors over all values, or those of one layer, one head (of every layer, or of one), one dimension
  /// (likewise).
  ErrorSums errors(std::optional<int> layer = {}, std::optional<int> head = {},
                   std::optional<int> dimension = {}) const;

  /// Cosines of all vectors, or of one layer, one head. Two zero vectors have cosine 1, a zero and another
  /// one 0.
  CosineSummary cosine(std::optional<int> layer = {}, std::optional<int> head = {}) const;

  int layers() const { return static_cast<int>(layers_.size()); }
  int heads(int layer) const { return layers_.at(static_cast<size_t>(layer)).count; }
  int heads() const { return heads_; }        ///< the most of a layer
  int head_dim() const { return head_dim_; }  ///< the largest
  /// Tokens added to a layer.
  uint64_t tokens(int layer) const;

 private:
  struct Sums {
    double error_energy = 0, signal_energy = 0, max_error = 0;
  };

  size_t head_index(int layer, int head) const;

  std::vector<Heads> layers_;
  int heads_ = 1, head_dim_ = 1;
  std::vector<uint64_t> tokens_;             // [layer]
  std::vector<Sums> sums_;                   // [layer][head][dimension]
  std::vector<std::vector<float>> cosines_;  // [layer][head], one per token
};

/// Cosine similarity of two vectors of equal length, in double. Two zero vectors: 1; one: 0.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

}  // namespace kvcodec
