// The wide loops of error_bounded_kernels.hpp, compiled by error_bounded_avx2.cpp and error_bounded_avx512.cpp, in an
// unnamed namespace, so that no file can get another's copy (see lib/core/cpu.hpp). error_bounded.cpp has the plain ones.
#pragma once

#include "lib/core/vectors.hpp"
#include "lib/quant/error_bounded_kernels.hpp"

namespace kvcodec::error_bounded_kernels {
namespace {

using namespace vectors;

constexpr size_t kLanes = kWidth;

KVCODEC_INLINE float smallest_of(Floats value) { return -largest_of(-value); }

KVCODEC_INLINE Floats rounded_to_bf16(Floats value) { return (Floats)(bits_near_bf16(value) & 0xffff0000); }
KVCODEC_INLINE Floats rounded_to_f16(Floats value) { return widen_f16(narrow_f16(value)); }

KVCODEC_INLINE Floats load_symbols(const uint8_t* from) { return as_floats(load_widened(from)); }

// Masks are registers of their own in AVX-512.
#ifdef __AVX512F__

typedef __mmask16 Mask;

/// max(|a|, |b|).
KVCODEC_INLINE Floats larger_magnitude(Floats a, Floats b) { return _mm512_range_ps(a, b, 0b1011); }

KVCODEC_INLINE Mask at_most(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }

/// counts + 1 where the mask is not set.
KVCODEC_INLINE Ints count_others(Ints counts, Mask mask) {
  return (Ints)_mm512_mask_add_epi32((__m512i)counts, _knot_mask16(mask), (__m512i)counts,
                                     _mm512_set1_epi32(1));
}

/// Writes the symbols where the mask is set and they lie within 0 .. kLargestSymbol, else the exact symbol.
KVCODEC_INLINE void store_symbols(Ints symbols, Mask mask, uint8_t* to) {
  const Mask good = _mm512_mask_cmple_epu32_mask(mask, (__m512i)symbols, _mm512_set1_epi32(kLargestSymbol));
  const __m512i exact = _mm512_set1_epi32(kLargestSymbol + 1);
  store(_mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(exact, good, (__m512i)symbols)), to);
}

#else

typedef Ints Mask;

KVCODEC_INLINE Floats larger_magnitude(Floats a, Floats b) { return larger(magnitude(a), magnitude(b)); }
KVCODEC_INLINE Mask at_most(Floats a, Floats b) { return a <= b; }
KVCODEC_INLINE Ints count_others(Ints counts, Mask mask) { return counts + (mask + 1); }
KVCODEC_INLINE void store_symbols(Ints symbols, Mask mask, uint8_t* to) {
  const Mask good = mask & ((Words)symbols <= (uint32_t)kLargestSymbol);
  const auto exact = (__m256i)spread(kLargestSymbol + 1);
  store_low_bytes(_mm256_blendv_epi8(exact, (__m256i)symbols, (__m256i)good), to);
}

#endif
static_assert(kColumns % kLanes == 0);

template <bool kBrain>
KVCODEC_INLINE Floats rounded_to_half(Floats value) {
  return kBrain ? rounded_to_bf16(value) : rounded_to_f16(value);
}

/// The grids of kLanes values.
struct Lanes {
  Floats step, inverse, bound;
  Ints base;
};

KVCODEC_INLINE Lanes lanes_of(const Grids& grids, size_t column) {
  return {load(grids.steps + column), load(grids.inverses + column), load(grids.bounds + column),
          load_as<Ints>(grids.bases + column)};
}

KVCODEC_INLINE Lanes same_lanes(const Grids& grids, size_t row) {
  return {spread(grids.steps[row]), spread(grids.inverses[row]), spread(grids.bounds[row]),
          spread((int32_t)grids.bases[row])};
}

/// Quantizes kLanes values, from (i, j) on; returns the lanes that come back within their bound.
template <bool kBrain, bool kStores>
KVCODEC_INLINE Mask quantize_at(const Values& x, size_t i, size_t j, const Lanes& grid,
                                const Cells<uint8_t>& symbols) {
  const Floats value = load(x.data + i * x.stride + j);
  // The level, plus kRounder: the level as an integer stands in the last bits.
  const Floats raised = value * grid.inverse + spread(kRounder);
  const Floats back = (raised - spread(kRounder)) * grid.step;
  const Mask good =
      at_most(larger_magnitude(back - value, rounded_to_half<kBrain>(back) - value), grid.bound);
  if (kStores) store_symbols(bits_of(raised) + grid.base, good, symbols.data + i * symbols.stride + j);
  return good;
}

/// Calls body(first row, end row, column) for tall strips of kLanes columns, whose grids and results stay in
/// registers. Strips have kRows rows, so that the rest of their cache lines is still near for the next strip.
template <class Body>
KVCODEC_INLINE void for_strips(size_t rows, size_t cols, Body&& body) {
  constexpr size_t kRows = 64;
  for (size_t first = 0; first < rows; first += kRows) {
    const size_t end = rows - first < kRows ? rows : first + kRows;
    for (size_t j = 0; j < cols; j += kLanes) body(first, end, j);
  }
}

void measure(Values x, bool by_rows, float* low, float* high, float* sums) {
  for (size_t i = 0; by_rows && i < x.rows; ++i) {
    Floats lowest = spread(low[i]), highest = spread(high[i]);
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      lowest = smaller(value, lowest);
      highest = larger(value, highest);
    }
    low[i] = smallest_of(lowest);
    high[i] = largest_of(highest);
  }
  if (by_rows) return;
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    Floats lowest = load(low + j), highest = load(high + j), total = load(sums + j);
    for (size_t i = first; i < end; ++i) {
      const Floats value = load(x.data + i * x.stride + j);
      lowest = smaller(value, lowest);
      highest = larger(value, highest);
      total += value;
    }
    store(lowest, low + j);
    store(highest, high + j);
    store(total, sums + j);
  });
}

