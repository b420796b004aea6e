#include <immintrin.h>

#include "lib/selfindex/scan_kernels.hpp"

namespace kvcodec::scan_kernels::avx2 {
namespace {

/// Bytes of a row whose addends (two of at most 255 each) fit 16 bits.
constexpr size_t kSummedTogether = 128;

/// The byte sums of 32 tokens, in four registers of eight.
struct Sums {
  __m256i eighths[4];
};

[[gnu::always_inline]] inline Sums half_block_sums(const uint8_t* codes, const uint8_t* table,
                                                   size_t row_bytes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  Sums sums;
  for (int i = 0; i < 4; ++i) sums.eighths[i] = _mm256_setzero_si256();
  for (size_t from = 0; from < row_bytes; from += kSummedTogether) {
    const size_t end = row_bytes - from < kSummedTogether ? row_bytes : from + kSummedTogether;
    // Adding bytes as 16-bit integers: `all` gets even tokens + 256 * odd tokens, `odd` the odd ones.
    __m256i all = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (size_t byte = from; byte < end; ++byte) {
      const __m256i both = _mm256_load_si256((const __m256i*)(codes + byte * kLaneTokens));
      const __m256i high_table =
          _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)(table + 32 * byte)));
      const __m256i low_table =
          _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)(table + 32 * byte + 16)));
      const __m256i high =
          _mm256_shuffle_epi8(high_table, _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble));
      const __m256i low = _mm256_shuffle_epi8(low_table, _mm256_and_si256(both, nibble));
      all = _mm256_add_epi16(all, _mm256_add_epi16(high, low));
      odd = _mm256_add_epi16(odd, _mm256_add_epi16(_mm256_srli_epi16(high, 8), _mm256_srli_epi16(low, 8)));
    }
    const __m256i even = _mm256_sub_epi16(all, _mm256_slli_epi16(odd, 8));
    const __m256i first = _mm256_unpacklo_epi16(even, odd);   // tokens 0..7, 16..23
    const __m256i second = _mm256_unpackhi_epi16(even, odd);  // tokens 8..15, 24..31
    const __m128i parts[4] = {_mm256_castsi256_si128(first), _mm256_castsi256_si128(second),
                              _mm256_extracti128_si256(first, 1), _mm256_extracti128_si256(second, 1)};
    for (int i = 0; i < 4; ++i)
      sums.eighths[i] = _mm256_add_epi32(sums.eighths[i], _mm256_cvtepu16_epi32(parts[i]));
  }
  return sums;
}

size_t scan(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit,
            int32_t* sums_out, uint32_t* ids_out, size_t room, size_t* written) {
  // Compared as "greater": one less, except for the smallest, which every sum reaches.
  const __m256i below = _mm256_set1_epi32(limit > -1 ? limit - 1 : -1);
  size_t found = 0, block = first;
  for (; block < end && found + kScanRoom <= room; ++block)
    for (size_t half = 0; half < 2; ++half) {
      const size_t token = block * kBlock + half * kLaneTokens;
      const Sums sums = half_block_sums(codes.bytes + token * codes.row_bytes, table, codes.row_bytes);
      uint32_t mask = 0;
      for (int i = 0; i < 4; ++i)
        mask |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(sums.eighths[i], below)))
                << (8 * i);
      if (mask == 0 || token >= codes.tokens) continue;
      if (codes.tokens - token < kLaneTokens) mask &= (1u << (codes.tokens - token)) - 1;  // padding
      alignas(32) int32_t values[kLaneTokens];
      for (int i = 0; i < 4; ++i) _mm256_store_si256((__m256i*)(values + 8 * i), sums.eighths[i]);
      for (; mask != 0; mask &= mask - 1) {
        const unsigned t = (unsigned)__builtin_ctz(mask);
        sums_out[found] = values[t];
        ids_out[found++] = (uint32_t)(token + t);
      }
    }
  *written = found;
  return block;
}

/// The entries of a 16-entry table that the low four bits of each index choose.
[[gnu::always_inline]] inline __m256 look_up(const float* table, __m256i index) {
  const __m256 first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  const __m256 second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
  return _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

void exact(const Codes& codes, const float* table, size_t first, size_t end, float* out) {
  for (size_t token = first * kBlock; token < end * kBlock; token += kLaneTokens, out += kLaneTokens) {
    const uint8_t* rows = codes.bytes + token * codes.row_bytes;
    __m256 sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_setzero_ps();
    for (size_t group = 0; group < codes.groups; ++group) {
      const uint8_t* bytes = rows + group / 2 * kLaneTokens;
      for (int i = 0; i < 4; ++i) {
        const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + 8 * i)));
        sums[i] = _mm256_add_ps(
            sums[i], look_up(table + 16 * group, group % 2 == 0 ? _mm256_srli_epi32(both, 4) : both));
      }
    }
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(out + 8 * i, sums[i]);
  }
}

void exact_of(const Codes& codes, const float* table, const uint32_t* ids, size_t n, float* out) {
  scalar::table().exact_of(codes, table, ids, n, out);  // single rows gain nothing from width
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {scan, exact, exact_of};
  return kTable;
}

}  // namespace kvcodec::scan_kernels::avx2
