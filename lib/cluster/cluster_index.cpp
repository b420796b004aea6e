#include "lib/cluster/cluster_index.hpp"

#include <cmath>
#include <utility>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {

std::vector<OptionField> ClusterOptions::fields() {
  return {{"metric", "what near means: the cosine, the Euclidean distance or the inner product", &metric},
          {"clusters", "clusters of the prompt; 0: one for every 80 tokens", &clusters, 0, 1e9},
          {"sink", "first tokens that are in no cluster and always kept", &sink, 0, 1e9},
          {"rounds", "rounds of k-means, at most", &rounds, 1, 1e6},
          {"batch", "later tokens that are clustered together, apart from those before", &batch, 1, 1e9},
          {"batch-clusters", "clusters of such a batch", &batch_clusters, 1, 1e9}};
}

ClusterIndex::ClusterIndex(Parts parts)
    : dims_(parts.centroids.cols()),
      sink_(parts.sink),
      batch_ends_(std::move(parts.batch_ends)),
      offsets_(std::move(parts.offsets)),
      centroids_(parts.centroids.data(), parts.centroids.data() + parts.centroids.size()),
      ids_(std::move(parts.ids)) {
  for (size_t i = 0; i + 1 < batch_ends_.size(); ++i)
    if (batch_ends_[i] >= batch_ends_[i + 1])
      throw bad_input("batch {} ends at token {}, not before the next one, at {}", i, batch_ends_[i],
                      batch_ends_[i + 1]);
  if (end() > UINT32_MAX) throw bad_input("{} tokens; ids have 32 bits", end());
  if (offsets_.empty()) throw bad_input("no offsets of clusters; without clusters there is one, 0");
  if (offsets_.size() != parts.centroids.rows() + 1 || offsets_.front() != 0 ||
      offsets_.back() != ids_.size())
    throw bad_input("{} clusters, sizes of {} and {} tokens do not fit together", parts.centroids.rows(),
                    offsets_.size() - 1, ids_.size());
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(centroids_.begin(), centroids_.end(), finite))
    throw bad_input("a centroid has a value that is not a finite number");
  // Clusters fill batch after batch: each is of one batch, and each token of a batch is in one of its
  // clusters.
  const uint64_t expected = end() - std::min(end(), sink_);
  if (ids_.size() != expected)
    throw bad_input("{} tokens in clusters; of {} tokens, the first {} kept apart, there are {}", ids_.size(),
                    end(), sink_, expected);
  std::vector<bool> seen(ids_.size());  // token sink + i of a cluster: none of the sink is in one
  size_t batch = 0;
  for (size_t c = 0; c < clusters(); ++c) {
    if (offsets_[c] >= offsets_[c + 1] || offsets_[c + 1] > ids_.size())
      throw bad_input("cluster {} has tokens {} to {}; none is empty", c, offsets_[c], offsets_[c + 1]);
    const auto own = tokens_of(c);
    while (batch < batch_ends_.size() && own.front() >= batch_ends_[batch]) ++batch;
    const uint64_t begin = std::max(sink_, batch > 0 ? batch_ends_[batch - 1] : 0);
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i] < begin || batch == batch_ends_.size() || own[i] >= batch_ends_[batch])
        throw bad_input("cluster {} holds token {}, which is not of its batch", c, own[i]);
      if ((i > 0 && own[i - 1] >= own[i]) || seen[own[i] - sink_])
        throw bad_input("cluster {} holds token {} twice, out of order or after another cluster", c, own[i]);
      seen[own[i] - sink_] = true;
    }
  }
}

void ClusterIndex::add_batch(uint64_t batch_end, const Clustering& clustering) {
  const uint64_t begin = std::max(sink_, end()), count = batch_end - std::min(begin, batch_end);
  if (batch_end <= end() || batch_end > UINT32_MAX || clustering.labels.size() != count ||
      (count > 0 && clustering.centroids.cols() != dims_))
    throw failed("a batch of {} tokens of {} dimensions up to {} for an index of {} tokens of {}",
                 clustering.labels.size(), clustering.centroids.cols(), batch_end, end(), dims_);
  const size_t k = clustering.centroids.rows();
  const RowsByCluster sorted = sort_by_cluster(clustering.labels, k);
  const uint64_t before = ids_.size();
  for (size_t c = 0; c < k; ++c) offsets_.push_back(before + sorted.offsets[c + 1]);
  for (const uint32_t row : sorted.rows) ids_.push_back(static_cast<uint32_t>(begin) + row);
  append_to(centroids_, std::span(clustering.centroids.data(), clustering.centroids.size()));
  batch_ends_.push_back(batch_end);
}

void ClusterIndex::centroid_scores(std::span<const float> query, std::span<float> scores) const {
  if (query.size() != dims_ || scores.size() != clusters())
    throw failed("a query of {} dimensions and {} scores for {} clusters of {} dimensions", query.size(),
                 scores.size(), clusters(), dims_);
  products(query, centroids(), scores);
}

ClusteringEffort add_batches(std::span<const ClusterTask> heads, const ClusterOptions& options, uint64_t seed,
                             const Progress& progress, const KmeansFunction& cluster) {
  // Streams of one head's batches: the batch in the lower bits.
  constexpr unsigned kBatchBits = 24;
  std::vector<KmeansTask> tasks;
  for (const ClusterTask& head : heads) {
    const ClusterIndex& index = *head.index;
    uint64_t begin = index.end(), batch = index.batch_ends().size();
    if (head.ends.empty()) continue;
    if (head.keys.cols() != index.dims() || !std::ranges::is_sorted(head.ends) ||
        head.ends.front() <= begin || head.keys.rows() != head.ends.back() - begin)
      throw failed("{} keys of {} dimensions for batches from token {} to {}", head.keys.rows(),
                   head.keys.cols(), begin, head.ends.back());
    for (const uint64_t batch_end : head.ends) {
      const uint64_t first = std::min(std::max(begin, index.sink()), batch_end);
      tasks.push_back({.rows = head.keys.rows(first - index.end(), batch_end - first),
                       .clusters = batch == 0 ? options.clusters_of(batch_end)
                                              : static_cast<uint64_t>(options.batch_clusters),
                       .stream = head.stream << kBatchBits | batch,
                       .first_row = first,
                       .name = head.name});
      begin = batch_end;
      ++batch;
    }
  }
  const KmeansOptions of_kmeans{
      .metric = options.metric, .rounds = static_cast<size_t>(options.rounds), .seed = seed};
  const auto clusterings = cluster ? cluster(tasks, of_kmeans, progress) : kmeans(tasks, of_kmeans, progress);
  ClusteringEffort effort;
  size_t next = 0;
  for (const ClusterTask& head : heads)
    for (const uint64_t batch_end : head.ends) {
      const Clustering& clustering = clusterings[next++];
      head.index->add_batch(batch_end, clustering);
      effort.add({1, clustering.converged ? size_t{1} : 0, clustering.rounds});
    }
  return effort;
}

std::vector<uint64_t> next_batches(uint64_t end, uint64_t tokens, uint64_t prompt,
                                   const ClusterOptions& options) {
  std::vector<uint64_t> ends;
  if (end == 0 && tokens > 0) ends.push_back(end = prompt > 0 ? std::min(prompt, tokens) : tokens);
  const auto batch = static_cast<uint64_t>(options.batch);
  for (; tokens - end >= batch && end < tokens; end += batch) ends.push_back(end + batch);
  return ends;
}

}  // namespace kvcodec
