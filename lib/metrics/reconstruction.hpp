// Errors of decoded keys or values against the original ones.
//
// A meter takes one side (keys or values) of all layers, layer by layer and chunk by chunk, and answers
// afterwards for all of it, a layer, a head, a dimension, or any combination. Sums are in double and run over
// the tokens in order, so the result depends neither on the number of threads nor on the chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
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
  double mean = 1;              ///< 1 for no vectors
  double first_percentile = 1;  ///< linear between the two around 1% (NumPy's default); 1 for no vectors
};

class ReconstructionMeter {
 public:
  /// Heads of a layer; 0: it is not compared.
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

  /// Errors over all values, or those of one layer, of one head (of every layer, or of one), of one
  /// dimension (likewise).
  ErrorSums errors(std::optional<int> layer = {}, std::optional<int> head = {},
                   std::optional<int> dimension = {}) const;

  /// Cosines of all vectors, or of one layer, one head. Two zero vectors have cosine 1, a zero and another
  /// one 0.
  CosineSummary cosine(std::optional<int> layer = {}, std::optional<int> head = {}) const;

  int layers() const { return static_cast<int>(layers_.size()); }
  int heads(int layer) const { return layers_.at(static_cast<size_t>(layer)).count; }
  int heads() const { return heads_; }        ///< the maximum of all layers
  int head_dim() const { return head_dim_; }  ///< the largest
  /// Tokens added to a layer.
  uint64_t tokens(int layer) const { return tokens_.at(static_cast<size_t>(layer)); }

 private:
  struct Sums {
    double error_energy = 0, signal_energy = 0, max_error = 0;
  };

  size_t head_index(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }

  std::vector<Heads> layers_;
  int heads_ = 1, head_dim_ = 1;
  std::vector<uint64_t> tokens_;             // [layer]
  std::vector<Sums> sums_;                   // [layer][head][dimension]
  std::vector<std::vector<float>> cosines_;  // [layer][head], one per token
};

/// Cosine similarity of two vectors of equal length, in double. Two zero vectors: 1; one: 0.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

// The effect of errors of keys and values on attention: per layer and query head, the error of
// the logits, the divergence of the weights, the error of the output, and how many of the tokens with the
// largest logits stay among them. Causal: a query sees the tokens up to its own.
//
// Products and weights are floats, sums double: divergences below 1e-6 are rounding.

struct AttentionErrorSums {
  uint64_t queries = 0;
  uint64_t logits = 0;       ///< tokens that the queries see, together
  double logit_error = 0;    ///< sum of squares of the differences of q . k / sqrt(d)
  double divergence = 0;     ///< sum over queries of sum p (log p - log p'), in nats
  double output_error = 0;   ///< sum over queries of |o - o'| / |o|
  double output_noise = 0;   ///< sum over queries of |o - o'|^2
  double output_energy = 0;  ///< sum over queries of |o|^2
  double overlap = 0;        ///< sum over queries of the share of the top tokens that stays

  void add(const AttentionErrorSums& other);
  double logit_rms() const;
  double mean_divergence() const { return per_query(divergence); }
  double mean_output_error() const { return per_query(output_error); }
  /// Energy of the outputs' errors over that of outputs; 0 for none. Outputs that are small count little.
  double output_nmse() const { return output_noise == 0 ? 0 : output_noise / output_energy; }
  double mean_overlap() const { return per_query(overlap); }

 private:
  double per_query(double sum) const { return queries == 0 ? 0 : sum / static_cast<double>(queries); }
};

class AttentionErrorMeter {
 public:
  /// top: number of the largest logits that are compared; fewer if a query sees fewer; 0: none.
  AttentionErrorMeter(int layers, int query_heads, size_t top);

  /// A document's rows of one layer, original and rebuilt: keys (tokens, heads * dimensions), values (tokens, heads *
  /// dimensions of theirs); and its queries, (n, query_heads * dimensions of keys). Query i sees tokens [from[i], visible[i]),
  /// at least one. Threaded, with the same result for any number of threads. Throws Error(failed) for shapes that
  /// do not fit.
  struct Rows {
    MatrixView<const float> keys, values, other_keys, other_values, queries;
    std::span<const uint64_t> visible;
    int heads = 0;                        ///< of keys and values; a divisor of the query heads
    std::span<const uint64_t> from = {};  ///< empty: 0
    float cap = 0;                        ///< logits x become cap * tanh(x / cap); 0: they do not
    std::span<const float> sinks = {};    ///< of each query head, a logit without a key; or empty
  };
  void add(int layer, const Rows& rows);

  /// Over everything, a layer, a query head of every layer or of one.
  AttentionErrorSums sums(std::optional<int> layer = {}, std::optional<int> head = {}) const;
  int layers() const { return layers_; }
  int query_heads() const { return query_heads_; }
  size_t top() const { return top_; }

 private:
  int layers_, query_heads_;
  size_t top_;
  std::vector<AttentionErrorSums> sums_;  // [layer][query head]
};

// Quality of a selection of tokens: its recall of the tokens that matter, the share of the attention
// weights that it covers, and the distance of attention over it from attention over all tokens.

/// |selected ∩ wanted| / |wanted|: the recall of the true top-B where `wanted` are those. No id stands twice
/// in either. 1 if nothing is wanted.
double selection_recall(std::span<const uint32_t> selected, std::span<const uint32_t> wanted);

/// The share of the softmax weights of all tokens that the selected ones have. logits: one per token, scaled
/// as for attention, finite; selected: ids below logits.size(), none twice. Throws Error(failed) for others.
/// 1 without tokens.
double mass_covered(std::span<const float> logits, std::span<const uint32_t> selected);

/// |output - reference| / |reference| in the Euclidean norm; 0 if both are zero, infinite if only the
/// reference is. Throws Error(failed) for different sizes.
double relative_error(std::span<const float> output, std::span<const float> reference);

/// The largest relative_error of all vectors of `dims` values that the rows are made of; 0 without any.
/// Throws Error(failed) for different shapes and rows that are not whole vectors.
double largest_relative_error(MatrixView<const float> outputs, MatrixView<const float> references,
                              size_t dims);

// The least error that any code of a given rate can have on Gaussian data: reverse water-filling over the
// variances of its independent components (Cover and Thomas, "Elements of Information Theory", section
// 10.3.3). With water level w, a component of variance v gets max(0, log2(v / w) / 2) bits and an error of
// min(v, w).
//
// Gaussian data is the hardest of all data with a given covariance. So a code for other data may do better
// than this bound, but not if it uses only the covariance. The mean is taken as known: it costs nothing per
// token. A covariance that was estimated from n rows of width m is too narrow in some directions: at 4 bits
// and n = 2m the bound of white noise is 1.4 dB too good, at n = 8m 0.3 dB; at n <= m it is meaningless.
// Correlations between tokens and between layers are left out.

/// The least mean squared error per value at `bits` bits per value on average, of independent components with
/// these variances (those below 0 by rounding count as 0). 0 without components.
double gaussian_distortion(std::span<const double> variances, double bits);

}  // namespace kvcodec
