// Counts the bytes that are read of a document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
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
    of_streams_[std::string(stream)] += out.size();
    streams_.read(stream, first, count, out);
  }

  /// Bytes since the last call.
  uint64_t take() const { return std::exchange(bytes_, 0); }
  /// Bytes of each stream since the beginning; those that were never read are not in it.
  const std::map<std::string, uint64_t>& of_streams() const { return of_streams_; }

 private:
  const StreamReader& streams_;
  mutable uint64_t bytes_ = 0;
  mutable std::map<std::string, uint64_t> of_streams_;
};

}  // namespace kvcodec::test
