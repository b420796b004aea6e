#include "lib/linalg/nearest_screens.hpp"

namespace kvcodec::nearest_kernels::avx2 {
namespace {

size_t not_below(const RoughScores& rough, float limit, uint32_t first_id, uint32_t* ids, float* kept) {
  const auto [scores, margins, error, n] = rough;
  const __m256 least = _mm256_set1_ps(limit), all_error = _mm256_set1_ps(error);
  size_t found = 0;
  for (size_t i = 0; i < n; i += kWidth) {
    float values[kWidth];
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
