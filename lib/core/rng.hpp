// Random numbers that are the same on every machine: xoshiro256** (Blackman and Vigna, 2018) seeded by
// splitmix64. The standard library's distributions differ between implementations, so they are not used.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvcodec {

class Rng {
 public:
  /// Generators with the same seed and different streams are independent.
  explicit Rng(uint64_t seed, uint64_t stream = 0) {
    uint64_t state = seed ^ (stream * 0xd1342543de82ef95u + 0x632be59bd9b4e019u);
    for (auto& word : state_) {
      state += 0x9e3779b97f4a7c15u;
      uint64_t z = state;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }

  /// 64 uniform bits.
  uint64_t next() {
    const uint64_t result = rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound), without bias (Lemire's multiply-and-reject). bound > 0.
  uint64_t below(uint64_t bound) {
    __extension__ using u128 = unsigned __int128;
    u128 product = u128{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = -bound % bound;
      while (static_cast<uint64_t>(product) < threshold) product = u128{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Standard normal (Box-Muller; one value a call, so that the sequence does not depend on call pairing).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586476925 * uniform());
  }

  /// Fisher-Yates over anything indexable.
  template <class Sequence>
  void shuffle(Sequence& items) {
    for (size_t i = items.size(); i > 1; --i) {
      using std::swap;
      swap(items[i - 1], items[static_cast<size_t>(below(i))]);
    }
  }

 private:
  static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  uint64_t state_[4];
};

}  // namespace kvcodec
