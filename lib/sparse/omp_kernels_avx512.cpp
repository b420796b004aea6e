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

constexpr size_t kVectors = kScreen / 16;  // of a tile's floats

/// Of one tile, in the order of the atoms.
struct Tile {
  __m512 values[kVectors];
};

/// The weighted sums of a panel's rows, times scale.
inline Tile weighted(const int16_t* panel, const uint32_t* weights, size_t pairs, float scale) {
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms
  // and `high` the other four.
  // Pairs take turns with two sets of sums, which do not wait for each other.
  __m512i low[2][kVectors / 2], high[2][kVectors / 2];
  for (size_t turn = 0; turn < 2; ++turn)
    for (size_t i = 0; i < kVectors / 2; ++i) low[turn][i] = high[turn][i] = _mm512_setzero_si512();
  const auto add = [&](size_t turn, size_t pair) __attribute__((always_inline)) {
    const __m512i weight = _mm512_set1_epi32(static_cast<int>(weights[pair]));
    const int16_t* rows = panel + pair * 2 * kScreen;
    for (size_t i = 0; i < kVectors / 2; ++i) {
      const __m512i a = _mm512_loadu_si512(rows + 32 * i), b = _mm512_loadu_si512(rows + kScreen + 32 * i);
      low[turn][i] = _mm512_add_epi32(low[turn][i], _mm512_madd_epi16(_mm512_unpacklo_epi16(a, b), weight));
      high[turn][i] = _mm512_add_epi32(high[turn][i], _mm512_madd_epi16(_mm512_unpackhi_epi16(a, b), weight));
    }
  };
  size_t pair = 0;
  for (; pair + 2 <= pairs; pair += 2) add(0, pair), add(1, pair + 1);
  if (pair < pairs) add(0, pair);
  const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512 factor = _mm512_set1_ps(scale);
  Tile result;
  for (size_t i = 0; i < kVectors / 2; ++i) {
    const __m512i lows = _mm512_add_epi32(low[0][i], low[1][i]);
    const __m512i highs = _mm512_add_epi32(high[0][i], high[1][i]);
    const __m512i first = _mm512_permutex2var_epi64(lows, first_half, highs);
    const __m512i second = _mm512_permutex2var_epi64(lows, second_half, highs);
    result.values[2 * i] = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(first));
    result.values[2 * i + 1] = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(second));
  }
  return result;
}

// max returns its second operand when one of them is NaN.
__m512 larger(__m512 values, __m512 peak) { return _mm512_max_ps(values, peak); }

void peaks_of_tiles(const float* values, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    __m512 peak = _mm512_setzero_ps();
    for (size_t i = 0; i < kVectors; ++i)
      peak = larger(_mm512_abs_ps(_mm512_loadu_ps(values + tile * kScreen + 16 * i)), peak);
    peaks[tile] = _mm512_reduce_max_ps(peak);
  }
}

float screen(const float* start, const int16_t* panel, const uint32_t* weights, size_t pairs, float scale,
             float* values) {
  const Tile sums = weighted(panel, weights, pairs, scale);
  __m512 peak = _mm512_setzero_ps();
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512 value = _mm512_sub_ps(_mm512_loadu_ps(start + 16 * i), sums.values[i]);
    _mm512_storeu_ps(values + 16 * i, value);
    peak = larger(_mm512_abs_ps(value), peak);
  }
  return _mm512_reduce_max_ps(peak);
}

float bound(const float* values, const float* spread, float factor) {
  __m512 most = _mm512_setzero_ps();
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512 root = _mm512_sqrt_ps(_mm512_loadu_ps(spread + 16 * i));
    const __m512 value = _mm512_abs_ps(_mm512_loadu_ps(values + 16 * i));
    most = larger(_mm512_add_ps(value, _mm512_mul_ps(_mm512_set1_ps(factor), root)), most);
  }
  return _mm512_reduce_max_ps(most);
}

