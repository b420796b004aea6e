// Sensitivity: the cost of errors in a model's cache, by layer and side, which is their weight in the allocation of bits. To measure it,
// independent normal noise of one variance is added to the keys or the values of one layer of a prefix. The divergence of the continuation's
// predictions from those of the run without noise, for each unit of variance, is the sensitivity. As long as errors are small, divergences
// of layers and sides add up, and each is proportional to its variance: the sum over layers and sides of sensitivity times mean squared
// error predicts what a codec costs.
//
// Noise of two sizes tells if errors are small: with twice the deviation it costs four times as much as long as
// the divergence is quadratic. The sensitivity is that of the smaller noise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

struct SensitivityOptions final : Options {
  double target = 0.01;  ///< nats: small beside the loss by a coarse codec, large beside rounding
  int64_t sink = 4;      ///< nearly every query attends to the first tokens, which codecs keep exactly
  int64_t seed = 0;
  uint64_t memory = 0;  ///< bytes, 0: no bound

  std::vector<OptionField> fields() override {
    return {{"noise-target", "nats that the larger of two noises is to cost, about", &target, 1e-5, 1},
            {"sink", "first tokens of each prefix that get no noise", &sink, 0, 1 << 20}};
  }
};

/// One side of one layer.
struct Sensitivity {
  /// The effect of noise of one size.
  struct Probe {
    double deviation = 0;  ///< of the noise
    Estimate divergence;   ///< nats for each judged token
  };
  double variance = 0;          ///< of the values themselves, about the mean of each channel
  std::array<Probe, 2> probes;  ///< the larger noise has twice the deviation of the smaller one
  Estimate nats;                ///< the sensitivity: for each judged token and unit of variance

  /// The cost of the larger noise over four times that of the smaller one: 1 where the divergence is quadratic.
  double growth() const { return probes[1].divergence.mean / (4 * probes[0].divergence.mean); }
};

/// Throws Error(usage) if a document does not fit the memory, or has no token of its prefix behind the sink, and
/// Error(failed) for no documents and those without a token to judge.
void check_sensitivities(const ModelConfig& config, std::span<const LoopDocument> documents,
                         const SensitivityOptions& options);

/// By layer: keys, values. Deviations are chosen on the first document so that the larger noise costs about `target` nats. Deterministic
/// for a seed; the intervals are by document. Progress counts continuations. Throws as check_sensitivities() and the model do.
std::vector<std::array<Sensitivity, 2>> measure_sensitivities(const LlamaModel& model,
                                                              std::span<const LoopDocument> documents,
                                                              const SensitivityOptions& options,
                                                              const Progress& progress = {});

// The directions in which errors in a cache cost a model most: the Fisher information of a continuation's predictions with
// respect to the keys and values of its prefix, one matrix for each layer, side and key/value head.
//
// After a document's prefix the model predicts the rest token by token, as in the text (continuation.hpp). For
// every judged position a target is drawn from the model's own prediction; with L the sum of the targets'
// log-probabilities, g_t is the derivative of L by the key, or the value, of token t of the prefix. The matrix F is
// the mean over documents of (1 / judged positions) times the sum over t of g_t g_t^T.
//
// Targets are drawn independently of each other, and a prediction's mean derivative over its own draws is 0: products of different
// positions' derivatives vanish in the mean, so that F estimates the Fisher information, the second derivative of the divergence: errors
// e_t in the cache cost about 1/2 sum_t e_t^T F_t e_t nats. If errors are alike in all tokens, with covariance C in one head, that is 1/2
// trace(F C) for each judged position. With C = I the sum over heads is the sensitivity that noise measures (above), in the same unit:
// nats for each judged token and unit of variance, from one backward pass in place of many continuations.

struct Fisher {
  int layers = 0, heads = 0;      ///< heads: key/value heads
  bool keys_before_rope = false;  ///< matrices are for keys before the rotary embedding, not after it
  /// By side: head h of layer l is matrix l * heads + h, (head_dim, head_dim), symmetric and positive semidefinite except for rounding.
  std::array<std::vector<Matrix<float>>, 2> matrices;

  const Matrix<float>& of(Side side, int layer, int head) const {
    return matrices[static_cast<size_t>(side)].at(as_size(layer) * as_size(heads) + as_size(head));
  }
  /// The cost of noise of variance 1 on this side of the layer, in nats for each judged token: half of the sum of the heads' traces.
  double nats(Side side, int layer) const;
};

struct FisherOptions {
  int64_t sink = 4;     ///< first tokens of each prefix that are left out, as for noise
  int64_t seed = 0;     ///< of the targets drawn
  uint64_t memory = 0;  ///< bytes, 0: no bound
};

/// Throws Error(usage) for models that cannot be differentiated (beyond_gradients), and if a document does not fit the memory or has no
/// token of its prefix behind the sink; Error(failed) for no documents and those without a token to judge.
void check_fisher(const ModelConfig& config, std::span<const LoopDocument> documents,
                  const FisherOptions& options);

/// Keys are taken before the rotary embedding if it is known how to undo it (KeyRope::of). Deterministic for a seed. Progress counts
/// documents. Throws as check_fisher() and the model do, and Error(failed) if results are not finite.
Fisher measure_fisher(const LlamaModel& model, std::span<const LoopDocument> documents,
                      const FisherOptions& options, const Progress& progress = {});

// Bits for quantizers of different costs, by Lagrangian: the textbook's optimal bit allocation (Gersho and Gray, "Vector
// Quantization and Signal Compression", 1992, section 8.3) in whole bits.

/// Gives each quantizer a whole number of bits from `lowest` to `highest`, `total` in all, so that the sum of costs[i] * 4^-bits[i] is
/// smallest: each bit cuts an error's energy to a quarter. A total that no allocation within the bounds has is replaced by the nearest possible one.
/// costs[i]: the cost of quantizer i's error at 0 bits; not below 0. For equal gains, the bit goes to the earlier quantizer.
std::vector<int64_t> allocate_bits(std::span<const double> costs, int64_t total, int64_t lowest,
                                   int64_t highest);

/// A setting of a quantizer: its bits, and the cost of its errors.
struct RatePoint {
  double bits = 0, cost = 0;
};

/// Settings of two quantizers that are best together, from the fewest bits to the most, as indices into their curves.
/// For each pair there is a multiplier with which no other pair has a smaller sum of costs and bits: both quantizers'
/// lower convex hulls, merged by slope. Each step changes one of the two. curves: in any order, not empty.
std::vector<std::array<size_t, 2>> best_pairs(const std::array<std::vector<RatePoint>, 2>& curves);

}  // namespace kvcodec
