#include <immintrin.h>
#include <string.h>

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

/// Atoms at a time: half the registers hold their sums.
constexpr size_t kPart = 32, kVectors = kPart / 8;
static_assert(kScreen % kPart == 0);
struct Part {
  __m256 values[kVectors];  // in the order of the atoms
};

__m256i words_at(const int16_t* words) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)); }

/// The weighted sums of a panel's rows, times scale, for the atoms from the panel's pointer on.
inline Part weighted(const int16_t* panel, const uint32_t* weights, size_t pairs, float scale) {
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms
  // and `high` the other four.
  __m256i low[kVectors / 2], high[kVectors / 2];
  for (size_t i = 0; i < kVectors / 2; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (size_t pair = 0; pair < pairs; ++pair, panel += 2 * kScreen) {
    const __m256i weight = _mm256_set1_epi32(static_cast<int>(weights[pair]));
    for (size_t i = 0; i < kVectors / 2; ++i) {
      const __m256i a = words_at(panel + 16 * i), b = words_at(panel + kScreen + 16 * i);
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
    }
  }
  const __m256 factor = _mm256_set1_ps(scale);
  Part result;
  for (size_t i = 0; i < kVectors / 2; ++i) {
    const __m256i first = _mm256_permute2x128_si256(low[i], high[i], 0x20);
    const __m256i second = _mm256_permute2x128_si256(low[i], high[i], 0x31);
    result.values[2 * i] = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(first));
    result.values[2 * i + 1] = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(second));
  }
  return result;
}

__m256 magnitude(__m256 values) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values); }

// max returns its second operand when one of them is NaN.
__m256 larger(__m256 values, __m256 peak) { return _mm256_max_ps(values, peak); }

float largest_of(__m256 peak) {
  float lanes[8];
  _mm256_storeu_ps(lanes, peak);
  float largest = 0;
  for (size_t i = 0; i < 8; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

void peaks_of_tiles(const float* values, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    __m256 peak = _mm256_setzero_ps();
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; j += 8)
      peak = larger(magnitude(_mm256_loadu_ps(values + j)), peak);
    peaks[tile] = largest_of(peak);
  }
}

float screen(const float* start, const int16_t* panel, const uint32_t* weights, size_t pairs, float scale,
             float* values) {
  __m256 peak = _mm256_setzero_ps();
  for (size_t part = 0; part < kScreen; part += kPart) {
    const Part sums = weighted(panel + part, weights, pairs, scale);
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256 value = _mm256_sub_ps(_mm256_loadu_ps(start + part + 8 * i), sums.values[i]);
      _mm256_storeu_ps(values + part + 8 * i, value);
      peak = larger(magnitude(value), peak);
    }
  }
  return largest_of(peak);
}

float bound(const float* values, const float* spread, float factor) {
  __m256 most = _mm256_setzero_ps();
  for (size_t j = 0; j < kScreen; j += 8) {
    const __m256 root = _mm256_sqrt_ps(_mm256_loadu_ps(spread + j));
    const __m256 value = magnitude(_mm256_loadu_ps(values + j));
    most = larger(_mm256_add_ps(value, _mm256_mul_ps(_mm256_set1_ps(factor), root)), most);
  }
  return largest_of(most);
}

void apply_row(const int16_t* row, float factor, float unit, size_t n, float* values, float* spread,
               float* peaks, float* spreads) {
  const __m256 factors = _mm256_set1_ps(factor), units = _mm256_set1_ps(unit);
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    __m256 peak = _mm256_setzero_ps(), most = _mm256_setzero_ps();
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; j += 8) {
      const __m256 word = _mm256_cvtepi32_ps(
          _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + j))));
      const __m256 part = _mm256_mul_ps(factors, word), product = _mm256_mul_ps(units, word);
      const __m256 value = _mm256_sub_ps(_mm256_loadu_ps(values + j), part);
      const __m256 energy = _mm256_add_ps(_mm256_loadu_ps(spread + j), _mm256_mul_ps(product, product));
      _mm256_storeu_ps(values + j, value);
      _mm256_storeu_ps(spread + j, energy);
      peak = larger(magnitude(value), peak);
      most = larger(energy, most);
    }
    peaks[tile] = largest_of(peak);
    spreads[tile] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(largest_of(most))));
  }
}

