// A book is the data that a codec learned beforehand and needs again to decode: a dictionary, a set of codebooks.
// For files and the command line every book has the same form: a type, a parameter record and named arrays. The
// book.hpp of a codec's folder (sparse, rvq, transform) turns it into that codec's own struct, and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/codec/row_program.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/names.hpp"
#include "lib/core/options.hpp"
#include "lib/core/record.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// A named array that owns its bytes, row-major, host byte order (little-endian).
struct Array {
  std::string name;  ///< path below the book's root, e.g. "key/atoms"
  DType type = DType::f32;
  std::vector<uint64_t> shape;
  AlignedVector<std::byte> bytes;

  template <class T>
  static Array of(std::string name, DType type, std::vector<uint64_t> shape, std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    return {std::move(name), type, std::move(shape), {bytes.begin(), bytes.end()}};
  }
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct Book {
  std::string type;  ///< the kvcodec_type of its file: "dictionary", "codebooks" or "transform"; or "program"
  Record parameters;  ///< shape, normalisation, training options: everything that is one scalar
  std::vector<Array> arrays;
  StartRowProgram program =
      nullptr;  ///< starts a "program", whose bytes are an array; null if it was read from a file of codes
  /// Arrays under this path record how the book was made (loss per step, optimiser state). They are not part
  /// of the digest and not counted as storage that decoding needs.
  static constexpr std::string_view kTrainingPrefix = "training/";

  /// The array of that name, or nullptr.
  const Array* find(std::string_view name) const {
    for (const Array& array : arrays)
      if (array.name == name) return &array;
    return nullptr;
  }
  /// The array of that name, type and number of dimensions. Throws Error(bad_input) naming what is there instead.
  const Array& get(std::string_view name, DType type, size_t dimensions) const;
  /// The values of the array of that name, type and shape. Throws Error(bad_input) for another, and if its bytes do
  /// not fit its shape (files check that, books made in memory may not).
  template <class T>
  std::span<const T> values(std::string_view name, DType dtype, const std::vector<uint64_t>& shape) const {
    return checked(name, dtype, shape, sizeof(T)).template values<T>();
  }
  /// The same for an array of one dimension and any length.
  template <class T>
  std::vector<T> list(std::string_view name, DType dtype) const {
    const auto elements = values<T>(name, dtype, get(name, dtype, 1).shape);
    return {elements.begin(), elements.end()};
  }
  /// The same as a matrix: the last extent is its columns.
  template <class T>
  Matrix<T> matrix(std::string_view name, DType dtype, const std::vector<uint64_t>& shape) const {
    const auto elements = values<T>(name, dtype, shape);  // checked before there is room for them
    Matrix<T> result(elements.size() / shape.back(), shape.back());
    std::ranges::copy(elements, result.data());
    return result;
  }
  template <class T>
  void add(std::string name, DType dtype, std::vector<uint64_t> shape, std::span<const T> elements) {
    arrays.push_back(Array::of<T>(std::move(name), dtype, std::move(shape), elements));
  }
  template <class T>
  void add(std::string name, DType dtype, const std::vector<T>& elements) {
    add<T>(std::move(name), dtype, {elements.size()}, elements);
  }
  template <class T>
  void add(std::string name, DType dtype, const Matrix<T>& elements) {
    add<T>(std::move(name), dtype, {elements.rows(), elements.cols()}, {elements.data(), elements.size()});
  }

  /// Throws Error(bad_input) unless the book is of that type, named `what` in messages, and its parameters give these options.
  void read_options(std::string_view of_type, std::string_view what,
                    std::initializer_list<Options*> options) const;
  /// A positive parameter of a model's shape, small enough that products of three fit 64 bits. Throws Error(bad_input) for others.
  int shape_parameter(std::string_view name) const {
    constexpr int kMax = 1 << 20;
    const int64_t value = parameters.get_int(name);
    if (value < 1 || value > kMax)
      throw bad_input("{} is {}; it must be between 1 and {}", name, value, kMax);
    return static_cast<int>(value);
  }

  /// Bytes that decoding needs: all arrays except the training record.
  uint64_t size_bytes() const;
  /// Identifies type and content of all arrays except the training record.
  std::string digest() const;

 private:
  const Array& checked(std::string_view name, DType dtype, std::span<const uint64_t> shape,
                       size_t element_bytes) const;
};

// The keys that codecs and books take: as the cache has them, or turned back (outer_codecs.hpp).

enum class RopeChoice : uint8_t {
  keep,  ///< keys as the cache has them, turned
  undo,  ///< keys turned back
};
constexpr auto names_of(RopeChoice) { return std::to_array<std::string_view>({"keep", "undo"}); }

/// The parameter value-dim of a book's record; absent: kAsKeys. Throws Error(bad_input) for an impossible one.
int value_dim_in(const Record& parameters);
inline void set_value_dim(Record& parameters, int value_dim) {
  if (value_dim != kAsKeys) parameters.set("value-dim", int64_t{value_dim});
}

/// The parameter of codecs and books for this choice; absent = keep.
inline constexpr std::string_view kRopeParameter = "rope";

/// Reads the choice from a record. Throws Error(bad_input) for an invalid one.
inline RopeChoice rope_in(const Record& parameters) {
  return parameters.find(kRopeParameter) ? parameters.get_enum<RopeChoice>(kRopeParameter) : RopeChoice::keep;
}

/// Puts the choice into a record, except `keep`, which records do not name.
inline void set_rope(Record& parameters, RopeChoice rope) {
  if (rope != RopeChoice::keep) parameters.set(kRopeParameter, std::string(name_of(rope)));
}

}  // namespace kvcodec
