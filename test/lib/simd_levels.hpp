// For tests that compare the wide variants with the scalar one.
#pragma once

#include <vector>

#include "lib/core/cpu.hpp"

namespace kvcodec::test {

/// The levels this machine can run, scalar first.
inline std::vector<SimdLevel> simd_levels() {
  const SimdLevel before = simd_level();
  limit_simd(kWidestSimd);
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : kSimdLevels)
    if (level <= simd_level()) levels.push_back(level);
  limit_simd(before);
  return levels;
}

/// Sets a level for its lifetime, and restores the previous one afterwards.
class AtLevel {
 public:
  explicit AtLevel(SimdLevel level) { limit_simd(level); }
  ~AtLevel() { limit_simd(before_); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  SimdLevel before_ = simd_level();
};

}  // namespace kvcodec::test
