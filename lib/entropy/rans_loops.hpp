// The loop over groups of 8 symbols, for rans_avx2.cpp and rans_avx512.cpp. The file that includes it has
// defined, in an unnamed namespace within its own: the tables Narrow and Wide, store and take_words.
#pragma once

namespace kvcodec::rans_kernels::KVCODEC_RANS_LEVEL {
namespace {

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
void decode_all(const DecodeTable& table, Segment<Symbol>* segments, size_t count, size_t groups) {
  if (count == 1) return decode_together<1, Table>(table, segments, groups);
  decode_together<kTogether, Table>(table, segments, groups);
}

}  // namespace

void decode(const DecodeTable& table, Segment<uint8_t>* segments, size_t count, size_t groups) {
  (table.narrow ? decode_all<Narrow, uint8_t> : decode_all<Wide, uint8_t>)(table, segments, count, groups);
}
void decode(const DecodeTable& table, Segment<uint16_t>* segments, size_t count, size_t groups) {
  decode_all<Wide>(table, segments, count, groups);
}

}  // namespace kvcodec::rans_kernels::KVCODEC_RANS_LEVEL
