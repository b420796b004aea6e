// The wide loops of error_bounded_kernels.hpp, compiled by error_bounded_avx2.cpp and
// error_bounded_avx512.cpp in vectors as long as the registers. Everything is in an unnamed namespace, so
// that no file can get another's copy (see lib/core/cpu.hpp). The plain form of each loop is in
// error_bounded.cpp.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/quant/error_bounded_kernels.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of one file only

namespace kvcodec::error_bounded_kernels {
namespace {

#ifdef __AVX512F__
constexpr size_t kLanes = 16;
#else
constexpr size_t kLanes = 8;
#endif
static_assert(kColumns % kLanes == 0);

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

#define KVCODEC_INLINE [[gnu::always_inline]] inline

template <class Vector, class T>
KVCODEC_INLINE Vector load(const T* from) {
  Vector value;
  memcpy(&value, from, sizeof(value));
  return value;
}

template <class Vector, class T>
KVCODEC_INLINE void store(const Vector& value, T* to) {
  memcpy(to, &value, sizeof(value));
}

KVCODEC_INLINE Floats broadcast(float value) { return Floats{} + value; }
KVCODEC_INLINE Ints bits_of(const Floats& value) { return (Ints)value; }
KVCODEC_INLINE Floats magnitude_of(const Floats& value) { return (Floats)(bits_of(value) & 0x7fffffff); }
KVCODEC_INLINE Floats smaller(const Floats& a, const Floats& b) { return a < b ? a : b; }
KVCODEC_INLINE Floats larger(const Floats& a, const Floats& b) { return a > b ? a : b; }

/// The nearest bf16, ties to even, as a float. Never of NaNs.
KVCODEC_INLINE Floats rounded_to_bf16(const Floats& value) {
  const Ints bits = bits_of(value);
  return (Floats)((bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000);
}

/// The nearest f16, ties to even, as a float. Never of NaNs.
KVCODEC_INLINE Floats rounded_to_f16(const Floats& value) {
  const Ints bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits ^ magnitude;
  const Ints normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & (int32_t)0xffffe000;
  // Below 2^-14 f16 counts in units of 2^-24, the last place of numbers from 0.5: the sum rounds to it.
  const Floats subnormal = ((Floats)magnitude + 0.5f) - 0.5f;
  Ints rounded = magnitude < 0x38800000 ? (Ints)subnormal : normal;
  rounded = magnitude >= 0x477ff000 ? Ints{} + 0x7f800000 : rounded;  // 65520 and above: infinity
  return (Floats)(rounded | sign);
}

template <bool kBrain>
KVCODEC_INLINE Floats rounded(const Floats& value) {
  return kBrain ? rounded_to_bf16(value) : rounded_to_f16(value);
}

/// The grids of kLanes values.
struct Lanes {
  Floats step, inverse, bound, offset;
};

KVCODEC_INLINE Lanes lanes_of(const Grids& grids, size_t column) {
  return {load<Floats>(grids.steps + column), load<Floats>(grids.inverses + column),
          load<Floats>(grids.bounds + column), load<Floats>(grids.offsets + column)};
}

KVCODEC_INLINE Lanes same_lanes(const Grids& grids, size_t row) {
  return {broadcast(grids.steps[row]), broadcast(grids.inverses[row]), broadcast(grids.bounds[row]),
          broadcast(grids.offsets[row])};
}

KVCODEC_INLINE Floats level_of(const Floats& x, const Lanes& grid) {
  Floats level = x * grid.inverse;
  level = larger(level, broadcast(-kLargestLevel));
  level = smaller(level, broadcast(kLargestLevel));
  return (level + kRounder) - kRounder;
}

/// All bits set where the level does not come back within the bound of x.
template <bool kBrain>
KVCODEC_INLINE Ints fails(const Floats& x, const Floats& level, const Lanes& grid) {
  const Floats back = level * grid.step;
  const Floats error = magnitude_of(back - x), rounded_error = magnitude_of(rounded<kBrain>(back) - x);
  return ~(larger(error, rounded_error) <= grid.bound);
}

template <bool kBrain>
KVCODEC_INLINE Bytes symbols_of(const Floats& x, const Lanes& grid) {
  const Floats level = level_of(x, grid), symbol = level + grid.offset;
  const Ints no = fails<kBrain>(x, level, grid) | (symbol < 0.0f) | (symbol > kLargestSymbol);
  const Floats chosen = no ? broadcast(kLargestSymbol + 1) : symbol;
  return __builtin_convertvector(__builtin_convertvector(chosen, Ints), Bytes);
}

KVCODEC_INLINE Floats values_of(const uint8_t* symbols, const Floats& step, const Floats& offset) {
  const Ints wide = __builtin_convertvector(load<Bytes>(symbols), Ints);
  return (__builtin_convertvector(wide, Floats) - offset) * step;
}

void extremes_of_columns(Values x, float* low, float* high) {
  for (size_t j = 0; j < x.cols; j += kLanes) {
    Floats least = load<Floats>(low + j), most = load<Floats>(high + j);
    for (size_t i = 0; i < x.rows; ++i) {
      const Floats value = load<Floats>(x.data + i * x.stride + j);
      least = smaller(value, least);
      most = larger(value, most);
    }
    store(least, low + j);
    store(most, high + j);
  }
}

void extremes_of_rows(Values x, float* low, float* high) {
  for (size_t i = 0; i < x.rows; ++i) {
    Floats least = broadcast(low[i]), most = broadcast(high[i]);
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load<Floats>(x.data + i * x.stride + j);
      least = smaller(value, least);
      most = larger(value, most);
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      low[i] = least[lane] < low[i] ? least[lane] : low[i];
      high[i] = most[lane] > high[i] ? most[lane] : high[i];
    }
  }
}

void sums_of_columns(Values x, float* sums) {
  for (size_t j = 0; j < x.cols; j += kLanes) {
    Floats sum = load<Floats>(sums + j);
    for (size_t i = 0; i < x.rows; ++i) sum += load<Floats>(x.data + i * x.stride + j);
    store(sum, sums + j);
  }
}

template <bool kBrain>
void count_in_columns(const Values& x, const Grids& grids, uint32_t* failures) {
  for (size_t j = 0; j < x.cols; j += kLanes) {
    const Lanes grid = lanes_of(grids, j);
    Ints count = load<Ints>(failures + j);
    for (size_t i = 0; i < x.rows; ++i) {
      const Floats value = load<Floats>(x.data + i * x.stride + j);
      count -= fails<kBrain>(value, level_of(value, grid), grid);
    }
    store(count, failures + j);
  }
}

template <bool kBrain>
void count_in_rows(const Values& x, const Grids& grids, uint32_t* failures) {
  for (size_t i = 0; i < x.rows; ++i) {
    const Lanes grid = same_lanes(grids, i);
    Ints count = {};
    for (size_t j = 0; j < x.cols; j += kLanes) {
      const Floats value = load<Floats>(x.data + i * x.stride + j);
      count -= fails<kBrain>(value, level_of(value, grid), grid);
    }
    for (size_t lane = 0; lane < kLanes; ++lane) failures[i] += static_cast<uint32_t>(count[lane]);
  }
}

template <bool kBrain>
void quantize_by_columns(const Values& x, const Grids& grids, uint8_t* symbols, size_t symbol_stride) {
  for (size_t j = 0; j < x.cols; j += kLanes) {
    const Lanes grid = lanes_of(grids, j);
    for (size_t i = 0; i < x.rows; ++i)
      store(symbols_of<kBrain>(load<Floats>(x.data + i * x.stride + j), grid),
            symbols + i * symbol_stride + j);
  }
}

template <bool kBrain>
void quantize_by_rows(const Values& x, const Grids& grids, uint8_t* symbols, size_t symbol_stride) {
  for (size_t i = 0; i < x.rows; ++i) {
    const Lanes grid = same_lanes(grids, i);
    for (size_t j = 0; j < x.cols; j += kLanes)
      store(symbols_of<kBrain>(load<Floats>(x.data + i * x.stride + j), grid),
            symbols + i * symbol_stride + j);
  }
}

void failures_of_columns(Values x, Grids grids, bool brain, uint32_t* failures) {
  brain ? count_in_columns<true>(x, grids, failures) : count_in_columns<false>(x, grids, failures);
}

void failures_of_rows(Values x, Grids grids, bool brain, uint32_t* failures) {
  brain ? count_in_rows<true>(x, grids, failures) : count_in_rows<false>(x, grids, failures);
}

void quantize_columns(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride) {
  brain ? quantize_by_columns<true>(x, grids, symbols, symbol_stride)
        : quantize_by_columns<false>(x, grids, symbols, symbol_stride);
}

void quantize_rows(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride) {
  brain ? quantize_by_rows<true>(x, grids, symbols, symbol_stride)
        : quantize_by_rows<false>(x, grids, symbols, symbol_stride);
}

void dequantize_columns(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                        size_t cols, size_t stride) {
  for (size_t j = 0; j < cols; j += kLanes) {
    const Floats step = load<Floats>(grids.steps + j), offset = load<Floats>(grids.offsets + j);
    for (size_t i = 0; i < rows; ++i)
      store(values_of(symbols + i * symbol_stride + j, step, offset), out + i * stride + j);
  }
}

void dequantize_rows(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                     size_t cols, size_t stride) {
  for (size_t i = 0; i < rows; ++i) {
    const Floats step = broadcast(grids.steps[i]), offset = broadcast(grids.offsets[i]);
    for (size_t j = 0; j < cols; j += kLanes)
      store(values_of(symbols + i * symbol_stride + j, step, offset), out + i * stride + j);
  }
}

constexpr Table kTable = {extremes_of_columns, extremes_of_rows,   sums_of_columns,
                          failures_of_columns, failures_of_rows,   quantize_columns,
                          quantize_rows,       dequantize_columns, dequantize_rows};

}  // namespace
}  // namespace kvcodec::error_bounded_kernels