float project(const Projection& projection, const int16_t* panel, float* correlations, float* outside,
              float* gains) {
  const __m256 along = _mm256_set1_ps(projection.along);
  const __m256 correlation_error = _mm256_set1_ps(projection.correlation_error);
  const __m256 outside_error = _mm256_set1_ps(projection.outside_error);
  const __m256 independent = _mm256_set1_ps(projection.independent);
  __m256 peak = _mm256_setzero_ps();
  for (size_t part = 0; part < kScreen; part += kPart) {
    const Part sums = weighted(panel + part, projection.weights, projection.pairs, projection.scale);
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t j = part + 8 * i;
      const __m256 p = sums.values[i];
      const __m256 c = _mm256_sub_ps(_mm256_loadu_ps(correlations + j), _mm256_mul_ps(along, p));
      const __m256 a = _mm256_sub_ps(_mm256_loadu_ps(outside + j), _mm256_mul_ps(p, p));
      _mm256_storeu_ps(correlations + j, c);
      _mm256_storeu_ps(outside + j, a);
      const __m256 most = _mm256_add_ps(magnitude(c), correlation_error);
      const __m256 gain =
          _mm256_div_ps(_mm256_mul_ps(most, most), larger(_mm256_sub_ps(a, outside_error), independent));
      const __m256 inside = _mm256_cmp_ps(_mm256_add_ps(a, outside_error), independent, _CMP_LT_OQ);
      const __m256 kept = _mm256_andnot_ps(inside, gain);
      _mm256_storeu_ps(gains + j, kept);
      peak = larger(kept, peak);
    }
  }
  return largest_of(peak);
}

/// Signals by 16 atoms, with the sums of all of them in registers.
constexpr size_t kSignals = 4, kAtomVectors = 2;

template <size_t signals_at_once>
inline void correlate_some(const int16_t* atoms, size_t pairs, const uint32_t* signals, const float* scales,
                           float* out, size_t out_stride) {
  __m256i sums[signals_at_once][kAtomVectors];
  for (size_t i = 0; i < signals_at_once; ++i)
    for (size_t v = 0; v < kAtomVectors; ++v) sums[i][v] = _mm256_setzero_si256();
  for (size_t pair = 0; pair < pairs; ++pair)
    for (size_t i = 0; i < signals_at_once; ++i) {
      const __m256i signal = _mm256_set1_epi32(static_cast<int>(signals[i * pairs + pair]));
      for (size_t v = 0; v < kAtomVectors; ++v) {
        const int16_t* entries = atoms + pair * kTile * 2 + 16 * v;
        const __m256i products =
            _mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(entries)), signal);
        sums[i][v] = _mm256_add_epi32(sums[i][v], products);
      }
    }
  for (size_t i = 0; i < signals_at_once; ++i)
    for (size_t v = 0; v < kAtomVectors; ++v)
      _mm256_storeu_ps(out + i * out_stride + 8 * v,
                       _mm256_mul_ps(_mm256_set1_ps(scales[i]), _mm256_cvtepi32_ps(sums[i][v])));
}

