// Counts the bytes that are read of a document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "lib/codec/stream.hpp"

namespace kvcodec::test {

/// Counts the bytes that are read of a document's streams. For one thread.
class CountingReader final : public StreamReader {
 public:
  explicit CountingReader(const StreamReader& streams) : streams_(streams) {}
  uint64_t rows(std::string_view stream) const override { return streams_.rows(stream); }
  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    return streams_.token_ids(first, count);
  }
  void read(std::string_view stream, uint64_t first, uint64_t count,
            std::span<std::byte> out) const override {
    bytes_ += out.size();
    streams_.read(stream, first, count, out);
  }

  /// Bytes since the last call.
  uint64_t take() const { return std::exchange(bytes_, 0); }

 private:
  const StreamReader& streams_;
  mutable uint64_t bytes_ = 0;
};

}  // namespace kvcodec::test
