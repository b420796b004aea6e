#include "cuda/attention/attention.cuh"
#include "cuda/attention/attention_kernels.cuh"

namespace kvcodec::cuda {
namespace {

using Kernel = void (*)(const AttentionItem*, unsigned, const float*, const float*, float*, float*);

template <RowKind kKind, unsigned kQueries>
Kernel with_lanes(unsigned dims) {
  // Rows whose eighths can be loaded at once (16 bytes of halves, 2 bytes of levels) are read by as many
  // lanes as they need; others, which are rare, by a whole warp.
  if (dims % 8 != 0) return attention_items<kKind, false, kQueries, 32>;
  if (dims <= 64) return attention_items<kKind, true, kQueries, 8>;
  if (dims <= 128) return attention_items<kKind, true, kQueries, 16>;
  return attention_items<kKind, true, kQueries, 32>;
}

template <RowKind kKind>
Kernel of_kind(unsigned queries, unsigned dims) {
  if (queries == 1) return with_lanes<kKind, 1>(dims);
  if (queries == 2) return with_lanes<kKind, 2>(dims);
  if (queries == 4) return with_lanes<kKind, 4>(dims);
  return with_lanes<kKind, 8>(dims);
}

}  // namespace

Status run_attention_items(RowKind kind, const AttentionItem* items, size_t count, unsigned queries_each,
                           unsigned dims, const float* queries, const float* shifts, float* states,
                           float* sums, StreamHandle stream) {
  const Kernel kernel = kind == RowKind::f32    ? of_kind<RowKind::f32>(queries_each, dims)
                        : kind == RowKind::f16  ? of_kind<RowKind::f16>(queries_each, dims)
                        : kind == RowKind::bf16 ? of_kind<RowKind::bf16>(queries_each, dims)
                                                : of_kind<RowKind::two_bit>(queries_each, dims);
  return launch(kernel, static_cast<unsigned>(count), kAttentionWarps * kWarp, 0, stream, items, dims,
                queries, shifts, states, sums);
}

Status run_attention_join(const AttentionResult* results, size_t count, unsigned queries_each, unsigned dims,
                          const float* states, const float* sums, float* out, StreamHandle stream) {
  return launch(attention_join, static_cast<unsigned>(count), 128, 0, stream, results, queries_each, dims,
                states, sums, out);
}

}  // namespace kvcodec::cuda
