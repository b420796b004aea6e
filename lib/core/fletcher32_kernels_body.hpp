// The sums of fletcher32_kernels.hpp in vectors (see lib/core/cpu.hpp).
#pragma once

#include "lib/core/fletcher32_kernels.hpp"
#include "lib/core/vectors.hpp"

namespace kvcodec::fletcher_kernels {
namespace {

using namespace vectors;

KVCODEC_INLINE Sums wide_sums(const unsigned char* bytes, size_t n) {
  constexpr size_t kWords = kBytes / 2;  // of 16 bits, per vector
  constexpr size_t kRounds = 256;        // a lane's weighted sum stays below 256 * 257 / 2 * 65535 < 2^32
  Sums total{0, 0};
  while (n >= kWords) {
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
    // Word j of round r has weight (rounds - r) * kWords - j among the words of these rounds.
    uint64_t plain = 0, weighted = 0;
    for (size_t j = 0; j < kWidth; ++j) {
      plain += uint64_t{lanes[0][j]} + lanes[1][j];
      weighted +=
          kWords * (uint64_t{lanes[2][j]} + lanes[3][j]) - 2 * j * lanes[0][j] - (2 * j + 1) * lanes[1][j];
    }
    total.weighted += total.plain * (rounds * kWords) + weighted;
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

}  // namespace
}  // namespace kvcodec::fletcher_kernels
