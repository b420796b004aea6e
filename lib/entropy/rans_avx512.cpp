#include <immintrin.h>

#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels::avx512 {
namespace {

// A vector holds the states of two segments, one in each half.

/// The table's lookups: gives the states' symbols, one per 32 bits, and what they become without new words.
struct Narrow {
  explicit Narrow(const DecodeTable& table) : entries(table.narrow) {}

  __m512i decode(__m512i& states, __m512i slots, __m128i scale) const {
    const __m512i entry = _mm512_i32gather_epi32(slots, entries, 4);
    const __m512i offset = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xfff));
    const __m512i frequency = _mm512_srli_epi32(entry, 20);
    states = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srl_epi32(states, scale)), offset);
    return entry;
  }

  const uint32_t* entries;
};

struct Wide {
  explicit Wide(const DecodeTable& table) : symbols(table.symbols), ranges(table.ranges) {}

  __m512i decode(__m512i& states, __m512i slots, __m128i scale) const {
    const __m512i low = _mm512_set1_epi32(0xffff);
    const __m512i symbol = _mm512_and_si512(_mm512_i32gather_epi32(slots, symbols, 2), low);
    const __m512i range = _mm512_i32gather_epi32(symbol, ranges, 4);
    const __m512i offset = _mm512_sub_epi32(slots, _mm512_srli_epi32(range, 16));
    const __m512i frequency = _mm512_and_si512(range, low);
    states = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srl_epi32(states, scale)), offset);
    return symbol;
  }

  const uint16_t* symbols;
  const uint32_t* ranges;
};

void store(__m512i symbols, uint8_t* first, uint8_t* second) {
  const __m128i bytes = _mm512_cvtepi32_epi8(symbols);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(first), bytes);
  _mm_storeh_pd(reinterpret_cast<double*>(second), _mm_castsi128_pd(bytes));
}

void store(__m512i symbols, uint16_t* first, uint16_t* second) {
  const __m256i words = _mm512_cvtepi32_epi16(symbols);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm256_castsi256_si128(words));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(second), _mm256_extracti128_si256(words, 1));
}

/// States below 2^16 take the next words of their segment, in lane order.
__m512i take_words(__m512i states, const uint8_t*& first, const uint8_t*& second) {
  const __mmask16 is_low = _mm512_cmplt_epu32_mask(states, _mm512_set1_epi32(kLowestState));
  const auto first_set = static_cast<__mmask8>(is_low), second_set = static_cast<__mmask8>(is_low >> 8);
  const __m256i first_next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
  const __m256i second_next =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(second)));
  const __m512i next =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_expand_epi32(first_set, first_next)),
                         _mm256_maskz_expand_epi32(second_set, second_next), 1);
  first += 2 * static_cast<size_t>(__builtin_popcount(first_set));
  second += 2 * static_cast<size_t>(__builtin_popcount(second_set));
  return _mm512_or_si512(_mm512_mask_slli_epi32(states, is_low, states, 16), next);
}

/// kPairs pairs of segments.
template <size_t kPairs, class Table, class Symbol>
void decode_pairs(const DecodeTable& decode_table, Segment<Symbol>* segments, size_t groups) {
  const Table table(decode_table);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((1u << decode_table.scale) - 1));
  const __m128i scale = _mm_cvtsi32_si128(static_cast<int>(decode_table.scale));
  __m512i states[kPairs];
  const uint8_t* words[2 * kPairs];
  for (size_t i = 0; i < 2 * kPairs; ++i) words[i] = segments[i].words;
  for (size_t i = 0; i < kPairs; ++i) {
    const auto* const first = reinterpret_cast<const __m256i*>(segments[2 * i].states);
    const auto* const second = reinterpret_cast<const __m256i*>(segments[2 * i + 1].states);
    states[i] =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(first)), _mm256_loadu_si256(second), 1);
  }
  for (size_t group = 0; group < groups; ++group) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairs; ++i) {
      const __m512i slots = _mm512_and_si512(states[i], mask);
      store(table.decode(states[i], slots, scale), segments[2 * i].out + group * kLanes,
            segments[2 * i + 1].out + group * kLanes);
      states[i] = take_words(states[i], words[2 * i], words[2 * i + 1]);
    }
  }
  for (size_t i = 0; i < kPairs; ++i) {
    auto* const first = reinterpret_cast<__m256i*>(segments[2 * i].states);
    auto* const second = reinterpret_cast<__m256i*>(segments[2 * i + 1].states);
    _mm256_storeu_si256(first, _mm512_castsi512_si256(states[i]));
    _mm256_storeu_si256(second, _mm512_extracti64x4_epi64(states[i], 1));
  }
  for (size_t i = 0; i < 2 * kPairs; ++i) {
    segments[i].words = words[i];
    segments[i].out += groups * kLanes;
  }
}

template <class Table, class Symbol>
void decode_all(const DecodeTable& table, Segment<Symbol>* segments, size_t groups) {
  decode_pairs<kTogether / 2, Table>(table, segments, groups);
}

}  // namespace

void decode(const DecodeTable& table, Segment<uint8_t>* segments, size_t count, size_t groups) {
  if (count == 1) return avx2::decode(table, segments, count, groups);
  (table.narrow ? decode_all<Narrow, uint8_t> : decode_all<Wide, uint8_t>)(table, segments, groups);
}
void decode(const DecodeTable& table, Segment<uint16_t>* segments, size_t count, size_t groups) {
  if (count == 1) return avx2::decode(table, segments, count, groups);
  decode_all<Wide>(table, segments, groups);
}

}  // namespace kvcodec::rans_kernels::avx512
