#include "lib/rvq/codec/book.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {

constexpr std::string_view kType = "codebooks";

/// Bounds of what a book can have, so that products of sizes fit and ids 32 bits.
constexpr int64_t kMaxCodebooks = 1 << 12, kMaxEntries = 1 << 24, kMaxHeadDim = 1 << 16;

constexpr RvqPreset kPresets[] = {
    {"small", "256 entries, kmeans; minutes on two cores", {8, 6, 4}, {256, 256, 256}, false},
    {"medium", "1,024 entries, kmeans; some four times as long", {8, 6, 4}, {1024, 1024, 1024}, false},
    {"paper-8b",
     "the paper's for Llama-3.1-8B: 65,536 entries, 16,384 of key_high, simvq by gradient",
     {8, 20, 16},
     {65536, 65536, 16384},
     true},
    {"paper-3b",
     "the paper's for Llama-3.2-3B: 65,536 entries, simvq by gradient",
     {10, 20, 14},
     {65536, 65536, 65536},
     true},
};

static std::vector<uint64_t> shape_of(const RvqBook& rvq, RvqPart part) {
  return {rvq.stages(part), rvq.entries(part), rvq.width(part)};
}

static std::vector<uint64_t> shape_of(const Codebooks& books) {
  return {books.stages(), books.entries(), books.width()};
}

static std::string training_of(RvqPart part) {
  return fmt::format("{}{}", Book::kTrainingPrefix, name_of(part));
}

/// The entries one after the other, without what lies behind their width.
static void add_entries(Book& book, const std::string& name, DType type, const Codebooks& books) {
  std::vector<float> values;
  for (size_t s = 0; s < books.stages(); ++s)
    for (size_t e = 0; e < books.entries(); ++e)
      values.insert(values.end(), books.stage(s).row(e).begin(), books.stage(s).row(e).end());
  if (type == DType::f32) return book.add<float>(name, type, shape_of(books), values);
  std::vector<uint16_t> halves(values.size());
  narrow(type, values, halves);
  for (const float value : values)
    if (!std::isfinite(round_to(type, value)))
      throw bad_input("/{}: an entry holds {}, which is beyond the range of {}; use --entry-type bf16 or f32",
                      name, value, name_of(type));
  book.add<uint16_t>(name, type, shape_of(books), halves);
}

static Codebooks entries_in(const Book& book, const std::string& name, DType type,
                            std::vector<uint64_t> shape) {
  std::vector<float> widened;
  std::span<const float> values;
  if (type == DType::f32) {
    values = book.values<float>(name, type, shape);
  } else {
    const auto halves = book.values<uint16_t>(name, type, shape);
    widened.resize(halves.size());
    widen(type, halves, widened);
    values = widened;
  }
  Codebooks books(shape[0], shape[1], shape[2]);
  for (size_t s = 0; s < books.stages(); ++s)
    for (size_t e = 0; e < books.entries(); ++e)
      std::ranges::copy(values.subspan((s * books.entries() + e) * books.width(), books.width()),
                        books.stage(s).row(e).begin());
  with_context("/" + name, [&] { books.check_finite(); });
  return books;
}

static void add_part(Book& book, const RvqBook& rvq, RvqPart part) {
  const DType type = rvq.options.entry_type;
  const std::string path(name_of(part)), training = training_of(part);
  const auto& [books, state] = rvq.of(part);
  const std::vector<uint64_t> shape = shape_of(rvq, part);
  if (shape_of(books) != shape)
    throw failed("codebooks [{}] of {} where the options say [{}]", fmt::join(shape_of(books), ", "), path,
                 fmt::join(shape, ", "));
  add_entries(book, path + "/entries", type, books);
  if (part != RvqPart::value) {
    const auto& dimensions = part == RvqPart::key_low ? rvq.split.low : rvq.split.high;
    book.add(path + "/dimensions", DType::u32, dimensions);
  }
  if (type != DType::f32) add_entries(book, training + "/entries", DType::f32, books);
  std::vector<double> loss;
  for (const auto& epoch : state.loss) loss.insert(loss.end(), epoch.begin(), epoch.end());
  book.add<double>(training + "/loss", DType::f64, {state.loss.size(), shape[0]}, loss);
  book.add(training + "/refit_loss", DType::f64, state.refit_loss);
  book.add(training + "/usage", DType::u64, state.usage);
  const uint64_t progress[] = {state.epochs, state.refits, state.refit_ended ? 1u : 0u, state.steps};
  book.add<uint64_t>(training + "/progress", DType::u64, {4}, progress);
  const auto add = [&](const char* name, std::vector<uint64_t> of_shape, const Matrix<float>& matrix) {
    if (matrix.size() > 0)
      book.add<float>(training + name, DType::f32, std::move(of_shape), {matrix.data(), matrix.size()});
  };
  add("/projection", {shape[0], shape[2] + 1, shape[2]}, state.projection);
  add("/adam_mean", {state.mean.rows(), state.mean.cols()}, state.mean);
  add("/adam_variance", {state.mean.rows(), state.mean.cols()}, state.variance);
}

