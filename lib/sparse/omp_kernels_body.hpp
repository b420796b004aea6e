// The loops of omp_kernels.hpp in vectors (see lib/core/cpu.hpp). Where a maximum is taken, the running one
// stands second: it stays where a value is NaN.
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec::omp_kernels {
namespace {

using namespace vectors;

/// Of one tile, in the order of the atoms.
constexpr size_t kVectors = kScreen / kWidth;
struct Tile {
  Floats values[kVectors];
};

/// Sums of products of neighbouring 16-bit integers.
KVCODEC_INLINE Ints add_products(Ints sums, Shorts a, Ints b) {
  return sums + (Ints)KVCODEC_BY_WIDTH(_mm256_madd_epi16, _mm512_madd_epi16)((Register)a, (Register)b);
}
KVCODEC_INLINE Shorts interleaved_low(Shorts a, Shorts b) {
  return (Shorts)KVCODEC_BY_WIDTH(_mm256_unpacklo_epi16, _mm512_unpacklo_epi16)((Register)a, (Register)b);
}
KVCODEC_INLINE Shorts interleaved_high(Shorts a, Shorts b) {
  return (Shorts)KVCODEC_BY_WIDTH(_mm256_unpackhi_epi16, _mm512_unpackhi_epi16)((Register)a, (Register)b);
}

/// The weighted sums of a panel's rows, times scale.
KVCODEC_INLINE Tile weighted(const int16_t* panel, const uint32_t* weights, size_t pairs, float scale) {
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms
  // and `high` the other four. Where a row is one vector, pairs take turns with two sets of sums, which do
  // not wait for each other.
  constexpr size_t kRow = kVectors / 2, kTurns = kRow == 1 ? 2 : 1, kWords = 2 * kWidth;
  Ints low[kTurns][kRow] = {}, high[kTurns][kRow] = {};
  const auto add = [&](size_t turn, size_t pair) __attribute__((always_inline)) {
    const Ints weight = spread((int32_t)weights[pair]);
    const int16_t* rows = panel + pair * 2 * kScreen;
#pragma GCC unroll 2
    for (size_t i = 0; i < kRow; ++i) {
      const Shorts a = load(rows + kWords * i), b = load(rows + kScreen + kWords * i);
      low[turn][i] = add_products(low[turn][i], interleaved_low(a, b), weight);
      high[turn][i] = add_products(high[turn][i], interleaved_high(a, b), weight);
    }
  };
  size_t pair = 0;
  for (; pair + kTurns <= pairs; pair += kTurns)
#pragma GCC unroll 2
    for (size_t turn = 0; turn < kTurns; ++turn) add(turn, pair + turn);
  if (pair < pairs) add(0, pair);
  const Floats factor = spread(scale);
  Tile result;
#pragma GCC unroll 2
  for (size_t i = 0; i < kRow; ++i) {
    const auto lows = (Longs)(kTurns == 2 ? low[0][i] + low[kTurns - 1][i] : low[0][i]);
    const auto highs = (Longs)(kTurns == 2 ? high[0][i] + high[kTurns - 1][i] : high[0][i]);
#ifdef __AVX512F__
    const Longs first_half = __builtin_shufflevector(lows, highs, 0, 1, 8, 9, 2, 3, 10, 11);
    const Longs second_half = __builtin_shufflevector(lows, highs, 4, 5, 12, 13, 6, 7, 14, 15);
#else
    const Longs first_half = __builtin_shufflevector(lows, highs, 0, 1, 4, 5);
    const Longs second_half = __builtin_shufflevector(lows, highs, 2, 3, 6, 7);
#endif
    result.values[2 * i] = factor * as_floats((Ints)first_half);
    result.values[2 * i + 1] = factor * as_floats((Ints)second_half);
  }
  return result;
}

void peaks_of_tiles(const float* values, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    Floats peak = {};
    for (size_t i = 0; i < kVectors; ++i)
      peak = larger(magnitude(load(values + tile * kScreen + kWidth * i)), peak);
    peaks[tile] = largest_of(peak);
  }
}

float screen(const float* start, const int16_t* panel, const uint32_t* weights, size_t pairs, float scale,
             float* values) {
  const Tile sums = weighted(panel, weights, pairs, scale);
  Floats peak = {};
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    const Floats value = load(start + kWidth * i) - sums.values[i];
    store(value, values + kWidth * i);
    peak = larger(magnitude(value), peak);
  }
  return largest_of(peak);
}

