#include "lib/rvq/codec/book.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kType = "codebooks";

/// Bounds of what a book can have, so that products of sizes fit and ids 32 bits.
constexpr int64_t kMostCodebooks = 1 << 12, kMostEntries = 1 << 24, kMostHeadDim = 1 << 16;

constexpr RvqPreset kPresets[] = {
    {"small",
     "256 entries, kmeans; minutes on two cores",
     {8, 6, 4},
     {256, 256, 256},
     RvqMethod::kmeans,
     DType::f16},
    {"medium",
     "1,024 entries, kmeans; some four times as long",
     {8, 6, 4},
     {1024, 1024, 1024},
     RvqMethod::kmeans,
     DType::f16},
    {"paper-8b",
     "the paper's for Llama-3.1-8B: 65,536 entries, 16,384 of key_high, simvq",
     {8, 20, 16},
     {65536, 65536, 16384},
     RvqMethod::simvq,
     DType::bf16},
    {"paper-3b",
     "the paper's for Llama-3.2-3B: 65,536 entries, simvq",
     {10, 20, 14},
     {65536, 65536, 65536},
     RvqMethod::simvq,
     DType::bf16},
};

template <class T>
Array array_of(std::string name, DType type, std::vector<uint64_t> shape, std::span<const T> values) {
  return Array::of<T>(std::move(name), type, std::move(shape), values);
}

/// A list of any length.
template <class T>
std::vector<T> list_of(const Book& book, const std::string& name, DType type) {
  const auto values = book.list<T>(name, type);
  return {values.begin(), values.end()};
}

Matrix<float> matrix_of(const Book& book, const std::string& name, size_t rows, size_t cols) {
  const auto values = book.values<float>(name, DType::f32, std::vector<uint64_t>{rows, cols});
  Matrix<float> matrix(rows, cols);
  std::ranges::copy(values, matrix.data());
  return matrix;
}

std::vector<uint64_t> shape_of(const Codebooks& books) {
  return {books.stages(), books.entries(), books.width()};
}

/// The entries one after the other, without what lies behind their width.
std::vector<float> packed(const Codebooks& books) {
  std::vector<float> values;
  values.reserve(books.stages() * books.entries() * books.width());
  for (size_t s = 0; s < books.stages(); ++s)
    for (size_t e = 0; e < books.entries(); ++e)
      values.insert(values.end(), books.stage(s).row(e).begin(), books.stage(s).row(e).end());
  return values;
}

void unpack(std::span<const float> values, Codebooks& books) {
  const size_t width = books.width();
  for (size_t s = 0; s < books.stages(); ++s)
    for (size_t e = 0; e < books.entries(); ++e)
      std::ranges::copy(values.subspan((s * books.entries() + e) * width, width),
                        books.stage(s).row(e).begin());
}

Array stored_entries(const std::string& name, DType type, const Codebooks& books) {
  const std::vector<float> values = packed(books);
  if (type == DType::f32) return array_of<float>(name, type, shape_of(books), values);
  std::vector<uint16_t> halves(values.size());
  narrow(type, values, halves);
  for (size_t i = 0; i < halves.size(); ++i)
    if (!std::isfinite(round_to(type, values[i])))
      throw bad_input("/{}: an entry holds {}, which is beyond the range of {}; use --entry-type bf16 or f32",
                      name, values[i], name_of(type));
  return array_of<uint16_t>(name, type, shape_of(books), halves);
}

void add_part(Book& book, const RvqBook& rvq, RvqPart part, DType type) {
  const std::string path(name_of(part)), training = std::string(Book::kTrainingPrefix) + path;
  const auto& [books, state] = rvq.of(part);
  const std::vector<uint64_t> shape{rvq.stages(part), rvq.entries(part), rvq.width(part)};
  if (shape_of(books) != shape)
    throw failed("codebooks [{}] of {} where the options say [{}]", fmt::join(shape_of(books), ", "), path,
                 fmt::join(shape, ", "));
  book.arrays.push_back(stored_entries(path + "/entries", type, books));
  if (part != RvqPart::value) {
    const auto& dimensions = part == RvqPart::key_low ? rvq.split.low : rvq.split.high;
    book.arrays.push_back(
        array_of<uint32_t>(path + "/dimensions", DType::u32, {dimensions.size()}, dimensions));
  }
  if (type != DType::f32) book.arrays.push_back(stored_entries(training + "/entries", DType::f32, books));
  std::vector<double> loss;
  for (const auto& epoch : state.loss) loss.insert(loss.end(), epoch.begin(), epoch.end());
  book.arrays.push_back(
      array_of<double>(training + "/loss", DType::f64, {state.loss.size(), shape[0]}, loss));
  book.arrays.push_back(
      array_of<double>(training + "/refit_loss", DType::f64, {state.refit_loss.size()}, state.refit_loss));
  book.arrays.push_back(array_of<uint64_t>(training + "/usage", DType::u64,
                                           {state.usage.rows(), state.usage.cols()},
                                           {state.usage.data(), state.usage.size()}));
  const uint64_t progress[] = {state.epochs, state.refits, state.refit_ended ? 1u : 0u, state.steps};
  book.arrays.push_back(array_of<uint64_t>(training + "/progress", DType::u64, {4}, progress));
  const auto add = [&](const char* name, const Matrix<float>& matrix, std::vector<uint64_t> extents) {
    if (matrix.size() > 0)
      book.arrays.push_back(
          array_of<float>(training + name, DType::f32, std::move(extents), {matrix.data(), matrix.size()}));
  };
  add("/projection", state.projection, {shape[0], shape[2] + 1, shape[2]});
  add("/random", state.random, shape);
  add("/adam_mean", state.mean, {state.mean.rows(), state.mean.cols()});
  add("/adam_variance", state.variance, {state.variance.rows(), state.variance.cols()});
}

