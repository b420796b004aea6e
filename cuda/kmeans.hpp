// Device twin of lib/kmeans/kmeans.hpp: assignments and means are computed on the device, from rows that are
// copied there once. The result is lib's, bit for bit: it is lib's own loop over an engine that gives the
// same bits.
#pragma once

#include <span>
#include <vector>

#include "lib/core/progress.hpp"
#include "lib/kmeans/kmeans.hpp"

namespace kvcodec::cuda {

/// As kvcodec::kmeans.
std::vector<Clustering> kmeans(std::span<const KmeansTask> tasks, const KmeansOptions& options,
                               const Progress& progress = {});

}  // namespace kvcodec::cuda
