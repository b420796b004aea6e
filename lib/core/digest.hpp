// Digests that bind files to each other: XXH3, 128 bits, as 32 hexadecimal digits. They guard against mix-ups, not malice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;  // of xxhash.h

namespace kvcodec {

/// The 16 bytes that Digest::hex shows as digits.
using Digest128 = std::array<std::byte, 16>;

/// Digest of these bytes alone.
Digest128 digest_of(std::span<const std::byte> bytes);

/// Its 32 lower-case hexadecimal digits.
std::string hex_of(const Digest128& digest);

class Digest {
 public:
  Digest();

  void add(std::span<const std::byte> bytes);
  /// Its length first, so that "ab","c" and "a","bc" differ.
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    add(std::as_bytes(std::span(text)));
  }
  /// As 8 bytes, little-endian.
  void add(uint64_t number) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
    add(std::span<const std::byte>(bytes));
  }

  /// 32 lower-case hexadecimal digits of everything added so far.
  std::string hex() const { return hex_of(value()); }
  /// The same as bytes.
  Digest128 value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The checksum of HDF5's Fletcher-32 filter, so that chunks can be written and verified without the filter pipeline: Fletcher's over
/// big-endian 16-bit words with both sums modulo 65535 (zero only for all-zero data, 65535 otherwise); an odd last byte is the upper half
/// of a word. The second sum is in the upper 16 bits. Uses wide instructions where the machine has them and gives the same value.
uint32_t fletcher32(std::span<const std::byte> bytes);

}  // namespace kvcodec
