// A device beside this processor, as codecs and commands see it. lib knows no device: each area has an
// interface next to the functions that it stands for (ResidualEngine in lib/rvq, KmeansFunction in
// lib/kmeans ...), and an Engine makes one of each for whoever has work. cuda/engine.hpp makes the Engine.
//
// An engine may leave any work to this processor: a factory by returning nothing, a call by returning false
// without having written its result. Either tells leave() what it is, and the caller does it by itself. What
// it does take on has the bits that lib would have made, unless its interface says otherwise.
//
// Input that makes a device stop (damaged codes, values that are not finite) is left too: this processor then
// says what is wrong with it, in the same words with and without a device. Only trouble of the device itself
// is thrown, as Error(failed).
//
// All of it may be called from several threads at once. How to add a twin: cuda/README.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lib/attention/attention.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/codec/kvcomp_blocks.hpp"
#include "lib/codec/selection.hpp"
#include "lib/model/prefill_engine.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "lib/signvq/sign_engine.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "lib/sparse/train.hpp"

namespace kvcodec {

class Engine {
 public:
  /// Gets what is left to this processor, each text once.
  using Note = std::function<void(const std::string&)>;
  explicit Engine(Note note = {}) : note_(std::move(note)) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Says that this processor does some work: "sparse: pursuit".
  void leave(const std::string& what);

  /// How many pieces of work were done so far, and whether all of them have the bits that lib would have
  /// made.
  uint64_t taken() const { return taken_; }
  bool exact() const { return exact_; }
  void take(bool exact) {
    ++taken_;
    if (!exact) exact_ = false;
  }

  /// Sums of entries and searches in these codebooks, which outlive what is made.
  virtual std::unique_ptr<ResidualEngine> residual(const Codebooks&) { return nullptr; }
  /// Blocks of the codec kvcomp.
  virtual const kvcomp::BlockEngine* blocks() { return nullptr; }
  /// Sign codes of the codec selfindex.
  virtual const SignEngine* signs() { return nullptr; }
  /// Sums of this dictionary's atoms; of the dictionary nothing needs to stay.
  virtual std::unique_ptr<ReconstructionEngine> reconstruction(const Dictionary&) { return nullptr; }
  /// Pursuits with this dictionary's atoms; likewise.
  virtual std::unique_ptr<PursuitEngine> pursuit(const Dictionary&) { return nullptr; }
  /// Batches and steps of one dictionary's training, for signals of so many values.
  virtual std::unique_ptr<TrainingEngine> training(const TrainOptions&, size_t) { return nullptr; }
  /// Attention of chosen tokens.
  virtual const AttentionEngine* attention() { return nullptr; }
  /// k-means; lives as long as this.
  virtual KmeansFunction kmeans() { return {}; }
  /// Selection by the clusters of this index of a document of so many tokens; lives as long as this and the
  /// index.
  virtual TokenChooser choice_by_clusters(const ClusterIndex&, uint64_t /*tokens*/) { return {}; }
  /// Training of residual codebooks.
  virtual std::unique_ptr<RvqTrainEngine> rvq_training() { return nullptr; }
  /// Prefill of a model with these weights, which outlive what is made; its floats are lib's within rounding.
  virtual std::shared_ptr<PrefillEngine> prefill(const LlamaWeights&) { return nullptr; }

 private:
  Note note_;
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<bool> exact_ = true;
  std::mutex mutex_;
  std::set<std::string> left_;
};

}  // namespace kvcodec
