// Bounded bit streams, most significant bit first: the first bit written is the highest bit of the first
// byte. The last byte is padded with zero bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/error.hpp"

namespace kvcodec {

class BitWriter {
 public:
  /// Appends the low `width` bits of value (0..32), highest first.
  void put(uint32_t value, unsigned width) {
    pending_ = (pending_ << width) | (width < 32 ? value & ((1u << width) - 1) : value);
    count_ += width;
    while (count_ >= 8) {
      count_ -= 8;
      bytes_.push_back(static_cast<uint8_t>(pending_ >> count_));
    }
  }

  /// Bits written so far.
  uint64_t size() const { return bytes_.size() * 8 + count_; }

  /// Pads to a whole byte with zeros and hands the bytes over; the writer is empty afterwards.
  std::vector<uint8_t> finish() {
    if (count_ > 0) put(0, 8 - count_);
    return std::exchange(bytes_, {});
  }

 private:
  std::vector<uint8_t> bytes_;
  uint64_t pending_ = 0;  // the last count_ (< 8) bits wait here
  unsigned count_ = 0;
};

class BitReader {
 public:
  /// Reads `bytes` from bit `first` on.
  explicit BitReader(std::span<const uint8_t> bytes, uint64_t first = 0) : bytes_(bytes), position_(first) {}

  /// The next `width` bits (0..32). Throws Error(bad_input) beyond the end.
  uint32_t get(unsigned width) {
    if (position_ + width > bytes_.size() * 8)
      throw bad_input("bit stream of {} bytes ends before bit {}", bytes_.size(), position_ + width);
    uint64_t value = 0;
    unsigned have = 0;
    size_t byte = position_ / 8;
    const unsigned skip = position_ % 8;
    while (have < width + skip) {
      value = (value << 8) | bytes_[byte++];
      have += 8;
    }
    position_ += width;
    value >>= have - width - skip;
    return static_cast<uint32_t>(value & ((uint64_t{1} << width) - 1));
  }

  /// Bits read so far, counted from the start of the bytes.
  uint64_t position() const { return position_; }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t position_;
};

/// ceil(log2 n): the bits that an index in [0, n) takes; 0 for n <= 1.
constexpr unsigned index_bits(uint64_t n) {
  unsigned bits = 0;
  while (bits < 64 && (uint64_t{1} << bits) < n) ++bits;
  return bits;
}

}  // namespace kvcodec