void apply_row(const int16_t* row, float factor, float unit, size_t n, float* values, float* spread,
               float* peaks, float* spreads) {
  const __m512 factors = _mm512_set1_ps(factor), units = _mm512_set1_ps(unit);
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    __m512 peak = _mm512_setzero_ps(), most = _mm512_setzero_ps();
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; j += 16) {
      const __m512i words =
          _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j)));
      const __m512 word = _mm512_cvtepi32_ps(words);
      const __m512 part = _mm512_mul_ps(factors, word), product = _mm512_mul_ps(units, word);
      const __m512 value = _mm512_sub_ps(_mm512_loadu_ps(values + j), part);
      const __m512 energy = _mm512_add_ps(_mm512_loadu_ps(spread + j), _mm512_mul_ps(product, product));
      _mm512_storeu_ps(values + j, value);
      _mm512_storeu_ps(spread + j, energy);
      peak = larger(_mm512_abs_ps(value), peak);
      most = larger(energy, most);
    }
    peaks[tile] = _mm512_reduce_max_ps(peak);
    spreads[tile] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(_mm512_reduce_max_ps(most))));
  }
}

float project(const Projection& projection, const int16_t* panel, float* correlations, float* outside,
              float* gains) {
  const Tile sums = weighted(panel, projection.weights, projection.pairs, projection.scale);
  const __m512 along = _mm512_set1_ps(projection.along);
  const __m512 correlation_error = _mm512_set1_ps(projection.correlation_error);
  const __m512 outside_error = _mm512_set1_ps(projection.outside_error);
  const __m512 independent = _mm512_set1_ps(projection.independent);
  __m512 peak = _mm512_setzero_ps();
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512 p = sums.values[i];
    const __m512 c = _mm512_sub_ps(_mm512_loadu_ps(correlations + 16 * i), _mm512_mul_ps(along, p));
    const __m512 a = _mm512_sub_ps(_mm512_loadu_ps(outside + 16 * i), _mm512_mul_ps(p, p));
    _mm512_storeu_ps(correlations + 16 * i, c);
    _mm512_storeu_ps(outside + 16 * i, a);
    const __m512 most = _mm512_add_ps(_mm512_abs_ps(c), correlation_error);
    const __m512 gain =
        _mm512_div_ps(_mm512_mul_ps(most, most), larger(_mm512_sub_ps(a, outside_error), independent));
    const __mmask16 inside = _mm512_cmp_ps_mask(_mm512_add_ps(a, outside_error), independent, _CMP_LT_OQ);
    const __m512 kept = _mm512_mask_mov_ps(gain, inside, _mm512_setzero_ps());
    _mm512_storeu_ps(gains + 16 * i, kept);
    peak = larger(kept, peak);
  }
  return _mm512_reduce_max_ps(peak);
}

// Instructions beyond the level's own, for functions that only kernels_vnni names.
#define KVCODEC_VNNI __attribute__((target("avx512vnni")))

/// The bytes of four rows for 64 atoms, the four of one atom side by side, sixteen atoms in a register.
struct Quads {
  __m512i atoms[4];
};

inline Quads interleaved(const uint8_t* const* rows, size_t first) {
  const __m512i a = _mm512_loadu_si512(rows[0] + first), b = _mm512_loadu_si512(rows[1] + first);
  const __m512i c = _mm512_loadu_si512(rows[2] + first), d = _mm512_loadu_si512(rows[3] + first);
  const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
  return {{_mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
           _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)}};
}

/// Of kTile atoms, in their order.
constexpr size_t kSums = kTile / 16;
struct ByteTile {
  __m512 values[kSums];
};