void read_training(const Book& book, const std::string& training, RvqBook& rvq, RvqBook::Part& part) {
  const size_t stages = part.books.stages(), entries = part.books.entries(), width = part.books.width();
  RvqTrainState& state = part.state;
  const auto progress = book.values<uint64_t>(training + "/progress", DType::u64, std::vector<uint64_t>{4});
  state.epochs = progress[0], state.refits = progress[1], state.refit_ended = progress[2] != 0;
  state.steps = progress[3];
  const auto loss =
      book.values<double>(training + "/loss", DType::f64, std::vector<uint64_t>{state.epochs, stages});
  for (size_t i = 0; i < state.epochs; ++i)
    state.loss.emplace_back(loss.begin() + static_cast<std::ptrdiff_t>(i * stages),
                            loss.begin() + static_cast<std::ptrdiff_t>((i + 1) * stages));
  state.refit_loss = list_of<double>(book, training + "/refit_loss", DType::f64);
  const auto usage =
      book.values<uint64_t>(training + "/usage", DType::u64, std::vector<uint64_t>{stages, entries});
  state.usage = Matrix<uint64_t>(stages, entries);
  std::ranges::copy(usage, state.usage.data());
  if (rvq.options.entry_type != DType::f32) {
    unpack(
        book.values<float>(training + "/entries", DType::f32, std::vector<uint64_t>{stages, entries, width}),
        part.books);
    with_context("/" + training + "/entries", [&] { part.books.check_finite(); });
  }
  if (rvq.training.method != RvqMethod::simvq) return;
  const auto projection = book.values<float>(training + "/projection", DType::f32,
                                             std::vector<uint64_t>{stages, width + 1, width});
  state.projection = Matrix<float>(stages * (width + 1), width);
  std::ranges::copy(projection, state.projection.data());
  if (rvq.training.train_entries) {
    const auto random =
        book.values<float>(training + "/random", DType::f32, std::vector<uint64_t>{stages, entries, width});
    state.random = Matrix<float>(stages * entries, width);
    std::ranges::copy(random, state.random.data());
  }
  if (book.find(training + "/adam_mean") == nullptr) return;
  const size_t moments = stages * (width + 1) + state.random.rows();
  state.mean = matrix_of(book, training + "/adam_mean", moments, width);
  state.variance = matrix_of(book, training + "/adam_variance", moments, width);
}

void read_part(const Book& book, bool with_training, RvqPart which, RvqBook& rvq) {
  const std::string path(name_of(which)), training = std::string(Book::kTrainingPrefix) + path;
  const std::vector<uint64_t> shape{rvq.stages(which), rvq.entries(which), rvq.width(which)};
  RvqBook::Part& part = rvq.of(which);
  const DType type = rvq.options.entry_type;
  const std::string name = path + "/entries";
  if (type == DType::f32) {
    const auto values = book.values<float>(name, type, shape);
    part.books = Codebooks(shape[0], shape[1], shape[2]);
    unpack(values, part.books);
  } else {
    const auto halves = book.values<uint16_t>(name, type, shape);
    std::vector<float> values(halves.size());
    widen(type, halves, values);
    part.books = Codebooks(shape[0], shape[1], shape[2]);
    unpack(values, part.books);
  }
  with_context("/" + name, [&] { part.books.check_finite(); });
  if (with_training) read_training(book, training, rvq, part);
}

}  // namespace

std::vector<OptionField> RvqBookOptions::fields() {
  const double most = kMostCodebooks, most_entries = kMostEntries;
  return {
      {"codebooks-value", "codebooks of values", &codebooks_value, 1, most},
      {"codebooks-low", "codebooks of the low dimensions of keys", &codebooks_low, 1, most},
      {"codebooks-high", "codebooks of the high dimensions of keys", &codebooks_high, 1, most},
      {"entries-value", "entries of each codebook of values", &entries_value, 2, most_entries},
      {"entries-low", "entries of each codebook of low dimensions", &entries_low, 2, most_entries},
      {"entries-high", "entries of each codebook of high dimensions", &entries_high, 2, most_entries},
      {"split",
       "which dimensions of keys are high: the band of neighbouring frequencies that a probe quantizer "
       "reconstructs worst, those that the rotary embedding turns fastest, or none; then one quantizer has "
       "the codebooks of both",
       &split},
      {"high-dims", "how many are high, an even number; -1 = the paper's fraction, 3 in 8", &high_dims, -1,
       kMostHeadDim},
      {"entry-type", "type that entries are stored in", &entry_type, {}, {}, {"f16", "bf16", "f32"}},
  };
}

