#include "lib/sparse/codec/book.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kType = "dictionary";

template <class T>
Array array_of(std::string name, DType type, std::vector<uint64_t> shape, std::span<const T> values) {
  return Array::of<T>(std::move(name), type, std::move(shape), values);
}

Array matrix_array(std::string name, const Matrix<float>& matrix) {
  return array_of<float>(std::move(name), DType::f32, {matrix.rows(), matrix.cols()},
                         {matrix.data(), matrix.size()});
}

/// The array's values after a check that bytes and shape agree (files check it, books made in memory may
/// not).
template <class T>
std::span<const T> values_of(const Array& array) {
  if (array.bytes.size() != checked_mul(checked_product(array.shape), sizeof(T)))
    throw bad_input("/{}: {} bytes do not fit its shape [{}]", array.name, array.bytes.size(),
                    fmt::join(array.shape, ", "));
  return array.values<T>();
}

template <class T>
std::vector<T> vector_from(const Book& book, const std::string& name, DType type) {
  const auto values = book.list<T>(name, type);
  return {values.begin(), values.end()};
}

template <class T = float>
Matrix<T> matrix_from(const Array& array, size_t rows, size_t cols) {
  const auto values = values_of<T>(array);
  if (values.size() != checked_mul(rows, cols) || (!array.shape.empty() && array.shape[0] != rows))
    throw bad_input("/{}: is [{}]; it must be {} x {}", array.name, fmt::join(array.shape, ", "), rows, cols);
  Matrix<T> matrix(rows, cols);
  std::ranges::copy(values, matrix.data());
  return matrix;
}

constexpr int kLevelOffset = 128;

/// Levels and scales of atoms kept in 8 bits.
void add_byte_atoms(Book& book, const std::string& path, MatrixView<const float> atoms) {
  const ByteAtoms bytes = round_to_bytes(atoms);
  std::vector<uint8_t> levels(bytes.levels.size());
  std::ranges::transform(std::span(bytes.levels.data(), levels.size()), levels.begin(),
                         [](int8_t level) { return static_cast<uint8_t>(level + kLevelOffset); });
  book.arrays.push_back(array_of<uint8_t>(path + "/atoms", DType::u8, {atoms.rows(), atoms.cols()}, levels));
  book.arrays.push_back(
      array_of<float>(path + "/atom_scale", DType::f32, {bytes.scales.size()}, bytes.scales));
}

ByteAtoms byte_atoms_from(const Book& book, const std::string& path, size_t n, size_t width) {
  const Matrix<uint8_t> stored = matrix_from<uint8_t>(book.get(path + "/atoms", DType::u8, 2), n, width);
  ByteAtoms bytes{Matrix<int8_t>(n, width), vector_from<float>(book, path + "/atom_scale", DType::f32)};
  if (bytes.scales.size() != n)
    throw bad_input("/{}/atom_scale: has {} scales for {} atoms", path, bytes.scales.size(), n);
  for (size_t i = 0; i < n; ++i) {
    if (!(bytes.scales[i] > 0 && std::isfinite(bytes.scales[i])))
      throw bad_input("/{}/atom_scale: that of atom {} is {}; it must be positive", path, i, bytes.scales[i]);
    for (size_t c = 0; c < width; ++c) {
      if (stored(i, c) == 0) throw bad_input("/{}/atoms: atom {} has a level of 0; the least is 1", path, i);
      bytes.levels(i, c) = static_cast<int8_t>(stored(i, c) - kLevelOffset);
    }
  }
  return bytes;
}

/// Where a dictionary of a part stands.
std::string path_of(const SparseBook& sparse, Side side, int first_layer) {
  return sparse.global() ? std::string(name_of(side)) : fmt::format("{}/{}", name_of(side), first_layer);
}

/// Layers of the model that a part is for.
std::pair<size_t, size_t> layers_of(const SparseBook& sparse, const SparseBook::Part& part) {
  if (sparse.global()) return {0, static_cast<size_t>(sparse.num_layers)};
  return {static_cast<size_t>(part.first_layer), static_cast<size_t>(sparse.options.layer_group)};
}

/// Scales and means of all layers, each from the part that is for it; 1 and 0 where none is.
Normalization merged_normalization(const SparseBook& sparse, Side side) {
  Normalization merged;
  const auto layers = static_cast<size_t>(sparse.num_layers);
  const Normalization& any = sparse.of(side).dictionary.normalization;
  merged.normalize = any.normalize;
  if (scales_layers(any.normalize)) merged.layer_scale.assign(layers, 1.0f);
  if (any.center() == Center::channel)
    merged.channel_mean = Matrix<float>(layers, sparse.layout().layer_width());
  for (const SparseBook::Part& part : sparse.parts) {
    const Normalization& own = part.of(side).dictionary.normalization;
    const auto [first, count] = layers_of(sparse, part);
    for (size_t i = first; i < first + count; ++i) {
      if (!merged.layer_scale.empty()) merged.layer_scale[i] = own.layer_scale[i];
      if (merged.channel_mean.size() > 0)
        std::ranges::copy(own.channel_mean.row(i), merged.channel_mean.row(i).begin());
    }
  }
  return merged;
}