KVCODEC_VNNI inline ByteTile screen_byte_tile(const float* start, const ByteRows& rows, size_t first,
                                              bool keep) {
  __m512i high[kSums], low[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    high[i] = _mm512_set1_epi32(rows.high_sum);
    low[i] = _mm512_set1_epi32(rows.low_sum);
  }
  uint8_t* quads_of_tile = rows.quads + first * rows.capacity * 4;
  for (size_t quad = 0; quad < rows.full; ++quad, quads_of_tile += kTile * 4) {
    const __m512i high_weight = _mm512_set1_epi32(static_cast<int>(rows.high[quad]));
    const __m512i low_weight = _mm512_set1_epi32(static_cast<int>(rows.low[quad]));
    for (size_t i = 0; i < kSums; ++i) {
      const __m512i entries = _mm512_loadu_si512(quads_of_tile + 64 * i);
      high[i] = _mm512_dpbusd_epi32(high[i], entries, high_weight);
      low[i] = _mm512_dpbusd_epi32(low[i], entries, low_weight);
    }
  }
  const __m512i high_weight = _mm512_set1_epi32(static_cast<int>(rows.high[rows.full]));
  const __m512i low_weight = _mm512_set1_epi32(static_cast<int>(rows.low[rows.full]));
  for (size_t half = 0; half < kTile / 64; ++half) {
    const Quads quads = interleaved(rows.last, first + 64 * half);
    for (size_t i = 0; i < 4; ++i) {
      if (keep) _mm512_storeu_si512(quads_of_tile + 64 * (4 * half + i), quads.atoms[i]);
      high[4 * half + i] = _mm512_dpbusd_epi32(high[4 * half + i], quads.atoms[i], high_weight);
      low[4 * half + i] = _mm512_dpbusd_epi32(low[4 * half + i], quads.atoms[i], low_weight);
    }
  }
  static_assert(kDigit == 1 << 7);
  const __m512 factor = _mm512_set1_ps(rows.scale);
  ByteTile result;
  for (size_t i = 0; i < kSums; ++i) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[i], 7), low[i]);
    result.values[i] = _mm512_sub_ps(_mm512_loadu_ps(start + first + 16 * i),
                                     _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sum)));
  }
  return result;
}

KVCODEC_VNNI void screen_bytes(const float* start, const ByteRows& rows, size_t first, size_t last,
                               float* values, float* peaks) {
  for (; first < last; first += kTile) {
    const ByteTile tile = screen_byte_tile(start, rows, first, rows.keep);
    __m512 peak = _mm512_setzero_ps();
    for (size_t i = 0; i < kSums; ++i) peak = larger(_mm512_abs_ps(tile.values[i]), peak);
    peaks[first / kTile] = _mm512_reduce_max_ps(peak);
    if (!values) continue;
    for (size_t i = 0; i < kSums; ++i) _mm512_storeu_ps(values + first + 16 * i, tile.values[i]);
  }
}

/// Signals by half a tile of atoms, with the sums of all of them in registers.
constexpr size_t kSignals = 6, kAtomVectors = 4;

template <size_t signals_at_once>
inline void correlate_some(const int16_t* atoms, size_t pairs, const uint32_t* signals, const float* scales,
                           float* out, size_t out_stride) {
  __m512i sums[signals_at_once][kAtomVectors];
  for (size_t i = 0; i < signals_at_once; ++i)
    for (size_t v = 0; v < kAtomVectors; ++v) sums[i][v] = _mm512_setzero_si512();
  for (size_t pair = 0; pair < pairs; ++pair) {
    __m512i entries[kAtomVectors];
    for (size_t v = 0; v < kAtomVectors; ++v)
      entries[v] = _mm512_loadu_si512(atoms + pair * kTile * 2 + 32 * v);
    for (size_t i = 0; i < signals_at_once; ++i) {
      const __m512i signal = _mm512_set1_epi32(static_cast<int>(signals[i * pairs + pair]));
      for (size_t v = 0; v < kAtomVectors; ++v)
        sums[i][v] = _mm512_add_epi32(sums[i][v], _mm512_madd_epi16(entries[v], signal));
    }
  }
  for (size_t i = 0; i < signals_at_once; ++i)
    for (size_t v = 0; v < kAtomVectors; ++v)
      _mm512_storeu_ps(out + i * out_stride + 16 * v,
                       _mm512_mul_ps(_mm512_set1_ps(scales[i]), _mm512_cvtepi32_ps(sums[i][v])));
}

