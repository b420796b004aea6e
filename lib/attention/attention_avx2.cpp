#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "lib/attention/attention_kernels.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))

namespace kvcodec::attention_kernels {
namespace {

/// Lanes 0..7 and 8..15.
struct Floats {
  __m256 low, high;
};

KVCODEC_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVCODEC_INLINE Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
KVCODEC_INLINE void store(const Floats& value, float* to) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
KVCODEC_INLINE Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
KVCODEC_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
KVCODEC_INLINE void look_ahead(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }

KVCODEC_INLINE void fold(const Floats* vectors, float* out) {
  for (size_t i = 0; i < kLanes; ++i) {
    const __m256 eight = _mm256_add_ps(vectors[i].low, vectors[i].high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    out[i] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

struct F32 {
  typedef float Element;
  static KVCODEC_INLINE Floats all(const Element* from) { return load(from); }
};

struct F16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats all(const Element* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + 8)))};
  }
};

struct Bf16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE __m256 widen(const Element* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static KVCODEC_INLINE Floats all(const Element* from) { return {widen(from), widen(from + 8)}; }
};

template <class Type>
struct PlainRow {
  typedef typename Type::Element Element;
  template <size_t kVectors>
  struct Slice {
    const Element* elements;
    KVCODEC_INLINE Slice(const void* row, size_t from) : elements((const Element*)row + from) {}
    KVCODEC_INLINE Floats all(size_t v) const { return Type::all(elements + v * kLanes); }
    Floats some(size_t v, size_t n) const {
      Element padded[kLanes] = {};
      memcpy(padded, elements + v * kLanes, n * sizeof(Element));
      return Type::all(padded);
    }
  };
  template <size_t kVectors>
  static KVCODEC_INLINE void ask(const void* row, size_t from) {
    const char* bytes = (const char*)((const Element*)row + from);
    for (size_t byte = 0; byte < kVectors * kLanes * sizeof(Element); byte += 64) look_ahead(bytes + byte);
  }
};

/// Decoding is that of lib/quant/two_bit_avx2.cpp: every lane shifts its level to the lowest bits and takes
/// that entry of the group's grid.
template <bool kSigned>
struct LevelRow {
  template <size_t kVectors>
  struct Slice {
    const CodedRow& coded;
    size_t from;
    KVCODEC_INLINE Slice(const void* row, size_t first) : coded(*(const CodedRow*)row), from(first) {}
    KVCODEC_INLINE __m256 half(size_t j, __m256 grid) const {
      const __m256i shifts = _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8);
      uint16_t bytes;
      memcpy(&bytes, coded.levels + j / 4, sizeof(bytes));
      const __m256 values = _mm256_permutevar_ps(grid, _mm256_srlv_epi32(_mm256_set1_epi32(bytes), shifts));
      if (!kSigned) return values;
      const __m256i places = _mm256_setr_epi32(128, 64, 32, 16, 8, 4, 2, 1);
      const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(coded.signs[j / 8]), places);
      const __m256 negative = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
      return _mm256_xor_ps(values, _mm256_and_ps(negative, _mm256_set1_ps(-0.0f)));
    }
    KVCODEC_INLINE Floats all(size_t v) const {
      const size_t j = from + v * kLanes;
      const __m256 steps = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
      const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16((short)coded.scales[j / 32]));
      const __m256 base = _mm256_cvtph_ps(_mm_set1_epi16((short)coded.zeros[j / 32]));
      const __m256 grid = _mm256_add_ps(base, _mm256_mul_ps(steps, scale));
      return {half(j, grid), half(j + 8, grid)};
    }
    KVCODEC_INLINE Floats some(size_t v, size_t) const {
      return all(v);
    }  // not called: dims are whole groups
  };
  template <size_t kVectors>
  static KVCODEC_INLINE void ask(const void* row, size_t from) {
    const CodedRow& ahead = *(const CodedRow*)row;
    look_ahead((const char*)(ahead.levels + from / 4));
    look_ahead((const char*)(ahead.scales + from / 32));
    look_ahead((const char*)(ahead.zeros + from / 32));
    if (kSigned) look_ahead((const char*)(ahead.signs + from / 8));
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

}  // namespace
}  // namespace kvcodec::attention_kernels

#include "lib/attention/attention_kernels_body.hpp"

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::avx2::table() { return kTable; }
