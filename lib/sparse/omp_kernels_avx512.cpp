#include <immintrin.h>

#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec::omp_kernels::avx512 {
namespace {

float sum_of(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

double sum_of(__m512d lanes) {
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(lanes), _mm512_extractf64x4_pd(lanes, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

constexpr size_t kVectors = kTile / 16;  // of 16 screened correlations each

/// The screened correlations of one tile, in the order of the atoms.
struct Screened {
  __m512 values[kVectors];
};

inline Screened screen_one(const float* start, const int16_t* const* rows, const uint32_t* weights,
                           size_t pairs, float scale, size_t first) {
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms
  // and `high` the other four.
  __m512i low[kVectors / 2], high[kVectors / 2];
  for (size_t i = 0; i < kVectors / 2; ++i) low[i] = high[i] = _mm512_setzero_si512();
  for (size_t pair = 0; pair < pairs; ++pair) {
    const __m512i weight = _mm512_set1_epi32(static_cast<int>(weights[pair]));
    const int16_t* even = rows[2 * pair] + first;
    const int16_t* odd = rows[2 * pair + 1] + first;
    for (size_t i = 0; i < kVectors / 2; ++i) {
      const __m512i a = _mm512_loadu_si512(even + 32 * i), b = _mm512_loadu_si512(odd + 32 * i);
      low[i] = _mm512_add_epi32(low[i], _mm512_madd_epi16(_mm512_unpacklo_epi16(a, b), weight));
      high[i] = _mm512_add_epi32(high[i], _mm512_madd_epi16(_mm512_unpackhi_epi16(a, b), weight));
    }
  }
  const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512 factor = _mm512_set1_ps(scale);
  Screened result;
  for (size_t i = 0; i < kVectors / 2; ++i) {
    const __m512i ordered[2] = {_mm512_permutex2var_epi64(low[i], first_half, high[i]),
                                _mm512_permutex2var_epi64(low[i], second_half, high[i])};
    for (size_t half = 0; half < 2; ++half) {
      const __m512 product = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(ordered[half]));
      const __m512 begin = _mm512_loadu_ps(start + first + 32 * i + 16 * half);
      result.values[2 * i + half] = _mm512_abs_ps(_mm512_sub_ps(begin, product));
    }
  }
  return result;
}

void screen_tile(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
                 float scale, size_t first, float* out) {
  const Screened tile = screen_one(start, rows, weights, pairs, scale, first);
  for (size_t i = 0; i < kVectors; ++i) _mm512_storeu_ps(out + 16 * i, tile.values[i]);
}

void screen(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
            float scale, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kTile; ++tile) {
    const Screened screened = screen_one(start, rows, weights, pairs, scale, tile * kTile);
    // max returns its second operand when one of them is NaN.
    __m512 peak = _mm512_setzero_ps();
    for (size_t i = 0; i < kVectors; ++i) peak = _mm512_max_ps(screened.values[i], peak);
    peaks[tile] = _mm512_reduce_max_ps(peak);
  }
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    __m512 lanes[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t c = 0; c < m; c += 16) {
      const __m512 factor = _mm512_loadu_ps(x + c);
      for (size_t r = 0; r < 4; ++r)
        lanes[r] = _mm512_add_ps(lanes[r], _mm512_mul_ps(_mm512_loadu_ps(rows[i + r] + c), factor));
    }
    for (size_t r = 0; r < 4; ++r) out[i + r] = sum_of(lanes[r]);
  }
  for (; i < count; ++i) {
    __m512 lanes = _mm512_setzero_ps();
    for (size_t c = 0; c < m; c += 16)
      lanes = _mm512_add_ps(lanes, _mm512_mul_ps(_mm512_loadu_ps(rows[i] + c), _mm512_loadu_ps(x + c)));
    out[i] = sum_of(lanes);
  }
}

__m512d widened(const float* values) { return _mm512_cvtps_pd(_mm256_loadu_ps(values)); }

void residual(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
              double* out) {
  for (size_t c = 0; c < m; c += 16) {
    __m512d low = widened(y + c), high = widened(y + c + 8);
    for (size_t i = 0; i < count; ++i) {
      const __m512d factor = _mm512_set1_pd(x[i]);
      low = _mm512_sub_pd(low, _mm512_mul_pd(factor, widened(rows[i] + c)));
      high = _mm512_sub_pd(high, _mm512_mul_pd(factor, widened(rows[i] + c + 8)));
    }
    _mm512_storeu_pd(out + c, low);
    _mm512_storeu_pd(out + c + 8, high);
  }
}

void dots_double(const float* const* rows, size_t count, const double* r, size_t m, double* out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    __m512d lanes[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};
    for (size_t c = 0; c < m; c += 8) {
      const __m512d factor = _mm512_loadu_pd(r + c);
      for (size_t v = 0; v < 4; ++v)
        lanes[v] = _mm512_add_pd(lanes[v], _mm512_mul_pd(widened(rows[i + v] + c), factor));
    }
    for (size_t v = 0; v < 4; ++v) out[i + v] = sum_of(lanes[v]);
  }
  for (; i < count; ++i) {
    __m512d lanes = _mm512_setzero_pd();
    for (size_t c = 0; c < m; c += 8)
      lanes = _mm512_add_pd(lanes, _mm512_mul_pd(widened(rows[i] + c), _mm512_loadu_pd(r + c)));
    out[i] = sum_of(lanes);
  }
}

