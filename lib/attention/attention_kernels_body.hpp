// attention_kernels.hpp in vectors (lib/core/cpu.hpp).
#pragma once

#include "lib/attention/attention_kernels.hpp"
#include "lib/quant/two_bit_vectors.hpp"

namespace kvcodec::attention_kernels {
namespace {

typedef vectors::FloatLanes Floats;
using vectors::kWidth;
constexpr size_t kParts = Floats::kParts;

KVCODEC_INLINE Floats zero() { return {}; }
KVCODEC_INLINE Floats load(const float* from) {
  Floats value;
  for (size_t i = 0; i < kParts; ++i) value.parts[i] = vectors::load(from + i * kWidth);
  return value;
}
KVCODEC_INLINE void store(const Floats& value, float* to) {
  for (size_t i = 0; i < kParts; ++i) vectors::store(value.parts[i], to + i * kWidth);
}
KVCODEC_INLINE Floats spread(float value) {
  Floats all;
  for (size_t i = 0; i < kParts; ++i) all.parts[i] = vectors::spread(value);
  return all;
}
KVCODEC_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  Floats sum;
  for (size_t i = 0; i < kParts; ++i) sum.parts[i] = vectors::fused(a.parts[i], b.parts[i], c.parts[i]);
  return sum;
}

#ifdef __AVX512F__
/// All 16 trees at once: each step adds one half of the lanes of two vectors to the other and leaves both in
/// one.
KVCODEC_INLINE void fold(const Floats* values, float* out) {
  __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = values[2 * i].parts[0], b = values[2 * i + 1].parts[0];
    eight[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    four[i] = _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88) +
              _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    two[i] = _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44) +
             _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee);
  const __m512 one = _mm512_shuffle_ps(two[0], two[1], 0x88) + _mm512_shuffle_ps(two[0], two[1], 0xdd);
  // Place 4 l + j has vector 4 j + l.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, one));
}
#else
KVCODEC_INLINE void fold(const Floats* values, float* out) {
  for (size_t i = 0; i < kLanes; ++i) out[i] = vectors::sum_of(values[i]);
}
#endif

struct F32 {
  typedef float Element;
  static KVCODEC_INLINE vectors::Floats widen(vectors::Floats value) { return value; }
};
struct F16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE vectors::Floats widen(vectors::Halves value) { return vectors::widen_f16(value); }
};
struct Bf16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE vectors::Floats widen(vectors::Halves value) { return vectors::widen_bf16(value); }
};

template <class Type>
struct PlainRow {
  typedef typename Type::Element Element;
  template <size_t kVectors>
  struct Slice {
    const Element* elements;
    KVCODEC_INLINE Slice(const void* row, size_t from) : elements((const Element*)row + from) {}
    KVCODEC_INLINE Floats all(size_t v) const {
      Floats value;
      for (size_t i = 0; i < kParts; ++i)
        value.parts[i] = Type::widen(vectors::load(elements + v * kLanes + i * kWidth));
      return value;
    }
    Floats some(size_t v, size_t n) const {
      if constexpr (kParts == 1) return {Type::widen(vectors::load_first(elements + v * kLanes, n))};
      Element padded[kLanes] = {};
      memcpy(padded, elements + v * kLanes, n * sizeof(Element));
      return Slice(padded, 0).all(0);
    }
  };
  static KVCODEC_INLINE void ask(const void* row, size_t dims) {
    for (size_t byte = 0; byte < dims * sizeof(Element); byte += 64)
      vectors::look_ahead((const char*)row + byte);
  }
};

/// Floats of eight halves, and one of them in all lanes.
template <size_t n>
KVCODEC_INLINE __m256 widen_eight(const uint16_t* low, const uint16_t* high) {
  uint64_t low_bits = 0, high_bits = 0;
  memcpy(&low_bits, low, n * sizeof(*low));
  memcpy(&high_bits, high, n * sizeof(*high));
  return _mm256_cvtph_ps(_mm_set_epi64x((long long)high_bits, (long long)low_bits));
}
KVCODEC_INLINE vectors::Floats lane_of(__m256 eight, int lane) {
#ifdef __AVX512F__
  return _mm512_permutexvar_ps(_mm512_set1_epi32(lane), _mm512_castps256_ps512(eight));
#else
  return _mm256_permutevar8x32_ps(eight, _mm256_set1_epi32(lane));
#endif
}

