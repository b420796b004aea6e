#include "lib/core/fletcher32.hpp"

#include <algorithm>
#include <cstring>

#include "lib/core/cpu.hpp"
#include "lib/core/fletcher32_kernels.hpp"

namespace kvcodec {
namespace fletcher_kernels::scalar {

Sums sums(const unsigned char* bytes, size_t n) {
  Sums result{0, 0};
  for (size_t i = 0; i < n; ++i) {
    uint16_t word = 0;
    std::memcpy(&word, bytes + 2 * i, 2);
    result.plain += word;
    result.weighted += result.plain;
  }
  return result;
}

}  // namespace fletcher_kernels::scalar

namespace {

constexpr uint64_t kModulus = 65535;

fletcher_kernels::Sums sums(const unsigned char* bytes, size_t n) {
  using namespace fletcher_kernels;
  return pick(scalar::sums, avx2::sums, avx512::sums)(bytes, n);
}

/// The representative that repeated folding of the carries ends at: 0 stays 0, every other sum lands in [1,
/// 65535].
uint64_t fold(uint64_t sum) { return sum == 0 ? 0 : (sum - 1) % kModulus + 1; }

}  // namespace

uint32_t fletcher32(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  constexpr size_t kBlock = size_t{1} << 20;  // words; keeps the exact sums far below 2^64
  uint64_t plain = 0, weighted = 0;
  const auto join = [&](fletcher_kernels::Sums next, uint64_t words) {
    weighted = fold(weighted + plain * words + next.weighted);
    plain = fold(plain + next.plain);
  };
  const size_t words = bytes.size() / 2;
  for (size_t done = 0; done < words; done += kBlock) {
    const size_t n = std::min(kBlock, words - done);
    join(sums(data + 2 * done, n), n);
  }
  if (bytes.size() % 2 != 0) join({data[bytes.size() - 1], data[bytes.size() - 1]}, 1);
  // Swapping the bytes of a word multiplies it by 256 modulo 65535, and the sums are linear.
  return static_cast<uint32_t>(fold(weighted * 256) << 16 | fold(plain * 256));
}

}  // namespace kvcodec
