// Many runs side by side: where bytes can be permuted (VBMI, VBMI2), the whole code book stands in eight
// registers, and one symbol of 64 runs takes some forty instructions, whatever its codes.
#include <immintrin.h>
#include <stdint.h>

#include "lib/entropy/huffman_kernels.hpp"

#define KVCODEC_VBMI __attribute__((target("avx512vbmi,avx512vbmi2")))

namespace kvcodec::huffman_kernels::avx512 {
namespace {

constexpr size_t kTile = 64;
static_assert(kSideBySide == kTile);

/// In each quarter of four registers, exchanges registers and 32-bit lanes.
inline void transpose_lanes(const __m512i* in, __m512i* out) {
  const __m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i c = _mm512_unpacklo_epi32(in[2], in[3]), d = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}

/// Exchanges four registers and their quarters.
inline void transpose_quarters(const __m512i* in, __m512i* out) {
  // Quarters 0 and 1 of two registers, then 2 and 3.
  const __m512i a = _mm512_shuffle_i32x4(in[0], in[1], 0x44), b = _mm512_shuffle_i32x4(in[0], in[1], 0xee);
  const __m512i c = _mm512_shuffle_i32x4(in[2], in[3], 0x44), d = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
  out[0] = _mm512_shuffle_i32x4(a, c, 0x88), out[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
  out[2] = _mm512_shuffle_i32x4(b, d, 0x88), out[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/// 16 of the 64 runs of a set: run 4j + g is 32-bit lane j of group g, so that where there is a byte for each
/// run, byte g of lane j is its own.
struct Group {
  __m512i bits;        ///< the next 32 bits of each run, the first one highest
  __m512i bits_after;  ///< those behind them: 25 or more, then zeros
};
constexpr size_t kGroups = 4, kGroupLanes = 16;
static_assert(kGroups * kGroupLanes == kSideBySide);

/// The bits of a group's runs from their positions on; last: the last byte that 8 bytes can be read from.
/// Behind the end of the input follow zeros.
KVCODEC_VBMI inline Group load(const uint8_t* in, __m512i last, __m512i position) {
  const __m512i byte = _mm512_min_epu32(_mm512_srli_epi32(position, 3), last);
  const __m512i skip = _mm512_sub_epi32(position, _mm512_slli_epi32(byte, 3));
  const __m512i reversing =
      _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
  const auto words = [&](__m256i bytes, __m256i skips) KVCODEC_VBMI {
    const __m512i big_endian = _mm512_shuffle_epi8(_mm512_i32gather_epi64(bytes, in, 1), reversing);
    return _mm512_sllv_epi64(big_endian, _mm512_cvtepu32_epi64(skips));
  };
  const __m512i low = words(_mm512_castsi512_si256(byte), _mm512_castsi512_si256(skip));
  const __m512i high = words(_mm512_extracti64x4_epi64(byte, 1), _mm512_extracti64x4_epi64(skip, 1));
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_epi32(low, odd, high), _mm512_permutex2var_epi32(low, even, high)};
}

KVCODEC_VBMI inline void skip(Group& group,
                              __m512i lengths) {  // lengths modulo 32: what stands above is ignored
  group.bits = _mm512_shldv_epi32(group.bits, group.bits_after, lengths);
  group.bits_after = _mm512_shldv_epi32(group.bits_after, _mm512_setzero_si512(), lengths);
}

/// Which eight of a lane's bits bytes_of takes: from bit `first` on, bit 31 being the next one.
inline __m512i from_bit(unsigned first) {
  return _mm512_set1_epi64(static_cast<long long>(0x0101010101010101 * first + 0x2020202000000000));
}

/// Eight bits of each run, in a byte each.
KVCODEC_VBMI inline __m512i bytes_of(const Group* groups, __m512i from) {
  constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaa, kHigh = 0xcccccccccccccccc;
  __m512i bytes[kGroups];
  for (size_t g = 0; g < kGroups; ++g) bytes[g] = _mm512_multishift_epi64_epi8(from, groups[g].bits);
  return _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(bytes[0], kOdd, bytes[1]), kHigh,
                              _mm512_mask_mov_epi8(bytes[2], kOdd, bytes[3]));
}

/// Two registers, as one table of 128 bytes.
struct Bytes128 {
  __m512i low, high;
  explicit Bytes128(const uint8_t* bytes)
      : low(_mm512_loadu_si512(bytes)), high(_mm512_loadu_si512(bytes + 64)) {}
};
KVCODEC_VBMI inline __m512i look_up(const Bytes128& table, __m512i index) {  // by the low 7 bits
  return _mm512_permutex2var_epi8(table.low, index, table.high);
}

/// kSets sets are decoded in step, so that one's instructions are there to be executed while another's wait.
template <size_t kSets>
KVCODEC_VBMI inline void decode_sets(const SideBySideTable& table, const uint8_t* in, size_t in_bytes,
                                     size_t n, uint32_t* bit, uint8_t* out, uint8_t* largest) {
  const __m512i last = _mm512_set1_epi32(static_cast<int>(in_bytes - 8));
  const __m512i short_index = from_bit(32 - kShortBits), long_index = from_bit(32 - table.window);
  const __m512i longest_short = _mm512_set1_epi8(kShortBits), low_byte = _mm512_set1_epi32(0xff);
  const Bytes128 short_lengths(table.short_lengths), short_symbols(table.short_symbols);
  const Bytes128 long_lengths(table.long_lengths), long_symbols(table.long_symbols);
  // As long as no run has used up more than this of the 57 bits that it has at least, all have a whole
  // window.
  const __m512i most = _mm512_set1_epi8(static_cast<char>(57 - table.window));
  __m512i position[kSets][kGroups], top[kSets];
  for (size_t s = 0; s < kSets; ++s) {
    top[s] = _mm512_setzero_si512();
    __m512i runs[4], mixed[4];
    for (size_t q = 0; q < 4; ++q) runs[q] = _mm512_loadu_si512(bit + s * kSideBySide + 16 * q);
    transpose_quarters(runs, mixed);
    transpose_lanes(mixed, position[s]);
  }
  for (size_t i = 0; i < n;) {
    Group groups[kSets][kGroups];
    __m512i used[kSets], most_used;  // bits of each run
#pragma GCC unroll 2
    for (size_t s = 0; s < kSets; ++s) {
      used[s] = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (size_t g = 0; g < kGroups; ++g) groups[s][g] = load(in, last, position[s][g]);
    }
    do {
#pragma GCC unroll 2
      for (size_t s = 0; s < kSets; ++s) {
        const __m512i head = bytes_of(groups[s], short_index), tail = bytes_of(groups[s], long_index);
        const __m512i short_length = look_up(short_lengths, head);
        // Short lengths are no more than any long one, and 255 where a long code starts.
        const __m512i lengths = _mm512_min_epu8(short_length, look_up(long_lengths, tail));
        skip(groups[s][0], lengths);
        skip(groups[s][1], _mm512_srli_epi32(lengths, 8));
        skip(groups[s][2], _mm512_srli_epi32(lengths, 16));
        skip(groups[s][3], _mm512_srli_epi32(lengths, 24));
        const __mmask64 is_long = _mm512_cmpgt_epu8_mask(short_length, longest_short);
        const __m512i symbols =
            _mm512_mask_mov_epi8(look_up(short_symbols, head), is_long, look_up(long_symbols, tail));
        _mm512_storeu_si512(out + (s * n + i) * kSideBySide, symbols);
        top[s] = _mm512_max_epu8(top[s], symbols);
        used[s] = _mm512_add_epi8(used[s], lengths);
      }
      most_used = kSets == 1 ? used[0] : _mm512_max_epu8(used[0], used[kSets - 1]);
      ++i;
    } while (i < n && _mm512_cmpgt_epu8_mask(most_used, most) == 0);
    for (size_t s = 0; s < kSets; ++s)
#pragma GCC unroll 4
      for (size_t g = 0; g < kGroups; ++g) {
        const __m512i bits = _mm512_srli_epi32(used[s], static_cast<unsigned>(8 * g));
        position[s][g] = _mm512_add_epi32(position[s][g], _mm512_and_si512(bits, low_byte));
      }
  }
  for (size_t s = 0; s < kSets; ++s) {
    _mm512_storeu_si512(largest + s * kSideBySide, top[s]);
    __m512i runs[4], mixed[4];
    transpose_lanes(position[s], mixed);
    transpose_quarters(mixed, runs);
    for (size_t q = 0; q < 4; ++q) _mm512_storeu_si512(bit + s * kSideBySide + 16 * q, runs[q]);
  }
}

/// Symbols 0..63 of 64 runs, to rows of n <= 64 symbols: 64 x 64 bytes are transposed, first four symbols of
/// a run each into a 32-bit lane, then 16 x 16 such lanes.
inline void copy_tile(const uint8_t* symbols, size_t n, uint8_t* to, size_t to_stride) {
  __m512i fours[4][16];  // [k][q]: symbols 4q..4q+3 of runs 16l + 4k + m; l, m = 0..3 is lane 4l + m
#pragma GCC unroll 2
  for (size_t q = 0; q < 16; ++q) {
    const auto row = [&](size_t i) { return _mm512_loadu_si512(symbols + (4 * q + i) * kSideBySide); };
    const __m512i a = row(0), b = row(1), c = row(2), d = row(3);
    const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
    fours[0][q] = _mm512_unpacklo_epi16(ab_low, cd_low);
    fours[1][q] = _mm512_unpackhi_epi16(ab_low, cd_low);
    fours[2][q] = _mm512_unpacklo_epi16(ab_high, cd_high);
    fours[3][q] = _mm512_unpackhi_epi16(ab_high, cd_high);
  }
  const __mmask64 within = ~uint64_t{0} >> (kTile - n);
  for (size_t k = 0; k < 4; ++k) {
    __m512i sixteens[4][4], runs[4];  // [m][p], quarter l: symbols 16p..16p+15 of run 16l + 4k + m
#pragma GCC unroll 4
    for (size_t p = 0; p < 4; ++p) {
      __m512i by_m[4];
      transpose_lanes(fours[k] + 4 * p, by_m);
      for (size_t m = 0; m < 4; ++m) sixteens[m][p] = by_m[m];
    }
#pragma GCC unroll 4
    for (size_t m = 0; m < 4; ++m) {
      transpose_quarters(sixteens[m], runs);
#pragma GCC unroll 4
      for (size_t l = 0; l < 4; ++l)
        _mm512_mask_storeu_epi8(to + (16 * l + 4 * k + m) * to_stride, within, runs[l]);
    }
  }
}

}  // namespace

bool have_side_by_side() {
  static const bool machine = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  return machine;
}

KVCODEC_VBMI void decode_side_by_side(const SideBySideTable& table, const uint8_t* in, size_t in_bytes,
                                      size_t sets, size_t n, uint32_t* bit, uint8_t* out, uint8_t* largest) {
  if (sets == 1)
    decode_sets<1>(table, in, in_bytes, n, bit, out, largest);
  else
    decode_sets<2>(table, in, in_bytes, n, bit, out, largest);
}

void copy_side_by_side(const uint8_t* symbols, size_t n, uint8_t* to, size_t to_stride) {
  for (size_t i = 0; i < n; i += kTile)
    copy_tile(symbols + i * kSideBySide, n - i < kTile ? n - i : kTile, to + i, to_stride);
}

}  // namespace kvcodec::huffman_kernels::avx512
