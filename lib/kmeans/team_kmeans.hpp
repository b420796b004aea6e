// k-means by several ranks, all of which have all rows: each assigns its share of the rows, and moves its share of the
// centroids.
#pragma once

#include "lib/core/team.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec {

/// kmeans(), of which every rank of the team makes the same call and gets the same bits. The team outlives it.
KmeansFunction kmeans_of(const Team& team);

}  // namespace kvcodec