void apply_both(const double* u, size_t stride, size_t k, const double* g, double* v, double* w) {
  for (size_t i = 0; i < stride; i += 8) {
    _mm512_storeu_pd(v + i, _mm512_setzero_pd());
    _mm512_storeu_pd(w + i, _mm512_setzero_pd());
  }
  for (size_t j = 0; j < k; ++j) {
    const double* column = u + j * stride;
    const size_t length = (j / kDoubleLanes + 1) * kDoubleLanes;
    __m512d lanes = _mm512_setzero_pd();
    for (size_t i = 0; i < length; i += 8)
      lanes = _mm512_add_pd(lanes, _mm512_mul_pd(_mm512_loadu_pd(column + i), _mm512_loadu_pd(g + i)));
    v[j] = sum_of(lanes);
    const __m512d factor = _mm512_set1_pd(v[j]);
    for (size_t i = 0; i < length; i += 8)
      _mm512_storeu_pd(
          w + i, _mm512_add_pd(_mm512_loadu_pd(w + i), _mm512_mul_pd(_mm512_loadu_pd(column + i), factor)));
  }
}

void combine(const float* slice, const uint32_t* ids, const float* coefficients, const uint64_t* offsets,
             size_t signals, size_t width, float* out, size_t stride) {
  const auto mask = static_cast<__mmask16>((1u << width) - 1);
  for (size_t i = 0; i < signals; ++i) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    uint64_t k = offsets[i];
    const uint64_t end = offsets[i + 1];
    for (; k + 4 <= end; k += 4)
      for (size_t lane = 0; lane < 4; ++lane) {
        const float* row = slice + static_cast<size_t>(ids[k + lane]) * kFloatLanes;
        sums[lane] =
            _mm512_fmadd_ps(_mm512_set1_ps(coefficients[k + lane]), _mm512_loadu_ps(row), sums[lane]);
      }
    for (size_t lane = 0; k < end; ++k, ++lane) {
      const float* row = slice + static_cast<size_t>(ids[k]) * kFloatLanes;
      sums[lane] = _mm512_fmadd_ps(_mm512_set1_ps(coefficients[k]), _mm512_loadu_ps(row), sums[lane]);
    }
    const __m512 total = _mm512_add_ps(_mm512_add_ps(sums[0], sums[2]), _mm512_add_ps(sums[1], sums[3]));
    _mm512_mask_storeu_ps(out + i * stride, mask, total);
  }
}

int16_t peak_but(const int16_t* row, size_t n, size_t skip) {
  __m512i peak = _mm512_setzero_si512();
  size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    __m512i values = _mm512_abs_epi16(_mm512_loadu_si512(row + j));
    if (skip >= j && skip < j + 32)
      values = _mm512_maskz_mov_epi16(~(static_cast<__mmask32>(1) << (skip - j)), values);
    peak = _mm512_max_epi16(peak, values);
  }
  int16_t lanes[32];
  _mm512_storeu_si512(lanes, peak);
  int16_t best = 0;
  for (size_t i = 0; i < 32; ++i) best = lanes[i] > best ? lanes[i] : best;
  for (; j < n; ++j) {
    const int value = row[j] < 0 ? -row[j] : row[j];
    if (j != skip && value > best) best = static_cast<int16_t>(value);
  }
  return best;
}

void round_to_words(const float* in, float scale, size_t n, int16_t* out) {
  for (size_t j = 0; j < n; j += 16) {
    const auto mask = static_cast<__mmask16>(n - j < 16 ? (1u << (n - j)) - 1 : 0xffffu);
    const __m512 products = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, in + j), _mm512_set1_ps(scale));
    _mm256_mask_storeu_epi16(out + j, mask, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(products)));
  }
}

}  // namespace

const Kernels kernels = {screen,     screen_tile, dots,     residual,      dots_double,
                         apply_both, combine,     peak_but, round_to_words};

}  // namespace kvcodec::omp_kernels::avx512
