// The loops of kernels.hpp in vectors (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/kernels.hpp"
#include "lib/core/vectors.hpp"

namespace kvcodec::core_kernels {
namespace {

using namespace vectors;

struct Bf16 {
  static KVCODEC_INLINE Floats widen(Halves value) { return widen_bf16(value); }
  static KVCODEC_INLINE Halves narrow(Floats value) {
    const Ints quiet = bits_of(value) | 0x400000;  // a NaN stays one
    const Ints is_nan = bits_of(magnitude(value)) > 0x7f800000;
    return low_halves((Words)(is_nan ? quiet : (Ints)bits_near_bf16(value)) >> 16);
  }
};

struct F16 {
  static KVCODEC_INLINE Floats widen(Halves value) { return widen_f16(value); }
  static KVCODEC_INLINE Halves narrow(Floats value) { return narrow_f16(value); }
};

template <class Half>
void widen(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(Half::widen(load(in + i)), out + i);
  if (i < n) store_first(Half::widen(load_first(in + i, n - i)), out + i, n - i);
}

template <class Half>
void narrow(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(Half::narrow(load(in + i)), out + i);
  if (i < n) store_first(Half::narrow(load_first(in + i, n - i)), out + i, n - i);
}

WordSums sums(const unsigned char* bytes, size_t n) {
  constexpr size_t kWords =
      kBytes / 2;  // of 16 bits in a vector; a lane of it has one of an even place and one of an odd
  constexpr size_t kRounds = 256;  // a lane's weighted sum stays below 256 * 257 / 2 * 65535 < 2^32
  WordSums total{0, 0};
  while (n >=
         kWords) {  // a vector a round; sums of sums weigh each word by the number of rounds from its own on
    const size_t rounds = n / kWords < kRounds ? n / kWords : kRounds;
    Words even = {}, odd = {}, even_weighted = {}, odd_weighted = {};
#pragma GCC unroll 2
    for (size_t r = 0; r < rounds; ++r) {
      const Words words = load_as<Words>(bytes + kBytes * r);
      even += words & 0xffff;
      odd += words >> 16;
      even_weighted += even;
      odd_weighted += odd;
    }
    uint32_t lanes[4][kWidth];
    store(even, lanes[0]);
    store(odd, lanes[1]);
    store(even_weighted, lanes[2]);
    store(odd_weighted, lanes[3]);
    // The weight wanted for word i of round r is (rounds - r) * kWords - i; lane j has the words i = 2 j and 2 j + 1.
    uint64_t plain = 0, weighted = 0;
    for (size_t j = 0; j < kWidth; ++j) {
      plain += uint64_t{lanes[0][j]} + lanes[1][j];
      weighted += kWords * (uint64_t{lanes[2][j]} + lanes[3][j]);
      weighted -= 2 * j * lanes[0][j] + (2 * j + 1) * lanes[1][j];
    }
    total.weighted +=
        total.plain * (rounds * kWords) + weighted;  // words before these weigh more by their number
    total.plain += plain;
    bytes += kBytes * rounds;
    n -= kWords * rounds;
  }
  for (size_t i = 0; i < n; ++i) {
    total.plain += static_cast<uint64_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    total.weighted += total.plain;
  }
  return total;
}

constexpr Table kTable = {widen<Bf16>, widen<F16>, narrow<Bf16>, narrow<F16>, sums};

}  // namespace

const Table& KVCODEC_LEVEL::table() { return kTable; }

}  // namespace kvcodec::core_kernels