void add_normalization(Book& book, const SparseBook& sparse, Side side) {
  const std::string path(name_of(side));
  const Normalization normalization = merged_normalization(sparse, side);
  const auto layers = static_cast<uint64_t>(sparse.num_layers), heads = static_cast<uint64_t>(sparse.heads);
  const auto head_dim = static_cast<uint64_t>(sparse.head_dim);
  if (scales_layers(normalization.normalize))
    book.arrays.push_back(
        array_of<float>(path + "/layer_scale", DType::f32, {layers}, normalization.layer_scale));
  if (normalization.center() == Center::channel)
    book.arrays.push_back(
        array_of<float>(path + "/channel_mean", DType::f32, {layers, heads, head_dim},
                        {normalization.channel_mean.data(), normalization.channel_mean.size()}));
}

void add_atoms(Book& book, const SparseBook& sparse, const std::string& path, const Dictionary& dictionary) {
  if (sparse.options.atom_type == AtomType::i8)
    add_byte_atoms(book, path, dictionary.atoms);
  else
    book.arrays.push_back(matrix_array(path + "/atoms", dictionary.atoms));
}

void add_training(Book& book, const SparseBook& sparse, const std::string& path,
                  const SparseBook::OneSide& side) {
  const std::string training = std::string(Book::kTrainingPrefix) + path;
  const auto& [dictionary, state] = side;
  book.arrays.push_back(array_of<double>(training + "/loss", DType::f64, {state.loss.size()}, state.loss));
  book.arrays.push_back(
      array_of<uint32_t>(training + "/replaced", DType::u32, {state.replaced.size()}, state.replaced));
  book.arrays.push_back(
      array_of<double>(training + "/validation", DType::f64, {state.validation.size()}, state.validation));
  book.arrays.push_back(
      array_of<uint64_t>(training + "/usage", DType::u64, {state.usage.size()}, state.usage));
  if (state.mean.size() > 0) {
    book.arrays.push_back(matrix_array(training + "/adam_mean", state.mean));
    book.arrays.push_back(matrix_array(training + "/adam_variance", state.variance));
  }
  book.arrays.push_back(
      array_of<double>(training + "/seconds", DType::f64, {state.seconds.size()}, state.seconds));
  const uint8_t stable = state.stable ? 1 : 0;
  book.arrays.push_back(array_of<uint8_t>(training + "/stable", DType::u8, {1}, {&stable, 1}));
  if (sparse.options.atom_type == AtomType::i8)
    book.arrays.push_back(matrix_array(training + "/atoms", dictionary.atoms));
}

Normalization normalization_from(const Book& book, const SparseBook& sparse, Side side) {
  const std::string path(name_of(side));
  Normalization normalization;
  normalization.normalize = sparse.options.normalize;
  if (scales_layers(normalization.normalize))
    normalization.layer_scale = vector_from<float>(book, path + "/layer_scale", DType::f32);
  if (sparse.options.center == Center::channel)
    normalization.channel_mean =
        matrix_from(book.get(path + "/channel_mean", DType::f32, 3), static_cast<size_t>(sparse.num_layers),
                    sparse.layout().layer_width());
  return normalization;
}

/// The dictionary of one side of a part, which has its normalization already.
void read_part(const Book& book, bool with_training, const std::string& path, const SparseBook& sparse,
               SparseBook::OneSide& side) {
  const std::string training = std::string(Book::kTrainingPrefix) + path;
  auto& dictionary = side.dictionary;  // clang 14 captures no binding
  auto& state = side.training;
  const auto layers = static_cast<size_t>(sparse.num_layers);
  const SignalLayout layout = sparse.layout();
  const auto n = static_cast<size_t>(sparse.options.atoms);
  if (sparse.options.atom_type == AtomType::i8) {
    dictionary.bytes = byte_atoms_from(book, path, n, layout.signal_width());
    dictionary.atoms = floats_of(dictionary.bytes);
  } else {
    dictionary.atoms = matrix_from(book.get(path + "/atoms", DType::f32, 2), n, layout.signal_width());
  }
  with_context("/" + path, [&] { dictionary.check(layout, layers); });
  if (!with_training) return;
  if (!dictionary.bytes.empty()) {
    dictionary.atoms = matrix_from(book.get(training + "/atoms", DType::f32, 2), n, layout.signal_width());
    dictionary.bytes = {};
    with_context("/" + training, [&] { check_atoms(dictionary.atoms); });
  }
  state.loss = vector_from<double>(book, training + "/loss", DType::f64);
  state.steps = state.loss.size();
  state.replaced = vector_from<uint32_t>(book, training + "/replaced", DType::u32);
  state.validation = vector_from<double>(book, training + "/validation", DType::f64);
  state.usage = vector_from<uint64_t>(book, training + "/usage", DType::u64);
  if (sparse.options.optimizer == Optimizer::adam) {
    state.mean = matrix_from(book.get(training + "/adam_mean", DType::f32, 2), n, layout.signal_width());
    state.variance =
        matrix_from(book.get(training + "/adam_variance", DType::f32, 2), n, layout.signal_width());
  }
  state.seconds = vector_from<double>(book, training + "/seconds", DType::f64);
  const auto stable = vector_from<uint8_t>(book, training + "/stable", DType::u8);
  state.stable = !stable.empty() && stable[0] != 0;
}

