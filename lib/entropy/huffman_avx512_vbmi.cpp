// Many runs side by side: where bytes can be permuted (VBMI, VBMI2), the whole code book stands in eight
// registers, and one symbol of 64 runs takes some forty instructions, whatever its codes.
#include <immintrin.h>
#include <stdint.h>

#include "lib/entropy/huffman_kernels.hpp"

namespace kvcodec::huffman_kernels::avx512_vbmi {
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

/// Runs of a set whose bits stand in one register, 64 of each; run 8j + r of the set is lane j of register r,
/// so that where there is a byte for each run, byte r of lane j is its own.
constexpr size_t kRegisters = 8, kRegisterRuns = 8;
static_assert(kRegisters * kRegisterRuns == kSideBySide);

/// 128 bits of a register's runs, the first one highest.
struct Words {
  __m512i first, second;
};

/// The bits of a register's runs from bit `skip` of their bytes on: 121 or more, then zeros. in: 16 bytes or
/// more from each byte on. (Two loads and one instruction for each run: a gather takes twice as long.)
inline Words load(const uint8_t* in, __m512i byte, __m512i skip) {
  alignas(64) uint64_t at[kRegisterRuns];
  _mm512_store_si512(at, byte);
  const auto bytes_of = [&](size_t run) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at[run]));
  };
  const auto four = [&](size_t run) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_of(run)), bytes_of(run + 2), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_of(run + 4)), bytes_of(run + 6), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  };
  const __m512i even = four(0), odd = four(1);
  const __m512i reversing =
      _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
  const __m512i first = _mm512_shuffle_epi8(_mm512_unpacklo_epi64(even, odd), reversing);
  const __m512i second = _mm512_shuffle_epi8(_mm512_unpackhi_epi64(even, odd), reversing);
  return {_mm512_shldv_epi64(first, second, skip), _mm512_sllv_epi64(second, skip)};
}

/// Words whose first `skip` bits are used up, zeros behind their end; any skip.
inline Words skipped(const Words& words, __m512i skip) {
  const __m512i word = _mm512_set1_epi64(64);
  const __mmask8 more = _mm512_cmpge_epu64_mask(skip, word);
  const __m512i near = _mm512_shldv_epi64(words.first, words.second, skip);
  const __m512i far = _mm512_sllv_epi64(words.second, _mm512_sub_epi64(skip, word));
  return {_mm512_mask_mov_epi64(near, more, far), _mm512_sllv_epi64(words.second, skip)};
}

/// Two indices of each run into tables of 128 bytes.
struct Indices {
  __m512i head;  ///< its next kShortBits bits
  __m512i tail;  ///< the last 7 bits of its next window
};

/// The bits of each word from which on eight are taken for the indices, counted from the lowest. Nothing is
/// ever shifted as bits are used up: a multishift takes eight bits from anywhere in a word. The low
/// registers' (0..3) heads come to the low half of a lane and their tails to the high half, the high
/// registers' the other way round, each run's to its byte or four bytes from there.
class Places {
 public:
  Places() = default;
  explicit Places(unsigned window) {
    const __m512i heads = _mm512_set1_epi8(64 - kShortBits);
    const __m512i tails = _mm512_set1_epi8(static_cast<char>(64 - window));
    low_ = _mm512_mask_mov_epi32(heads, kHighHalves, tails);
    high_ = _mm512_mask_mov_epi32(tails, kHighHalves, heads);
  }

  void advance(__m512i lengths) {
    constexpr auto kLowTwice = static_cast<_MM_PERM_ENUM>(0xa0),
                   kHighTwice = static_cast<_MM_PERM_ENUM>(0xf5);
    low_ = _mm512_sub_epi8(low_, _mm512_shuffle_epi32(lengths, kLowTwice));
    high_ = _mm512_sub_epi8(high_, _mm512_shuffle_epi32(lengths, kHighTwice));
  }

  Indices indices_of(const __m512i* words) const {
    constexpr auto kSwapHalves = static_cast<_MM_PERM_ENUM>(0xb1);
    const __m512i low = four_of(words, low_), high = four_of(words + 4, high_);
    return {_mm512_mask_mov_epi32(low, kHighHalves, high),
            _mm512_shuffle_epi32(_mm512_mask_mov_epi32(high, kHighHalves, low), kSwapHalves)};
  }