void correlate(const int16_t* atoms, size_t n, size_t pairs, const uint32_t* signals, size_t count,
               const float* scales, float* out, size_t out_stride) {
  for (size_t first = 0; first < n; first += 8 * kAtomVectors) {
    const int16_t* part = atoms + (first / kTile * kTile * pairs + first % kTile) * 2;
    size_t i = 0;
    for (; i + kSignals <= count; i += kSignals)
      correlate_some<kSignals>(part, pairs, signals + i * pairs, scales + i, out + i * out_stride + first,
                               out_stride);
    for (; i < count; ++i)
      correlate_some<1>(part, pairs, signals + i * pairs, scales + i, out + i * out_stride + first,
                        out_stride);
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

void residual(const float* y, const float* const* rows, const float* x, size_t count, size_t m, float* out) {
  size_t c = 0;
  for (; c + 64 <= m; c += 64) {
    __m256 value[8];
    for (size_t v = 0; v < 8; ++v) value[v] = _mm256_loadu_ps(y + c + 8 * v);
    for (size_t i = 0; i < count; ++i) {
      const __m256 factor = _mm256_set1_ps(x[i]);
      for (size_t v = 0; v < 8; ++v)
        value[v] = _mm256_sub_ps(value[v], _mm256_mul_ps(factor, _mm256_loadu_ps(rows[i] + c + 8 * v)));
    }
    for (size_t v = 0; v < 8; ++v) _mm256_storeu_ps(out + c + 8 * v, value[v]);
  }
  for (; c < m; c += 8) {
    __m256 value = _mm256_loadu_ps(y + c);
    for (size_t i = 0; i < count; ++i)
      value = _mm256_sub_ps(value, _mm256_mul_ps(_mm256_set1_ps(x[i]), _mm256_loadu_ps(rows[i] + c)));
    _mm256_storeu_ps(out + c, value);
  }
}

__m256d widened(const float* values) { return _mm256_cvtps_pd(_mm_loadu_ps(values)); }

void residual_double(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
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

/// Rows ahead that are fetched: enough to cover the third-level cache's latency.
constexpr uint64_t kAhead = 8;

/// `vectors` registers from column `first` on of the rows of a slice.
template <size_t vectors>
void combine_some(const float* slice, size_t row_length, size_t first, const uint32_t* ids,
                  const float* coefficients, const uint64_t* offsets, size_t signals, float* out,
                  size_t stride) {
  const uint64_t all = offsets[signals];
  for (size_t i = 0; i < signals; ++i) {
    __m256 sums[vectors];
    for (size_t v = 0; v < vectors; ++v) sums[v] = _mm256_setzero_ps();
    for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      const float* row = slice + static_cast<size_t>(ids[k]) * row_length + first;
      const __m256 factor = _mm256_set1_ps(coefficients[k]);
      if (k + kAhead < all) {
        const float* next = slice + static_cast<size_t>(ids[k + kAhead]) * row_length + first;
        for (size_t v = 0; v < vectors; v += 2)
          _mm_prefetch(reinterpret_cast<const char*>(next + 8 * v), _MM_HINT_T0);
      }
      for (size_t v = 0; v < vectors; ++v)
        sums[v] = _mm256_fmadd_ps(factor, _mm256_loadu_ps(row + 8 * v), sums[v]);
    }
    for (size_t v = 0; v < vectors; ++v) _mm256_storeu_ps(out + i * stride + 8 * v, sums[v]);
  }
}

void combine(const float* slice, size_t row, const uint32_t* ids, const float* coefficients,
             const uint64_t* offsets, size_t signals, size_t width, float* out, size_t stride) {
  size_t first = 0;
  for (; first + 64 <= width; first += 64)
    combine_some<8>(slice, row, first, ids, coefficients, offsets, signals, out + first, stride);
  for (; first + 16 <= width; first += 16)
    combine_some<2>(slice, row, first, ids, coefficients, offsets, signals, out + first, stride);
  if (first == width) return;
  for (size_t i = 0; i < signals; ++i) {
    float values[16];
    combine_some<2>(slice, row, first, ids, coefficients, offsets + i, 1, values, 0);
    memcpy(out + i * stride + first, values, (width - first) * sizeof(float));
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

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
  const __m256i factors = _mm256_set1_epi16(factor);
  for (size_t j = 0; j < n; j += 16) {
    const __m256i values =
        _mm256_mulhrs_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + j)), factors);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    alignas(16) uint8_t offset[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(offset),
                    _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(kByteOffset))));
    for (size_t i = 0; i < 16; i += 4)  // a column of the layout's 4 x 4 groups
      memcpy(out + j / 64 * 64 + 4 * i + j / 16 % 4 * 4, offset + i, 4);
  }
}

uint32_t at_least(const float* values, float limit) {
  uint32_t found = 0;
  for (size_t i = 0; i < kScreen / 8; ++i) {
    const __m256 value = magnitude(_mm256_loadu_ps(values + 8 * i));
    const __m256 mask = _mm256_cmp_ps(value, _mm256_set1_ps(limit), _CMP_GE_OQ);
    found |= static_cast<uint32_t>(_mm256_movemask_ps(mask)) << (8 * i);
  }
  return found;
}

}  // namespace

const Kernels kernels = {.peaks = peaks_of_tiles,
                         .at_least = at_least,
                         .screen = screen,
                         .bound = bound,
                         .apply_row = apply_row,
                         .project = project,
                         .screen_bytes = nullptr,
                         .correlate = correlate,
                         .dots = dots,
                         .residual = residual,
                         .residual_double = residual_double,
                         .dots_double = dots_double,
                         .apply_both = apply_both,
                         .combine = combine,
                         .peak_but = peak_but,
                         .round_to_words = round_to_words,
                         .words_to_bytes = words_to_bytes};

}  // namespace kvcodec::omp_kernels::avx2
