// Launchers of the kernels of signvq.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// Tokens whose sums are kept apart until the end, as lib/selfindex/sign_codes.cpp does: sums in double depend
/// on the order.
inline constexpr size_t kSummedTogether = 4096;

/// A head's rows begin at rows + head * dims and are row_stride floats apart; its codes at codes + head *
/// row_bytes, code_stride bytes apart.
struct SignShape {
  size_t tokens = 0, heads = 0, dims = 0, row_bytes = 0;
  size_t row_stride = 0, code_stride = 0;
};

/// Writes the codes, and for piece p of kSummedTogether tokens of each head
/// sums [head][piece][dims][16] and counts [head][piece][groups][16].
[[nodiscard]] Status run_sign_sums(const float* rows, const SignShape& shape, uint8_t* codes, double* sums,
                                   uint32_t* counts, StreamHandle stream);

/// centroids [head][dims][16] from the sums of `pieces` pieces.
[[nodiscard]] Status run_sign_codebooks(const double* sums, const uint32_t* counts, size_t heads, size_t dims,
                                        size_t pieces, float* centroids, StreamHandle stream);

/// One query's keys: codes (tokens, row_bytes), aligned to 16 bytes.
struct SignKeys {
  const uint8_t* codes;
  uint64_t tokens;
};

/// scores[q * score_stride + t] = the sum over groups of tables[q][group][code of token t]. keys: one per
/// query; most_tokens: the largest of their numbers. in_pairs: queries 2 i and 2 i + 1 have the same keys;
/// this takes 128 bytes of shared memory per group, and half of that otherwise.
[[nodiscard]] Status run_sign_scores(const SignKeys* keys, size_t queries, size_t most_tokens,
                                     const float* tables, size_t groups, size_t row_bytes, bool in_pairs,
                                     float* scores, size_t score_stride, StreamHandle stream);

/// The k items of the largest scores of each row, of equal ones those of the lower ids, by rising id:
/// ids[row * k + i] and best[row * k + i], with min(k, lengths[row]) places written. scores: (rows, stride),
/// no NaN.
[[nodiscard]] Status run_top_k(const float* scores, size_t stride, const uint64_t* lengths, size_t rows,
                               size_t k, uint32_t* ids, float* best, StreamHandle stream);

}  // namespace kvcodec::cuda
