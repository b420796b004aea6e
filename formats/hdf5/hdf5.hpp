// HDF5 behind types that cannot leak: files, attributes, and datasets that are read and written by rows (FORMAT.md, "Every file").
//
// All errors are Errors that begin with the file's name and the object's path ("kv.h5: /layers/3/key: …") and end with HDF5's own
// innermost reason; bad_input for files that are read, failed for files that are written. HDF5 prints nothing itself. All functions
// may be called from any thread: calls into HDF5 are serialized, while chunks are read, checked and converted in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/io/byte_source.hpp"
#include "formats/io/output.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/error.hpp"
#include "lib/core/text_list.hpp"

namespace kvcodec::h5 {

/// Chunks hold about this many bytes: large enough for full disk speed, small enough that reading one token
/// is cheap.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

class Dataset;

/// Rows of a dataset.
struct RowRange {
  uint64_t first = 0, count = 0;
};

/// Reads of a file since it was opened (of a file on a server: since this process first opened it), through HDF5 or directly.
struct Traffic {
  uint64_t reads = 0;  ///< calls to the system, or requests to the server
  uint64_t bytes = 0;  ///< what they brought
};

/// An open HDF5 file. Objects are named by absolute paths; "/" is the root. Copies refer to the same open file.
class File {
 public:
  /// Opens for reading; "-" is standard input.
  static File open(const std::string& name);
  /// Creates the file at output.path(); messages call it output.target(). If the output is changed in place, opens the existing
  /// file instead. Attributes and datasets that are then written replace those of the same name if they differ, datasets chunk by
  /// chunk; written datasets can grow from then on. Everything else in the file stays. expected_bytes: approximate upper bound of a
  /// new file's size, which determines the room for headers.
  static File create(const OutputFile& output, uint64_t expected_bytes = 0);
  static uint64_t header_block_bytes(uint64_t expected_bytes);  ///< that room

  const std::string& name() const;
  uint64_t size() const;    ///< bytes on disk
  Traffic traffic() const;  ///< so far
  /// The beginning of messages about an object: "kv.h5: /layers/3/key", and "kv.h5" for the root.
  std::string where(const std::string& path) const;

  bool has(const std::string& path) const;
  bool is_dataset(const std::string& path) const;
  /// Names directly below a group, in byte order.
  std::vector<std::string> children(const std::string& group) const;
  Dataset dataset(const std::string& path) const;
  /// True if a dataset is marked as having digests, even if dataset() cannot open it.
  bool has_digests(const std::string& path) const;
  /// Announces that these datasets, if they exist, will be read soon: data that lie close together are then fetched by one
  /// request to a server, or one call to the system, unless they are too large for that.
  void will_read(std::span<const char* const> paths, ReadPlan plan) const;
  /// Paths of all datasets in this file except the table of digests, in byte order; links are not followed.
  std::vector<std::string> datasets() const;

  bool has_attribute(const std::string& object, const std::string& name) const;
  std::string text(const std::string& object, const std::string& name) const;
  std::vector<std::string> texts(const std::string& object, const std::string& name) const;
  /// Integers of any HDF5 integer type, checked to be in [min, max].
  int64_t integer(const std::string& object, const std::string& name, int64_t min, int64_t max) const;
  double number(const std::string& object, const std::string& name) const;
  std::vector<uint64_t> extents(const std::string& object, const std::string& name) const;

  void make_group(const std::string& path);  ///< and the groups above it; no effect if it exists
  void set_text(const std::string& object, const std::string& name, const std::string& value);
  void set_texts(const std::string& object, const std::string& name, const std::vector<std::string>& values);
  void set_integer(const std::string& object, const std::string& name, int64_t value);
  void set_number(const std::string& object, const std::string& name, double value);
  void set_extents(const std::string& object, const std::string& name, std::span<const uint64_t> values);

  /// Writes the table of digests and closes a file that was written. Throws Error(failed) if any write failed. No other function
  /// may be called afterwards.
  void close();

  /// An error about an object of this file.
  template <class... Args>
  Error error(const std::string& path, fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(path, fmt::format(format, std::forward<Args>(args)...));
  }

  struct State;

 private:
  friend class Dataset;
  friend class DatasetWriter;
  friend void write_table(File&, const std::string&, DType, std::span<const uint64_t>,
                          std::span<const std::byte>);
  explicit File(std::shared_ptr<State> state);
  Error make_error(const std::string& path, const std::string& what) const;
  std::shared_ptr<State> state_;
  struct Opened;
  std::shared_ptr<Opened> opened_;  // datasets that are opened in advance
};

/// A dataset that is read: rows along its first dimension. Opening it checks that the storage holds as much data as the shape
/// claims, so that a shape may be trusted for allocation up to the size of the file.
class Dataset {
 public:
  const std::string& path() const;
  std::string where() const;  ///< how messages about it begin
  const std::vector<uint64_t>& shape() const;
  /// The element type in any byte order; std::nullopt for strings, compounds and the like.
  std::optional<DType> type() const;
  uint64_t rows() const;        ///< shape()[0]
  uint64_t row_bytes() const;   ///< of one row in type()
  uint64_t size_bytes() const;  ///< rows() * row_bytes()

