// Reads little-endian numbers and texts one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "lib/core/error.hpp"

namespace kvcodec {

class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  /// Throws Error(bad_input) naming the byte if fewer bytes are left. what: the name of the data, for the message.
  std::span<const std::byte> take(uint64_t count, const char* what = nullptr) {
    if (count > left() && what)
      throw bad_input("{} bytes are needed for {} at byte {}, but {} are left; it is truncated or damaged",
                      count, what, position_, left());
    if (count > left())
      throw bad_input("{} bytes are needed at byte {}, but the file has {}; it is truncated or damaged",
                      count, position_, bytes_.size());
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }
  template <class T>
  T number(const char* what = nullptr) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::string_view text(uint64_t count, const char* what = nullptr) {
    const auto bytes = take(count, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

}  // namespace kvcodec
