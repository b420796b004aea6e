// Launchers of the kernels of group_kmeans.cu. All pointers are to device memory.
//
// Codebooks of small groups of channels by rounds of k-means, as product quantization makes them: what
// one-pass codebooks of sign codes (cuda/selfindex/signvq.cuh), of as many entries for as many channels, are
// measured against. Nothing but the benchmark and its test uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/core/host_device.hpp"

namespace kvcodec::cuda {

inline constexpr unsigned kGroupDims = 4;       ///< channels of a group: those of a sign code
inline constexpr unsigned kGroupEntries = 16;   ///< of a codebook: as many as there are signs
inline constexpr unsigned kGroupTokens = 2048;  ///< tokens whose sums are made together

struct GroupShape {
  size_t tokens = 0,
         groups = 0;  ///< rows are (tokens, groups * kGroupDims) without gaps; groups: a multiple of 32
  KVCODEC_HD size_t pieces() const { return (tokens + kGroupTokens - 1) / kGroupTokens; }
  /// Floats of sums that a round takes.
  KVCODEC_HD size_t sums() const { return pieces() * groups * kGroupEntries * (kGroupDims + 1); }
};
/// One round: each token's part of each group goes to the entry at the least distance, and each entry becomes
/// the mean of what came to it, or stays. entries: (groups, kGroupEntries, kGroupDims).
[[nodiscard]] Status run_group_round(const GroupShape& shape, const float* rows, float* entries, float* sums,
                                     StreamHandle stream);

}  // namespace kvcodec::cuda
