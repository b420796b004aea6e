#include <immintrin.h>

#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec::omp_kernels::avx2 {
namespace {

/// 16 lanes of floats, 8 of doubles: two registers each.
struct Floats {
  __m256 low, high;
};
struct Doubles {
  __m256d low, high;
};

float sum_of(Floats lanes) {
  const __m256 eight = _mm256_add_ps(lanes.low, lanes.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

double sum_of(Doubles lanes) {
  const __m256d four = _mm256_add_pd(lanes.low, lanes.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/// The screened correlations of 32 atoms, in their order: half the registers hold the sums.
constexpr size_t kPart = 32, kVectors = kPart / 8;
struct Screened {
  __m256 values[kVectors];
};

inline Screened screen_part(const float* start, const int16_t* const* rows, const uint32_t* weights,
                            size_t pairs, float scale, size_t first) {
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms
  // and `high` the other four.
  __m256i low[kVectors / 2], high[kVectors / 2];
  for (size_t i = 0; i < kVectors / 2; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (size_t pair = 0; pair < pairs; ++pair) {
    const __m256i weight = _mm256_set1_epi32(static_cast<int>(weights[pair]));
    const int16_t* even = rows[2 * pair] + first;
    const int16_t* odd = rows[2 * pair + 1] + first;
    for (size_t i = 0; i < kVectors / 2; ++i) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + 16 * i));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + 16 * i));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
    }
  }
  const __m256 factor = _mm256_set1_ps(scale), magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  Screened result;
  for (size_t i = 0; i < kVectors / 2; ++i) {
    const __m256i ordered[2] = {_mm256_permute2x128_si256(low[i], high[i], 0x20),
                                _mm256_permute2x128_si256(low[i], high[i], 0x31)};
    for (size_t half = 0; half < 2; ++half) {
      const __m256 product = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(ordered[half]));
      const __m256 begin = _mm256_loadu_ps(start + first + 16 * i + 8 * half);
      result.values[2 * i + half] = _mm256_and_ps(magnitude, _mm256_sub_ps(begin, product));
    }
  }
  return result;
}

void screen_tile(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
                 float scale, size_t first, float* out) {
  for (size_t part = 0; part < kTile; part += kPart) {
    const Screened screened = screen_part(start, rows, weights, pairs, scale, first + part);
    for (size_t i = 0; i < kVectors; ++i) _mm256_storeu_ps(out + part + 8 * i, screened.values[i]);
  }
}

void screen(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
            float scale, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kTile; ++tile) {
    // max returns its second operand when one of them is NaN.
    __m256 peak = _mm256_setzero_ps();
    for (size_t part = 0; part < kTile; part += kPart) {
      const Screened screened = screen_part(start, rows, weights, pairs, scale, tile * kTile + part);
      for (size_t i = 0; i < kVectors; ++i) peak = _mm256_max_ps(screened.values[i], peak);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, peak);
    float largest = 0;
    for (size_t i = 0; i < 8; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    peaks[tile] = largest;
  }
}

Floats multiply_add(Floats sum, const float* a, const float* b) {
  return {_mm256_add_ps(sum.low, _mm256_mul_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b))),
          _mm256_add_ps(sum.high, _mm256_mul_ps(_mm256_loadu_ps(a + 8), _mm256_loadu_ps(b + 8)))};
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  const Floats zero = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Floats lanes[4] = {zero, zero, zero, zero};
    for (size_t c = 0; c < m; c += 16)
      for (size_t r = 0; r < 4; ++r) lanes[r] = multiply_add(lanes[r], rows[i + r] + c, x + c);
    for (size_t r = 0; r < 4; ++r) out[i + r] = sum_of(lanes[r]);
  }
  for (; i < count; ++i) {
    Floats lanes = zero;
    for (size_t c = 0; c < m; c += 16) lanes = multiply_add(lanes, rows[i] + c, x + c);
    out[i] = sum_of(lanes);
  }
}

__m256d widened(const float* values) { return _mm256_cvtps_pd(_mm_loadu_ps(values)); }

void residual(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
              double* out) {
  for (size_t c = 0; c < m; c += 8) {
    __m256d low = widened(y + c), high = widened(y + c + 4);
    for (size_t i = 0; i < count; ++i) {
      const __m256d factor = _mm256_set1_pd(x[i]);
      low = _mm256_sub_pd(low, _mm256_mul_pd(factor, widened(rows[i] + c)));
      high = _mm256_sub_pd(high, _mm256_mul_pd(factor, widened(rows[i] + c + 4)));
    }
    _mm256_storeu_pd(out + c, low);
    _mm256_storeu_pd(out + c + 4, high);
  }
}

