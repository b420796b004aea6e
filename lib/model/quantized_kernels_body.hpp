// dequantize (tensor_type.hpp), compiled three times: by tensor_type.cpp for every machine and by
// quantized_kernels_avx2.cpp and quantized_kernels_avx512.cpp with wider instructions. They are written in
// vectors of as many values as a register holds: compilers unroll loops of 16 before they could make them
// wide. Products and sums are never fused, so that the results are the same everywhere. Everything is in an
// unnamed namespace, so that no file can get another's copy (see lib/core/cpu.hpp).
//
// Notation: x a value, q its number as stored, d and m scales in f16, s and t the small scales of a run of
// values within a block of 256. Nibbles: of a byte, the lower one belongs to the earlier value.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "lib/core/variants.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of one file only

namespace kvcodec::quantized_kernels {

/// One instruction set's functions, in the order of TensorType from q4_0 on: each takes a number of whole
/// blocks, at any address.
struct Table {
  void (*dequantize[14])(const uint8_t* blocks, float* out, size_t count);
};

KVCODEC_VARIANTS(const Table& table();)

namespace {

#define KVCODEC_INLINE [[gnu::always_inline]] inline

constexpr int kWidth = KVCODEC_REGISTER_FLOATS;
typedef int32_t Ints __attribute__((vector_size(kWidth * sizeof(int32_t))));
typedef float Floats __attribute__((vector_size(kWidth * sizeof(float))));
using Levels = int8_t[16];

// The levels of the iq4 types.
constexpr Levels kLevels = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the levels of mxfp4.
constexpr Levels kTwiceE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

KVCODEC_INLINE uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  memcpy(&word, from, sizeof(word));
  return word;
}

// Bytes as numbers, without and with a sign, and the levels of their lower (shift 0) or upper nibbles (shift 4). Compilers
// would take the bytes one by one.
#ifdef __AVX2__

#ifdef __AVX512F__
KVCODEC_INLINE __m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
KVCODEC_INLINE Ints widened(__m128i bytes) { return (Ints)_mm512_cvtepu8_epi32(bytes); }
KVCODEC_INLINE Ints widened_signed(__m128i bytes) { return (Ints)_mm512_cvtepi8_epi32(bytes); }
#else
KVCODEC_INLINE __m128i load(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
KVCODEC_INLINE Ints widened(__m128i bytes) { return (Ints)_mm256_cvtepu8_epi32(bytes); }
KVCODEC_INLINE Ints widened_signed(__m128i bytes) { return (Ints)_mm256_cvtepi8_epi32(bytes); }
#endif

KVCODEC_INLINE Ints bytes_at(const uint8_t* from) { return widened(load(from)); }
KVCODEC_INLINE Ints signed_bytes_at(const uint8_t* from) { return widened_signed(load(from)); }
KVCODEC_INLINE Ints levels_at(const uint8_t* from, int shift, const Levels& levels) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  const __m128i nibbles = _mm_and_si128(_mm_srli_epi16(load(from), shift), _mm_set1_epi8(15));
  return widened_signed(_mm_shuffle_epi8(table, nibbles));
}

#else

#ifdef __SSE2__
KVCODEC_INLINE Ints bytes_at(const uint8_t* from) {
  const __m128i bytes = _mm_cvtsi32_si128(static_cast<int>(word_at(from))), zero = _mm_setzero_si128();
  return (Ints)_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero);
}
#else
KVCODEC_INLINE Ints bytes_at(const uint8_t* from) { return Ints{from[0], from[1], from[2], from[3]}; }
#endif
KVCODEC_INLINE Ints signed_bytes_at(const uint8_t* from) { return bytes_at(from) << 24 >> 24; }
KVCODEC_INLINE Ints levels_at(const uint8_t* from, int shift, const Levels& levels) {
  return Ints{levels[from[0] >> shift & 15], levels[from[1] >> shift & 15], levels[from[2] >> shift & 15],
              levels[from[3] >> shift & 15]};
}

#endif

KVCODEC_INLINE Floats floats(const Ints& q) { return __builtin_convertvector(q, Floats); }

/// Writes 16 values; values_at(i) is a vector of those from i on.
template <class ValuesAt>
KVCODEC_INLINE void write_16(float* out, const ValuesAt& values_at) {
  for (int i = 0; i < 16; i += kWidth) {
    const Floats values = values_at(i);
    memcpy(out + i, &values, sizeof(values));
  }
}

constexpr int kSmall = 32;   // values of a block of the simple types
constexpr int kLarge = 256;  // of the others, which have scales within the block

/// An f16 at any address; the same bits as f16_to_float gives.
KVCODEC_INLINE float half_at(const uint8_t* from) {
  uint16_t half;
  memcpy(&half, from, sizeof(half));
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  uint32_t bits = (exponent + 112) << 23 | mantissa << 13;
  if (exponent == 0x1f) bits = 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in float
    memcpy(&bits, &magnitude, sizeof(bits));
  }
  bits |= sign;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Bits of the word from the given one on, times 16: the q5 types put them above the nibble.