 private:
  static constexpr __mmask16 kHighHalves = 0xaaaa;

  static __m512i four_of(const __m512i* words, __m512i places) {
    constexpr __mmask64 kSecond = 0x2222222222222222, kFourth = 0x8888888888888888,
                        kUpperTwo = 0xcccccccccccccccc;
    const __m512i first = _mm512_multishift_epi64_epi8(places, words[0]);
    const __m512i third = _mm512_multishift_epi64_epi8(places, words[2]);
    return _mm512_mask_mov_epi8(_mm512_mask_multishift_epi64_epi8(first, kSecond, places, words[1]),
                                kUpperTwo,
                                _mm512_mask_multishift_epi64_epi8(third, kFourth, places, words[3]));
  }

  __m512i low_, high_;
};

/// Two registers, as one table of 128 bytes.
struct Bytes128 {
  __m512i low, high;
  explicit Bytes128(const uint8_t* bytes)
      : low(_mm512_loadu_si512(bytes)), high(_mm512_loadu_si512(bytes + 64)) {}
};
inline __m512i look_up(const Bytes128& table, __m512i index) {  // by the low 7 bits
  return _mm512_permutex2var_epi8(table.low, index, table.high);
}

/// The code book in registers.
struct Book {
  Bytes128 short_lengths, short_symbols, long_lengths, long_symbols;
  __m512i longest_short = _mm512_set1_epi8(kShortBits);
  explicit Book(const SideBySideTable& table)
      : short_lengths(table.short_lengths),
        short_symbols(table.short_symbols),
        long_lengths(table.long_lengths),
        long_symbols(table.long_symbols) {}
};

/// A set's runs.
struct Set {
  __m512i position[kRegisters];                  ///< bits from the start of the input
  __m512i words[kRegisters], later[kRegisters];  ///< their next 64 bits, and those behind them
  Places places;
  __m512i used, used_before;  ///< bits of each word, and what they were before the last symbol
  __m512i top;                ///< largest symbol of each run

  /// last: the last byte that 16 can be read from; behind the end of the input follow zeros.
  void load_words(const uint8_t* in, __m512i last) {
    const __m512i in_byte = _mm512_set1_epi64(7);
    __m512i farthest = position[0];
    for (size_t r = 1; r < kRegisters; ++r) farthest = _mm512_max_epu64(farthest, position[r]);
    const bool beyond = _mm512_cmpgt_epu64_mask(_mm512_srli_epi64(farthest, 3), last) != 0;
#pragma GCC unroll 8
    for (size_t r = 0; r < kRegisters; ++r) {
      const __m512i byte = _mm512_min_epu64(_mm512_srli_epi64(position[r], 3), last);
      Words both;
      if (__builtin_expect(beyond, 0))
        both = skipped(load(in, byte, _mm512_setzero_si512()),
                       _mm512_sub_epi64(position[r], _mm512_slli_epi64(byte, 3)));
      else
        both = load(in, byte, _mm512_and_si512(position[r], in_byte));
      words[r] = both.first, later[r] = both.second;
    }
  }

  /// Goes on with the bits that are left of the first words and those behind them.
  void shift_words() {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRegisters; ++r) words[r] = _mm512_shldv_epi64(words[r], later[r], used_of(r));
  }

  void start(const Places& first) {
    places = first;
    used = used_before = _mm512_setzero_si512();
  }

  void next(const Book& book, uint8_t* out) {
    const Indices index = places.indices_of(words);
    const __m512i short_length = look_up(book.short_lengths, index.head);
    // Short lengths are no more than any long one, and 255 where a long code starts.
    const __m512i lengths = _mm512_min_epu8(short_length, look_up(book.long_lengths, index.tail));
    places.advance(lengths);
    used_before = used;
    used = _mm512_add_epi8(used, lengths);
    const __mmask64 is_long = _mm512_cmpgt_epu8_mask(short_length, book.longest_short);
    const __m512i symbols = _mm512_mask_mov_epi8(look_up(book.short_symbols, index.head), is_long,
                                                 look_up(book.long_symbols, index.tail));
    _mm512_storeu_si512(out, symbols);
    top = _mm512_max_epu8(top, symbols);
  }

  void advance_positions() {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRegisters; ++r)
      position[r] = _mm512_add_epi64(position[r], _mm512_and_si512(used_of(r), _mm512_set1_epi64(0xff)));
  }

 private:
  /// In the low byte of each lane.
  __m512i used_of(size_t r) const { return _mm512_srli_epi64(used, static_cast<unsigned>(8 * r)); }
};

