#include "cuda/signvq/signvq.cuh"
#include "cuda/signvq/signvq_kernels.cuh"

namespace kvcodec::cuda {
namespace {

size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }

}  // namespace

Status run_sign_sums(const float* rows, const SignShape& shape, uint8_t* codes, double* sums,
                     uint32_t* counts, StreamHandle stream) {
  const size_t items = shape.heads * divide_up(shape.dims, kWarp) * divide_up(shape.tokens, kSummedTogether);
  return launch(sign_sums, static_cast<unsigned>(divide_up(items, kSignWarps)), kSignWarps * kWarp, 0, stream,
                rows, shape, codes, sums, counts);
}

Status run_sign_codebooks(const double* sums, const uint32_t* counts, size_t heads, size_t dims,
                          size_t pieces, float* centroids, StreamHandle stream) {
  constexpr unsigned kThreads = 128;
  return launch(sign_codebooks, static_cast<unsigned>(divide_up(heads * dims, kThreads)), kThreads, 0, stream,
                sums, counts, heads, dims, pieces, centroids);
}

Status run_sign_scores(const SignKeys* keys, size_t queries, size_t most_tokens, const float* tables,
                       size_t groups, size_t row_bytes, bool in_pairs, float* scores, size_t score_stride,
                       StreamHandle stream) {
  const size_t together = in_pairs ? 2 : 1;
  const dim3 grid(static_cast<unsigned>(divide_up(most_tokens, kScoreThreads * kScoreTokens)),
                  static_cast<unsigned>(divide_up(queries, together)));
  const bool wide = row_bytes % 16 == 0;
  const auto kernel = in_pairs ? (wide ? sign_scores<true, 2> : sign_scores<false, 2>)
                               : (wide ? sign_scores<true, 1> : sign_scores<false, 1>);
  return launch(kernel, grid, kScoreThreads, together * groups * 16 * sizeof(float), stream, keys, queries,
                tables, static_cast<unsigned>(groups), static_cast<unsigned>(row_bytes), scores,
                score_stride);
}

Status run_top_k(const float* scores, size_t stride, const uint64_t* lengths, size_t rows, size_t k,
                 uint32_t* ids, float* best, StreamHandle stream) {
  return launch(top_k_rows, static_cast<unsigned>(rows), kTopThreads, 0, stream, scores, stride, lengths, k,
                ids, best);
}

}  // namespace kvcodec::cuda
