// SHA-256 (FIPS 180-4), which signatures of requests to S3 are made of. Everything else here has XXH3 (lib/core/digest.hpp), which
// is faster and no guard against an attacker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcodec {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  /// The digest of all bytes so far, as 64 hexadecimal digits. The last call.
  std::string hexadecimal();

 private:
  void take_block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_ = {};  // less than a whole one
  uint64_t size_ = 0;
};

}  // namespace kvcodec