template <bool kSigned>
struct LevelRow {
  template <size_t kVectors>
  struct Slice {
    // A slice of an odd number of vectors may begin or end amid a group: it converts one scale at a time, as
    // is done with vectors of 256 bits.
    static constexpr bool kTogether = kVectors % 2 == 0 && kWidth == 16;
    const CodedRow& coded;
    size_t from;
    __m256 grids;  // the scales of kVectors / 2 groups from lane 0 on, their zeros from lane 4 on

    KVCODEC_INLINE Slice(const void* row, size_t first) : coded(*(const CodedRow*)row), from(first) {
      if constexpr (kTogether)
        grids = widen_eight<kVectors / 2>(coded.scales + from / 32, coded.zeros + from / 32);
    }
    KVCODEC_INLINE vectors::Floats grid(size_t v) const {
      if constexpr (kTogether)
        return vectors::grid_of(lane_of(grids, (int)(v / 2)), lane_of(grids, (int)(v / 2 + 4)));
      const size_t group = (from + v * kLanes) / 32;
      return vectors::grid_of(vectors::spread_f16(coded.scales[group]),
                              vectors::spread_f16(coded.zeros[group]));
    }
    KVCODEC_INLINE Floats all(size_t v) const {
      const vectors::Floats values = grid(v);
      Floats result;
      for (size_t i = 0; i < kParts; ++i) {
        const size_t j = from + v * kLanes + i * kWidth;
        uint32_t bytes = 0, signs = 0;
        memcpy(&bytes, coded.levels + j / 4, kWidth / 4);
        result.parts[i] = vectors::values_of_levels(bytes, values);
        if constexpr (kSigned) {
          memcpy(&signs, coded.signs + j / 8, kWidth / 8);
          result.parts[i] = vectors::negative_where_clear(result.parts[i], signs);
        }
      }
      return result;
    }
    KVCODEC_INLINE Floats some(size_t v, size_t) const {
      return all(v);
    }  // not called: dims are whole groups
  };
  static KVCODEC_INLINE void ask(const void* row, size_t) {
    const CodedRow& ahead = *(const CodedRow*)row;
    vectors::look_ahead(ahead.levels);
    vectors::look_ahead(ahead.scales);
    vectors::look_ahead(ahead.zeros);
    if (kSigned) vectors::look_ahead(ahead.signs);
  }
};

template <RowType>
struct Row;
template <>
struct Row<kF32> : PlainRow<F32> {};
template <>
struct Row<kF16> : PlainRow<F16> {};
template <>
struct Row<kBf16> : PlainRow<Bf16> {};
template <>
struct Row<kTwoBit> : LevelRow<false> {};
template <>
struct Row<kSignedTwoBit> : LevelRow<true> {};

/// Vectors of a row that are worked on together: 64 dimensions. Narrower ends go vector by vector.
constexpr size_t kSlice = 4;

/// Queries whose products are worked on together.
constexpr size_t kQueries = 8;

/// Queries whose sums stay in registers together, and for how many vectors: 16 registers hold no more than one.
constexpr size_t kSummed = 4, kSummedSlice = kParts == 1 ? kSlice : 1;

/// Rows that are asked for ahead: chosen tokens lie anywhere, and memory takes as long as a few rows do.
constexpr size_t kAhead = 6;

/// Vectors of some rows, from dimension `from` on. `rest`: elements of a last vector that is not full, else 0.
struct Part {
  const void* const* rows;
  size_t n, left;  // rows, and how many there are from the first of them on
  size_t dims, from, rest;
};

/// Asks for a row that follows row t, when the first vectors of t are worked on.
template <class Row>
KVCODEC_INLINE void ask_ahead(const Part& part, size_t t) {
  if (part.from == 0 && t + kAhead < part.left) Row::ask(part.rows[t + kAhead], part.dims);
}

template <class Slice>
KVCODEC_INLINE Floats vector_of(const Slice& row, size_t v, size_t rest) {
  return rest > 0 ? row.some(v, rest) : row.all(v);
}

/// Adds kVectors vectors of up to 16 rows to the lanes of their products with queries.
template <class Row, size_t kVectors>
void dot_slice(const Part& part, const float* queries, size_t stride, size_t count, Floats (*lanes)[kLanes]) {
  for (size_t t = 0; t < part.n; ++t) {
    ask_ahead<Row>(part, t);
    const typename Row::template Slice<kVectors> row(part.rows[t], part.from);
    Floats values[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) values[v] = vector_of(row, v, kVectors == 1 ? part.rest : 0);
    for (size_t q = 0; q < count; ++q) {
      Floats sum = lanes[q][t];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v)
        sum = fused(values[v], load(queries + q * stride + part.from + v * kLanes), sum);
      lanes[q][t] = sum;
    }
  }
}