float bound(const float* values, const float* spreads, float factor) {
  Floats most = {};
  for (size_t i = 0; i < kVectors; ++i) {
    const Floats value = magnitude(load(values + kWidth * i));
    most = larger(value + spread(factor) * root(load(spreads + kWidth * i)), most);
  }
  return largest_of(most);
}

void apply_row(const int16_t* row, float factor, float unit, size_t n, float* values, float* spreads,
               float* peaks, float* roots) {
  const Floats factors = spread(factor), units = spread(unit);
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    Floats peak = {}, most = {};
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; j += kWidth) {
      const auto words = load_as<HalfRegister>(row + j);
      const Floats word =
          as_floats((Ints)KVCODEC_BY_WIDTH(_mm256_cvtepi16_epi32, _mm512_cvtepi16_epi32)(words));
      const Floats product = units * word;
      const Floats value = load(values + j) - factors * word, energy = load(spreads + j) + product * product;
      store(value, values + j);
      store(energy, spreads + j);
      peak = larger(magnitude(value), peak);
      most = larger(energy, most);
    }
    peaks[tile] = largest_of(peak);
    roots[tile] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(largest_of(most))));
  }
}

float project(const Projection& projection, const int16_t* panel, float* correlations, float* outside,
              float* gains) {
  const Tile sums = weighted(panel, projection.weights, projection.pairs, projection.scale);
  const Floats along = spread(projection.along), correlation_error = spread(projection.correlation_error);
  const Floats outside_error = spread(projection.outside_error), independent = spread(projection.independent);
  Floats peak = {};
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    const Floats p = sums.values[i];
    const Floats c = load(correlations + kWidth * i) - along * p, a = load(outside + kWidth * i) - p * p;
    store(c, correlations + kWidth * i);
    store(a, outside + kWidth * i);
    const Floats most = magnitude(c) + correlation_error;
    const Floats gain = most * most / larger(a - outside_error, independent);
    const Floats kept = a + outside_error < independent ? Floats{} : gain;
    store(kept, gains + kWidth * i);
    peak = larger(kept, peak);
  }
  return largest_of(peak);
}

/// out[i] = rows[i] . x for kCount rows.
template <size_t kCount, class Lanes, class Element>
KVCODEC_INLINE void dots_of(const float* const* rows, const Element* x, size_t m, Element* out) {
  constexpr size_t kStep = Lanes::kCount / Lanes::kParts;
  const auto entry = [](const float* from) __attribute__((always_inline)) {
    if constexpr (sizeof(Element) == sizeof(float))
      return load(from);
    else
      return load_widened(from);
  };
  Lanes lanes[kCount] = {};
  for (size_t c = 0; c < m; c += Lanes::kCount)
#pragma GCC unroll 2
    for (size_t part = 0; part < Lanes::kParts; ++part) {
      const auto factor = load(x + c + part * kStep);
#pragma GCC unroll 4
      for (size_t r = 0; r < kCount; ++r) lanes[r].parts[part] += entry(rows[r] + c + part * kStep) * factor;
    }
  for (size_t r = 0; r < kCount; ++r) out[r] = sum_of(lanes[r]);
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) dots_of<4, FloatLanes>(rows + i, x, m, out + i);
  for (; i < count; ++i) dots_of<1, FloatLanes>(rows + i, x, m, out + i);
}

void dots_double(const float* const* rows, size_t count, const double* r, size_t m, double* out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) dots_of<4, DoubleLanes>(rows + i, r, m, out + i);
  for (; i < count; ++i) dots_of<1, DoubleLanes>(rows + i, r, m, out + i);
}

template <size_t kCount>
KVCODEC_INLINE void residual_of(const float* y, const float* const* rows, const float* x, size_t count,
                                size_t first, float* out) {
  Floats values[kCount];
  for (size_t v = 0; v < kCount; ++v) values[v] = load(y + first + kWidth * v);
  for (size_t i = 0; i < count; ++i) {
    const Floats factor = spread(x[i]);
    for (size_t v = 0; v < kCount; ++v) values[v] -= factor * load(rows[i] + first + kWidth * v);
  }
  for (size_t v = 0; v < kCount; ++v) store(values[v], out + first + kWidth * v);
}

