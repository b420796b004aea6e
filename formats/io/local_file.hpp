// A file of this machine that is read by few calls to the system: a network file system answers each in half a millisecond.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/io/byte_source.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec {

/// A read of little brings what lies around it too: the beginning and the end of the file, where headers are, and what was
/// said to be read soon. That is held, up to 16 MiB and 64 ranges of it. Any other read goes straight to where it is wanted.
class LocalFile final : public ByteSource {
 public:
  /// descriptor: open for reading; it outlives this. name: for messages. The file's size is that of now.
  LocalFile(int descriptor, std::string name);

  uint64_t size() const override { return size_; }
  /// Throws Error(bad_input) where the file has become shorter.
  void read(uint64_t position, std::span<std::byte> out) override;
  /// Of what is held.
  std::shared_ptr<const std::byte> lend(uint64_t position, uint64_t size) override;
  /// The first read of less than half of the range reads all of it.
  void expect(const FileRange& range) override;
  Joining joining(ReadPlan plan) const override {
    constexpr uint64_t kGap = uint64_t{1} << 13, kSomeRows = uint64_t{1} << 14, kRows = uint64_t{1} << 18;
    if (plan == ReadPlan::whole) return {.gap = kGap, .most = kMostExpectedBytes};
    return {.gap = kGap, .most = plan == ReadPlan::rows ? kRows : kSomeRows};
  }
  uint64_t reads() const override { return reads_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  static constexpr uint64_t kMostExpectedBytes = uint64_t{1} << 23;

  struct Held {
    uint64_t begin = 0;
    std::shared_ptr<const UnsetVector<std::byte>> bytes;
  };

  const Held* find_held(uint64_t position);
  size_t copy_held(uint64_t position, std::span<std::byte> out);
  bool take_expected(uint64_t position, size_t size);
  void read_now(uint64_t position, std::span<std::byte> out);
  size_t read_some(uint64_t position, std::span<std::byte> out);

  const int descriptor_;
  const uint64_t size_;
  const std::string name_;
  std::mutex mutex_;
  std::list<FileRange> expected_;  // the last one said first
  std::list<Held> held_;           // the last one asked for first
  size_t held_bytes_ = 0;
  std::atomic<uint64_t> reads_ = 0, bytes_ = 0;
};

}  // namespace kvcodec
