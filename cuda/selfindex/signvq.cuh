// Launchers of the kernels of signvq.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/core/host_device.hpp"

namespace kvcodec::cuda {

/// Number of tokens whose sums are kept apart until the end, as in lib/selfindex/sign_codes.cpp: sums in
/// double depend on the order.
inline constexpr size_t kSummedTogether = 4096;

/// Rows of heads * dims floats, and room for the sums of pieces of kSummedTogether tokens.
struct SignSums {
  const float* rows = nullptr;
  size_t tokens = 0, heads = 0, dims = 0;
  double* sums = nullptr;      ///< [head][piece][dims][16]
  uint32_t* counts = nullptr;  ///< [head][piece][groups][16]

  KVCODEC_HD size_t pieces() const { return (tokens + kSummedTogether - 1) / kSummedTogether; }
};

/// centroids [head][dims][16].
[[nodiscard]] Status run_sign_codebooks(const SignSums& all, float* centroids, StreamHandle stream);

/// One query's keys: codes (tokens, row_bytes), rows of a multiple of 16 bytes, zeros behind the codes.
struct SignKeys {
  const uint8_t* codes;
  uint64_t tokens;
};

struct SignScores {
  const SignKeys* keys = nullptr;  ///< one per query
  size_t queries = 0;
  size_t max_tokens = 0;          ///< the largest of their numbers
  const float* tables = nullptr;  ///< [query][groups][16]
  unsigned groups = 0, row_bytes = 0;
  /// Queries 2 i and 2 i + 1 have the same keys. This takes 256 bytes of shared memory per byte of a row, half of that
  /// otherwise.
  bool in_pairs = false;
  float* scores = nullptr;
  size_t score_stride = 0;
};
/// scores[q * score_stride + t] = the sum over groups of tables[q][group][code of token t].
[[nodiscard]] Status run_sign_scores(const SignScores& all, StreamHandle stream);

}  // namespace kvcodec::cuda
