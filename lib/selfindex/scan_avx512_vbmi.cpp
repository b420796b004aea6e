#include <immintrin.h>

#include "lib/selfindex/scan_kernels.hpp"

#define KVCODEC_INLINE inline __attribute__((always_inline))

namespace kvcodec::scan_kernels::avx512_vbmi {
namespace {

constexpr size_t kQuarters = kBlock / kWordTokens;  // registers that hold one word of a block's tokens
constexpr size_t kMostWords = 8;                    // whose tables are kept in registers

/// Up to so many of a block's tokens are picked one by one, more by compressing registers.
constexpr int kPicked = 8;

/// a & b | c
constexpr int kAndOr = 0xea;

struct Sums {
  __m512i quarters[kQuarters];
};

/// The byte sums of one block. kWords > 0: their number, known when compiled.
template <size_t kWords>
KVCODEC_INLINE Sums block_sums(const uint8_t* block, const uint8_t* table, size_t words) {
  const size_t count = kWords > 0 ? kWords : words;
  const __m512i nibble = _mm512_set1_epi8(15), ones = _mm512_set1_epi8(1);
  // Byte p of a word looks in part p of a table.
  const __m512i part = _mm512_set1_epi32(0x30201000);
  Sums sums;
#pragma GCC unroll 4
  for (size_t q = 0; q < kQuarters; ++q) sums.quarters[q] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (size_t w = 0; w < count; ++w) {
    const __m512i high_table = _mm512_load_si512(table + 128 * w);
    const __m512i low_table = _mm512_load_si512(table + 128 * w + 64);
#pragma GCC unroll 4
    for (size_t q = 0; q < kQuarters; ++q) {
      const __m512i codes = _mm512_load_si512(block + (q * count + w) * 64);
      const __m512i high = _mm512_ternarylogic_epi32(_mm512_srli_epi32(codes, 4), nibble, part, kAndOr);
      const __m512i low = _mm512_ternarylogic_epi32(codes, nibble, part, kAndOr);
      sums.quarters[q] =
          _mm512_dpbusd_epi32(sums.quarters[q], _mm512_permutexvar_epi8(high, high_table), ones);
      sums.quarters[q] = _mm512_dpbusd_epi32(sums.quarters[q], _mm512_permutexvar_epi8(low, low_table), ones);
    }
  }
  return sums;
}

/// Writes the lanes of the mask side by side, and rubbish behind them; returns how many they are.
KVCODEC_INLINE size_t put(__m512i sums, __m512i ids, __mmask16 mask, int32_t* sums_out, uint32_t* ids_out) {
  _mm512_storeu_si512(sums_out, _mm512_maskz_compress_epi32(mask, sums));
  _mm512_storeu_si512(ids_out, _mm512_maskz_compress_epi32(mask, ids));
  return (size_t)_mm_popcnt_u32(mask);
}

template <size_t kWords>
size_t scan_words(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit,
                  int32_t* sums_out, uint32_t* ids_out, size_t room, size_t* written) {
  const size_t words = codes.row_bytes / 4;
  const __m512i least = _mm512_set1_epi32(limit);
  const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // Copied, so that the compiler sees that nothing written changes it and keeps it in registers.
  alignas(64) uint8_t kept[kWords > 0 ? kWords * 128 : 64];
  for (size_t i = 0; i < kWords * 128; ++i) kept[i] = table[i];
  size_t found = 0, block = first;
  for (; block < end && found + kScanRoom <= room; ++block) {
    const Sums sums =
        block_sums<kWords>(codes.bytes + block * kBlock * codes.row_bytes, kWords > 0 ? kept : table, words);
    uint64_t mask = 0;
#pragma GCC unroll 4
    for (size_t q = 0; q < kQuarters; ++q)
      mask |= (uint64_t)_mm512_cmpge_epi32_mask(sums.quarters[q], least) << (q * kWordTokens);
    if (mask == 0) continue;
    const size_t token = block * kBlock;
    if (codes.tokens - token < kBlock) mask &= (UINT64_C(1) << (codes.tokens - token)) - 1;  // padding
    if (_mm_popcnt_u64(mask) > kPicked) {
#pragma GCC unroll 4
      for (size_t q = 0; q < kQuarters; ++q) {
        const __m512i ids =
            _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)(token + q * kWordTokens)), step);
        found += put(sums.quarters[q], ids, (__mmask16)(mask >> (q * kWordTokens)), sums_out + found,
                     ids_out + found);
      }
    } else {
      alignas(64) int32_t values[kBlock];
#pragma GCC unroll 4
      for (size_t q = 0; q < kQuarters; ++q) _mm512_store_si512(values + q * kWordTokens, sums.quarters[q]);
      for (; mask != 0; mask &= mask - 1) {
        const unsigned t = (unsigned)__builtin_ctzll(mask);
        sums_out[found] = values[t];
        ids_out[found++] = (uint32_t)(token + t);
      }
    }
  }
  *written = found;
  return block;
}