void residual(const float* y, const float* const* rows, const float* x, size_t count, size_t m, float* out) {
  size_t c = 0;
  for (; c + 8 * kWidth <= m; c += 8 * kWidth) residual_of<8>(y, rows, x, count, c, out);
  for (; c < m; c += kWidth) residual_of<1>(y, rows, x, count, c, out);
}

void residual_double(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
                     double* out) {
  for (size_t c = 0; c < m; c += 2 * kDoubles) {
    Doubles low = load_widened(y + c), high = load_widened(y + c + kDoubles);
    for (size_t i = 0; i < count; ++i) {
      const Doubles factor = spread(x[i]);
      low -= factor * load_widened(rows[i] + c);
      high -= factor * load_widened(rows[i] + c + kDoubles);
    }
    store(low, out + c);
    store(high, out + c + kDoubles);
  }
}

void apply_both(const double* u, size_t stride, size_t k, const double* g, double* v, double* w) {
  if (stride == 0) return;  // v and w may be null then
  memset(v, 0, stride * sizeof(*v));
  memset(w, 0, stride * sizeof(*w));
  for (size_t j = 0; j < k; ++j) {
    const double* column = u + j * stride;
    const size_t length = (j / kDoubleLanes + 1) * kDoubleLanes;
    DoubleLanes lanes = {};
    for (size_t i = 0; i < length; i += kDoubleLanes)
#pragma GCC unroll 2
      for (size_t part = 0; part < DoubleLanes::kParts; ++part)
        lanes.parts[part] += load(column + i + part * kDoubles) * load(g + i + part * kDoubles);
    v[j] = sum_of(lanes);
    const Doubles factor = spread(v[j]);
    for (size_t i = 0; i < length; i += kDoubles) store(load(w + i) + load(column + i) * factor, w + i);
  }
}

/// Rows ahead that are fetched: enough to cover the third-level cache's latency.
constexpr uint64_t kAhead = 8;

/// kCount vectors from column `first` on of the rows of a slice; `width` columns of them are wanted.
template <size_t kCount>
void combine_some(const float* slice, size_t row_length, size_t first, const uint32_t* ids,
                  const float* coefficients, const uint64_t* offsets, size_t signals, size_t width,
                  float* out, size_t stride) {
  const uint64_t all = offsets[signals];
  for (size_t i = 0; i < signals; ++i) {
    Floats sums[kCount] = {};
    for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      const float* row = slice + (size_t)ids[k] * row_length + first;
      const Floats factor = spread(coefficients[k]);
      if (k + kAhead < all) {
        const float* next = slice + (size_t)ids[k + kAhead] * row_length + first;
        for (size_t at = 0; at < kCount * kWidth; at += 16) look_ahead(next + at);
      }
      for (size_t v = 0; v < kCount; ++v) sums[v] = fused(factor, load(row + kWidth * v), sums[v]);
    }
    float* to = out + i * stride;
    for (size_t v = 0; v < kCount; ++v) {
      const size_t at = kWidth * v;
      if (v + FloatLanes::kParts < kCount)
        store(sums[v], to + at);
      else if (at < width)  // the last 16 may be cut
        store_up_to(sums[v], to + at, width - at);
    }
  }
}

void combine(const float* slice, size_t row, const uint32_t* ids, const float* coefficients,
             const uint64_t* offsets, size_t signals, size_t width, float* out, size_t stride) {
  for (size_t first = 0; first < width; first += 8 * kWidth) {
    const size_t left = row - first;
#define KVCODEC_CASE(count)                                                                                 \
  case count:                                                                                               \
    combine_some<count>(slice, row, first, ids, coefficients, offsets, signals, width - first, out + first, \
                        stride);                                                                            \
    break
    switch (left / kWidth) {
#ifdef __AVX512F__  // rows are multiples of 16
      KVCODEC_CASE(1);
      KVCODEC_CASE(3);
      KVCODEC_CASE(5);
      KVCODEC_CASE(7);
#endif
      KVCODEC_CASE(2);
      KVCODEC_CASE(4);
      KVCODEC_CASE(6);
      default:
        combine_some<8>(slice, row, first, ids, coefficients, offsets, signals, width - first, out + first,
                        stride);
    }
#undef KVCODEC_CASE
  }
}