void RvqBookOptions::check() const {
  if (high_dims > 0 && high_dims % 2 != 0)
    throw usage_error("--high-dims is {}; dimensions go in pairs, so it must be even", high_dims);
}

std::span<const RvqPreset> rvq_presets() { return kPresets; }

const RvqPreset* find_rvq_preset(std::string_view name) {
  for (const RvqPreset& preset : kPresets)
    if (preset.name == name) return &preset;
  return nullptr;
}

size_t RvqBook::stages(RvqPart part) const {
  if (part == RvqPart::value) return static_cast<size_t>(options.codebooks_value);
  if (part == RvqPart::key_high) return split.high.empty() ? 0 : static_cast<size_t>(options.codebooks_high);
  return static_cast<size_t>(options.codebooks_low + (split.high.empty() ? options.codebooks_high : 0));
}

size_t RvqBook::entries(RvqPart part) const {
  return static_cast<size_t>(part == RvqPart::value     ? options.entries_value
                             : part == RvqPart::key_low ? options.entries_low
                                                        : options.entries_high);
}

size_t RvqBook::width(RvqPart part) const {
  return part == RvqPart::value     ? static_cast<size_t>(head_dim)
         : part == RvqPart::key_low ? split.low.size()
                                    : split.high.size();
}

Book to_book(const RvqBook& rvq) {
  Book book;
  book.type = kType;
  RvqBookOptions options = rvq.options;
  RvqTrainOptions training = rvq.training;
  book.parameters = to_record(options);
  const Record of_training = to_record(training);
  for (const auto& [name, value] : of_training.items()) book.parameters.set(name, value);
  book.parameters.set("head-dim", int64_t{rvq.head_dim});
  book.parameters.set("source", rvq.source);
  set_rope(book.parameters, rvq.rope);
  rvq.weights.write(book.parameters);
  const DType type = rvq.options.entry_type;
  for (const RvqPart part : kRvqParts)
    if (rvq.stages(part) > 0) add_part(book, rvq, part, type);
  if (!rvq.dimension_error.empty()) {
    const std::vector<uint64_t> shape{rvq.dimension_error.size()};
    book.arrays.push_back(
        array_of<double>("training/key/dimension_error", DType::f64, shape, rvq.dimension_error));
    book.arrays.push_back(
        array_of<double>("training/key/dimension_energy", DType::f64, shape, rvq.dimension_energy));
  }
  return book;
}

RvqBook rvq_book_from(const Book& book, bool with_training) {
  if (book.type != kType) throw bad_input("the book is of type '{}'; a {} book is needed", book.type, kType);
  RvqBook rvq;
  try {
    from_record(book.parameters, rvq.options);
    from_record(book.parameters, rvq.training);
  } catch (const Error& error) {
    throw bad_input("parameters of the codebooks: {}", error.what());
  }
  // What decides what the arrays mean must be there; fields that only steered the training may be missing.
  for (const std::string_view name :
       {"codebooks-value", "codebooks-low", "codebooks-high", "entries-value", "entries-low", "entries-high"})
    book.parameters.get_int(name);
  book.parameters.get_string("entry-type");
  const int64_t head_dim = book.parameters.get_int("head-dim");
  if (head_dim < 1 || head_dim > kMostHeadDim)
    throw bad_input("head-dim is {}; it must be between 1 and {}", head_dim, kMostHeadDim);
  rvq.head_dim = static_cast<int>(head_dim);
  rvq.source = book.parameters.get_string("source");
  rvq.rope = rope_in(book.parameters);
  rvq.weights = LayerWeights::read(book.parameters);
  rvq.split.low = list_of<uint32_t>(book, "key_low/dimensions", DType::u32);
  if (book.find("key_high/dimensions"))
    rvq.split.high = list_of<uint32_t>(book, "key_high/dimensions", DType::u32);
  rvq.split.check();
  if (rvq.split.head_dim() != static_cast<size_t>(head_dim) || rvq.split.low.empty())
    throw bad_input("{} low and {} high dimensions of keys of {}", rvq.split.low.size(),
                    rvq.split.high.size(), head_dim);
  for (const RvqPart part : kRvqParts)
    if (rvq.stages(part) > 0) read_part(book, with_training, part, rvq);
  if (with_training && book.find("training/key/dimension_error")) {
    rvq.dimension_error = list_of<double>(book, "training/key/dimension_error", DType::f64);
    rvq.dimension_energy = list_of<double>(book, "training/key/dimension_energy", DType::f64);
  }
  return rvq;
}

}  // namespace kvcodec
