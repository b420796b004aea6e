// The loops of omp_kernels.hpp in vectors (see lib/core/cpu.hpp). For maxima the running maximum is the
// second operand: it stays if a value is NaN.
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec::omp_kernels {
namespace {

using namespace vectors;

constexpr size_t kVectors = kScreen / kWidth;  // of one tile

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
  // Words of two rows are interleaved as they are read: within each 128 bits, `low` has the first four atoms and `high` the other four.
  // If a row is one vector, pairs take turns with two sets of sums, which do not wait for each other.
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
  Floats sums[kVectors];
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
    sums[2 * i] = factor * as_floats((Ints)first_half);
    sums[2 * i + 1] = factor * as_floats((Ints)second_half);
  }
  Floats peak = {};
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    const Floats value = load(start + kWidth * i) - sums[i];
    store(value, values + kWidth * i);
    peak = larger(magnitude(value), peak);
  }
  return largest_of(peak);
}

void apply_row(const GramRow& row, float* values, float* spreads, float* peaks, float* roots) {
  const Floats factors = spread(row.factor), units = spread(row.unit);
  for (size_t tile = 0; tile < row.n / kScreen; ++tile) {
    Floats peak = {}, bound = {};
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; j += kWidth) {
      const auto words = load_as<HalfRegister>(row.words + j);
      const Floats word =
          as_floats((Ints)KVCODEC_BY_WIDTH(_mm256_cvtepi16_epi32, _mm512_cvtepi16_epi32)(words));
      const Floats product = units * word;
      const Floats value = load(values + j) - factors * word, energy = load(spreads + j) + product * product;
      store(value, values + j);
      store(energy, spreads + j);
      peak = larger(magnitude(value), peak);
      bound = larger(energy, bound);
    }
    peaks[tile] = largest_of(peak);
    roots[tile] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(largest_of(bound))));
  }
}

/// out[i] = rows[i] . x for kCount rows.
template <size_t kCount>
KVCODEC_INLINE void dots_of(const float* const* rows, const float* x, size_t m, float* out) {
  FloatLanes lanes[kCount] = {};
  for (size_t c = 0; c < m; c += FloatLanes::kCount)
#pragma GCC unroll 2
    for (size_t part = 0; part < FloatLanes::kParts; ++part) {
      const size_t at = c + part * kWidth;
      const Floats factor = load(x + at);
#pragma GCC unroll 4
      for (size_t r = 0; r < kCount; ++r) lanes[r].parts[part] += load(rows[r] + at) * factor;
    }
  for (size_t r = 0; r < kCount; ++r) out[r] = sum_of(lanes[r]);
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  size_t i = 0;
  for (; i + 4 <= count; i += 4) dots_of<4>(rows + i, x, m, out + i);
  for (; i < count; ++i) dots_of<1>(rows + i, x, m, out + i);
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

/// Number of rows ahead that are fetched: enough to cover the third-level cache's latency.
constexpr uint64_t kAhead = 8;

/// kCount vectors from column `first` on of the rows of a slice.
template <size_t kCount>
void combine_some(const Slice& slice, size_t first, const Codes& codes, float* out, size_t stride) {
  const auto [ids, coefficients, offsets, signals] = codes;
  const size_t width = slice.width - first;
  const uint64_t all = offsets[signals];
  for (size_t i = 0; i < signals; ++i) {
    Floats sums[kCount] = {};
    for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      const float* row = slice.values + (size_t)ids[k] * slice.row + first;
      const Floats factor = spread(coefficients[k]);
      if (k + kAhead < all) {
        const float* next = slice.values + (size_t)ids[k + kAhead] * slice.row + first;
        for (size_t at = 0; at < kCount * kWidth; at += 16) look_ahead(next + at);
      }
      for (size_t v = 0; v < kCount; ++v) sums[v] = fused(factor, load(row + kWidth * v), sums[v]);
    }
    float* to = out + i * stride + first;
    for (size_t v = 0; v < kCount; ++v) {
      const size_t at = kWidth * v;
      if (v + FloatLanes::kParts < kCount)
        store(sums[v], to + at);
      else if (at < width)  // the last 16 may be cut
        store_up_to(sums[v], to + at, width - at);
    }
  }
}

void combine(const Slice& slice, const Codes& codes, float* out, size_t stride) {
  for (size_t first = 0; first < slice.width;) {
    const size_t left = (slice.row - first) / kWidth, now = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto some = now == 8   ? combine_some<8>
                      : now == 4 ? combine_some<4>
                      : now == 2 ? combine_some<2>
                                 : combine_some<1>;
    some(slice, first, codes, out, stride);
    first += now * kWidth;
  }
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

constexpr Kernels kTable = {peaks_of_tiles, at_least, screen,  apply_row, nullptr,
                            dots,           residual, combine, nullptr};

}  // namespace

const Kernels& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::omp_kernels
