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

#include "lib/model/weights.hpp"

namespace kvcodec {

/// One file, mapped into memory: opening reads keys and the list of tensors only. Nothing in the file is
/// trusted: counts, lengths, types, shapes and offsets are checked against its size when it is opened, names
/// given twice and tensors that overlap are refused. A model may be split over several files, NAME-00001-of-0000N.gguf
/// and so on, of which the first has the keys: it stands for all.
class Gguf {
 public:
  /// A tensor of any element type.
  struct Tensor {
    TensorView view;                   ///< its type is set if it is usable
    std::string type;                  ///< as the format calls it
    std::optional<TensorType> usable;  ///< none: this program does not read it
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  /// Throws Error(bad_input) naming file, key or tensor, what is there and what would be right; Error(failed)
  /// if the file cannot be mapped.
  static Gguf open(const std::string& file);

  ~Gguf();
  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;

  const std::string& name() const;
  const Tensors& tensors() const;
  uint64_t file_bytes() const;
  /// Identifies the file: a digest of all of it. Reads it.
  std::string digest() const;

  /// The names of usable types, for messages.
  static std::string readable_types();

  // Values of keys, with types checked: Error(bad_input) beginning with the key's name.

  bool has(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<int64_t> get_int(std::string_view key) const;  ///< of any integer type
  /// Of any type of number. Of an f32 the shortest decimal that rounds to it: files hold such numbers rounded
  /// from a double that had been written in decimal (1e-05, say).
  std::optional<double> get_number(std::string_view key) const;
  std::optional<std::string> get_string(std::string_view key) const;
  int64_t need_int(std::string_view key) const;
  double need_number(std::string_view key) const;
  std::string need_string(std::string_view key) const;

  bool is_array(std::string_view key) const;
  /// The strings of an array, which lie in the file; nullptr: there is no such key.
  const std::vector<std::string_view>* get_strings(std::string_view key) const;
  const std::vector<std::string_view>& need_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> get_ints(std::string_view key) const;
  std::optional<std::vector<bool>> get_flags(std::string_view key) const;
  std::optional<std::vector<float>> get_floats(std::string_view key) const;

 private:
  struct Impl;
  explicit Gguf(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
