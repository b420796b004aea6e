// For tests that hold the wide variants against the scalar one.
#pragma once

#include <vector>

#include "lib/core/cpu.hpp"

namespace kvcodec::test {

/// The levels this machine can run, scalar first.
inline std::vector<SimdLevel> simd_levels() {
  limit_simd(SimdLevel::avx512);
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512})
    if (level <= simd_level()) levels.push_back(level);
  return levels;
}

/// Puts a level in force for its lifetime, the machine's own afterwards.
class AtLevel {
 public:
  explicit AtLevel(SimdLevel level) { limit_simd(level); }
  ~AtLevel() { limit_simd(SimdLevel::avx512); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;
};

}  // namespace kvcodec::test