/// A positive parameter of the model's shape.
int shape_parameter(const Record& parameters, std::string_view name) {
  const int64_t value = parameters.get_int(name);
  // Products of three such numbers still fit 64 bits.
  if (value < 1 || value > 1 << 20)
    throw bad_input("{} is {}; it must be between 1 and {}", name, value, 1 << 20);
  return static_cast<int>(value);
}

}  // namespace

Book to_book(SparseBook sparse) {
  Book book;
  book.type = kType;
  book.parameters = to_record(sparse.options);
  book.parameters.set("num-layers", int64_t{sparse.num_layers});
  book.parameters.set("heads", int64_t{sparse.heads});
  book.parameters.set("head-dim", int64_t{sparse.head_dim});
  book.parameters.set("width", static_cast<int64_t>(sparse.layout().signal_width()));
  book.parameters.set("source", sparse.source);
  set_rope(book.parameters, sparse.rope);
  if (sparse.parts.empty()) throw failed("a dictionary without parts");
  for (const Side side : kSides) {
    for (SparseBook::Part& part : sparse.parts) {
      Dictionary& dictionary = part.of(side).dictionary;
      normalize_atoms(dictionary.atoms);
      dictionary.check(sparse.layout(), static_cast<size_t>(sparse.num_layers));
      if (dictionary.atoms.rows() != static_cast<size_t>(sparse.options.atoms))
        throw failed("{} atoms for keys or values where the options say {}", dictionary.atoms.rows(),
                     sparse.options.atoms);
      add_atoms(book, sparse, path_of(sparse, side, part.first_layer), dictionary);
    }
    add_normalization(book, sparse, side);
    for (SparseBook::Part& part : sparse.parts) {
      add_training(book, sparse, path_of(sparse, side, part.first_layer), part.of(side));
      part.of(side) = {};  // both would be much of what a machine has
    }
  }
  return book;
}

SparseBook sparse_book_from(const Book& book, bool with_training) {
  if (book.type != kType) throw bad_input("the book is of type '{}'; a {} is needed", book.type, kType);
  SparseBook sparse;
  try {
    from_record(book.parameters, sparse.options);
  } catch (const Error& error) {
    throw bad_input("parameters of the dictionary: {}", error.what());
  }
  // Names that decide what the arrays mean must be there; fields that only steered the training may be
  // missing.
  for (const std::string_view name : {"signal", "normalize", "center", "dict-scope"})
    book.parameters.get_string(name);
  for (const std::string_view name : {"atoms", "layer-group", "sparsity"}) book.parameters.get_int(name);
  sparse.num_layers = shape_parameter(book.parameters, "num-layers");
  sparse.heads = shape_parameter(book.parameters, "heads");
  sparse.head_dim = shape_parameter(book.parameters, "head-dim");
  sparse.source = book.parameters.get_string("source");
  sparse.rope = rope_in(book.parameters);
  if (sparse.options.layer_group > sparse.num_layers || sparse.num_layers % sparse.options.layer_group != 0)
    throw bad_input("layer groups of {} do not divide the model's {} layers", sparse.options.layer_group,
                    sparse.num_layers);
  if (!sparse.global()) {
    sparse.parts.clear();
    const auto group = static_cast<int>(sparse.options.layer_group);
    for (int first = 0; first < sparse.num_layers; first += group) {
      const auto there = [&](Side side) {
        return book.find(path_of(sparse, side, first) + "/atoms") != nullptr;
      };
      if (there(Side::key) != there(Side::value))
        throw bad_input("/{}: there are no atoms, but those of the other side",
                        path_of(sparse, there(Side::key) ? Side::value : Side::key, first));
      if (there(Side::key)) sparse.parts.push_back({first});
    }
    if (sparse.parts.empty())
      throw bad_input("/key: there are no atoms of any group of layers; dict-scope is {}",
                      sparse.options.dict_scope);
  }
  for (const Side side : kSides) {
    const Normalization normalization = normalization_from(book, sparse, side);
    for (SparseBook::Part& part : sparse.parts) {
      part.of(side).dictionary.normalization = normalization;
      read_part(book, with_training, path_of(sparse, side, part.first_layer), sparse, part.of(side));
    }
  }
  return sparse;
}

size_t SparseBook::part_for(int first_layer) const {
  if (global()) return 0;
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].first_layer == first_layer) return i;
  throw bad_input("the dictionary has no atoms for layer {}; it was trained without", first_layer);
}

}  // namespace kvcodec
