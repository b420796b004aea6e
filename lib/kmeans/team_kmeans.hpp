// k-means by several ranks, all of which have all rows: each assigns its share of the rows, and moves its share of the
// centroids.
#pragma once

#include "lib/core/team.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec {

/// Makes row c of `means` the mean (mean_of) of the rows of cluster c; those of empty clusters stay. Each rank forms its
/// share of them; all ranks call it with the same rows and clusters, and get the same bits.
void team_means(const Team& team, MatrixView<const float> rows, const RowsByCluster& clusters,
                MatrixView<float> means);

/// kmeans(), of which every rank of the team makes the same call and gets the same bits. The team outlives it.
KmeansFunction kmeans_of(const Team& team);

}  // namespace kvcodec