/// kSets sets are decoded in step, so that one's instructions are there to be executed while another's wait.
template <size_t kSets>
inline void decode_sets(const SideBySideTable& table, const uint8_t* in, size_t in_bytes, size_t n,
                        uint32_t* bit, SideBySideOut out, uint8_t* largest) {
  const __m512i last = _mm512_set1_epi64(static_cast<long long>(in_bytes - kSideBySideInput));
  const Book book(table);
  const Places first(table.window);
  // As long as no run has used up more than this of the 57 bits that it has at least, all have a whole
  // window.
  const __m512i most = _mm512_set1_epi8(static_cast<char>(57 - table.window));
  const auto bits_of = [&](size_t s, size_t r) {
    return reinterpret_cast<__m256i*>(bit + s * kSideBySide + r * kRegisterRuns);
  };
  Set sets[kSets];
  for (size_t s = 0; s < kSets; ++s) {
    sets[s].top = _mm512_setzero_si512();
    for (size_t r = 0; r < kRegisters; ++r)
      sets[s].position[r] = _mm512_cvtepu32_epi64(_mm256_loadu_si256(bits_of(s, r)));
  }
  const auto next = [&](size_t i) {
#pragma GCC unroll 2
    for (size_t s = 0; s < kSets; ++s)
      sets[s].next(book, out.to + i * out.symbol_stride + s * out.set_stride);
  };
  const auto too_far = [&](__m512i used, __m512i used_by_last) {
    return _mm512_cmpgt_epu8_mask(kSets == 1 ? used : _mm512_max_epu8(used, used_by_last), most) != 0;
  };
  const size_t batches = (n + table.batch - 1) / table.batch, batch = (n + batches - 1) / batches;
  bool have_later = false;
  for (size_t i = 0; i < n; have_later = !have_later) {
    __m512i top[kSets];
    for (size_t s = 0; s < kSets; ++s) {
      if (have_later)
        sets[s].shift_words();
      else
        sets[s].load_words(in, last);
      sets[s].start(first);
      top[s] = sets[s].top;
    }
    // A batch is decoded without looking: a branch that depends on the data would be mispredicted for every
    // load. What turns out to have run dry is decoded again.
    const size_t begin = i, end = n - i < batch ? n : i + batch;
    for (; i < end; ++i) next(i);
    if (__builtin_expect(too_far(sets[0].used_before, sets[kSets - 1].used_before), 0)) {
      for (size_t s = 0; s < kSets; ++s) sets[s].start(first), sets[s].top = top[s];
      i = begin;
      do next(i);
      while (++i < end && !too_far(sets[0].used, sets[kSets - 1].used));
    }
    for (size_t s = 0; s < kSets; ++s) sets[s].advance_positions();
  }
  for (size_t s = 0; s < kSets; ++s) {
    _mm512_storeu_si512(largest + s * kSideBySide, sets[s].top);
    for (size_t r = 0; r < kRegisters; ++r)
      _mm256_storeu_si256(bits_of(s, r), _mm512_cvtepi64_epi32(sets[s].position[r]));
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

void decode_side_by_side(const SideBySideTable& table, const uint8_t* in, size_t in_bytes, size_t sets,
                         size_t n, uint32_t* bit, SideBySideOut out, uint8_t* largest) {
  if (sets == 1)
    decode_sets<1>(table, in, in_bytes, n, bit, out, largest);
  else
    decode_sets<2>(table, in, in_bytes, n, bit, out, largest);
}

void copy_side_by_side(const uint8_t* symbols, size_t n, uint8_t* to, size_t to_stride) {
  for (size_t i = 0; i < n; i += kTile)
    copy_tile(symbols + i * kSideBySide, n - i < kTile ? n - i : kTile, to + i, to_stride);
}

}  // namespace

const SideBySideKernels* side_by_side() {
  static constexpr SideBySideKernels kKernels = {decode_side_by_side, copy_side_by_side};
  return &kKernels;
}

}  // namespace kvcodec::huffman_kernels::avx512_vbmi
