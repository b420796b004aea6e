// huffman_scalar.cpp with BMI2: shifts by a variable that take one instruction and leave the flags alone. And
// vectors to copy what was decoded.
#include <immintrin.h>

#include "lib/entropy/huffman_loops.hpp"

namespace kvcodec::huffman_kernels {
namespace {

__m256i splat(uint8_t symbol) { return _mm256_set1_epi8(static_cast<char>(symbol)); }
__m256i splat(uint16_t symbol) { return _mm256_set1_epi16(static_cast<short>(symbol)); }
__m256i equal(uint8_t, __m256i a, __m256i b) { return _mm256_cmpeq_epi8(a, b); }
__m256i equal(uint16_t, __m256i a, __m256i b) { return _mm256_cmpeq_epi16(a, b); }

/// For _mm256_shuffle_epi8: the symbols of each half in reverse.
__m256i reversing(uint8_t) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}
__m256i reversing(uint16_t) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1));
}

template <class Symbol>
bool copy_rows_wide(const Symbol* end, size_t rows, size_t n, Symbol wanted, Symbol* to, size_t to_stride) {
  constexpr size_t kWidth = 32 / sizeof(Symbol);
  if (n < kWidth) return copy_rows(end, rows, n, wanted, to, to_stride);
  const __m256i order = reversing(wanted), all_wanted = splat(wanted);
  __m256i any = _mm256_setzero_si256();
  const auto copy = [&](const Symbol* from, Symbol* place) {
    const __m256i upwards = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    any = _mm256_or_si256(any, equal(wanted, upwards, all_wanted));
    const __m256i symbols = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(upwards, order), 0b01001110);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), symbols);
  };
  for (size_t row = 0; row < rows; ++row, end -= n, to += to_stride) {
    // Some symbols at both ends are copied twice, so that all stores but two stay within a cache line.
    copy(end - kWidth, to);
    const size_t skip = (32 - reinterpret_cast<uintptr_t>(to) % 32) / sizeof(Symbol);
    const Symbol *from = end - skip - kWidth, *const last = end - n;
    Symbol* place = to + skip;
    for (; from >= last; from -= kWidth, place += kWidth) copy(from, place);
    copy(last, to + (n - kWidth));
  }
  return _mm256_testz_si256(any, any) == 0;
}

}  // namespace

template <class Symbol>
const Table<Symbol>& avx2::table() {
  static constexpr Table<Symbol> kTable = {decode_runs<kLanes, Symbol>, decode_runs<1, Symbol>,
                                           copy_rows_wide<Symbol>, encode_runs<Symbol>};
  return kTable;
}
template const Table<uint8_t>& avx2::table();
template const Table<uint16_t>& avx2::table();

}  // namespace kvcodec::huffman_kernels
