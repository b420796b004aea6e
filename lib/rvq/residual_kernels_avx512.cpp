#include <immintrin.h>

#include "lib/rvq/residual_kernels.hpp"

namespace kvcodec::residual_kernels::avx512 {
namespace {

float subtract(const float* row, const float* entry, size_t padded, float* out) {
  __m512 sum = _mm512_setzero_ps();
  for (size_t j = 0; j < padded; j += kLanes) {
    const __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(row + j), _mm512_loadu_ps(entry + j));
    _mm512_storeu_ps(out + j, difference);
    sum = _mm512_add_ps(sum, _mm512_mul_ps(difference, difference));
  }
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

__mmask16 first_lanes(size_t count) {
  return count >= kLanes ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

/// kVectors of a row from float `first` on, all in registers; the last may be cut by the width.
template <size_t kVectors>
void sum_part(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t first,
              size_t width, float* out) {
  __m512 sums[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sums[v] = _mm512_setzero_ps();
  for (size_t s = 0; s < stages; ++s) {
    const float* entry = books[s] + (size_t)ids[s] * padded + first;
    for (size_t v = 0; v < kVectors; ++v)
      sums[v] = _mm512_add_ps(sums[v], _mm512_loadu_ps(entry + v * kLanes));
  }
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t at = first + v * kLanes;
    if (at + kLanes <= width)
      _mm512_storeu_ps(out + at, sums[v]);
    else
      _mm512_mask_storeu_ps(out + at, first_lanes(width - at), sums[v]);
  }
}

/// Rows ahead whose entries are asked for: their addresses are random, and large books are no cache's. More
/// of them cost more than they gain, even where books are in memory.
constexpr size_t kAhead = 1;

void sum_entries(const float* const* books, size_t stages, size_t padded, const uint32_t* ids, size_t count,
                 size_t width, float* out, size_t out_stride) {
  for (size_t i = 0; i < count; ++i, ids += stages, out += out_stride) {
    if (i + kAhead < count)
      for (size_t s = 0; s < stages; ++s) {
        const float* entry = books[s] + (size_t)ids[kAhead * stages + s] * padded;
        for (size_t j = 0; j < padded; j += kLanes) _mm_prefetch((const char*)(entry + j), _MM_HINT_T0);
      }
    size_t first = 0;
    for (; width - first > 7 * kLanes; first += 8 * kLanes) {
      sum_part<8>(books, stages, padded, ids, first, width, out);
      if (width - first <= 8 * kLanes) {
        first = width;
        break;
      }
    }
    const size_t left = (width - first + kLanes - 1) / kLanes;
    if (left >= 4) sum_part<4>(books, stages, padded, ids, first, width, out), first += 4 * kLanes;
    for (; first < width; first += kLanes) sum_part<1>(books, stages, padded, ids, first, width, out);
  }
}

}  // namespace
const Table kernels = {subtract, sum_entries};
}  // namespace kvcodec::residual_kernels::avx512
