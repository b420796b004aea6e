// Which errors in a cache a model suffers from: the Fisher information of a continuation's predictions with respect
// to the keys and values of the prefix that it stands behind, one matrix for each layer, side and key/value head.
//
// Behind a document's prefix the model predicts the rest token by token, as the text has it (continuation.hpp). For
// every judged position a target is drawn from the model's own prediction; with L the sum of the targets'
// log-probabilities, g_t is the derivative of L by the key, or the value, of token t of the prefix. The matrix F is
// the mean over documents of (1 / judged positions) times the sum over t of g_t g_t^T.
//
// Targets are drawn independently of each other, and a prediction's mean derivative over its own draws is 0:
// products of different positions' derivatives vanish in the mean, so that F estimates the Fisher information, the
// second derivative of the divergence: errors e_t in the cache cost about 1/2 sum_t e_t^T F_t e_t nats. If errors are
// alike in all tokens, with covariance C in one head, that is 1/2 trace(F C) for each judged position. With C = I the
// sum over heads is what the noise of sensitivity.hpp measures, in the same unit: nats for each judged token and unit
// of variance, by one pass back in place of many continuations.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

struct Fisher {
  int layers = 0, heads = 0;  ///< heads: key/value heads
  bool keys_before_rope =
      false;  ///< of keys before the rotary embedding; otherwise of those that attention takes
  /// By side: head h of layer l is matrix l * heads + h, (head_dim, head_dim), symmetric and positive semidefinite
  /// except for rounding.
  std::array<std::vector<Matrix<float>>, 2> matrices;

  const Matrix<float>& of(Side side, int layer, int head) const {
    return matrices[static_cast<size_t>(side)].at(static_cast<size_t>(layer) * static_cast<size_t>(heads) +
                                                  static_cast<size_t>(head));
  }
  /// What noise of variance 1 on this side of the layer would cost, in nats for each judged token: half of the sum of
  /// the heads' traces.
  double nats(Side side, int layer) const;
};

struct FisherOptions {
  int64_t sink = 4;     ///< first tokens of each prefix that are left out, as for noise
  int64_t seed = 0;     ///< of the targets drawn
  uint64_t memory = 0;  ///< bytes, 0: no bound
};

/// Throws Error(usage) for models that there is no way back through (beyond_gradients), and where a document does not
/// fit the memory or has no token of its prefix behind the sink; Error(failed) for no documents and those without a
/// token to judge.
void check_fisher(const ModelConfig& config, std::span<const LoopDocument> documents,
                  const FisherOptions& options);

/// Keys are taken before the rotary embedding where it is known how to undo it (KeyRope::of). Deterministic for a seed.
/// Progress counts documents. Throws what check_fisher() and the model throw, and Error(failed) where what comes out is
/// not finite.
Fisher measure_fisher(const LlamaModel& model, std::span<const LoopDocument> documents,
                      const FisherOptions& options, const Progress& progress = {});

}  // namespace kvcodec
