// Bytes of a file that cannot be opened here: it lies on a server, or another process reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcodec {

/// Any thread may read.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  virtual uint64_t size() const = 0;
  /// Bytes from `position` on, within the size. Throws Error naming the file.
  virtual void read(uint64_t position, std::span<std::byte> out) = 0;
};

}  // namespace kvcodec
