#include "lib/core/vectors.hpp"
#include "lib/entropy/rans_kernels.hpp"

namespace kvcodec::rans_kernels {
namespace {

/// For every set of lanes that take a word: which of the next words each takes.
struct WordOfLane {
  uint8_t of[256][kLanes] = {};
  constexpr WordOfLane() {
    for (size_t set = 0; set < 256; ++set) {
      uint8_t next = 0;
      for (size_t lane = 0; lane < kLanes; ++lane)
        if (set >> lane & 1) of[set][lane] = next++;
    }
  }
};
constexpr WordOfLane kWordOfLane;

void store(__m256i symbols, uint8_t* out) { vectors::store_low_bytes(symbols, out); }
void store(__m256i symbols, uint16_t* out) {
  vectors::store(vectors::low_halves((vectors::Words)symbols), out);
}

/// States below 2^16 take the next words, in lane order.
__m256i take_words(__m256i states, const uint8_t*& words) {
  const __m256i is_low = _mm256_cmpeq_epi32(_mm256_srli_epi32(states, 16), _mm256_setzero_si256());
  const auto set = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(is_low)));
  const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i order =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kWordOfLane.of[set])));
  const __m256i refilled =
      _mm256_or_si256(_mm256_slli_epi32(states, 16), _mm256_permutevar8x32_epi32(next, order));
  words += 2 * static_cast<size_t>(__builtin_popcount(set));
  return _mm256_blendv_epi8(states, refilled, is_low);
}

/// Gathers into a register of zeros, for speed: a gather keeps the elements of its destination that the mask excludes, and so waits for the
/// register's previous value. The compiler must not see that the mask excludes none, or it would omit the zeros.
template <int kScale>
__m256i gather(const int* base, __m256i indices) {
  __m256i all = _mm256_set1_epi32(-1);
  asm("" : "+x"(all));
  return _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), base, indices, all, kScale);
}

/// The table's lookups: gives the states' symbols, one per 32 bits, and what they become without new words.
struct Narrow {
  explicit Narrow(const DecodeTable& table) : entries(reinterpret_cast<const int*>(table.narrow)) {}

  __m256i decode(__m256i& states, __m256i slots, __m128i scale) const {
    const __m256i entry = gather<4>(entries, slots);
    const __m256i offset = _mm256_and_si256(_mm256_srli_epi32(entry, 8), _mm256_set1_epi32(0xfff));
    const __m256i frequency = _mm256_srli_epi32(entry, 20);
    states = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(states, scale)), offset);
    return entry;
  }

  const int* entries;
};

struct Wide {
  explicit Wide(const DecodeTable& table)
      : symbols(reinterpret_cast<const int*>(table.symbols)),
        ranges(reinterpret_cast<const int*>(table.ranges)) {}

  __m256i decode(__m256i& states, __m256i slots, __m128i scale) const {
    const __m256i low = _mm256_set1_epi32(0xffff);
    const __m256i symbol = _mm256_and_si256(gather<2>(symbols, slots), low);
    const __m256i range = gather<4>(ranges, symbol);
    const __m256i offset = _mm256_sub_epi32(slots, _mm256_srli_epi32(range, 16));
    const __m256i frequency = _mm256_and_si256(range, low);
    states = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(states, scale)), offset);
    return symbol;
  }

  const int* symbols;
  const int* ranges;
};

template <size_t kCount, class Table, class Symbol>
void decode_together(const DecodeTable& decode_table, Segment<Symbol>* segments, size_t groups) {
  const Table table(decode_table);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>((1u << decode_table.scale) - 1));
  const __m128i scale = _mm_cvtsi32_si128(static_cast<int>(decode_table.scale));
  __m256i states[kCount];
  const uint8_t* words[kCount];
  Symbol* out[kCount];
  for (size_t i = 0; i < kCount; ++i) {
    states[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(segments[i].states));
    words[i] = segments[i].words;
    out[i] = segments[i].out;
  }
  for (size_t group = 0; group < groups; ++group) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kCount; ++i) {
      const __m256i slots = _mm256_and_si256(states[i], mask);
      store(table.decode(states[i], slots, scale), out[i] + group * kLanes);
      states[i] = take_words(states[i], words[i]);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(segments[i].states), states[i]);
    segments[i].words = words[i];
    segments[i].out = out[i] + groups * kLanes;
  }
}

template <class Table, class Symbol>
void decode_with(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  if (count == 1) return decode_together<1, Table>(table, segments, groups);
  decode_together<kTogether, Table>(table, segments, groups);
}

}  // namespace

template <class Symbol>
void avx2::decode(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  if (sizeof(Symbol) == 1 && table.narrow) return decode_with<Narrow>(table, segments, count, groups);
  decode_with<Wide>(table, segments, count, groups);
}
template void avx2::decode(const DecodeTable&, Segment<uint8_t>*, size_t, size_t);
template void avx2::decode(const DecodeTable&, Segment<uint16_t>*, size_t, size_t);

}  // namespace kvcodec::rans_kernels
