#include <immintrin.h>

#include "lib/rvq/residual_kernels.hpp"

namespace kvcodec::residual_kernels::avx2 {
namespace {

constexpr size_t kWidth = 8;

float subtract(const float* row, const float* entry, size_t padded, float* out) {
  __m256 low = _mm256_setzero_ps(), high = low;
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m256 a = _mm256_sub_ps(_mm256_loadu_ps(row + j), _mm256_loadu_ps(entry + j));
    const __m256 b = _mm256_sub_ps(_mm256_loadu_ps(row + j + 8), _mm256_loadu_ps(entry + j + 8));
    _mm256_storeu_ps(out + j, a);
    _mm256_storeu_ps(out + j + 8, b);
    low = _mm256_add_ps(low, _mm256_mul_ps(a, a));
    high = _mm256_add_ps(high, _mm256_mul_ps(b, b));
  }
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// kVectors of a row from float `first` on, all in registers; the last may be cut by the width.
template <size_t kVectors>
void sum_part(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t first,
              size_t width, float* out) {
  __m256 sums[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sums[v] = _mm256_setzero_ps();
  for (size_t s = 0; s < stages; ++s) {
    const float* entry = books[s] + (size_t)ids[s] * padded + first;
    for (size_t v = 0; v < kVectors; ++v)
      sums[v] = _mm256_add_ps(sums[v], _mm256_loadu_ps(entry + v * kWidth));
  }
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t at = first + v * kWidth;
    if (at + kWidth <= width) {
      _mm256_storeu_ps(out + at, sums[v]);
    } else {
      float lanes[kWidth];
      _mm256_storeu_ps(lanes, sums[v]);
      for (size_t j = at; j < width; ++j) out[j] = lanes[j - at];
    }
  }
}

void sum_entries(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t count,
                 size_t width, float* out, size_t out_stride) {
  for (size_t i = 0; i < count; ++i, ids += stages, out += out_stride) {
    size_t first = 0;
    for (; width - first >= 8 * kWidth; first += 8 * kWidth)
      sum_part<8>(books, stages, padded, ids, first, width, out);
    for (; first < width; first += kWidth) sum_part<1>(books, stages, padded, ids, first, width, out);
  }
}

}  // namespace
const Table kernels = {subtract, sum_entries};
}  // namespace kvcodec::residual_kernels::avx2