static void read_training(const Book& book, const std::string& training, const RvqBook& rvq,
                          RvqBook::Part& part) {
  const std::vector<uint64_t> shape = shape_of(part.books);
  const uint64_t stages = shape[0], width = shape[2];
  RvqTrainState& state = part.state;
  const auto progress = book.values<uint64_t>(training + "/progress", DType::u64, {4});
  state.epochs = progress[0], state.refits = progress[1], state.refit_ended = progress[2] != 0;
  state.steps = progress[3];
  const auto loss = book.values<double>(training + "/loss", DType::f64, {state.epochs, stages});
  for (size_t i = 0; i < state.epochs; ++i)
    append_to(state.loss.emplace_back(), loss.subspan(i * stages, stages));
  state.refit_loss = book.list<double>(training + "/refit_loss", DType::f64);
  state.usage = book.matrix<uint64_t>(training + "/usage", DType::u64, {stages, shape[1]});
  if (rvq.options.entry_type != DType::f32)
    part.books = entries_in(book, training + "/entries", DType::f32, shape);
  if (rvq.training.method != RvqMethod::simvq) return;
  const Record& said = book.parameters;
  if ((said.find("update") && said.get_string("update") != "gradient") ||
      (said.find("train-entries") && said.get_bool("train-entries")))
    throw bad_input("its training was by least squares or moved random entries, which simvq no longer does");
  state.projection = book.matrix<float>(training + "/projection", DType::f32, {stages, width + 1, width});
  if (book.find(training + "/adam_mean") == nullptr) return;
  const uint64_t moments = stages * (width + 1);
  state.mean = book.matrix<float>(training + "/adam_mean", DType::f32, {moments, width});
  state.variance = book.matrix<float>(training + "/adam_variance", DType::f32, {moments, width});
}

/// The first of the `count` neighbouring pairs whose errors have the largest sum.
static size_t worst_band(std::span<const double> errors, size_t pairs, size_t count) {
  size_t worst = 0;
  double largest = 0;
  for (size_t first = 0; first + count <= pairs; ++first) {
    double sum = 0;
    for (size_t pair = first; pair < first + count; ++pair) sum += errors[pair] + errors[pair + pairs];
    if (first == 0 || sum > largest) worst = first, largest = sum;
  }
  return worst;
}

std::vector<OptionField> RvqBookOptions::fields() {
  const double limit = kMaxCodebooks, max_entries = kMaxEntries;
  return {
      {"codebooks-value", "codebooks of values", &codebooks_value, 1, limit},
      {"codebooks-low", "codebooks of the low dimensions of keys", &codebooks_low, 1, limit},
      {"codebooks-high", "codebooks of the high dimensions of keys", &codebooks_high, 1, limit},
      {"entries-value", "entries of each codebook of values", &entries_value, 2, max_entries},
      {"entries-low", "entries of each codebook of low dimensions", &entries_low, 2, max_entries},
      {"entries-high", "entries of each codebook of high dimensions", &entries_high, 2, max_entries},
      {"split",
       "which dimensions of keys are high: the band of neighbouring frequencies that a probe quantizer reconstructs worst, those that the "
       "rotary embedding turns fastest, or none; then one quantizer has the codebooks of both",
       &split},
      {"high-dims", "how many are high, an even number; -1 = the paper's fraction, 3 in 8", &high_dims, -1,
       kMaxHeadDim},
      {"entry-type", "type that entries are stored in", &entry_type, {}, {}, {"f16", "bf16", "f32"}},
  };
}

std::span<const RvqPreset> rvq_presets() { return kPresets; }

const RvqPreset* find_rvq_preset(std::string_view name) {
  for (const RvqPreset& preset : kPresets)
    if (preset.name == name) return &preset;
  return nullptr;
}

void apply_preset(const RvqPreset& preset, RvqBookOptions& book, RvqTrainOptions& training) {
  book.codebooks_value = preset.codebooks[0], book.codebooks_low = preset.codebooks[1];
  book.codebooks_high = preset.codebooks[2];
  book.entries_value = preset.entries[0], book.entries_low = preset.entries[1];
  book.entries_high = preset.entries[2];
  if (!preset.paper) return;
  book.entry_type = DType::f32;
  training.method = RvqMethod::simvq, training.bias = false, training.refits = 0;
}

