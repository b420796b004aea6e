// SHA-256 (FIPS 180-4), used to sign requests to S3. Everything else uses XXH3 (lib/core/digest.hpp), which is faster but gives no
// protection against an attacker.
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
  /// The digest of all bytes so far, as 64 hexadecimal digits. Must be the last call.
  std::string hexadecimal();

 private:
  void take_block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_ = {};  // less than a whole block
  uint64_t size_ = 0;
};

}  // namespace kvcodec
