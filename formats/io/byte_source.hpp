// Bytes of a file that is read, wherever it lies: here (LocalFile), on a server (FarFile), or where another process reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvcodec {

/// Bytes [begin, end) of a file.
struct FileRange {
  uint64_t begin = 0, end = 0;
};

/// What is known of what will be read.
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
  /// The same bytes where the source itself keeps them, if it has them in one piece: they stay for as long as this pointer does.
  virtual std::shared_ptr<const std::byte> lend(uint64_t /*position*/, uint64_t /*size*/) { return nullptr; }

  /// How ranges that will be read are best brought: two with a gap of up to `gap` bytes as one, which costs less than another
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

}  // namespace kvcodec