KVCODEC_INLINE Ints fifth_bits(uint32_t word, int first) {
  Ints bits = {};
  for (int i = 0; i < kWidth; ++i) bits[i] = 1 << i;
  return (((static_cast<int32_t>(word >> first)) & bits) != 0) & 16;
}

/// x = d q + m, or without m x = d (q - 8), d (q - 16) for q of 5 bits; d, m, of 5 bits a word of bit 4 of each q, and 16 bytes of
/// nibbles: q of values i and i + 16.
template <bool kFifth, bool kMinimum>
struct Nibbles {
  static constexpr size_t kHead = (kMinimum ? 4 : 2) + (kFifth ? 4 : 0), kBytes = kHead + 16,
                          kValues = kSmall;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from), m = kMinimum ? half_at(from + 2) : 0;
    const uint32_t high = kFifth ? word_at(from + kHead - 4) : 0;
    for (int first = 0; first < kSmall; first += 16)
      write_16(out + first, [&](int i) {
        const Ints bytes = bytes_at(from + kHead + i), nibbles = first == 0 ? bytes & 15 : bytes >> 4;
        const Ints q = kFifth ? nibbles | fifth_bits(high, first + i) : nibbles;
        return kMinimum ? d * floats(q) + m : d * floats(q - (kFifth ? 16 : 8));
      });
  }
};

/// x = d q; d, 32 signed bytes.
struct Q8_0 {
  static constexpr size_t kBytes = 34, kValues = kSmall;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from);
    const uint8_t* q = from + 2;
    for (int half = 0; half < kSmall; half += 16)
      write_16(out + half, [&](int i) { return d * floats(signed_bytes_at(q + half + i)); });
  }
};

/// x = (d s) q - (m t), q of 2 bits; 16 bytes of nibbles s, t for 16 values each; 64 bytes of q: byte i of
/// half h holds values i, i + 32, i + 64, i + 96 of that half, lowest bits first; d, m.
struct Q2_K {
  static constexpr size_t kBytes = 84, kValues = kLarge;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from + 80), m = half_at(from + 82);
    for (int run = 0; run < 16; ++run) {
      const float scale = d * static_cast<float>(from[run] & 15),
                  low = m * static_cast<float>(from[run] >> 4);
      const uint8_t* q = from + 16 + run / 8 * 32 + run % 2 * 16;
      const int shift = run % 8 / 2 * 2;
      write_16(out + 16 * run, [&](int i) { return scale * floats(bytes_at(q + i) >> shift & 3) - low; });
    }
  }
};

/// x = (d s) q, q in -4..3; 32 bytes: bit g of byte i is set unless 4 is taken off value 32 g + i; 64 bytes of
/// the lower 2 bits, as in q2_k; 16 times 6 bits s + 32, for 16 values each: 8 bytes of nibbles (s of runs i
/// and i + 8), 4 bytes of the upper bits (of runs i, i + 4, i + 8, i + 12); d.
struct Q3_K {
  static constexpr size_t kBytes = 110, kValues = kLarge;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from + 108);
    const uint8_t* small = from + 96;
    for (int run = 0; run < 16; ++run) {
      const int lower = run < 8 ? small[run] & 15 : small[run - 8] >> 4;
      const int upper = small[8 + run % 4] >> (run / 4 * 2) & 3;
      const float scale = d * static_cast<float>((lower | upper << 4) - 32);
      const uint8_t *q = from + 32 + run / 8 * 32 + run % 2 * 16, *kept = from + run % 2 * 16;
      const int shift = run % 8 / 2 * 2, bit = run / 2;
      write_16(out + 16 * run, [&](int i) {
        return scale * floats((bytes_at(q + i) >> shift & 3) - 4 + (bytes_at(kept + i) >> bit & 1) * 4);
      });
    }
  }
};

/// The scales of q4_k and q5_k: 8 times 6 bits s and 6 bits t in 12 bytes. The first four s stand in the lower
/// 6 bits of bytes 0 to 3, t in those of bytes 4 to 7; the others have their lower 4 bits in bytes 8 to 11, s
/// and t as nibbles, and their upper 2 bits above those of the first four.
struct SmallScales {
  float scale[8], low[8];

  KVCODEC_INLINE SmallScales(const uint8_t* from, float d, float m) {
    for (int i = 0; i < 4; ++i) {
      scale[i] = d * static_cast<float>(from[i] & 63);
      low[i] = m * static_cast<float>(from[i + 4] & 63);
      scale[i + 4] = d * static_cast<float>((from[i + 8] & 15) | (from[i] >> 2 & 48));
      low[i + 4] = m * static_cast<float>(from[i + 8] >> 4 | (from[i + 4] >> 2 & 48));
    }
  }
};

