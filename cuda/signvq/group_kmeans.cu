#include "cuda/signvq/group_kmeans.cuh"
#include "cuda/signvq/group_kmeans_kernels.cuh"

namespace kvcodec::cuda {

Status run_group_round(const GroupShape& shape, const float* rows, float* entries, float* sums,
                       StreamHandle stream) {
  Status status = launch(
      sum_groups, dim3(static_cast<unsigned>(shape.groups / kWarp), static_cast<unsigned>(shape.pieces())),
      kGroupWarps * kWarp, kGroupShared, stream, shape, rows, static_cast<const float*>(entries), sums);
  if (status == 0)
    status = launch(move_entries, static_cast<unsigned>((shape.groups * kGroupEntries + 255) / 256), 256, 0,
                    stream, shape, static_cast<const float*>(sums), entries);
  return status;
}

}  // namespace kvcodec::cuda
