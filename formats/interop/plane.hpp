// Planes: the places of the values of one side of a layer in a file, which are read and written by rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/interop/foreign.hpp"
#include "formats/io/byte_cursor.hpp"
#include "formats/io/descriptor.hpp"
#include "formats/io/output.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/model/tensor_type.hpp"

namespace kvcodec::interop {

/// Types of elements in foreign files. The last ones are blocks of 32 values that share a scale.
enum class Cell : uint8_t { f32, f16, bf16, f64, e4m3, e5m2, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };
constexpr auto names_of(Cell) {
  return std::to_array<std::string_view>(
      {"f32", "f16", "bf16", "f64", "e4m3", "e5m2", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"});
}
BlockLayout block_of(Cell type);
constexpr bool is_block(Cell type) { return type >= Cell::q8_0; }
/// The narrowest type of a kv file that holds its values as they are; of f64 the widest there is.
DType dtype_of(Cell type);
/// The type of elements that a kv file of that type has.
Cell cell_of(DType type);
/// Throws Error(usage) where there is none of that name; option: for the message.
Cell cell_from_name(std::string_view name, const std::string& option);
/// The same, or the type of a kv file where the name is empty.
Cell cell_or(DType otherwise, const std::string& name, const std::string& option = "--type");

/// values.size() elements, which lie one behind the other.
void decode(Cell type, std::span<const std::byte> bytes, std::span<float> values);
/// The inverse of decode. Throws Error(bad_input) for a value beyond a narrower type's range.
void encode(Cell type, std::span<const float> values, std::span<std::byte> bytes);

/// Element (token, head, dimension) is at byte begin + token * token_step + head * head_step + dimension * dim_step.
/// A token's values lie one behind the other if the type has blocks.
struct Plane {
  Cell type = Cell::f32;
  uint64_t begin = 0, tokens = 0, heads = 0, dims = 0;
  uint64_t token_step = 0, head_step = 0, dim_step = 0;
  std::vector<uint32_t> order = {};  ///< row i is that of token order[i]; empty: rows lie in their order

  uint64_t values() const { return heads * dims; }  ///< of a token
};

/// A plane whose tokens are rows of heads of dimensions, one behind the other, from that byte on.
Plane plane_of_rows(Cell type, uint64_t begin, uint64_t tokens, uint64_t heads, uint64_t dims);
/// Bytes of a token's row in such a plane.
uint64_t row_bytes(Cell type, uint64_t values);

/// An axis of an array: s (side), l (layer), b (document), h (head), t (token) or d (dimension).
struct Axis {
  char name;
  uint64_t extent;
};
/// Indices on the axes s, l and b of those that an array has.
struct ArrayPlace {
  Side side = Side::key;
  uint64_t layer = 0, document = 0;
};
/// The plane in an array with these axes, slowest first.
Plane plane_in_array(Cell type, uint64_t begin, std::span<const Axis> axes, const ArrayPlace& at = {});
/// That of an array [heads, tokens, dimensions].
Plane plane_of_heads(Cell type, uint64_t begin, uint64_t heads, uint64_t tokens, uint64_t dims);

/// Throws Error(bad_input) unless all its elements are among that many bytes. what: the first words of the message.
void check_plane(const Plane& plane, uint64_t bytes, const std::string& what);

/// Bytes that stay there as long as this does.
struct Bytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
/// Those of a file, mapped.
Bytes map_file(const std::string& file);

/// Reads rows of a plane that was checked against the bytes.
ReadRows reader_of(Bytes bytes, Plane plane);
/// The same, with Hadamard blocks of that size undone in each head (0: there are none).
ReadRows reader_of(Bytes bytes, Plane plane, size_t rotated);

/// A file in the making, written at any place.
class TargetFile {
 public:
  TargetFile(const std::string& path, bool overwrite);

  const std::string& name() const { return output_.target(); }
  std::string path() const { return output_.path(); }  ///< where it grows
  void write(uint64_t at, std::span<const std::byte> bytes);
  void write(uint64_t at, std::string_view text) { write(at, std::as_bytes(std::span(text))); }
  /// Rows [first, first + rows.rows()) of a plane.
  void write(const Plane& plane, uint64_t first, MatrixView<const float> rows);
  /// Makes it the output. Returns its bytes.
  uint64_t commit();

 private:
  OutputFile output_;
  Descriptor descriptor_;
  uint64_t end_ = 0;
  std::vector<std::byte> buffer_;
};

/// Makes the file the job's output.
ExportResult finish(TargetFile& file, const ExportJob& job);

/// An output that is a folder of files, in the making. The files grow in a hidden folder inside; commit() moves them to
/// their places and removes those that an earlier output left there, so that none of them is taken for a part of this
/// one. Without commit() what was there stays as it was.
///
/// A folder that is there must be empty or to be overwritten. own: whether a file of that name is one of an output. Throws
/// Error(usage) if one of them must stay (ExportJob::keep). What a killed run left behind, the next run removes.
class TargetFolder {
 public:
  TargetFolder(const ExportJob& job, const std::function<bool(const std::string& name)>& own);
  ~TargetFolder();
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;

  /// The path at which the file of that name is to be written, as a TargetFile.
  std::string place_of(const std::string& name);
  /// Makes it the output. Returns its files, in the order in which they were asked for.
  std::vector<std::string> commit();

 private:
  std::filesystem::path folder_, staging_;
  Descriptor lock_;    // of the hidden folder, while it is in use
  bool made_ = false;  // whether the folder was not there before
  std::vector<std::filesystem::path> earlier_;
  std::vector<std::string> names_;
};

/// The runs of digits in a name; empty if one of them is no number of 64 bits.
std::vector<uint64_t> numbers_in(std::string_view name);

/// Numbers put behind each other.
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
