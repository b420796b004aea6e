// A growing run of bytes that can be cut at its end: in memory while it is short, the front of it in a file
// without a name when it is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/io/temporary.hpp"

namespace kvcodec {

class SpillBuffer {
 public:
  /// beside: the file whose folder takes the spill. target: what to name in messages about a full disk.
  SpillBuffer(std::filesystem::path beside, std::string target, size_t memory_limit = kMemoryLimit)
      : beside_(std::move(beside)), target_(std::move(target)), memory_limit_(memory_limit) {}

  uint64_t size() const { return spilled_ + tail_.size(); }
  void append(std::span<const std::byte> bytes);
  /// Keeps the first `size` bytes.
  void truncate(uint64_t size);
  /// Bytes [position, position + out.size()), which are there.
  void read(uint64_t position, std::span<std::byte> out) const;
  size_t memory() const { return tail_.capacity(); }

  /// A codec has some eight streams; together they stay small beside a chunk of rows.
  static constexpr size_t kMemoryLimit = size_t{4} << 20;

 private:
  std::filesystem::path beside_;
  std::string target_;
  size_t memory_limit_;
  std::unique_ptr<UnnamedFile> file_;
  uint64_t spilled_ = 0;         // bytes in the file that count
  std::vector<std::byte> tail_;  // what follows them
};

}  // namespace kvcodec
