// The wide loops of error_bounded_kernels.hpp, compiled by error_bounded_avx2.cpp and
// error_bounded_avx512.cpp. Everything is in an unnamed namespace, so
// that no file can get another's copy (see lib/core/cpu.hpp). The plain form of each loop is in
// error_bounded.cpp.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/quant/error_bounded_kernels.hpp"

namespace kvcodec::error_bounded_kernels {
namespace {

#define KVCODEC_INLINE [[gnu::always_inline]] inline

// What differs between the sets: vectors of kLanes values and masks of them.
#ifdef __AVX512F__

constexpr size_t kLanes = 16;
typedef __m512 Floats;
typedef __m512i Ints;
typedef __mmask16 Mask;

KVCODEC_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
KVCODEC_INLINE Ints load_ints(const uint32_t* from) { return _mm512_loadu_si512(from); }
KVCODEC_INLINE void store(Floats value, float* to) { _mm512_storeu_ps(to, value); }
KVCODEC_INLINE void store(Ints value, uint32_t* to) { _mm512_storeu_si512(to, value); }
KVCODEC_INLINE Floats broadcast(float value) { return _mm512_set1_ps(value); }
KVCODEC_INLINE Ints broadcast(int32_t value) { return _mm512_set1_epi32(value); }
KVCODEC_INLINE Ints zero_counts() { return _mm512_setzero_si512(); }
KVCODEC_INLINE Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
KVCODEC_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
KVCODEC_INLINE float smallest(Floats a) { return _mm512_reduce_min_ps(a); }
KVCODEC_INLINE float largest(Floats a) { return _mm512_reduce_max_ps(a); }
KVCODEC_INLINE uint32_t sum(Ints a) { return static_cast<uint32_t>(_mm512_reduce_add_epi32(a)); }
KVCODEC_INLINE Ints bits_of(Floats value) { return _mm512_castps_si512(value); }
KVCODEC_INLINE Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }

/// max(|a|, |b|).
KVCODEC_INLINE Floats larger_magnitude(Floats a, Floats b) { return _mm512_range_ps(a, b, 0b1011); }

KVCODEC_INLINE Floats rounded_to_bf16(Floats value) {
  const Ints bits = bits_of(value);
  const Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Ints up = plus(plus(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

KVCODEC_INLINE Floats rounded_to_f16(Floats value) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KVCODEC_INLINE Mask at_most(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }

/// counts + 1 where the mask is not set.
KVCODEC_INLINE Ints count_others(Ints counts, Mask mask) {
  return _mm512_mask_add_epi32(counts, _knot_mask16(mask), counts, _mm512_set1_epi32(1));
}

/// Writes the symbols where the mask is set and they lie within 0 .. kLargestSymbol, else the exact symbol.
KVCODEC_INLINE void store_symbols(Ints symbols, Mask mask, uint8_t* to) {
  const Mask good = _mm512_mask_cmple_epu32_mask(mask, symbols, _mm512_set1_epi32(kLargestSymbol));
  const Ints chosen = _mm512_mask_mov_epi32(_mm512_set1_epi32(kLargestSymbol + 1), good, symbols);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(chosen));
}

KVCODEC_INLINE Floats load_symbols(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

#else

constexpr size_t kLanes = 8;
typedef __m256 Floats;
typedef __m256i Ints;
typedef __m256 Mask;

KVCODEC_INLINE Floats load(const float* from) { return _mm256_loadu_ps(from); }
KVCODEC_INLINE Ints load_ints(const uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
KVCODEC_INLINE void store(Floats value, float* to) { _mm256_storeu_ps(to, value); }
KVCODEC_INLINE void store(Ints value, uint32_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
KVCODEC_INLINE Floats broadcast(float value) { return _mm256_set1_ps(value); }
KVCODEC_INLINE Ints broadcast(int32_t value) { return _mm256_set1_epi32(value); }
KVCODEC_INLINE Ints zero_counts() { return _mm256_setzero_si256(); }
KVCODEC_INLINE Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
KVCODEC_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
KVCODEC_INLINE Ints bits_of(Floats value) { return _mm256_castps_si256(value); }
KVCODEC_INLINE Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }

KVCODEC_INLINE float smallest(Floats a) {
  __m128 four = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_min_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_min_ss(four, _mm_movehdup_ps(four)));
}

KVCODEC_INLINE float largest(Floats a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

KVCODEC_INLINE uint32_t sum(Ints a) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b1110));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b0001));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}

