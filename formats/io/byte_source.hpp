// Sources of a file's bytes: a local file, a file on a server, or another process that reads the file.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/io/http.hpp"
#include "formats/io/temporary.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

/// Bytes [begin, end) of a file.
struct FileRange {
  uint64_t begin = 0, end = 0;
  bool holds(uint64_t position) const { return position >= begin && position < end; }
};

/// Hints about future reads.
enum class ReadPlan : uint8_t {
  rows,       ///< these rows, all of them
  some_rows,  ///< some rows of a table, nobody knows yet which
  whole,      ///< a whole table
};

/// Any thread may read, several at once.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  virtual uint64_t size() const = 0;
  /// Bytes from `position` on, within the size. Throws Error naming the file.
  virtual void read(uint64_t position, std::span<std::byte> out) = 0;

  /// Limits for joining announced ranges: two with a gap of at most `gap` bytes become one, which costs less than another call, if
  /// the result has at most `limit` bytes.
  struct Joining {
    uint64_t gap = 0, limit = 0;
  };
  virtual Joining joining(ReadPlan) const { return {}; }
  /// Announces that the whole range will be read soon if any of it is read, so that a source may fetch all of it at once. A source
  /// ignores ranges that are too large for it.
  virtual void expect(const FileRange& /*range*/) {}
  virtual uint64_t reads() const { return 0; }  ///< calls to the system, or requests to a server
  virtual uint64_t bytes() const { return 0; }  ///< what they brought
};

/// The latest ranges that were announced.
class ExpectedRanges {
 public:
  /// Ignores a range that is not within `size` bytes, or has more than `limit`.
  void add(const FileRange& range, uint64_t size, uint64_t limit) {
    if (range.begin >= range.end || range.end > size || range.end - range.begin > limit) return;
    if (ranges_.size() == kMaxRanges) ranges_.pop_back();
    ranges_.push_front(range);
  }
  /// Removes and returns the latest range for which fit(range) is true.
  template <class Fit>
  std::optional<FileRange> take(const Fit& fit) {
    const auto found = std::ranges::find_if(ranges_, fit);
    if (found == ranges_.end()) return std::nullopt;
    const FileRange range = *found;
    ranges_.erase(found);
    return range;
  }

 private:
  static constexpr size_t kMaxRanges = 64;  // the search is linear
  std::list<FileRange> ranges_;
};

/// A local file that is read with few calls to the system: a network file system answers each in half a millisecond. A small read
/// also fetches the bytes around it: the beginning and the end of the file, where headers are, and announced ranges. These are
/// kept, up to 16 MiB and 64 ranges. Any other read goes directly to its destination.
class LocalFile final : public ByteSource {
 public:
  /// descriptor: open for reading; it outlives this object. name: for messages. The size of the file is taken now.
  LocalFile(int descriptor, std::string name);

  uint64_t size() const override { return size_; }
  /// Throws Error(bad_input) if the file has become shorter.
  void read(uint64_t position, std::span<std::byte> out) override;
  /// The first read of less than half of the range reads all of it.
  void expect(const FileRange& range) override {
    const std::lock_guard lock(mutex_);
    expected_.add(range, size_, kMaxExpectedBytes);
  }
  Joining joining(ReadPlan plan) const override {
    constexpr uint64_t kGap = uint64_t{1} << 13, kSomeRows = uint64_t{1} << 14, kRows = uint64_t{1} << 18;
    if (plan == ReadPlan::whole) return {.gap = kGap, .limit = kMaxExpectedBytes};
    return {.gap = kGap, .limit = plan == ReadPlan::rows ? kRows : kSomeRows};
  }
  uint64_t reads() const override { return reads_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  static constexpr uint64_t kMaxExpectedBytes = uint64_t{1} << 23;

  struct Held {
    uint64_t begin = 0;
    UnsetVector<std::byte> bytes;
  };

  size_t copy_held(uint64_t position, std::span<std::byte> out);
  bool take_expected(uint64_t position, size_t size);
  size_t read_some(uint64_t position, std::span<std::byte> out);

  const int descriptor_;
  const uint64_t size_;
  const std::string name_;
  std::mutex mutex_;
  ExpectedRanges expected_;
  std::list<Held> held_;  // the latest used first
  size_t held_bytes_ = 0;
  std::atomic<uint64_t> reads_ = 0, bytes_ = 0;
};

/// A file on a server, read like a local one. Fetched bytes are kept in a temporary file without a name, and are not fetched again;
/// announced ranges are fetched by one request.
class FarFile final : public ByteSource {
 public:
  /// The file of that name. All callers get the same object, and share its fetched bytes, while the name is among the latest 64
  /// requested; after that the object is made anew. The first call makes the first request. Throws Error.
  static std::shared_ptr<FarFile> open(const std::string& name);
  /// Makes the first request.
  explicit FarFile(std::unique_ptr<HttpFile> file);

  const std::string& name() const { return file_->name(); }  ///< as messages show it
  uint64_t number() const { return number_; }                ///< tells apart the FarFiles of a process
  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override;

  /// The first read in the range fetches all of it that is missing.
  void expect(const FileRange& range) override {
    const std::lock_guard lock(mutex_);
    expected_.add(range, size_, kMaxRequestBytes);
  }
  Joining joining(ReadPlan) const override { return {.gap = uint64_t{1} << 17, .limit = kMaxRequestBytes}; }

  /// The number of requests.
  uint64_t reads() const override {
    const std::lock_guard lock(mutex_);
    return file_->requests();
  }
  /// The number of fetched bytes.
  uint64_t bytes() const override {
    const std::lock_guard lock(mutex_);
    return file_->bytes();
  }

 private:
  // Larger ranges are neither fetched at once nor fetched because they are announced.
  static constexpr uint64_t kMaxRequestBytes = uint64_t{1} << 25;
  // Presence is recorded by page: one bit each, 128 MiB of bits for the largest file.
  static constexpr uint64_t kPageBytes = uint64_t{1} << 16;

  void fetch_missing(uint64_t first, uint64_t end);
  void fetch(uint64_t first, uint64_t end);
  void keep(uint64_t first_page, std::span<const std::byte> bytes) {
    kept_.write(first_page * kPageBytes, bytes);
    const uint64_t pages = (bytes.size() + kPageBytes - 1) / kPageBytes;
    std::fill_n(here_.begin() + static_cast<std::ptrdiff_t>(first_page), pages, true);
  }
  uint64_t read_ahead(uint64_t first, uint64_t end) const;

  mutable std::mutex mutex_;
  std::unique_ptr<HttpFile> file_;
  UnnamedFile kept_;
  std::vector<bool> here_;  // by page
  ExpectedRanges expected_;
  uint64_t number_ = 0, size_ = 0;
  std::optional<Error> broken_;  // the error of a failed request; no request is made after it
};

}  // namespace kvcodec
