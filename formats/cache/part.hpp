// Parts of a codes file (FORMAT.md, "Parts"): the streams of one document of one side, one behind the other,
// and behind them a footer that says whose they are, how many rows each has, and the digests of their bytes in
// pieces of 64 KiB. A reader takes nothing from a part that it has not verified. Inside formats/ only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/stream_layout.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec {

/// Which part of a file it is: its place in the table of parts.
struct PartName {
  uint64_t row = 0;   ///< 0: what all documents share; else the document's number + 1
  uint64_t side = 0;  ///< column of the table of parts (Columns in codes_io.hpp)
  bool operator==(const PartName&) const = default;
};

/// Where a part lies in the file's data. No part has size 0: that means that there is none.
struct PartPlace {
  uint64_t begin = 0, size = 0;
  bool operator==(const PartPlace&) const = default;
};

/// Bytes that have one digest; the last ones of a part are fewer.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 16;

/// The fewest and the most bytes of a footer, for a part of that size with that many streams.
uint64_t least_footer_bytes(uint64_t streams);
uint64_t most_footer_bytes(uint64_t streams, uint64_t part_size);

/// Writes parts behind each other. Holds at most 1 MiB.
class PartWriter {
 public:
  /// data: a column of bytes without checksums; outlives the writer.
  explicit PartWriter(h5::DatasetWriter& data) : data_(data) {}

  /// The next bytes of the part in work, whatever stream they are of.
  void append(std::span<const std::byte> bytes);
  /// The end of the part: its footer, with the rows of its streams. Returns where it lies.
  PartPlace finish(const PartName& name, std::span<const uint64_t> rows);

 private:
  void flush();

  h5::DatasetWriter& data_;
  std::vector<std::byte> block_;    // whole pieces, and at the end of a part less than one
  std::vector<Digest128> digests_;  // of the pieces that have left the block
  uint64_t body_ = 0;               // bytes of the part in work
};

/// A part to read. Opening it reads and verifies the footer, and of a small part everything. Any thread may
/// call anything.
class Part {
 public:
  /// Parts up to this size are read at once and kept: more than one read costs more than the bytes.
  static constexpr uint64_t kWholeBytes = uint64_t{1} << 20;

  /// layout: of the streams of this part; outlives it. where: file and side, for messages ("codes.h5:
  /// /layers/3/key"). Throws Error(bad_input) for a part that is damaged or another one than was wanted.
  Part(h5::Dataset data, const PartName& name, const PartPlace& place, const Layout& layout,
       std::string where);

  const PartName& name() const { return name_; }
  const Layout& layout() const { return layout_; }
  std::span<const uint64_t> rows() const { return rows_; }
  uint64_t body_bytes() const { return offsets_.back(); }  ///< of all streams

  /// Rows of a stream (its number in the layout), unpacked; out: count * row_bytes. Throws Error(bad_input) for
  /// bytes that are damaged and for rows that are not there.
  void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const;
  /// Bytes of all streams as they lie in the part.
  void read_body(uint64_t first, std::span<std::byte> out) const;

 private:
  using Bytes = UnsetVector<std::byte>;
  std::string where(std::string_view stream) const;
  template <class... Args>
  Error error(std::string_view stream, fmt::format_string<Args...> format, Args&&... args) const;
  void parse_footer(std::span<const std::byte> end);
  void verify(uint64_t piece, std::span<const std::byte> bytes) const;
  uint64_t piece_bytes(uint64_t piece) const;
  void read_pieces(uint64_t first, uint64_t count, std::span<std::byte> out) const;
  std::shared_ptr<const Bytes> cached_piece(uint64_t piece) const;

  h5::Dataset data_;
  PartName name_;
  PartPlace place_;
  const Layout& layout_;
  std::string where_;
  std::vector<uint64_t> rows_, offsets_;  // per stream; where its bytes begin, and the end of the last one
  std::vector<Digest128> digests_;
  Bytes whole_;  // of a small part

  // Of a large part: pieces of which only some bytes were wanted. The next rows asked for are mostly in them.
  struct CachedPiece {
    uint64_t piece;
    std::shared_ptr<const Bytes> bytes;
  };
  static constexpr size_t kCachedPieces = 16;  // enough for the streams of a side
  mutable std::mutex mutex_;
  mutable std::list<CachedPiece> cache_;
};

}  // namespace kvcodec
