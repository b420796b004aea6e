// How much a model suffers from errors in its cache, by layer and side: what the allocation of bits weighs
// errors with. Noise that is independent and normal, of one variance, is put on the keys or the values of one
// layer of a prefix; the divergence of the continuation's predictions from those of the run without noise, for
// each unit of variance, is the sensitivity. As long as errors are small, divergences of layers and sides add
// up, and each is proportional to its variance: sum over layers and sides of sensitivity times mean squared
// error predicts what a codec costs.
//
// Noise of two sizes tells how small is small: of twice the deviation it costs four times as much as long as the
// divergence is quadratic. The sensitivity is that of the smaller noise.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/metrics/interval.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

struct SensitivityOptions final : Options {
  double target = 0.01;  ///< small beside what a model loses to a coarse codec, large beside rounding
  int64_t sink = 4;      ///< nearly every query looks at the first tokens, which codecs keep exactly
  int64_t seed = 0;
  uint64_t memory = 0;  ///< bytes, 0: no bound

  std::vector<OptionField> fields() override;
};

/// One side of one layer.
struct Sensitivity {
  /// Noise of one size.
  struct Probe {
    double deviation = 0;  ///< of the noise
    Estimate divergence;   ///< nats for each judged token
  };
  double variance = 0;          ///< of the values themselves, about the mean of each channel
  std::array<Probe, 2> probes;  ///< the larger noise has twice the deviation of the smaller one
  Estimate nats;                ///< the sensitivity: for each judged token and unit of variance

  /// What the larger noise cost of four times what the smaller one did: 1 where the divergence is quadratic.
  double growth() const { return probes[1].divergence.mean / (4 * probes[0].divergence.mean); }
};

/// Throws Error(usage) where a document does not fit the memory, or has no token of its prefix behind the sink, and
/// Error(failed) for no documents and those without a token to judge.
void check_sensitivities(const ModelConfig& config, std::span<const LoopDocument> documents,
                         const SensitivityOptions& options);

/// By layer: keys, values. Deviations are chosen on the first document so that the larger noise costs about
/// `target` nats. Deterministic for a seed; the intervals are by document. Progress counts continuations.
/// Throws what check_sensitivities() and the model throw.
std::vector<std::array<Sensitivity, 2>> measure_sensitivities(const LlamaModel& model,
                                                              std::span<const LoopDocument> documents,
                                                              const SensitivityOptions& options,
                                                              const Progress& progress = {});

}  // namespace kvcodec
