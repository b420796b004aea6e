// k-means by Lloyd's rounds, many sets of rows at a time: every key/value head is clustered by itself, and
// all of them together keep the threads busy (ClusterKV, section IV-B, "batched clustering across heads").
//
// A round assigns each row to its best centroid, then moves each centroid to the mean of its rows. Where the
// paper adds keys to centroids with atomic operations, here rows are sorted by cluster (by counting), and
// each cluster is summed by one thread, in the order of its rows, in double. Assignments are the same as
// with every product computed, though few are (lib/linalg/nearest.hpp). So the result is the same for any
// number of threads and SIMD level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The largest norm of a row: sums of products of this size do not overflow.
inline constexpr double kLargestNorm = 1e15;

/// The meaning of "nearest". Centroids are means of rows in all three.
enum class Metric : uint8_t {
  cosine,         ///< largest x . c / |c|
  l2,             ///< smallest |x - c|
  inner_product,  ///< largest x . c: not a distance; long centroids draw most rows
};
constexpr auto names_of(Metric) { return std::to_array<std::string_view>({"cosine", "l2", "ip"}); }

struct KmeansOptions {
  Metric metric = Metric::cosine;
  size_t rounds = 20;  ///< at most; fewer if assignments stop changing. Gains beyond 20 are small
  uint64_t seed = 0;
};

/// One set of rows to cluster.
struct KmeansTask {
  MatrixView<const float> rows;  ///< (n, dims), finite, of norms within kLargestNorm
  size_t clusters = 1;           ///< wanted; a set of fewer rows has as many clusters as rows
  uint64_t stream = 0;           ///< tells the random starts of one seed apart
  uint64_t first_row = 0;        ///< number of the first row in messages
  std::string_view name = {};    ///< begin of messages about rows; empty: nothing
};

/// A partition of rows. Every cluster has at least one row.
struct Clustering {
  Matrix<float> centroids;       ///< (k, dims): the means of the clusters' rows; k <= clusters wanted
  std::vector<uint32_t> labels;  ///< the cluster of each row
  size_t rounds = 0;             ///< done
  bool converged = false;        ///< the last round changed no assignment
};

/// The steps of a round; without an engine the CPU does them. The CUDA implementation (cuda/kmeans/kmeans.hpp)
/// gives the same bits.
class KmeansEngine {
 public:
  virtual ~KmeansEngine() = default;

  /// One task's part of a round: labels[i] and scores[i] are to be those of a ProductSearch of these entries
  /// (lib/linalg/nearest.hpp) for the task's rows.
  struct Assignment {
    size_t task;
    MatrixView<const float> entries;
    std::span<const float> bias;  ///< empty: none
    std::span<uint32_t> labels;
    std::span<float> scores;
  };
  virtual void assign(std::span<const Assignment> tasks) = 0;

  /// offsets are to be those of sort_by_cluster(labels, offsets.size() - 1); the rows stay with the engine,
  /// for move().
  struct Sorting {
    size_t task;
    std::span<const uint32_t> labels;
    std::span<uint64_t> offsets;
  };
  virtual void sort(std::span<const Sorting> tasks) = 0;

  /// Row c of means is to be mean_of the task's rows in cluster c as last sorted, or stay if it has none.
  struct Means {
    size_t task;
    MatrixView<float> means;
  };
  virtual void move(std::span<const Means> tasks) = 0;
};

/// Clusters all sets. Starts are distinct random rows. A cluster that loses its rows gets the row that is
/// farthest from its own centroid (not with inner products, where far means nothing), and is dropped in the
/// end if it is still empty: of equal rows there is one cluster. Ties go to the cluster of the lower number.
/// Throws Error(bad_input) for longer rows, Error(failed) for tasks of 0 clusters or 2^32 rows.
std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress = {}, KmeansEngine* engine = nullptr);

/// kmeans() itself, or its replacement: a device, which must give the same bits (cuda/kmeans/kmeans.hpp).
using KmeansFunction = std::function<std::vector<Clustering>(std::span<const KmeansTask>,
                                                             const KmeansOptions&, const Progress&)>;
/// For Engine::make. The engine must outlive the function.
struct KmeansOnDevice {
  using Factory = KmeansFunction();
};

/// The mean of chosen rows, summed in double in the order of ids; zeros for none. ids: below rows.rows().
void mean_of(MatrixView<const float> rows, std::span<const uint32_t> ids, std::span<float> mean);

struct RowsByCluster {
  std::vector<uint64_t> offsets;  ///< k + 1: prefix sums of the clusters' sizes
  std::vector<uint32_t> rows;     ///< of cluster 0, rising, then of cluster 1 ...

  std::span<const uint32_t> of(size_t cluster) const {
    return std::span(rows).subspan(offsets[cluster], offsets[cluster + 1] - offsets[cluster]);
  }
};
/// labels: below `clusters`.
RowsByCluster sort_by_cluster(std::span<const uint32_t> labels, size_t clusters);

/// Makes row c of `means` the mean (mean_of) of the rows of cluster c; those of empty clusters stay. Each
/// rank forms its share of them; all ranks call it with the same rows and clusters, and get the same bits.
void team_means(const Team& team, MatrixView<const float> rows, const RowsByCluster& clusters,
                MatrixView<float> means);

}  // namespace kvcodec
