// Screening by bytes: four products and their sum are one instruction. All else is as in avx512.
#include <immintrin.h>

#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec::omp_kernels {
namespace {

/// The bytes of four rows for 64 atoms, the four of one atom side by side, sixteen atoms in a register.
struct Quads {
  __m512i atoms[4];
};

inline Quads interleaved(const uint8_t* const* rows, size_t first) {
  const __m512i a = _mm512_loadu_si512(rows[0] + first), b = _mm512_loadu_si512(rows[1] + first);
  const __m512i c = _mm512_loadu_si512(rows[2] + first), d = _mm512_loadu_si512(rows[3] + first);
  const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
  return {{_mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
           _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)}};
}

/// Values of kTile atoms, in their order.
constexpr size_t kSums = kTile / 16;
struct ByteTile {
  __m512 values[kSums];
};

inline ByteTile screen_byte_tile(const float* start, const ByteRows& rows, size_t first, bool keep) {
  __m512i high[kSums], low[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    high[i] = _mm512_set1_epi32(rows.high_sum);
    low[i] = _mm512_set1_epi32(rows.low_sum);
  }
  uint8_t* quads_of_tile = rows.quads + first * rows.capacity * 4;
  for (size_t quad = 0; quad < rows.full; ++quad, quads_of_tile += kTile * 4) {
    const __m512i high_weight = _mm512_set1_epi32(static_cast<int>(rows.high[quad]));
    const __m512i low_weight = _mm512_set1_epi32(static_cast<int>(rows.low[quad]));
    for (size_t i = 0; i < kSums; ++i) {
      const __m512i entries = _mm512_loadu_si512(quads_of_tile + 64 * i);
      high[i] = _mm512_dpbusd_epi32(high[i], entries, high_weight);
      low[i] = _mm512_dpbusd_epi32(low[i], entries, low_weight);
    }
  }
  const __m512i high_weight = _mm512_set1_epi32(static_cast<int>(rows.high[rows.full]));
  const __m512i low_weight = _mm512_set1_epi32(static_cast<int>(rows.low[rows.full]));
  for (size_t half = 0; half < kTile / 64; ++half) {
    const Quads quads = interleaved(rows.last, first + 64 * half);
    for (size_t i = 0; i < 4; ++i) {
      if (keep) _mm512_storeu_si512(quads_of_tile + 64 * (4 * half + i), quads.atoms[i]);
      high[4 * half + i] = _mm512_dpbusd_epi32(high[4 * half + i], quads.atoms[i], high_weight);
      low[4 * half + i] = _mm512_dpbusd_epi32(low[4 * half + i], quads.atoms[i], low_weight);
    }
  }
  static_assert(kDigit == 1 << 7);
  const __m512 factor = _mm512_set1_ps(rows.scale);
  ByteTile result;
  for (size_t i = 0; i < kSums; ++i) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[i], 7), low[i]);
    result.values[i] = _mm512_sub_ps(_mm512_loadu_ps(start + first + 16 * i),
                                     _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sum)));
  }
  return result;
}

void screen_bytes(const float* start, const ByteRows& rows, size_t first, size_t last, float* values,
                  float* peaks) {
  for (; first < last; first += kTile) {
    const ByteTile tile = screen_byte_tile(start, rows, first, rows.keep);
    __m512 peak = _mm512_setzero_ps();
    for (size_t i = 0; i < kSums; ++i)
      peak = _mm512_max_ps(_mm512_abs_ps(tile.values[i]), peak);  // peak where it is NaN
    peaks[first / kTile] = _mm512_reduce_max_ps(peak);
    if (!values) continue;
    for (size_t i = 0; i < kSums; ++i) _mm512_storeu_ps(values + first + 16 * i, tile.values[i]);
  }
}

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
  // Double words of the result: the transposition of the layout.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i factors = _mm512_set1_epi16(factor);
  for (size_t j = 0; j < n; j += 64) {
    const __m512i low = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j), factors);
    const __m512i high = _mm512_mulhrs_epi16(_mm512_loadu_si512(words + j + 32), factors);
    const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi16_epi8(low)),
                                             _mm512_cvtsepi16_epi8(high), 1);
    const __m512i offset = _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(kByteOffset)));
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi32(order, offset));
  }
}

}  // namespace

const Kernels& avx512_vnni::table() {
  static const Kernels kTable = [] {
    Kernels kernels = avx512::table();
    kernels.screen_bytes = screen_bytes, kernels.words_to_bytes = words_to_bytes;
    return kernels;
  }();
  return kTable;
}

}  // namespace kvcodec::omp_kernels
