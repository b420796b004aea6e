#include <immintrin.h>
#include <stddef.h>

namespace kvcodec::nearest_kernels {
namespace {

struct Vector {
  static constexpr size_t kWidth = 8;
  __m256 lanes;
  static Vector load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Vector all(float value) { return {_mm256_set1_ps(value)}; }
  void store(float* to) const { _mm256_storeu_ps(to, lanes); }
};
Vector fused(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
Vector larger(Vector a, Vector b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
Vector sum(Vector a, Vector b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }

}  // namespace
}  // namespace kvcodec::nearest_kernels

#include "lib/linalg/nearest_kernels_body.hpp"

namespace kvcodec::nearest_kernels::avx2 {
namespace {

void exact(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
           float* out) {
  for (size_t i = 0; i < count; ++i) {
    const float* entry = entries + (size_t)ids[i] * padded;
    __m256 low = _mm256_setzero_ps(), high = low;
    for (size_t j = 0; j < padded; j += kLanes) {
      low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(row + j), _mm256_loadu_ps(entry + j)));
      high = _mm256_add_ps(high, _mm256_mul_ps(_mm256_loadu_ps(row + j + 8), _mm256_loadu_ps(entry + j + 8)));
    }
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    out[i] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

size_t not_below(const float* scores, const float* margins, float error, size_t n, float limit,
                 uint32_t first_id, uint32_t* ids, float* kept) {
  const __m256 least = _mm256_set1_ps(limit), all_error = _mm256_set1_ps(error);
  size_t found = 0;
  for (size_t i = 0; i < n; i += Vector::kWidth) {
    float values[Vector::kWidth];
    const __m256 value =
        _mm256_fmadd_ps(all_error, _mm256_loadu_ps(margins + i), _mm256_loadu_ps(scores + i));
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(value, least, _CMP_NLT_UQ));
    if (mask == 0) continue;
    _mm256_storeu_ps(values, value);
    for (; mask != 0; mask &= mask - 1) {
      const size_t lane = (size_t)__builtin_ctz(mask);
      ids[found] = first_id + (uint32_t)(i + lane);
      kept[found++] = values[lane];
    }
  }
  return found;
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {
      exact, screen_floats_by<2>, nullptr, highest, highest_of_classes, nullptr, nullptr, not_below, nullptr};
  return kTable;
}

}  // namespace kvcodec::nearest_kernels::avx2
