// Semantic clusters of one key/value head's tokens (ClusterKV, "Manipulating LLM KV Cache in Semantic Space
// for Recallable Compression", sections III and IV): the tokens to fetch for a query, from a cache that may
// be stored by any codec.
//
// The first tokens of a document are in no cluster: they are always kept, since nearly every query attends
// to them and they are far from all others. The prompt's other keys are clustered together, and later tokens
// in batches of their own, so adding tokens never moves an earlier one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec {

struct ClusterOptions final : Options {
  Metric metric = Metric::cosine;  ///< best of the three in the paper's Fig. 11b
  int64_t clusters = 0;            ///< of the prompt, C0; 0: one for every kTokensPerCluster tokens
  int64_t sink = 16;               ///< tokens that are always kept, as in the paper
  int64_t rounds = 20;             ///< maximum number of k-means rounds: later gains change no selection
  int64_t batch = 320;             ///< tokens of a later batch, m: so few that clustering them is soon done
  int64_t batch_clusters = 4;      ///< and its clusters, C+: again one for 80 tokens

  static constexpr uint64_t kTokensPerCluster = 80;  ///< the paper's balance of recall and cost: 400 at 32k

  std::vector<OptionField> fields() override;
  /// Clusters of a prompt of so many tokens, at least 1.
  uint64_t clusters_of(uint64_t prompt) const {
    if (clusters > 0) return static_cast<uint64_t>(clusters);
    return std::max<uint64_t>(1, prompt / kTokensPerCluster);
  }
};

/// Tokens [0, end()) of one head of one document: the sink, then batches of clusters.
class ClusterIndex {
 public:
  ClusterIndex() = default;
  ClusterIndex(size_t dims, uint64_t sink) : dims_(dims), sink_(sink) {}

  /// As stored. Clusters stand batch by batch.
  struct Parts {
    uint64_t sink = 0;
    std::vector<uint64_t> batch_ends;  ///< token after each batch, rising; the first is the prompt
    Matrix<float> centroids;           ///< (k, dims)
    std::vector<uint64_t> offsets;     ///< k + 1: prefix sums of the clusters' sizes
    std::vector<uint32_t> ids;         ///< tokens of cluster 0, rising, then of cluster 1 …
  };
  /// Throws Error(bad_input) unless the clusters are a partition of each batch's tokens, in order, and the
  /// centroids are finite.
  explicit ClusterIndex(Parts parts);

  size_t dims() const { return dims_; }
  uint64_t sink() const { return sink_; }
  uint64_t end() const { return batch_ends_.empty() ? 0 : batch_ends_.back(); }
  size_t clusters() const { return offsets_.size() - 1; }
  MatrixView<const float> centroids() const { return {centroids_.data(), clusters(), dims_}; }
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::span<const uint32_t> ids() const { return ids_; }
  std::span<const uint32_t> tokens_of(size_t cluster) const {
    return ids().subspan(offsets_[cluster], offsets_[cluster + 1] - offsets_[cluster]);
  }
  std::span<const uint64_t> batch_ends() const { return batch_ends_; }

  /// The number of the first `visible` tokens that had their cluster (or are in the sink) when there were no
  /// more: whole batches. The others wait, and are kept meanwhile. Inside the prompt all of them count.
  uint64_t covered(uint64_t visible) const {
    if (batch_ends_.empty()) return std::min(visible, sink_);
    if (visible < batch_ends_.front()) return visible;
    return *(std::upper_bound(batch_ends_.begin(), batch_ends_.end(), visible) - 1);
  }

  /// Adds the tokens up to batch_end as the next batch. clustering: of the tokens from max(sink, end()) on.
  void add_batch(uint64_t batch_end, const Clustering& clustering);

  /// scores[c] = query . centroid c: the paper's ranking of clusters, whatever metric made them.
  void centroid_scores(std::span<const float> query, std::span<float> scores) const;

 private:
  size_t dims_ = 0;
  uint64_t sink_ = 0;
  std::vector<uint64_t> batch_ends_, offsets_{0};
  std::vector<float> centroids_;  // (clusters, dims)
  std::vector<uint32_t> ids_;
};

struct ClusteringEffort {
  size_t runs = 0, converged = 0;  ///< k-means of one batch of one head
  size_t max_rounds = 0;

  void add(const ClusteringEffort& other) {
    runs += other.runs;
    converged += other.converged;
    max_rounds = std::max(max_rounds, other.max_rounds);
  }
};

/// One head whose index is to grow by batches.
struct ClusterTask {
  ClusterIndex* index = nullptr;
  MatrixView<const float> keys;    ///< of tokens [index->end(), ends.back())
  std::span<const uint64_t> ends;  ///< ends of the new batches
  uint64_t stream = 0;             ///< its own random starts
  std::string name = {};           ///< begin of messages about its keys: its head and document
};
/// Adds the batches to all heads. The first batch of an empty index is the prompt. Deterministic; all heads
/// and batches are clustered at the same time. Throws Error(failed) for ends that do not rise beyond the
/// index's end, and what kmeans() throws.
/// cluster: computes the k-means; empty: the CPU does.
ClusteringEffort add_batches(std::span<const ClusterTask> heads, const ClusterOptions& options, uint64_t seed,
                             const Progress& progress = {}, const KmeansFunction& cluster = {});

/// The ends of batches that an index of `end` tokens (0: none yet) can get when there are `tokens`: the
/// prompt, if it has none yet, then whole batches. prompt: its tokens, 0 = all.
std::vector<uint64_t> next_batches(uint64_t end, uint64_t tokens, uint64_t prompt,
                                   const ClusterOptions& options);

/// Keeps the keys and values of the tokens that one head selected in its last steps (ClusterKV, section
/// IV-D): successive queries attend to nearly the same tokens, so only tokens that are not kept any more
/// must be fetched from the whole cache.
///
/// Counted by tokens. The paper counts by clusters; that is the same if clusters are taken whole, and if
/// the last one is trimmed, tokens are the number really fetched.
class SelectionCache {
 public:
  /// steps: number of steps for which tokens stay, R; 0: none does.
  explicit SelectionCache(uint64_t steps) : steps_(steps) {}

  struct Use {
    uint64_t selected = 0, fetched = 0;
    void add(const Use& other) {
      selected += other.selected;
      fetched += other.fetched;
    }
    double hit_rate() const {
      return selected > 0 ? 1 - static_cast<double>(fetched) / static_cast<double>(selected) : 0;
    }
  };
  /// The next step selects these tokens, none twice.
  Use step(std::span<const uint32_t> tokens) {
    ++now_;
    Use use{.selected = tokens.size(), .fetched = 0};
    for (const uint32_t token : tokens) {
      if (token >= last_.size()) last_.resize(size_t{token} + 1);
      use.fetched += last_[token] == 0 || last_[token] + steps_ < now_;
      last_[token] = now_;
    }
    return use;
  }

 private:
  uint64_t steps_, now_ = 0;
  std::vector<uint64_t> last_;  // of each token: the step that selected it last, from 1 on; 0 = none
};

}  // namespace kvcodec
