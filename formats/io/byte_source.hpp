// Bytes of a file that is read, wherever it lies: here, on a server, or where another process reads it.
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

/// Knowledge of reads to come.
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

  /// The best way to bring ranges that will be read: two with a gap of up to `gap` bytes as one, which costs less than another
  /// call, as long as that one has at most `most` bytes.
  struct Joining {
    uint64_t gap = 0, most = 0;
  };
  virtual Joining joining(ReadPlan) const { return {}; }
  /// Says that the whole range will be read soon, if any of it is: so a source may bring all of it at once.
  /// A source takes no notice of ranges that are too large for it.
  virtual void expect(const FileRange& /*range*/) {}
  virtual uint64_t reads() const { return 0; }  ///< calls to the system, or requests to a server
  virtual uint64_t bytes() const { return 0; }  ///< what they brought
};

/// Ranges that were said to be read soon, the last ones of them.
class ExpectedRanges {
 public:
  /// Takes no notice of a range that is not within `size` bytes, or has more than `most`.
  void add(const FileRange& range, uint64_t size, uint64_t most) {
    if (range.begin >= range.end || range.end > size || range.end - range.begin > most) return;
    if (ranges_.size() == kMaxRanges) ranges_.pop_back();
    ranges_.push_front(range);
  }
  /// Takes out the one that was said last of those that fit(range).
  template <class Fit>
  std::optional<FileRange> take(const Fit& fit) {
    const auto found = std::ranges::find_if(ranges_, fit);
    if (found == ranges_.end()) return std::nullopt;
    const FileRange range = *found;
    ranges_.erase(found);
    return range;
  }

 private:
  static constexpr size_t kMaxRanges = 64;  // they are searched one by one
  std::list<FileRange> ranges_;
};

/// A file of this machine that is read by few calls to the system: a network file system answers each in half a millisecond.
/// A read of little brings what lies around it too: the beginning and the end of the file, where headers are, and what was
/// said to be read soon. That is held, up to 16 MiB and 64 ranges of it. Any other read goes straight to where it is wanted.
class LocalFile final : public ByteSource {
 public:
  /// descriptor: open for reading; it outlives this. name: for messages. The file's size is that of now.
  LocalFile(int descriptor, std::string name);

  uint64_t size() const override { return size_; }
  /// Throws Error(bad_input) where the file has become shorter.
  void read(uint64_t position, std::span<std::byte> out) override;
  /// The first read of less than half of the range reads all of it.
  void expect(const FileRange& range) override;
  Joining joining(ReadPlan plan) const override {
    constexpr uint64_t kGap = uint64_t{1} << 13, kSomeRows = uint64_t{1} << 14, kRows = uint64_t{1} << 18;
    if (plan == ReadPlan::whole) return {.gap = kGap, .most = kMaxExpectedBytes};
    return {.gap = kGap, .most = plan == ReadPlan::rows ? kRows : kSomeRows};
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
  std::list<Held> held_;  // the last one asked for first
  size_t held_bytes_ = 0;
  std::atomic<uint64_t> reads_ = 0, bytes_ = 0;
};

/// A file on a server that is read like one that is here. Bytes that were fetched are kept in a temporary file without a name, and
/// are not fetched again; those that will be read soon are fetched by one request.
class FarFile final : public ByteSource {
 public:
  /// The file of that name. All callers get the same object, and share what was fetched, as long as the name is among the 64
  /// asked for last; then it begins anew. The first call makes the first request. Throws Error.
  static std::shared_ptr<FarFile> open(const std::string& name);
  /// Makes the first request.
  explicit FarFile(std::unique_ptr<HttpFile> file);

  const std::string& name() const { return file_->name(); }  ///< as messages show it
  uint64_t number() const { return number_; }                ///< tells apart the FarFiles of a process
  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override;

  /// The first read there fetches all of it that is not here yet.
  void expect(const FileRange& range) override;
  Joining joining(ReadPlan) const override { return {.gap = uint64_t{1} << 17, .most = kMaxRequestBytes}; }

  uint64_t requests() const;
  uint64_t reads() const override { return requests(); }
  uint64_t bytes() const override;  ///< fetched

 private:
  // More is fetched neither at once nor because it is expected.
  static constexpr uint64_t kMaxRequestBytes = uint64_t{1} << 25;
  // A page is here or not: a bit each, 128 MiB of them for the largest file.
  static constexpr uint64_t kPageBytes = uint64_t{1} << 16;

  void fetch_missing(uint64_t first, uint64_t end);
  void fetch(uint64_t first, uint64_t end);
  void keep(uint64_t first_page, std::span<const std::byte> bytes);
  uint64_t read_ahead(uint64_t first, uint64_t end) const;

  mutable std::mutex mutex_;
  std::unique_ptr<HttpFile> file_;
  UnnamedFile kept_;
  std::vector<bool> here_;  // by page
  ExpectedRanges expected_;
  uint64_t number_ = 0, size_ = 0;
  std::optional<Error> broken_;  // what went wrong at a request; nothing is asked for any more
};

}  // namespace kvcodec
