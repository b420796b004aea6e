#include "lib/core/cpu.hpp"

#include <atomic>
#include <cstdlib>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace kvcodec {
namespace {

#ifdef __x86_64__

/// __builtin_cpu_supports does not know it in every compiler.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

SimdLevel find_machine_level() {
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        has_f16c()))
    return SimdLevel::scalar;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")))
    return SimdLevel::avx2;
  return __builtin_cpu_supports("avx512vnni") ? SimdLevel::avx512_vnni : SimdLevel::avx512;
}

#else

SimdLevel find_machine_level() { return SimdLevel::scalar; }

#endif

SimdLevel initial_level() {
  const char* wish = std::getenv("KVCODEC_SIMD");
  const auto level = value_named<SimdLevel>(wish ? wish : "");
  return std::min(level.value_or(kWidestSimd), machine_simd());
}

std::atomic<SimdLevel>& current() {
  static std::atomic<SimdLevel> level{initial_level()};
  return level;
}

}  // namespace

SimdLevel machine_simd() {
  static const SimdLevel level = find_machine_level();
  return level;
}

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

void limit_simd(SimdLevel level) { current() = std::min(level, machine_simd()); }

}  // namespace kvcodec
