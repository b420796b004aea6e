#include "lib/sparse/codec/book.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

constexpr std::string_view kType = "dictionary";

constexpr int kLevelOffset = 128;

/// Calls visit(name, type, array) for the arrays of a training record, in the order of a book.
template <class State, class Visit>
static void for_each_array(State& state, bool adam, const Visit& visit) {
  visit("/loss", DType::f64, state.loss);
  visit("/replaced", DType::u32, state.replaced);
  visit("/validation", DType::f64, state.validation);
  visit("/usage", DType::u64, state.usage);
  if (adam) {
    visit("/adam_mean", DType::f32, state.mean);
    visit("/adam_variance", DType::f32, state.variance);
  }
  visit("/seconds", DType::f64, state.seconds);
}

static ByteAtoms byte_atoms_from(const Book& book, const std::string& path, size_t n, size_t width) {
  const auto stored = book.matrix<uint8_t>(path + "/atoms", DType::u8, {n, width});
  ByteAtoms bytes{Matrix<int8_t>(n, width), book.list<float>(path + "/atom_scale", DType::f32)};
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

static std::string path_of(const SparseBook& sparse, Side side, int first_layer) {
  return sparse.global() ? std::string(name_of(side)) : fmt::format("{}/{}", name_of(side), first_layer);
}

static std::vector<uint64_t> shape_of_means(const SparseBook& sparse, Side side) {
  return {static_cast<uint64_t>(sparse.num_layers), static_cast<uint64_t>(sparse.heads),
          static_cast<uint64_t>(sparse.layer().stored_dim(side))};
}

/// Adds scales and means of all layers, each from the part that is for it; 1 and 0 where none is.
static void add_normalization(Book& book, const SparseBook& sparse, Side side) {
  const Normalization& any = sparse.of(side).dictionary.normalization;
  const auto layers = as_size(sparse.num_layers);
  std::vector<float> scale(layers, 1.0f);
  Matrix<float> mean(layers, sparse.layout(side).layer_width());
  for (const SparseBook::Part& part : sparse.parts) {
    const Normalization& own = part.of(side).dictionary.normalization;
    const auto first = static_cast<size_t>(sparse.global() ? 0 : part.first_layer),
               count = sparse.global() ? layers : as_size(sparse.options.layer_group);
    for (size_t i = first; i < first + count; ++i) {
      scale[i] = own.scale_of(i);
      if (any.center() == Center::channel) std::ranges::copy(own.channel_mean.row(i), mean.row(i).begin());
    }
  }
  const std::string path(name_of(side));
  if (scales_layers(any.normalize)) book.add(path + "/layer_scale", DType::f32, scale);
  if (any.center() == Center::channel)
    book.add<float>(path + "/channel_mean", DType::f32, shape_of_means(sparse, side),
                    {mean.data(), mean.size()});
}

static void add_atoms(Book& book, const SparseBook& sparse, const std::string& path,
                      const Dictionary& dictionary) {
  if (sparse.options.atom_type == AtomType::f32)
    return book.add(path + "/atoms", DType::f32, dictionary.atoms);
  const ByteAtoms bytes = round_to_bytes(dictionary.atoms);
  Matrix<uint8_t> levels(bytes.levels.rows(), bytes.levels.cols());
  std::transform(bytes.levels.data(), bytes.levels.data() + levels.size(), levels.data(),
                 [](int8_t level) { return static_cast<uint8_t>(level + kLevelOffset); });
  book.add(path + "/atoms", DType::u8, levels);
  book.add(path + "/atom_scale", DType::f32, bytes.scales);
}

static void add_training(Book& book, const SparseBook& sparse, const std::string& path,
                         const SparseBook::OneSide& side) {
  const std::string training = std::string(Book::kTrainingPrefix) + path;
  for_each_array(
      side.training, side.training.mean.size() > 0,
      [&](const char* name, DType type, const auto& array) { book.add(training + name, type, array); });
  book.add(training + "/stable", DType::u8, std::vector<uint8_t>{side.training.stable});
  if (sparse.options.atom_type == AtomType::i8)
    book.add(training + "/atoms", DType::f32, side.dictionary.atoms);
}

static Normalization normalization_from(const Book& book, const SparseBook& sparse, Side side) {
  const std::string path(name_of(side));
  Normalization normalization;
  normalization.normalize = sparse.options.normalize;
  if (scales_layers(normalization.normalize))
    normalization.layer_scale = book.list<float>(path + "/layer_scale", DType::f32);
  if (sparse.options.center == Center::channel) {
    const auto means = book.values<float>(path + "/channel_mean", DType::f32, shape_of_means(sparse, side));
    normalization.channel_mean = Matrix<float>(as_size(sparse.num_layers), sparse.layout(side).layer_width());
    std::ranges::copy(means, normalization.channel_mean.data());
  }
  return normalization;
}

/// The dictionary of a side of a part, which has its normalization already.
static void read_part(const Book& book, bool with_training, const SparseBook& sparse, Side of_side,
                      SparseBook::Part& part) {
  const std::string path = path_of(sparse, of_side, part.first_layer);
  SparseBook::OneSide& side = part.of(of_side);
  const std::string training = std::string(Book::kTrainingPrefix) + path;
  const SignalLayout layout = sparse.layout(of_side);
  const auto n = as_size(sparse.options.atoms);
  Dictionary& dictionary = side.dictionary;
  const auto read_atoms = [&](const std::string& at) {
    dictionary.atoms = book.matrix<float>(at + "/atoms", DType::f32, {n, layout.signal_width()});
  };
  if (sparse.options.atom_type == AtomType::i8) {
    dictionary.bytes = byte_atoms_from(book, path, n, layout.signal_width());
    dictionary.atoms = floats_of(dictionary.bytes);
  } else {
    read_atoms(path);
  }
  with_context("/" + path, [&] { dictionary.check(layout, as_size(sparse.num_layers)); });
  if (!with_training) return;
  if (!dictionary.bytes.empty()) {
    read_atoms(training);
    dictionary.bytes = {};
    with_context("/" + training, [&] { check_atoms(dictionary.atoms); });
  }
  TrainState& state = side.training;
  for_each_array(
      state, sparse.options.optimizer == Optimizer::adam, [&](const char* name, DType type, auto& array) {
        if constexpr (requires { array.cols(); })
          array = book.matrix<float>(training + name, type, {n, layout.signal_width()});
        else
          array = book.list<typename std::decay_t<decltype(array)>::value_type>(training + name, type);
      });
  state.steps = state.loss.size();
  const auto stable = book.list<uint8_t>(training + "/stable", DType::u8);
  state.stable = !stable.empty() && stable[0] != 0;
}

Book to_book(SparseBook sparse) {
  Book book;
  book.type = kType;
  book.parameters = to_record(sparse.options);
  book.parameters.set("num-layers", int64_t{sparse.num_layers});
  book.parameters.set("heads", int64_t{sparse.heads});
  book.parameters.set("head-dim", int64_t{sparse.head_dim});
  set_value_dim(book.parameters, sparse.value_dim);
  book.parameters.set("width", static_cast<int64_t>(sparse.layout().signal_width()));
  book.parameters.set("source", sparse.source);
  set_rope(book.parameters, sparse.rope);
  if (sparse.parts.empty()) throw failed("a dictionary without parts");
  for (const Side side : sparse.sides()) {
    for (SparseBook::Part& part : sparse.parts) {
      Dictionary& dictionary = part.of(side).dictionary;
      normalize_atoms(dictionary.atoms);
      dictionary.check(sparse.layout(side), as_size(sparse.num_layers));
      if (dictionary.atoms.rows() != as_size(sparse.options.atoms))
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
  SparseBook sparse;
  sparse.options.atom_type = AtomType::f32;  // where the book does not say
  Book named;
  named.type = book.type, named.parameters = book.parameters;
  // From clusters of signals, as earlier versions began: that is over once there is a book.
  if (named.parameters.find("start") && named.parameters.get_string("start") == "kmeans")
    named.parameters.set("start", "samples");
  named.read_options(kType, "dictionary", {&sparse.options});
  // Names that decide what the arrays mean must be there; fields that only steered the training may be missing.
  for (const std::string_view name : {"signal", "normalize", "center", "dict-scope"})
    book.parameters.get_string(name);
  for (const std::string_view name : {"atoms", "layer-group", "sparsity"}) book.parameters.get_int(name);
  sparse.num_layers = book.shape_parameter("num-layers");
  sparse.heads = book.shape_parameter("heads");
  sparse.head_dim = book.shape_parameter("head-dim");
  sparse.value_dim = value_dim_in(book.parameters);
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
      if (there(Side::key) != there(sparse.sides().back()))
        throw bad_input("/{}: there are no atoms, but those of the other side",
                        path_of(sparse, there(Side::key) ? Side::value : Side::key, first));
      if (there(Side::key)) sparse.parts.push_back({first});
    }
    if (sparse.parts.empty())
      throw bad_input("/key: there are no atoms of any group of layers; dict-scope is {}",
                      sparse.options.dict_scope);
  }
  for (const Side side : sparse.sides()) {
    const Normalization normalization = normalization_from(book, sparse, side);
    for (SparseBook::Part& part : sparse.parts) {
      part.of(side).dictionary.normalization = normalization;
      read_part(book, with_training, sparse, side, part);
    }
  }
  return sparse;
}

}  // namespace kvcodec