template <bool kBrain, bool kStores>
void quantize_as(const Values& x, const Grids& grids, const Cells<uint8_t>& symbols, uint32_t* failures) {
  for (size_t i = 0; grids.by_rows && i < x.rows; ++i) {
    const Lanes grid = same_lanes(grids, i);
    Ints count = {};
    for (size_t j = 0; j < x.cols; j += kLanes)
      count = count_others(count, quantize_at<kBrain, kStores>(x, i, j, grid, symbols));
    failures[i] += (uint32_t)sum_of(count);
  }
  if (grids.by_rows) return;
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    const Lanes grid = lanes_of(grids, j);
    Ints count = load_as<Ints>(failures + j);
    for (size_t i = first; i < end; ++i)
      count = count_others(count, quantize_at<kBrain, kStores>(x, i, j, grid, symbols));
    store(count, failures + j);
  });
}

void quantize(Values x, Grids grids, bool brain, Cells<uint8_t> symbols, uint32_t* failures) {
  if (symbols.data)
    brain ? quantize_as<true, true>(x, grids, symbols, failures)
          : quantize_as<false, true>(x, grids, symbols, failures);
  else
    brain ? quantize_as<true, false>(x, grids, symbols, failures)
          : quantize_as<false, false>(x, grids, symbols, failures);
}

void dequantize(Cells<const uint8_t> symbols, Grids grids, Cells<float> out) {
  for (size_t i = 0; i < out.rows; ++i) {
    const auto put = [&](size_t j, Floats offset, Floats step) {
      const Floats symbol = load_symbols(symbols.data + i * symbols.stride + j);
      store((symbol - offset) * step, out.data + i * out.stride + j);
    };
    if (grids.by_rows) {
      const Floats offset = spread(grids.offsets[i]), step = spread(grids.steps[i]);
      for (size_t j = 0; j < out.cols; j += kLanes) put(j, offset, step);
    } else {
      for (size_t j = 0; j < out.cols; j += kLanes) put(j, load(grids.offsets + j), load(grids.steps + j));
    }
  }
}

constexpr Table kTable = {measure, quantize, dequantize};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::error_bounded_kernels
