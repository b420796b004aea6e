// A mixture of experts in the place of an MLP (Shazeer et al. 2017): a router gives every token a few of many MLPs.
// Inside lib/model only.
#pragma once

#include <cstddef>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/linear.hpp"

namespace kvcodec {

/// Room for a chunk of tokens, and the steps on them.
class MixtureSteps {
 public:
  /// rows: tokens at a time, at most. Nothing is allocated for a model without experts.
  MixtureSteps(const ModelConfig& config, size_t rows);

  /// Floats that it holds for each row.
  static size_t floats_per_row(const ModelConfig& config);

  /// out = the sum of what the experts of each row make of it, weighted by the router. x, out: (n, hidden_size).
  /// Of experts or groups with the same score those with the smaller numbers are chosen.
  void run(const LlamaLayer& layer, MatrixView<const float> x, MatrixView<float> out, WorkerScratch& scratch);

 private:
  struct Share {
    size_t row;
    float weight;
  };
  /// The experts of a token with these scores. correction: what is added to them for this.
  std::vector<size_t> choose(std::span<const float> scores, std::span<const float> correction) const;
  void route(const LlamaLayer& layer, MatrixView<const float> x, WorkerScratch& scratch);
  void run_expert(const Mlp& expert, const std::vector<Share>& shares, MatrixView<const float> x,
                  MatrixView<float> out, WorkerScratch& scratch);

  const ModelConfig& config_;
  Matrix<float> scores_;                     // (rows, experts)
  Matrix<float> gathered_, inner_, result_;  // of one expert's rows
  Matrix<float> shared_inner_;               // of the MLP beside them
  std::vector<std::vector<Share>> shares_;   // of each expert
};

}  // namespace kvcodec