int16_t peak_but(const int16_t* row, size_t n, size_t skip) {
  constexpr size_t kWords = 2 * kWidth;
  const int16_t counting[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  const size_t whole = n / kWords * kWords, with_skip = skip < whole ? skip / kWords * kWords : whole;
  Shorts peak = {};
  const auto add = [&](size_t first, size_t end) __attribute__((always_inline)) {
    for (size_t j = first; j < end; j += kWords) peak = larger(magnitude(load(row + j)), peak);
  };
  add(0, with_skip);
  add(with_skip + kWords, whole);
  if (with_skip < whole) {
    const Shorts values = magnitude(load(row + with_skip));
    peak = larger(load(counting) == (int16_t)(skip - with_skip) ? Shorts{} : values, peak);
  }
  int16_t best = 0;
  for (size_t i = 0; i < kWords; ++i) best = peak[i] > best ? peak[i] : best;
  for (size_t j = whole; j < n; ++j) {
    const int value = row[j] < 0 ? -row[j] : row[j];
    if (j != skip && value > best) best = (int16_t)value;
  }
  return best;
}

void round_to_words(const float* in, float scale, size_t n, int16_t* out) {
  const auto words_of = [&](Floats values) __attribute__((always_inline)) {
    return as_shorts(rounded(values * spread(scale)));
  };
  size_t j = 0;
  for (; j + kWidth <= n; j += kWidth) store(words_of(load(in + j)), out + j);
  if (j < n) store_first(words_of(load_first(in + j, n - j)), (uint16_t*)out + j, n - j);
}

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
#ifdef __AVX512F__
  // Double words of the result: the transposition of the layout.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i factors = _mm512_set1_epi16(factor);
  for (size_t j = 0; j < n; j += 64) {
    const __m512i low = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j), factors);
    const __m512i high = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j + 32), factors);
    const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi16_epi8(low)),
                                             _mm512_cvtsepi16_epi8(high), 1);
    const __m512i offset = _mm512_xor_si512(bytes, _mm512_set1_epi8((char)kByteOffset));
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi32(order, offset));
  }
#else
  const __m256i factors = _mm256_set1_epi16(factor);
  for (size_t j = 0; j < n; j += 16) {
    const __m256i values = _mm256_mulhrs_epi16(load_as<__m256i>(words + j), factors);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    alignas(16) uint8_t offset[16];
    _mm_store_si128((__m128i*)offset, _mm_xor_si128(bytes, _mm_set1_epi8((char)kByteOffset)));
    for (size_t i = 0; i < 16; i += 4)  // a column of the layout's 4 x 4 groups
      memcpy(out + j / 64 * 64 + 4 * i + j / 16 % 4 * 4, offset + i, 4);
  }
#endif
}

uint32_t at_least(const float* values, float limit) {
  uint32_t found = 0;
  for (size_t i = 0; i < kVectors; ++i) {
    const Floats value = magnitude(load(values + kWidth * i));
#ifdef __AVX512F__
    const uint32_t mask = _mm512_cmp_ps_mask(value, spread(limit), _CMP_GE_OQ);
#else
    const auto mask = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, spread(limit), _CMP_GE_OQ));
#endif
    found |= mask << (kWidth * i);
  }
  return found;
}

constexpr Kernels kTable = {.peaks = peaks_of_tiles,
                            .at_least = at_least,
                            .screen = screen,
                            .bound = bound,
                            .apply_row = apply_row,
                            .project = project,
                            .screen_bytes = nullptr,
                            .dots = dots,
                            .residual = residual,
                            .residual_double = residual_double,
                            .dots_double = dots_double,
                            .apply_both = apply_both,
                            .combine = combine,
                            .peak_but = peak_but,
                            .round_to_words = round_to_words,
                            .words_to_bytes = words_to_bytes};

}  // namespace
}  // namespace kvcodec::omp_kernels
