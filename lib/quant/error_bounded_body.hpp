// The wide loops of error_bounded_kernels.hpp, compiled by error_bounded_avx2.cpp and
// error_bounded_avx512.cpp. Everything is in an unnamed namespace, so
// that no file can get another's copy (see lib/core/cpu.hpp). The plain form of each loop is in
// error_bounded.cpp.
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
  const __m256i chosen =
      _mm256_blendv_epi8((__m256i)spread(kLargestSymbol + 1), (__m256i)symbols, (__m256i)good);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  _mm_storel_epi64((__m128i*)to, _mm_packus_epi16(halves, halves));
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
};

KVCODEC_INLINE Lanes lanes_of(const Grids& grids, size_t column) {
  return {load(grids.steps + column), load(grids.inverses + column), load(grids.bounds + column)};
}

KVCODEC_INLINE Lanes same_lanes(const Grids& grids, size_t row) {
  return {spread(grids.steps[row]), spread(grids.inverses[row]), spread(grids.bounds[row])};
}

/// The level of x, plus kRounder: the level as an integer stands in the last bits.
KVCODEC_INLINE Floats raised_level_of(Floats x, const Lanes& grid) {
  return x * grid.inverse + spread(kRounder);
}

/// Where x comes back within its bound.
template <bool kBrain>
KVCODEC_INLINE Mask holds(Floats x, Floats raised_level, const Lanes& grid) {
  const Floats back = (raised_level - spread(kRounder)) * grid.step;
  return at_most(larger_magnitude(back - x, rounded_to_half<kBrain>(back) - x), grid.bound);
}

/// Quantizes kLanes values; returns where they come back within their bound.
template <bool kBrain>
KVCODEC_INLINE Mask quantize(Floats x, const Lanes& grid, Ints base, uint8_t* symbols) {
  const Floats raised = raised_level_of(x, grid);
  const Mask good = holds<kBrain>(x, raised, grid);
  store_symbols(bits_of(raised) + base, good, symbols);
  return good;
}

/// Calls body(first row, end row, column) for tall strips of kLanes columns, whose grids and results stay in
/// registers. kRows rows at a time: what a strip leaves unread of them is still near when the next one comes.
template <class Body>
KVCODEC_INLINE void for_strips(size_t rows, size_t cols, Body&& body) {
  constexpr size_t kRows = 64;
  for (size_t first = 0; first < rows; first += kRows) {
    const size_t end = rows - first < kRows ? rows : first + kRows;
    for (size_t j = 0; j < cols; j += kLanes) body(first, end, j);
  }
}

void moments_of_columns(Values x, float* low, float* high, float* sums) {
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    Floats least = load(low + j), most = load(high + j), total = load(sums + j);
    for (size_t i = first; i < end; ++i) {
      const Floats value = load(x.data + i * x.stride + j);
      least = smaller(value, least);
      most = larger(value, most);
      total += value;
    }
    store(least, low + j);
    store(most, high + j);
    store(total, sums + j);
  });
}

void extremes_of_rows(Values x, float* low, float* high) {
  for (size_t i = 0; i < x.rows; ++i) {
    Floats least = spread(low[i]), most = spread(high[i]);
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      least = smaller(value, least);
      most = larger(value, most);
    }
    low[i] = smallest_of(least);
    high[i] = largest_of(most);
  }
}

template <bool kBrain>
void count_in_columns(const Values& x, const Grids& grids, uint32_t* failures) {
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    const Lanes grid = lanes_of(grids, j);
    Ints count = load_as<Ints>(failures + j);
    for (size_t i = first; i < end; ++i) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, holds<kBrain>(value, raised_level_of(value, grid), grid));
    }
    store(count, failures + j);
  });
}

template <bool kBrain>
void count_in_rows(const Values& x, const Grids& grids, uint32_t* failures) {
  for (size_t i = 0; i < x.rows; ++i) {
    const Lanes grid = same_lanes(grids, i);
    Ints count = {};
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, holds<kBrain>(value, raised_level_of(value, grid), grid));
    }
    failures[i] += (uint32_t)sum_of(count);
  }
}

template <bool kBrain>
void quantize_by_columns(const Values& x, const Grids& grids, uint8_t* symbols, size_t symbol_stride,
                         uint32_t* failures) {
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    const Lanes grid = lanes_of(grids, j);
    const Ints base = load_as<Ints>(grids.bases + j);
    Ints count = load_as<Ints>(failures + j);
    for (size_t i = first; i < end; ++i) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, quantize<kBrain>(value, grid, base, symbols + i * symbol_stride + j));
    }
    store(count, failures + j);
  });
}

template <bool kBrain>
void quantize_by_rows(const Values& x, const Grids& grids, uint8_t* symbols, size_t symbol_stride,
                      uint32_t* failures) {
  for (size_t i = 0; i < x.rows; ++i) {
    const Lanes grid = same_lanes(grids, i);
    const Ints base = spread(static_cast<int32_t>(grids.bases[i]));
    Ints count = {};
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, quantize<kBrain>(value, grid, base, symbols + i * symbol_stride + j));
    }
    failures[i] += (uint32_t)sum_of(count);
  }
}

void failures_of_columns(Values x, Grids grids, bool brain, uint32_t* failures) {
  brain ? count_in_columns<true>(x, grids, failures) : count_in_columns<false>(x, grids, failures);
}

void failures_of_rows(Values x, Grids grids, bool brain, uint32_t* failures) {
  brain ? count_in_rows<true>(x, grids, failures) : count_in_rows<false>(x, grids, failures);
}

void quantize_columns(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                      uint32_t* failures) {
  brain ? quantize_by_columns<true>(x, grids, symbols, symbol_stride, failures)
        : quantize_by_columns<false>(x, grids, symbols, symbol_stride, failures);
}

void quantize_rows(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                   uint32_t* failures) {
  brain ? quantize_by_rows<true>(x, grids, symbols, symbol_stride, failures)
        : quantize_by_rows<false>(x, grids, symbols, symbol_stride, failures);
}

void dequantize_columns(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                        size_t cols, size_t stride) {
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; j += kLanes) {
      const Floats level = load_symbols(symbols + i * symbol_stride + j) - load(grids.offsets + j);
      store(level * load(grids.steps + j), out + i * stride + j);
    }
}

void dequantize_rows(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                     size_t cols, size_t stride) {
  for (size_t i = 0; i < rows; ++i) {
    const Floats step = spread(grids.steps[i]), offset = spread(grids.offsets[i]);
    for (size_t j = 0; j < cols; j += kLanes)
      store((load_symbols(symbols + i * symbol_stride + j) - offset) * step, out + i * stride + j);
  }
}

constexpr Table kTable = {moments_of_columns, extremes_of_rows, failures_of_columns, failures_of_rows,
                          quantize_columns,   quantize_rows,    dequantize_columns,  dequantize_rows};

}  // namespace
}  // namespace kvcodec::error_bounded_kernels