Book to_book(const RvqBook& rvq) {
  Book book;
  book.type = kType;
  book.parameters = record_of(rvq.options);
  const Record of_training = record_of(rvq.training);
  for (const auto& [name, value] : of_training.items()) book.parameters.set(name, value);
  book.parameters.set("head-dim", int64_t{rvq.head_dim});
  set_value_dim(book.parameters, rvq.value_dim);
  book.parameters.set("source", rvq.source);
  set_rope(book.parameters, rvq.rope);
  rvq.weights.write(book.parameters);
  for (const RvqPart part : kRvqParts)
    if (rvq.stages(part) > 0) add_part(book, rvq, part);
  if (!rvq.dimension_error.empty()) {
    book.add("training/key/dimension_error", DType::f64, rvq.dimension_error);
    book.add("training/key/dimension_energy", DType::f64, rvq.dimension_energy);
  }
  return book;
}

RvqBook rvq_book_from(const Book& book, bool with_training) {
  RvqBook rvq;
  book.read_options(kType, "codebooks", {&rvq.options, &rvq.training});
  // Parameters that decide what arrays mean must be there; those that only steered the training may be missing.
  for (const std::string_view name :
       {"codebooks-value", "codebooks-low", "codebooks-high", "entries-value", "entries-low", "entries-high"})
    book.parameters.get_int(name);
  book.parameters.get_string("entry-type");
  const int64_t head_dim = book.parameters.get_int("head-dim");
  if (head_dim < 1 || head_dim > kMaxHeadDim)
    throw bad_input("head-dim is {}; it must be between 1 and {}", head_dim, kMaxHeadDim);
  rvq.head_dim = static_cast<int>(head_dim);
  rvq.value_dim = value_dim_in(book.parameters);
  rvq.source = book.parameters.get_string("source");
  rvq.rope = rope_in(book.parameters);
  rvq.weights = LayerWeights::read(book.parameters);
  rvq.split.low = book.list<uint32_t>("key_low/dimensions", DType::u32);
  if (book.find("key_high/dimensions"))
    rvq.split.high = book.list<uint32_t>("key_high/dimensions", DType::u32);
  rvq.split.check();
  if (rvq.split.head_dim() != as_size(head_dim) || rvq.split.low.empty())
    throw bad_input("{} low and {} high dimensions of keys of {}", rvq.split.low.size(),
                    rvq.split.high.size(), head_dim);
  for (const RvqPart part : kRvqParts)
    if (rvq.stages(part) > 0) {
      rvq.of(part).books = entries_in(book, fmt::format("{}/entries", name_of(part)), rvq.options.entry_type,
                                      shape_of(rvq, part));
      if (with_training) read_training(book, training_of(part), rvq, rvq.of(part));
    }
  if (with_training && book.find("training/key/dimension_error")) {
    rvq.dimension_error = book.list<double>("training/key/dimension_error", DType::f64);
    rvq.dimension_energy = book.list<double>("training/key/dimension_energy", DType::f64);
  }
  return rvq;
}

void DimensionSplit::check() const {
  std::vector<bool> seen(head_dim());
  for (const auto* part : {&low, &high}) {
    for (size_t i = 0; i < part->size(); ++i) {
      const uint32_t dimension = (*part)[i];
      if (dimension >= seen.size() || seen[dimension] || (i > 0 && dimension <= (*part)[i - 1]))
        throw bad_input("dimension {} of {} is out of place in the split", dimension, seen.size());
      seen[dimension] = true;
    }
  }
}

DimensionSplit split_dimensions(SplitBy by, std::span<const double> errors, size_t head_dim,
                                size_t high_pairs) {
  const size_t pairs = head_dim / 2;
  if (by == SplitBy::none) high_pairs = 0;
  if (high_pairs > pairs || (by == SplitBy::measured && errors.size() != head_dim))
    throw failed("{} of {} pairs by {} errors", high_pairs, pairs, errors.size());
  const size_t first = by == SplitBy::measured ? worst_band(errors, pairs, high_pairs) : 0;
  std::vector<bool> is_high(head_dim);
  for (size_t pair = first; pair < first + high_pairs; ++pair) is_high[pair] = is_high[pair + pairs] = true;
  DimensionSplit split;
  for (size_t j = 0; j < head_dim; ++j)
    (is_high[j] ? split.high : split.low).push_back(static_cast<uint32_t>(j));
  return split;
}

}  // namespace kvcodec
