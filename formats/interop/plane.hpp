// Planes: where the values of one side of a layer lie in a file. They are read and written by rows.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/interop/foreign.hpp"
#include "formats/io/byte_cursor.hpp"
#include "formats/io/output.hpp"
#include "lib/model/tensor_type.hpp"

namespace kvcodec::interop {

/// Types of elements in foreign files. The last ones are blocks of 32 values that share a scale.
enum class Cell : uint8_t { f32, f16, bf16, f64, e4m3, e5m2, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };
constexpr auto names_of(Cell) {
  return std::to_array<std::string_view>(
      {"f32", "f16", "bf16", "f64", "e4m3", "e5m2", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"});
}
/// The name or number of a type in a format.
template <class Name>
struct CellName {
  Name name;
  Cell cell;
};
BlockLayout block_of(Cell type);
constexpr bool is_block(Cell type) { return type >= Cell::q8_0; }
/// The narrowest type of a kv file that holds its values exactly; for f64 the widest available type.
inline DType dtype_of(Cell type) {
  if (type == Cell::f16 || type == Cell::e5m2 || type == Cell::e4m3) return DType::f16;
  return type == Cell::bf16 ? DType::bf16 : DType::f32;
}
/// Throws Error(usage) if there is no type of that name; option: for the message.
inline Cell cell_from_name(std::string_view name, const std::string& option) {
  if (const auto cell = value_named<Cell>(name)) return *cell;
  throw usage_error("{} is '{}'; it must be one of {}", option, name, fmt::join(kNamesOf<Cell>, ", "));
}
/// The type of that name; `otherwise`, a type of kv files, if the name is empty.
inline Cell cell_or(DType otherwise, const std::string& name, const std::string& option = "--type") {
  return cell_from_name(name.empty() ? name_of(otherwise) : name, option);
}

/// Decodes values.size() contiguous elements.
void decode(Cell type, std::span<const std::byte> bytes, std::span<float> values);
/// The inverse of decode. Throws Error(bad_input) for a value beyond a narrower type's range.
void encode(Cell type, std::span<const float> values, std::span<std::byte> bytes);

/// Element (token, head, dimension) is at byte begin + token * token_step + head * head_step + dimension * dim_step. A token's
/// values are contiguous if the type has blocks.
struct Plane {
  Cell type = Cell::f32;
  uint64_t begin = 0, tokens = 0, heads = 0, dims = 0;
  uint64_t token_step = 0, head_step = 0, dim_step = 0;
  std::vector<uint32_t> order = {};  ///< row i is that of token order[i]; empty: rows lie in their order

  uint64_t values() const { return heads * dims; }  ///< of a token
};

/// A plane whose tokens are contiguous rows of heads of dimensions, beginning at that byte.
Plane plane_of_rows(Cell type, uint64_t begin, uint64_t tokens, uint64_t heads, uint64_t dims);
/// Bytes of a token's row in such a plane.
uint64_t row_bytes(Cell type, uint64_t values);

/// An axis of an array: s (side), l (layer), b (document), h (head), t (token) or d (dimension).
struct Axis {
  char name;
  uint64_t extent;
};
/// Indices on the axes s, l and b, if an array has them.
struct ArrayPlace {
  Side side = Side::key;
  uint64_t layer = 0, document = 0;
};
/// The plane in an array with these axes, slowest first.
Plane plane_in_array(Cell type, uint64_t begin, std::span<const Axis> axes, const ArrayPlace& at = {});
/// The plane in an array [heads, tokens, dimensions].
inline Plane plane_of_heads(Cell type, uint64_t begin, uint64_t heads, uint64_t tokens, uint64_t dims) {
  const Axis axes[] = {{'h', heads}, {'t', tokens}, {'d', dims}};
  return plane_in_array(type, begin, axes);
}

/// Throws Error(bad_input) unless all its elements lie within that many bytes. what: the first words of the message.
void check_plane(const Plane& plane, uint64_t bytes, const std::string& what);

/// Bytes that stay valid as long as this object.
struct Bytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
/// The mapped bytes of a file.
Bytes map_file(const std::string& file);

/// Reads rows of a plane that was checked against the bytes, and undoes Hadamard blocks of that size in each head (0: none).
ReadRows reader_of(Bytes bytes, Plane plane, size_t rotated = 0);

/// A file that is being written, at any position.
class TargetFile {
 public:
  TargetFile(const std::string& path, bool overwrite);

  const std::string& name() const { return output_.target(); }
  std::string path() const { return output_.path(); }  ///< of the incomplete file
  void write(uint64_t at, std::span<const std::byte> bytes) {
    end_ = std::max(end_, at + bytes.size());
    if (const int error = write_at(descriptor_.get(), at, bytes)) throw not_written(name(), error);
  }
  void write(uint64_t at, std::string_view text) { write(at, std::as_bytes(std::span(text))); }
  /// Rows [first, first + rows.rows()) of a plane.
  void write(const Plane& plane, uint64_t first, MatrixView<const float> rows);
  /// Completes the output. Returns its bytes.
  uint64_t commit() {
    if (!descriptor_.close()) throw not_written(name());
    output_.commit();
    return end_;
  }

 private:
  OutputFile output_;
  Descriptor descriptor_;
  uint64_t end_ = 0;
  std::vector<std::byte> buffer_;
};

/// Makes the file the job's output.
inline ExportResult finish(TargetFile& file, const ExportJob& job) {
  return {.files = {job.path}, .bytes = file.commit(), .notes = {}};
}

/// An output that is a folder of files. The files are written to a hidden folder inside; commit() moves them to their places and
/// removes those that an earlier output left there, so that none of them is taken for a part of this one. Without commit() the
/// earlier content stays.
///
/// An existing folder must be empty or permitted to be overwritten. own: true if a file of that name belongs to an output. Throws
/// Error(usage) if such a file must stay (ExportJob::keep). The next run removes files that a killed run left behind.
class TargetFolder {
 public:
  TargetFolder(const ExportJob& job, const std::function<bool(const std::string& name)>& own);
  ~TargetFolder();
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;

  /// The path at which the file of that name is to be written, as a TargetFile.
  std::string place_of(const std::string& name) {
    names_.push_back(name);
    return (staging_ / name).string();
  }
  /// Completes the output. Returns its files, in the order in which they were requested.
  std::vector<std::string> commit();

 private:
  std::filesystem::path folder_, staging_;
  Descriptor lock_;    // of the hidden folder, while it is in use
  bool made_ = false;  // true if the folder did not exist before
  std::vector<std::filesystem::path> earlier_;
  std::vector<std::string> names_;
};

/// The runs of digits in a name; empty if one of them does not fit 64 bits.
std::vector<uint64_t> numbers_in(std::string_view name);

/// The bytes of numbers, one number after the other.
class Numbers {
 public:
  template <class... T>
  void add(T... values) {
    (append(std::as_bytes(std::span(&values, 1))), ...);
  }
  void append(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace kvcodec::interop
