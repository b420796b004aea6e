#include "lib/core/digest.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include <xxhash.h>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/kernels.hpp"

namespace kvcodec {

Digest::Digest() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void Digest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Digest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

static Digest128 bytes_of(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  static_assert(sizeof canonical == sizeof(Digest128));
  return std::bit_cast<Digest128>(canonical);
}

std::string hex_of(const Digest128& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Digest128 Digest::value() const { return bytes_of(XXH3_128bits_digest(state_.get())); }

Digest128 digest_of(std::span<const std::byte> bytes) {
  return bytes_of(XXH3_128bits(bytes.data(), bytes.size()));
}

constexpr uint64_t kModulus = 65535;

/// The representative that repeated folding of the carries ends at: 0 stays 0, every other sum lands in [1, 65535].
static uint64_t fold(uint64_t sum) { return sum == 0 ? 0 : (sum - 1) % kModulus + 1; }

uint32_t fletcher32(std::span<const std::byte> bytes) {
  using namespace core_kernels;
  const auto sums = pick(scalar::table, avx2::table, avx512::table)().sums;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  constexpr size_t kBlock = size_t{1} << 20;  // words; keeps the exact sums far below 2^64
  uint64_t plain = 0, weighted = 0;
  const auto join = [&](core_kernels::WordSums next, uint64_t words) {
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