/// x = (d s) q - (m t); d, m, small scales for 32 values each, of 5 bits 32 bytes: bit g of byte i is bit 4 of the q of value
/// 32 g + i; 128 bytes of nibbles: byte i of quarter g holds values 64 g + i and 64 g + i + 32.
template <bool kFifth>
struct LargeNibbles {
  static constexpr size_t kHead = kFifth ? 48 : 16, kBytes = kHead + 128, kValues = kLarge;
  static void block(const uint8_t* from, float* out) {
    const SmallScales small(from + 4, half_at(from), half_at(from + 2));
    for (int run = 0; run < 8; ++run) {
      const float scale = small.scale[run], low = small.low[run];
      const uint8_t* q = from + kHead + run / 2 * 32;
      const int shift = run % 2 * 4;
      for (int half = 0; half < 32; half += 16)
        write_16(out + 32 * run + half, [&](int i) {
          const Ints nibbles = bytes_at(q + half + i) >> shift & 15;
          if constexpr (!kFifth) return scale * floats(nibbles) - low;
          return scale * floats(nibbles | (bytes_at(from + 16 + half + i) >> run & 1) << 4) - low;
        });
    }
  }
};

/// x = (d s) (q - 32); 128 bytes of nibbles: byte i of half h holds values i and i + 64 of that half; 64 bytes
/// of the upper 2 bits, as in q2_k; 16 signed bytes s, for 16 values each; d.
struct Q6_K {
  static constexpr size_t kBytes = 210, kValues = kLarge;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from + 208);
    for (int run = 0; run < 16; ++run) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(from[192 + run]));
      const uint8_t* lower = from + run / 8 * 64 + run % 4 * 16;
      const uint8_t* upper = from + 128 + run / 8 * 32 + run % 2 * 16;
      const int lower_shift = run % 8 / 4 * 4, upper_shift = run % 8 / 2 * 2;
      write_16(out + 16 * run, [&](int i) {
        const Ints high = bytes_at(upper + i) >> upper_shift & 3;
        return scale * floats(((bytes_at(lower + i) >> lower_shift & 15) | high << 4) - 32);
      });
    }
  }
};

/// Writes 32 values, x = scale level(q), of nibbles as in Nibbles.
KVCODEC_INLINE void write_levels(const uint8_t* q, const Levels& levels, float scale, float* out) {
  for (int half = 0; half < 2; ++half)
    write_16(out + 16 * half, [&](int i) { return scale * floats(levels_at(q + i, 4 * half, levels)); });
}

/// x = d level(q); as Nibbles.
struct Iq4Nl {
  static constexpr size_t kBytes = 18, kValues = kSmall;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from);
    write_levels(from + 2, kLevels, d, out);
  }
};

/// x = (d s) level(q); d, 8 times 6 bits s + 32 for 32 values each: a word of the upper 2 bits, lowest first,
/// and 4 bytes of nibbles; then for each 32 values nibbles as in Nibbles.
struct Iq4Xs {
  static constexpr size_t kBytes = 136, kValues = kLarge;
  static void block(const uint8_t* from, float* out) {
    const float d = half_at(from);
    const int upper = from[2] | from[3] << 8;
    for (int run = 0; run < 8; ++run) {
      const int lower = from[4 + run / 2] >> (run % 2 * 4) & 15;
      const float scale = d * static_cast<float>((lower | (upper >> 2 * run & 3) << 4) - 32);
      const uint8_t* q = from + 8 + 16 * run;
      write_levels(q, kLevels, scale, out + 32 * run);
    }
  }
};

/// x = 2^(e - 128) twice the level(q); e in a byte, nibbles as in Nibbles (the MX formats of the Open Compute Project).
struct Mxfp4 {
  static constexpr size_t kBytes = 17, kValues = kSmall;
  static void block(const uint8_t* from, float* out) {
    // The smallest two are subnormal.
    const uint32_t exponent = from[0], bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    write_levels(from + 1, kTwiceE2m1, scale, out);
  }
};

struct E4m3 {
  static constexpr size_t kValues = 32, kBytes = 36;
  static void block(const uint8_t* from, float* out) {
    float scale;
    memcpy(&scale, from, sizeof scale);
    for (size_t j = 0; j < kValues; ++j) {
      // Exponent and mantissa where a float has them, whose exponents begin 120 lower.
      const uint32_t code = from[sizeof scale + j], bits = (code & 0x80) << 24 | (code & 0x7f) << 20;
      float value;
      memcpy(&value, &bits, sizeof value);
      out[j] = value * 0x1p120f * scale;
    }
  }
};

template <class Type>
void dequantize(const uint8_t* blocks, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) Type::block(blocks + i * Type::kBytes, out + i * Type::kValues);
}

constexpr Table kTable = {{dequantize<Nibbles<false, false>>, dequantize<Nibbles<false, true>>,
                           dequantize<Nibbles<true, false>>, dequantize<Nibbles<true, true>>,
                           dequantize<Q8_0>, dequantize<Q2_K>, dequantize<Q3_K>,
                           dequantize<LargeNibbles<false>>, dequantize<LargeNibbles<true>>, dequantize<Q6_K>,
                           dequantize<Iq4Nl>, dequantize<Iq4Xs>, dequantize<Mxfp4>, dequantize<E4m3>}};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::quantized_kernels