template <size_t kWords>
void quick_words(const Codes& codes, const uint8_t* table, size_t first, size_t end, float scale,
                 float offset, float* out) {
  const size_t words = codes.row_bytes / 4;
  const __m512 scales = _mm512_set1_ps(scale), offsets = _mm512_set1_ps(offset);
  alignas(64) uint8_t kept[kWords > 0 ? kWords * 128 : 64];
  for (size_t i = 0; i < kWords * 128; ++i) kept[i] = table[i];
  for (size_t block = first; block < end; ++block, out += kBlock) {
    const Sums sums =
        block_sums<kWords>(codes.bytes + block * kBlock * codes.row_bytes, kWords > 0 ? kept : table, words);
#pragma GCC unroll 4
    for (size_t q = 0; q < kQuarters; ++q)
      _mm512_storeu_ps(out + q * kWordTokens,
                       _mm512_add_ps(offsets, _mm512_mul_ps(scales, _mm512_cvtepi32_ps(sums.quarters[q]))));
  }
}

/// Calls kFunction<words> where the tables of so many words stay in registers.
#define KVCODEC_BY_WORDS(function, ...)         \
  switch (codes.row_bytes / 4) {                \
    case 1:                                     \
      return function<1>(__VA_ARGS__);          \
    case 2:                                     \
      return function<2>(__VA_ARGS__);          \
    case 4:                                     \
      return function<4>(__VA_ARGS__);          \
    case kMostWords:                            \
      return function<kMostWords>(__VA_ARGS__); \
    default:                                    \
      return function<0>(__VA_ARGS__);          \
  }

size_t scan(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit, int32_t* sums,
            uint32_t* ids, size_t room, size_t* written) {
  KVCODEC_BY_WORDS(scan_words, codes, table, first, end, limit, sums, ids, room, written)
}

void quick(const Codes& codes, const uint8_t* table, size_t first, size_t end, float scale, float offset,
           float* out){KVCODEC_BY_WORDS(quick_words, codes, table, first, end, scale, offset, out)}

/// Float scores of 64 tokens. The look-up takes the lowest four bits of an index, so nothing is masked.
KVCODEC_INLINE
    void block_exact(const uint8_t* block, const float* table, size_t words, size_t groups, float* out) {
  __m512 sums[kQuarters];
#pragma GCC unroll 4
  for (size_t q = 0; q < kQuarters; ++q) sums[q] = _mm512_setzero_ps();
  for (size_t w = 0; w < words; ++w) {
    __m512i codes[kQuarters];
#pragma GCC unroll 4
    for (size_t q = 0; q < kQuarters; ++q) codes[q] = _mm512_loadu_si512(block + (q * words + w) * 64);
      // The groups of a word in order: the high nibble of each byte, then the low one.
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; ++i) {
      if (8 * w + i >= groups) break;
      const __m512 entries = _mm512_loadu_ps(table + (8 * w + i) * 16);
      const unsigned shift = 8 * (i / 2) + (i % 2 == 0 ? 4 : 0);
#pragma GCC unroll 4
      for (size_t q = 0; q < kQuarters; ++q)
        sums[q] = _mm512_add_ps(sums[q], _mm512_permutexvar_ps(_mm512_srli_epi32(codes[q], shift), entries));
    }
  }
#pragma GCC unroll 4
  for (size_t q = 0; q < kQuarters; ++q) _mm512_storeu_ps(out + q * kWordTokens, sums[q]);
}

void exact(const Codes& codes, const float* table, size_t first, size_t end, float* out) {
  for (size_t block = first; block < end; ++block, out += kBlock)
    block_exact(codes.bytes + block * kBlock * codes.row_bytes, table, codes.row_bytes / 4, codes.groups,
                out);
}

/// 64 tokens, their words brought together for block_exact. Longer rows than that take pieces of words.
constexpr size_t kGathered = 32;

KVCODEC_INLINE void gather_words(const Codes& codes, const uint32_t* ids, size_t n, size_t first_word,
                                 size_t words, uint32_t* out) {
  const size_t all = codes.row_bytes / 4;
  const uint32_t* from = (const uint32_t*)(const void*)codes.bytes;
  for (size_t i = 0; i < kBlock; ++i) {
    const size_t token = ids[i < n ? i : 0];
    const uint32_t* row = from + token / kWordTokens * kWordTokens * all + token % kWordTokens;
    for (size_t w = 0; w < words; ++w)
      out[(i / kWordTokens * words + w) * kWordTokens + i % kWordTokens] =
          row[(first_word + w) * kWordTokens];
  }
}

void exact_of(const Codes& codes, const float* table, const uint32_t* ids, size_t n, float* out) {
  const size_t words = codes.row_bytes / 4;
  uint32_t gathered[kGathered * kBlock];
  float scores[kBlock];
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = n - i < kBlock ? n - i : kBlock;
    if (words <= kGathered) {
      gather_words(codes, ids + i, count, 0, words, gathered);
      block_exact((const uint8_t*)gathered, table, words, codes.groups, scores);
      for (size_t j = 0; j < count; ++j) out[i + j] = scores[j];
    } else {  // rows beyond 1024 dimensions: one token at a time, the order of the sums being what matters
      scalar::words().exact_of(codes, table, ids + i, count, out + i);
    }
  }
}

}  // namespace

const Table& words() {
  static constexpr Table kTable = {scan, quick, exact, exact_of};
  return kTable;
}

}  // namespace kvcodec::scan_kernels::avx512_vbmi
