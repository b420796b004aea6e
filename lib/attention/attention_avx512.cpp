#include <immintrin.h>
#include <stdint.h>

#include "lib/attention/attention_kernels.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))

namespace kvcodec::attention_kernels {
namespace {

typedef __m512 Floats;

KVCODEC_INLINE Floats zero() { return _mm512_setzero_ps(); }
KVCODEC_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
KVCODEC_INLINE void store(Floats value, float* to) { _mm512_storeu_ps(to, value); }
KVCODEC_INLINE Floats spread(float value) { return _mm512_set1_ps(value); }
KVCODEC_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
KVCODEC_INLINE void look_ahead(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }

__mmask16 first_lanes(size_t count) { return (__mmask16)((1u << count) - 1); }

/// All 16 trees at once: each step adds one half of the lanes of two vectors to the other and leaves both in
/// one.
KVCODEC_INLINE void fold(const Floats* vectors, float* out) {
  __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(vectors[2 * i], vectors[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(vectors[2 * i], vectors[2 * i + 1], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88),
                            _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
  const __m512 one =
      _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
  // Place 4 l + j has vector 4 j + l.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, one));
}

struct F32 {
  typedef float Element;
  static KVCODEC_INLINE Floats all(const Element* from) { return _mm512_loadu_ps(from); }
  static KVCODEC_INLINE Floats some(const Element* from, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, from);
  }
};

struct F16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats all(const Element* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
  }
  static KVCODEC_INLINE Floats some(const Element* from, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
  }
};

struct Bf16 {
  typedef uint16_t Element;
  static KVCODEC_INLINE Floats widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static KVCODEC_INLINE Floats all(const Element* from) {
    return widen(_mm256_loadu_si256((const __m256i*)from));
  }
  static KVCODEC_INLINE Floats some(const Element* from, __mmask16 mask) {
    return widen(_mm256_maskz_loadu_epi16(mask, from));
  }
};

template <class Type>
struct PlainRow {
  typedef typename Type::Element Element;
  template <size_t kVectors>
  struct Slice {
    const Element* elements;
    KVCODEC_INLINE Slice(const void* row, size_t from) : elements((const Element*)row + from) {}
    KVCODEC_INLINE Floats all(size_t v) const { return Type::all(elements + v * kLanes); }
    KVCODEC_INLINE Floats some(size_t v, size_t n) const {
      return Type::some(elements + v * kLanes, first_lanes(n));
    }
  };
  template <size_t kVectors>
  static KVCODEC_INLINE void ask(const void* row, size_t from) {
    const char* bytes = (const char*)((const Element*)row + from);
    for (size_t byte = 0; byte < kVectors * kLanes * sizeof(Element); byte += 64) look_ahead(bytes + byte);
  }
};

/// The scales of kGroups groups in the lower half, their zeros in the upper one.
template <size_t kGroups>
KVCODEC_INLINE __m512 scales_and_zeros(const uint16_t* scales, const uint16_t* zeros) {
  uint64_t of_scales = 0, of_zeros = 0;
  __builtin_memcpy(&of_scales, scales, kGroups * sizeof(*scales));
  __builtin_memcpy(&of_zeros, zeros, kGroups * sizeof(*zeros));
  const __m128i halves = _mm_set_epi64x((long long)of_zeros, (long long)of_scales);
  return _mm512_castps256_ps512(_mm256_cvtph_ps(halves));
}

/// Decoding is that of lib/quant/two_bit_avx512.cpp: every lane shifts its level to the lowest bits and takes
/// that entry of the group's grid.
template <bool kSigned>
struct LevelRow {
  template <size_t kVectors>
  struct Slice {
    // A slice of an odd number of vectors may begin or end amid a group: it converts one scale at a time.
    static constexpr bool kTogether = kVectors % 2 == 0;
    const CodedRow& coded;
    size_t from;
    __m512 grids;

    KVCODEC_INLINE Slice(const void* row, size_t first) : coded(*(const CodedRow*)row), from(first) {
      if constexpr (kTogether)
        grids = scales_and_zeros<kVectors / 2>(coded.scales + from / 32, coded.zeros + from / 32);
    }
    KVCODEC_INLINE __m512 grid(size_t v) const {
      const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
      __m512 scale, base;
      if constexpr (kTogether) {
        scale = _mm512_permutexvar_ps(_mm512_set1_epi32((int)(v / 2)), grids);
        base = _mm512_permutexvar_ps(_mm512_set1_epi32((int)(v / 2 + 4)), grids);
      } else {
        const size_t group = (from + v * kLanes) / 32;
        scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)coded.scales[group]));
        base = _mm512_cvtph_ps(_mm256_set1_epi16((short)coded.zeros[group]));
      }
      return _mm512_add_ps(base, _mm512_mul_ps(steps, scale));
    }
    KVCODEC_INLINE Floats all(size_t v) const {
      const size_t j = from + v * kLanes;
      const __m512i shifts = _mm512_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24);
      int bytes;
      __builtin_memcpy(&bytes, coded.levels + j / 4, sizeof(bytes));
      const __m512 values =
          _mm512_permutevar_ps(grid(v), _mm512_srlv_epi32(_mm512_set1_epi32(bytes), shifts));
      if constexpr (!kSigned) return values;
      const __m512i places =
          _mm512_setr_epi32(1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1, 1 << 0, 1 << 15, 1 << 14,
                            1 << 13, 1 << 12, 1 << 11, 1 << 10, 1 << 9, 1 << 8);
      uint16_t bits;
      __builtin_memcpy(&bits, coded.signs + j / 8, sizeof(bits));
      const __mmask16 negative = _mm512_testn_epi32_mask(_mm512_set1_epi32(bits), places);
      return _mm512_mask_xor_ps(values, negative, values, _mm512_set1_ps(-0.0f));
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

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::avx512::table() { return kTable; }