void correlate(const int16_t* atoms, size_t n, size_t pairs, const uint32_t* signals, size_t count,
               const float* scales, float* out, size_t out_stride) {
  for (size_t first = 0; first < n; first += 16 * kAtomVectors) {
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

void residual(const float* y, const float* const* rows, const float* x, size_t count, size_t m, float* out) {
  size_t c = 0;
  for (; c + 128 <= m; c += 128) {
    __m512 value[8];
    for (size_t v = 0; v < 8; ++v) value[v] = _mm512_loadu_ps(y + c + 16 * v);
    for (size_t i = 0; i < count; ++i) {
      const __m512 factor = _mm512_set1_ps(x[i]);
      for (size_t v = 0; v < 8; ++v)
        value[v] = _mm512_sub_ps(value[v], _mm512_mul_ps(factor, _mm512_loadu_ps(rows[i] + c + 16 * v)));
    }
    for (size_t v = 0; v < 8; ++v) _mm512_storeu_ps(out + c + 16 * v, value[v]);
  }
  for (; c < m; c += 16) {
    __m512 value = _mm512_loadu_ps(y + c);
    for (size_t i = 0; i < count; ++i)
      value = _mm512_sub_ps(value, _mm512_mul_ps(_mm512_set1_ps(x[i]), _mm512_loadu_ps(rows[i] + c)));
    _mm512_storeu_ps(out + c, value);
  }
}

__m512d widened(const float* values) { return _mm512_cvtps_pd(_mm256_loadu_ps(values)); }

void residual_double(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
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

/// Rows ahead that are fetched: enough to cover the third-level cache's latency.
constexpr uint64_t kAhead = 8;

template <size_t vectors>
void combine_some(const float* slice, const uint32_t* ids, const float* coefficients, const uint64_t* offsets,
                  size_t signals, __mmask16 mask, float* out, size_t stride) {
  constexpr size_t kRow = 16 * vectors;
  const uint64_t all = offsets[signals];
  for (size_t i = 0; i < signals; ++i) {
    __m512 sums[vectors];
    for (size_t v = 0; v < vectors; ++v) sums[v] = _mm512_setzero_ps();
    for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      const float* row = slice + static_cast<size_t>(ids[k]) * kRow;
      const __m512 factor = _mm512_set1_ps(coefficients[k]);
      if (k + kAhead < all) {
        const float* next = slice + static_cast<size_t>(ids[k + kAhead]) * kRow;
        for (size_t v = 0; v < vectors; ++v)
          _mm_prefetch(reinterpret_cast<const char*>(next + 16 * v), _MM_HINT_T0);
      }
      for (size_t v = 0; v < vectors; ++v)
        sums[v] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(row + 16 * v), sums[v]);
    }
    float* to = out + i * stride;
    for (size_t v = 0; v + 1 < vectors; ++v) _mm512_storeu_ps(to + 16 * v, sums[v]);
    _mm512_mask_storeu_ps(to + 16 * (vectors - 1), mask, sums[vectors - 1]);
  }
}

void combine(const float* slice, size_t row, const uint32_t* ids, const float* coefficients,
             const uint64_t* offsets, size_t signals, size_t width, float* out, size_t stride) {
  const auto mask = static_cast<__mmask16>((1u << (16 - (row - width))) - 1);
  switch (row / 16) {
    case 1:
      return combine_some<1>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 2:
      return combine_some<2>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 3:
      return combine_some<3>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 4:
      return combine_some<4>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 5:
      return combine_some<5>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 6:
      return combine_some<6>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    case 7:
      return combine_some<7>(slice, ids, coefficients, offsets, signals, mask, out, stride);
    default:
      return combine_some<8>(slice, ids, coefficients, offsets, signals, mask, out, stride);
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

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
  // Double words of the result: the transposition of the layout.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i factors = _mm512_set1_epi16(factor);
  for (size_t j = 0; j < n; j += 64) {
    const __m512i low = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j), factors);
    const __m512i high = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j + 32), factors);
    const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi16_epi8(low)),
                                             _mm512_cvtsepi16_epi8(high), 1);
    const __m512i offset = _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(kByteOffset)));
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi32(order, offset));
  }
}

uint32_t at_least(const float* values, float limit) {
  uint32_t found = 0;
  for (size_t i = 0; i < kVectors; ++i) {
    const __m512 value = _mm512_abs_ps(_mm512_loadu_ps(values + 16 * i));
    const __mmask16 mask = _mm512_cmp_ps_mask(value, _mm512_set1_ps(limit), _CMP_GE_OQ);
    found |= static_cast<uint32_t>(mask) << (16 * i);
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

const Kernels kernels_vnni = {.peaks = peaks_of_tiles,
                              .at_least = at_least,
                              .screen = screen,
                              .bound = bound,
                              .apply_row = apply_row,
                              .project = project,
                              .screen_bytes = screen_bytes,
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

}  // namespace kvcodec::omp_kernels::avx512
