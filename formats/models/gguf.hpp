// GGUF files (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian:
//   1. "GGUF", version (u32), number of tensors (u64), number of keys (u64)
//   2. keys: name, type (u32), value; an array is a type, a count (u64) and its elements
//   3. tensors: name, number of dimensions (u32), dimensions (u64 each, fastest first), type (u32), offset
//      within the data (u64)
//   4. the data, from the next multiple of general.alignment (32 unless the key is there)
// A string is its length (u64) and its bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/io/mapped_file.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// One file, mapped into memory: opening reads only the keys and the list of tensors. Nothing in the file is trusted: counts,
/// lengths, types, shapes and offsets are checked against its size when it is opened; duplicate names and overlapping tensors are
/// refused. A model may be split over several files, NAME-00001-of-0000N.gguf and so on; the first one has the keys and stands for
/// all.
class Gguf {
 public:
  /// A tensor of any element type.
  struct Tensor {
    TensorView view;                   ///< its type is set if it is usable
    std::string type;                  ///< as the format calls it
    std::optional<TensorType> usable;  ///< none: this program does not read it
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  /// Throws Error(bad_input) naming file, key or tensor, the value found and the expected one; Error(failed) if the file cannot be
  /// mapped.
  static Gguf open(const std::string& file);

  const std::string& name() const { return files_.front()->name(); }
  const Tensors& tensors() const { return tensors_; }
  /// A digest of the whole file, which identifies it. Reads the file.
  std::string digest() const;

  /// The names of usable types, for messages.
  static std::string readable_types();

  // Values of keys, with types checked: Error(bad_input) beginning with the key's name.

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<int64_t> get_int(std::string_view key) const;  ///< of any integer type
  /// A number of any type. An f32 is returned as the shortest decimal that rounds to it: files hold such numbers rounded from a
  /// double that was written in decimal (1e-05, say).
  std::optional<double> get_number(std::string_view key) const;
  std::optional<std::string> get_string(std::string_view key) const;
  int64_t need_int(std::string_view key) const { return need(key, get_int(key)); }
  double need_number(std::string_view key) const { return need(key, get_number(key)); }
  std::string need_string(std::string_view key) const { return need(key, get_string(key)); }

  bool is_array(std::string_view key) const {
    const Value* value = find(key);
    return value && value->is_array;
  }
  /// The strings of an array, which lie in the file.
  const std::vector<std::string_view>& need_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> get_ints(std::string_view key) const;
  std::optional<std::vector<bool>> get_flags(std::string_view key) const;
  std::optional<std::vector<float>> get_floats(std::string_view key) const;

  /// A value as stored in the file; a value that is not an array has one element.
  struct Value {
    uint8_t type = 0;  ///< of the elements, numbered as in the file
    bool is_array = false;
    uint64_t count = 0;
    const std::byte* bytes = nullptr;            ///< of elements that are no strings
    std::vector<std::string_view> strings = {};  ///< otherwise
  };

 private:
  explicit Gguf(const std::string& file);
  void parse();
  void place_tensors(uint64_t end_of_list, std::vector<struct TensorBytes>& places);
  void add_parts();
  const Value* find(std::string_view key) const {
    const auto place = values_.find(key);
    return place == values_.end() ? nullptr : &place->second;
  }
  [[noreturn]] static void refuse_missing(std::string_view key);
  template <class T>
  static T need(std::string_view key, const std::optional<T>& value) {
    if (!value) refuse_missing(key);
    return *value;
  }

  std::vector<std::unique_ptr<const MappedFile>> files_;  ///< of a model split over several files: all
  std::map<std::string, Value, std::less<>> values_;
  Tensors tensors_;
};

}  // namespace kvcodec
