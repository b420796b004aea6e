// Sums as the matrix units of devices make them. What is known of them was found by experiments with numbers
// made for it (Fasi, Higham, Mikaitis and Pranesh 2021, "Numerical behavior of NVIDIA tensor cores"; Khattak
// and Mikaitis 2025, "Accurate models of NVIDIA tensor cores"): products of f16 and bf16 are exact; those of
// a block are added to the sum at once, all aligned to the largest of them, with what lies below a few bits
// more than a float has cut off; and the result is cut off, too, not rounded. The block is 8 products on
// sm_80, with one bit more, and 16 with two on sm_90. Here it is always the former, which is the coarser.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcodec::emulation {

inline constexpr size_t kProductsAtOnce = 8;

/// sum + the products, each of which a double holds exactly.
inline float add_products(float sum, const double (&products)[kProductsAtOnce]) {
  double plain = double{sum}, largest = std::abs(plain);
  for (const double product : products) plain += product, largest = std::max(largest, std::abs(product));
  if (largest == 0 || !std::isfinite(plain)) return static_cast<float>(plain);
  // 24 bits behind the first of the largest product are kept: multiples of a power of two. Its exponent is within that of doubles,
  // because the products are of numbers not below 2^-133.
  constexpr uint64_t kExponentBits = 0x7ff0000000000000u, kOne = 0x3ff0000000000000u;
  const uint64_t exponent = std::bit_cast<uint64_t>(largest) & kExponentBits, bits = uint64_t{24} << 52;
  const auto unit = std::bit_cast<double>(exponent - bits),
             inverse = std::bit_cast<double>(2 * kOne - exponent + bits);
  auto total = static_cast<int64_t>(double{sum} * inverse);
  for (const double product : products) total += static_cast<int64_t>(product * inverse);
  const uint64_t below_float = (uint64_t{1} << 29) - 1;
  const auto exact = std::bit_cast<uint64_t>(static_cast<double>(total) * unit);
  return static_cast<float>(std::bit_cast<double>(exact & ~below_float));
}

}  // namespace kvcodec::emulation