void dots_double(const float* const* rows, size_t count, const double* r, size_t m, double* out) {
  for (size_t i = 0; i < count; ++i) {
    Doubles lanes = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (size_t c = 0; c < m; c += 8) {
      lanes.low = _mm256_add_pd(lanes.low, _mm256_mul_pd(widened(rows[i] + c), _mm256_loadu_pd(r + c)));
      lanes.high =
          _mm256_add_pd(lanes.high, _mm256_mul_pd(widened(rows[i] + c + 4), _mm256_loadu_pd(r + c + 4)));
    }
    out[i] = sum_of(lanes);
  }
}

void apply_both(const double* u, size_t stride, size_t k, const double* g, double* v, double* w) {
  for (size_t i = 0; i < stride; i += 4) {
    _mm256_storeu_pd(v + i, _mm256_setzero_pd());
    _mm256_storeu_pd(w + i, _mm256_setzero_pd());
  }
  for (size_t j = 0; j < k; ++j) {
    const double* column = u + j * stride;
    const size_t length = (j / kDoubleLanes + 1) * kDoubleLanes;
    Doubles lanes = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (size_t i = 0; i < length; i += 8) {
      lanes.low =
          _mm256_add_pd(lanes.low, _mm256_mul_pd(_mm256_loadu_pd(column + i), _mm256_loadu_pd(g + i)));
      lanes.high = _mm256_add_pd(lanes.high,
                                 _mm256_mul_pd(_mm256_loadu_pd(column + i + 4), _mm256_loadu_pd(g + i + 4)));
    }
    v[j] = sum_of(lanes);
    const __m256d factor = _mm256_set1_pd(v[j]);
    for (size_t i = 0; i < length; i += 4)
      _mm256_storeu_pd(
          w + i, _mm256_add_pd(_mm256_loadu_pd(w + i), _mm256_mul_pd(_mm256_loadu_pd(column + i), factor)));
  }
}

Floats fused(Floats sum, float factor, const float* row) {
  const __m256 factors = _mm256_set1_ps(factor);
  return {_mm256_fmadd_ps(factors, _mm256_loadu_ps(row), sum.low),
          _mm256_fmadd_ps(factors, _mm256_loadu_ps(row + 8), sum.high)};
}

Floats added(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }

void combine(const float* slice, const uint32_t* ids, const float* coefficients, const uint64_t* offsets,
             size_t signals, size_t width, float* out, size_t stride) {
  const Floats zero = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (size_t i = 0; i < signals; ++i) {
    Floats sums[4] = {zero, zero, zero, zero};
    uint64_t k = offsets[i];
    const uint64_t end = offsets[i + 1];
    for (; k + 4 <= end; k += 4)
      for (size_t lane = 0; lane < 4; ++lane)
        sums[lane] = fused(sums[lane], coefficients[k + lane],
                           slice + static_cast<size_t>(ids[k + lane]) * kFloatLanes);
    for (size_t lane = 0; k < end; ++k, ++lane)
      sums[lane] = fused(sums[lane], coefficients[k], slice + static_cast<size_t>(ids[k]) * kFloatLanes);
    const Floats total = added(added(sums[0], sums[2]), added(sums[1], sums[3]));
    if (width == kFloatLanes) {
      _mm256_storeu_ps(out + i * stride, total.low);
      _mm256_storeu_ps(out + i * stride + 8, total.high);
    } else {
      float values[kFloatLanes];
      _mm256_storeu_ps(values, total.low);
      _mm256_storeu_ps(values + 8, total.high);
      for (size_t c = 0; c < width; ++c) out[i * stride + c] = values[c];
    }
  }
}

int16_t peak_but(const int16_t* row, size_t n, size_t skip) {
  int best = 0;
  size_t j = 0;
  __m256i peak = _mm256_setzero_si256();
  for (; j + 16 <= n; j += 16) {
    if (skip >= j && skip < j + 16) {
      for (size_t i = j; i < j + 16; ++i) {
        const int value = row[i] < 0 ? -row[i] : row[i];
        if (i != skip && value > best) best = value;
      }
    } else {
      const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j));
      peak = _mm256_max_epi16(peak, _mm256_abs_epi16(values));
    }
  }
  int16_t lanes[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), peak);
  for (size_t i = 0; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  for (; j < n; ++j) {
    const int value = row[j] < 0 ? -row[j] : row[j];
    if (j != skip && value > best) best = value;
  }
  return static_cast<int16_t>(best);
}

void round_to_words(const float* in, float scale, size_t n, int16_t* out) {
  size_t j = 0;
  for (; j + 8 <= n; j += 8) {
    const __m256i words = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(in + j), _mm256_set1_ps(scale)));
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + j), packed);
  }
  for (; j < n; ++j) out[j] = static_cast<int16_t>(_mm_cvtss_si32(_mm_set_ss(in[j] * scale)));
}

}  // namespace

const Kernels kernels = {screen,     screen_tile, dots,     residual,      dots_double,
                         apply_both, combine,     peak_but, round_to_words};

}  // namespace kvcodec::omp_kernels::avx2