  bool has_checksums() const;  ///< of every chunk that it stores; true where there is none
  bool has_digests() const;    ///< FORMAT.md, "Digests"

  /// Throws Error(bad_input) unless it has this type and shape.
  void expect(DType type, std::span<const uint64_t> shape) const;

  /// Reads rows [first, first + count) in type(), host byte order, to out (count * row_bytes()). The rows must exist. Verifies
  /// checksums and digests. Chunks with a checksum and pieces with a digest are read whole; of all other chunks, and of contiguous
  /// rows, only the requested rows are read.
  void read(uint64_t first, uint64_t count, std::span<std::byte> out) const;

  /// The same as elements of T: of type(), or whole rows, or equal parts of rows.
  template <class T>
  std::vector<T> read_as(uint64_t first, uint64_t count) const {
    std::vector<T> values(count * row_bytes() / sizeof(T));
    read(first, count, std::as_writable_bytes(std::span(values)));
    return values;
  }

  /// read(), piece by piece: visitor(row, bytes) is called for disjoint runs of whole rows that together are [first, first +
  /// count), in any order and from several threads at once. The bytes are aligned for their type.
  using Visitor = std::function<void(uint64_t row, std::span<const std::byte> bytes)>;
  void visit(uint64_t first, uint64_t count, const Visitor& visitor) const;

  /// Announces that these rows will be read soon, like File::will_read.
  void will_read(std::span<const RowRange> rows) const;

  /// Reads everything and verifies all checksums and digests, including that of the shape if there are no rows.
  void verify() const;

  /// Elements of a one-dimensional dataset of any integer type. Throws Error(bad_input) for elements that are negative or above
  /// `max`.
  std::vector<uint64_t> integers(uint64_t first, uint64_t count, uint64_t max) const;
  /// All elements of a one-dimensional dataset of strings.
  TextList texts() const;

  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(fmt::format(format, std::forward<Args>(args)...));
  }

  struct State;

 private:
  friend class File;
  explicit Dataset(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Error make_error(const std::string& what) const;
  void check_rows(uint64_t first, uint64_t count) const;
  std::shared_ptr<State> state_;
};

/// Layout of a dataset that is written.
struct Chunks {
  uint64_t bytes = kChunkBytes;  ///< of a chunk, about
  bool checksums = true;  ///< and digests; without both the caller guards the rows, and can read each alone
  /// If set, the writer holds the first `bytes` bytes, and then calls this once for the bytes of a chunk, at most `bytes`.
  std::function<uint64_t()> choose = {};
};

/// A dataset to write, row after row. It is created in the file when its first chunk is full, or at finish(): rows that fit one
/// chunk get a chunk of their own size. Holds at most one chunk in memory, or Chunks::bytes until a size is chosen.
class DatasetWriter {
 public:
  /// expected_rows: how many rows there will be (0 = not known), so that the last chunk can be as full as the others.
  DatasetWriter(File file, std::string path, DType type, std::vector<uint64_t> row_shape,
                uint64_t expected_rows = 0, Chunks chunks = {});
  /// Rows are strings of that many bytes each.
  DatasetWriter(File file, std::string path, size_t text_bytes, uint64_t expected_rows);
  /// Appends to a dataset of a file that is changed in place. there: the same dataset, opened for reading. Its whole chunks stay as
  /// they are; rows that fill no chunk are read and written again, and so are all rows if the dataset cannot get more chunks or
  /// would get too many. Throws Error(failed) if the digests of rows that stay do not match.
  static DatasetWriter behind(File file, const Dataset& there, uint64_t expected_rows, Chunks chunks = {});
  ~DatasetWriter();
  DatasetWriter(DatasetWriter&&) noexcept;

  const std::string& path() const;
  uint64_t rows() const;
  uint64_t row_bytes() const;

  /// Appends whole rows.
  void append(std::span<const std::byte> bytes);
  template <class T>
  void append_values(std::span<const T> values) {
    append(std::as_bytes(values));
  }

  /// Appends `count` rows. fill(first, out) is called for disjoint runs of them, in any order and from several threads at once;
  /// it writes rows [first, …) of these to all of out.
  using Fill = std::function<void(uint64_t first, std::span<std::byte> out)>;
  void append(uint64_t count, const Fill& fill);

  /// Writes the rest. Nothing can be appended afterwards.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a whole dataset in one piece, without chunks, checksums and digests, so that any row can be read by itself.
void write_table(File& file, const std::string& path, DType type, std::span<const uint64_t> shape,
                 std::span<const std::byte> bytes);

/// Writes a whole one-dimensional dataset of strings, each padded to the length of the longest. Returns all its bytes.
uint64_t write_texts(File& file, const std::string& path, const TextList& values);

}  // namespace kvcodec::h5
