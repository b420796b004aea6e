// A device beside this processor, as codecs and commands see it. lib knows no device: each area has an
// interface next to the functions that it stands for (ResidualEngine in lib/rvq, KmeansFunction in
// lib/kmeans ...), and an Engine makes one of each for whoever has work. cuda/engine.hpp makes the Engine.
//
// An engine may decline any work: a factory by returning nothing, a call by returning false. The work then
// falls back to the CPU: the caller does it, and writes the whole result. The engine tells the user so
// through fall_back(). Its results have the bits that lib would have made, unless an interface says
// otherwise.
//
// An engine also declines input that makes a device stop (damaged codes, values that are not finite), without
// telling anybody: the CPU then says what is wrong, in the same words with and without a device. Only trouble
// of the device itself is thrown, as Error(failed).
//
// All of it may be called from several threads at once. How to add a device implementation: cuda/README.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lib/attention/attention.hpp"
#include "lib/attention/token_choice.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/kvcomp/block_engine.hpp"
#include "lib/model/prefill_engine.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "lib/selfindex/sign_engine.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "lib/sparse/train.hpp"
#include "lib/transform/synthesis_engine.hpp"

namespace kvcodec {

class Engine {
 public:
  /// Gets what falls back to the CPU, each text once.
  using Note = std::function<void(const std::string&)>;
  explicit Engine(Note note = {}) : note_(std::move(note)) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Tells the user, once, that some work falls back to the CPU: "sparse: pursuit".
  void fall_back(const std::string& what);

  /// How many pieces of work are done, and whether all of them have the bits that lib would have made. Work
  /// that was declined or failed does not count.
  uint64_t taken() const { return taken_; }
  bool exact() const { return exact_; }
  void count(bool exact) {
    ++taken_;
    if (!exact) exact_ = false;
  }

  /// Sums of entries and searches in these codebooks, which must outlive the result.
  virtual std::unique_ptr<ResidualEngine> residual(const Codebooks&) { return nullptr; }
  /// Blocks of the codec kvcomp.
  virtual const kvcomp::BlockEngine* blocks() { return nullptr; }
  /// Sign codes of the codec selfindex.
  virtual const SignEngine* signs() { return nullptr; }
  /// Sums of this dictionary's atoms. The result needs nothing of the dictionary afterwards.
  virtual std::unique_ptr<ReconstructionEngine> reconstruction(const Dictionary&) { return nullptr; }
  /// Pursuits with this dictionary's atoms. The result needs nothing of the dictionary afterwards.
  virtual std::unique_ptr<PursuitEngine> pursuit(const Dictionary&) { return nullptr; }
  /// Batches and steps of one dictionary's training, for signals of so many values.
  virtual std::unique_ptr<TrainingEngine> training(const TrainOptions&, size_t) { return nullptr; }
  /// Vectors of these components from blocks of levels. The result needs nothing of the task afterwards.
  virtual std::unique_ptr<SynthesisEngine> synthesis(const SynthesisTask&) { return nullptr; }
  /// Attention of chosen tokens.
  virtual const AttentionEngine* attention() { return nullptr; }
  /// k-means. This engine must outlive the result.
  virtual KmeansFunction kmeans() { return {}; }
  /// Selection by the clusters of this index of a document of so many tokens. This engine and the index must
  /// outlive the result.
  virtual TokenChooser choice_by_clusters(const ClusterIndex&, uint64_t /*tokens*/) { return {}; }
  /// Training of residual codebooks.
  virtual std::unique_ptr<RvqTrainEngine> rvq_training() { return nullptr; }
  /// Prefill of a model with these weights, which must outlive the result. Its floats are lib's within
  /// rounding.
  virtual std::shared_ptr<PrefillEngine> prefill(const LlamaWeights&) { return nullptr; }

 private:
  Note note_;
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<bool> exact_ = true;
  std::mutex mutex_;
  std::set<std::string> told_;  // what fell back
};

}  // namespace kvcodec