/// max(|a|, |b|).
KVCODEC_INLINE Floats larger_magnitude(Floats a, Floats b) {
  const Floats sign = _mm256_set1_ps(-0.0f);
  return _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b));
}

KVCODEC_INLINE Floats rounded_to_bf16(Floats value) {
  const Ints bits = bits_of(value);
  const Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Ints up = plus(plus(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

KVCODEC_INLINE Floats rounded_to_f16(Floats value) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KVCODEC_INLINE Mask at_most(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }

/// counts + 1 where the mask is not set.
KVCODEC_INLINE Ints count_others(Ints counts, Mask mask) {
  return plus(counts, plus(_mm256_castps_si256(mask), _mm256_set1_epi32(1)));
}

/// Writes the symbols where the mask is set and they lie within 0 .. kLargestSymbol, else the exact symbol.
KVCODEC_INLINE void store_symbols(Ints symbols, Mask mask, uint8_t* to) {
  const Ints largest_symbol = _mm256_set1_epi32(kLargestSymbol);
  const Ints within = _mm256_cmpeq_epi32(_mm256_min_epu32(symbols, largest_symbol), symbols);
  const Ints good = _mm256_and_si256(within, _mm256_castps_si256(mask));
  const Ints chosen = _mm256_blendv_epi8(_mm256_set1_epi32(kLargestSymbol + 1), symbols, good);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
}

KVCODEC_INLINE Floats load_symbols(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

#endif
static_assert(kColumns % kLanes == 0);

template <bool kBrain>
KVCODEC_INLINE Floats rounded(Floats value) {
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
  return {broadcast(grids.steps[row]), broadcast(grids.inverses[row]), broadcast(grids.bounds[row])};
}

/// The level of x, plus kRounder: the level as an integer stands in the last bits.
KVCODEC_INLINE Floats raised_level_of(Floats x, const Lanes& grid) {
  return x * grid.inverse + broadcast(kRounder);
}

/// Where x comes back within its bound.
template <bool kBrain>
KVCODEC_INLINE Mask holds(Floats x, Floats raised_level, const Lanes& grid) {
  const Floats back = (raised_level - broadcast(kRounder)) * grid.step;
  return at_most(larger_magnitude(back - x, rounded<kBrain>(back) - x), grid.bound);
}

/// Quantizes kLanes values; returns where they come back within their bound.
template <bool kBrain>
KVCODEC_INLINE Mask quantize(Floats x, const Lanes& grid, Ints base, uint8_t* symbols) {
  const Floats raised = raised_level_of(x, grid);
  const Mask good = holds<kBrain>(x, raised, grid);
  store_symbols(plus(bits_of(raised), base), good, symbols);
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
    Floats least = broadcast(low[i]), most = broadcast(high[i]);
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      least = smaller(value, least);
      most = larger(value, most);
    }
    low[i] = smallest(least);
    high[i] = largest(most);
  }
}

template <bool kBrain>
void count_in_columns(const Values& x, const Grids& grids, uint32_t* failures) {
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    const Lanes grid = lanes_of(grids, j);
    Ints count = load_ints(failures + j);
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
    Ints count = zero_counts();
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, holds<kBrain>(value, raised_level_of(value, grid), grid));
    }
    failures[i] += sum(count);
  }
}

template <bool kBrain>
void quantize_by_columns(const Values& x, const Grids& grids, uint8_t* symbols, size_t symbol_stride,
                         uint32_t* failures) {
  for_strips(x.rows, x.cols, [&](size_t first, size_t end, size_t j) {
    const Lanes grid = lanes_of(grids, j);
    const Ints base = load_ints(grids.bases + j);
    Ints count = load_ints(failures + j);
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
    const Ints base = broadcast(static_cast<int32_t>(grids.bases[i]));
    Ints count = zero_counts();
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load(x.data + i * x.stride + j);
      count = count_others(count, quantize<kBrain>(value, grid, base, symbols + i * symbol_stride + j));
    }
    failures[i] += sum(count);
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
    const Floats step = broadcast(grids.steps[i]), offset = broadcast(grids.offsets[i]);
    for (size_t j = 0; j < cols; j += kLanes)
      store((load_symbols(symbols + i * symbol_stride + j) - offset) * step, out + i * stride + j);
  }
}

constexpr Table kTable = {moments_of_columns, extremes_of_rows, failures_of_columns, failures_of_rows,
                          quantize_columns,   quantize_rows,    dequantize_columns,  dequantize_rows};

}  // namespace
}  // namespace kvcodec::error_bounded_kernels
