#include "lib/core/vectors.hpp"
#include "lib/entropy/pack_kernels.hpp"

namespace kvcodec::pack_kernels::avx2 {
namespace {

void store(__m256i ids, uint32_t* out) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), ids); }

void store(__m256i ids, uint16_t* out) {
  const __m256i low = _mm256_and_si256(ids, _mm256_set1_epi32(0xffff));  // low_halves would saturate, not cut
  vectors::store(vectors::low_halves((vectors::Words)low), out);
}

void store(__m256i ids, uint8_t* out) { vectors::store_low_bytes(ids, out); }

}  // namespace

// 8 ids of w bits are w bytes: every group of 8 starts at the same bit of its first byte, so the bytes and shifts of its ids are found
// once. Ids 0-3 come from 16 bytes at the group's start, ids 4-7 from 16 bytes at the first byte of id 4.
template <class Id>
size_t unpack(const Packed& in, Id* out, size_t n, uint32_t* largest) {
  const unsigned width = in.width, skip = in.first_bit % 8;
  const size_t upper = (skip + 4 * width) / 8;
  alignas(32) uint8_t order[32];
  alignas(32) uint32_t shift[8];
  for (unsigned id = 0; id < 8; ++id) {
    const unsigned bit = skip + id * width;
    const size_t byte = bit / 8 - (id < 4 ? 0 : upper);
    shift[id] = bit % 8;
    for (unsigned k = 0; k < 4; ++k)
      order[4 * id + k] = static_cast<uint8_t>(byte + 3 - k);  // first byte highest
  }
  const __m256i to_lanes = _mm256_load_si256(reinterpret_cast<const __m256i*>(order));
  const __m256i drop_front = _mm256_load_si256(reinterpret_cast<const __m256i*>(shift));
  const __m128i drop_back = _mm_cvtsi32_si128(static_cast<int>(32 - width));
  __m256i limit = _mm256_setzero_si256();
  size_t position = in.first_bit / 8;
  size_t done = 0;
  for (; done + 8 <= n && position + upper + 16 <= in.count; done += 8, position += width) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in.bytes + position));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in.bytes + position + upper));
    const __m256i words =
        _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), to_lanes);
    const __m256i ids = _mm256_srl_epi32(_mm256_sllv_epi32(words, drop_front), drop_back);
    limit = _mm256_max_epu32(limit, ids);
    store(ids, out + done);
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), limit);
  for (const uint32_t lane : lanes)
    if (lane > *largest) *largest = lane;
  return done;
}

template size_t unpack(const Packed&, uint8_t*, size_t, uint32_t*);
template size_t unpack(const Packed&, uint16_t*, size_t, uint32_t*);
template size_t unpack(const Packed&, uint32_t*, size_t, uint32_t*);

}  // namespace kvcodec::pack_kernels::avx2
