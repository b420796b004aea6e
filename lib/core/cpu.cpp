#include "lib/core/cpu.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include <cpuid.h>

namespace kvcodec {
namespace {

/// __builtin_cpu_supports does not know it in every compiler.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

SimdLevel machine_level() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? SimdLevel::avx512 : avx2 ? SimdLevel::avx2 : SimdLevel::scalar;
}

SimdLevel initial_level() {
  const char* wish = std::getenv("KVCODEC_SIMD");
  const std::string_view name = wish ? wish : "";
  const SimdLevel limit = name == "scalar" ? SimdLevel::scalar
                          : name == "avx2" ? SimdLevel::avx2
                                           : SimdLevel::avx512;
  return std::min(limit, machine_level());
}

std::atomic<SimdLevel>& current() {
  static std::atomic<SimdLevel> level{initial_level()};
  return level;
}

}  // namespace

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

void limit_simd(SimdLevel level) { current() = std::min(level, machine_level()); }

const char* name_of(SimdLevel level) {
  return level == SimdLevel::avx512 ? "avx512" : level == SimdLevel::avx2 ? "avx2" : "scalar";
}

}  // namespace kvcodec