template <class Row>
void dots(const void* const* rows, size_t n, const float* queries, size_t count, size_t dims, float* out,
          size_t out_stride) {
  const size_t vectors = (dims + kLanes - 1) / kLanes, full = dims / kLanes, stride = vectors * kLanes;
  while (count > 0) {
    const size_t some = count < kQueries ? count : kQueries;
    for (size_t t = 0; t < n; t += kLanes) {
      const size_t tokens = n - t < kLanes ? n - t : kLanes;
      Floats lanes[kQueries][kLanes];
      for (size_t q = 0; q < some; ++q)
        for (size_t i = 0; i < kLanes; ++i) lanes[q][i] = zero();
      Part part = {rows + t, tokens, n - t, dims, 0, 0};
      size_t v = 0;
      for (; v + kSlice <= full; v += kSlice, part.from += kSlice * kLanes)
        dot_slice<Row, kSlice>(part, queries, stride, some, lanes);
      for (; v < vectors; ++v, part.from += kLanes) {
        part.rest = v == full ? dims % kLanes : 0;
        dot_slice<Row, 1>(part, queries, stride, some, lanes);
      }
      for (size_t q = 0; q < some; ++q) {
        float products[kLanes];
        fold(lanes[q], products);
        for (size_t i = 0; i < tokens; ++i) out[q * out_stride + t + i] = products[i];
      }
    }
    queries += some * stride;
    out += some * out_stride;
    count -= some;
  }
}

/// Weighted sums of kVectors vectors of all rows for kCount queries, which stay in registers.
template <class Row, size_t kCount, size_t kVectors>
void sum_slice(const Part& part, const float* weights, size_t weight_stride, float* out, size_t stride) {
  Floats sums[kCount][kVectors];
#pragma GCC unroll 4
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * stride + part.from + v * kLanes);
  for (size_t t = 0; t < part.n; ++t) {
    ask_ahead<Row>(part, t);
    const typename Row::template Slice<kVectors> row(part.rows[t], part.from);
    Floats weight[kCount];
#pragma GCC unroll 4
    for (size_t q = 0; q < kCount; ++q) weight[q] = spread(weights[q * weight_stride + t]);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const Floats values = vector_of(row, v, kVectors == 1 ? part.rest : 0);
#pragma GCC unroll 4
      for (size_t q = 0; q < kCount; ++q) sums[q][v] = fused(values, weight[q], sums[q][v]);
    }
  }
#pragma GCC unroll 4
  for (size_t q = 0; q < kCount; ++q)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) store(sums[q][v], out + q * stride + part.from + v * kLanes);
}

template <class Row>
void sums(const void* const* rows, size_t n, const float* weights, size_t weight_stride, size_t count,
          size_t dims, float* out) {
  const size_t vectors = (dims + kLanes - 1) / kLanes, full = dims / kLanes, stride = vectors * kLanes;
  while (count > 0) {
    const size_t some = count < kSummed ? 1 : kSummed;
    Part part = {rows, n, n, dims, 0, 0};
    size_t v = 0;
    if (some == kSummed)
      for (; v + kSummedSlice <= full; v += kSummedSlice, part.from += kSummedSlice * kLanes)
        sum_slice<Row, kSummed, kSummedSlice>(part, weights, weight_stride, out, stride);
    else
      for (; v + kSlice <= full; v += kSlice, part.from += kSlice * kLanes)
        sum_slice<Row, 1, kSlice>(part, weights, weight_stride, out, stride);
    for (; v < vectors; ++v, part.from += kLanes) {
      part.rest = v == full ? dims % kLanes : 0;
      for (size_t q = 0; q < some; ++q)
        sum_slice<Row, 1, 1>(part, weights + q * weight_stride, weight_stride, out + q * stride, stride);
    }
    weights += some * weight_stride;
    out += some * stride;
    count -= some;
  }
}

constexpr Table kTable = {
    {dots<Row<kF32>>, dots<Row<kF16>>, dots<Row<kBf16>>, dots<Row<kTwoBit>>, dots<Row<kSignedTwoBit>>},
    {sums<Row<kF32>>, sums<Row<kF16>>, sums<Row<kBf16>>, sums<Row<kTwoBit>>, sums<Row<kSignedTwoBit>>}};

}  // namespace
}  // namespace kvcodec::attention_kernels
