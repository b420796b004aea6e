#include "lib/transform/codec/book.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kType = "transform";
constexpr int64_t kMaxShape = 1 << 20;

std::string path_of(const TransformBook::Part& part, std::string_view array) {
  return fmt::format("{}/{}/{}", part.side, part.first_layer, array);
}

/// That of the levels is in the plural: of "vectors", "vector_scales".
std::string scales_of(const std::string& levels_name) {
  return levels_name.substr(0, levels_name.size() - 1) + "_scales";
}

std::string bits_of(const std::string& levels_name) {
  return levels_name.substr(0, levels_name.size() - 1) + "_bits";
}

void add_byte_rows(Book& book, const std::string& name, const LevelRows& rows) {
  book.add<uint8_t>(name, DType::u8, {rows.rows(), rows.cols()}, rows.packed());
  book.add(scales_of(name), DType::f32, rows.scales());
}

void add_vectors(Book& book, const std::string& name, const LevelRows& rows) {
  book.add(name, DType::u8, rows.packed());
  book.add(bits_of(name), DType::u8, rows.bits());
  book.add(scales_of(name), DType::f32, rows.scales());
}

/// The triangles of symmetric blocks, a block a row: row by row up to the diagonal.
Matrix<float> triangles_of(const Matrix<float>& blocks) {
  const size_t b = blocks.cols();
  Matrix<float> triangles(blocks.rows() / b, b * (b + 1) / 2);
  for (size_t i = 0; i < blocks.rows(); ++i)
    std::copy_n(blocks.row(i).begin(), i % b + 1,
                triangles.row(i / b).begin() + static_cast<ptrdiff_t>(i % b * (i % b + 1) / 2));
  return triangles;
}

void add_part(Book& book, const TransformBook::Part& part) {
  const TransformBasis& basis = part.basis;
  const uint64_t n = basis.components(), rungs = part.rungs.size();
  book.add(path_of(part, "mean"), DType::f32, basis.mean);
  book.add(path_of(part, "inverse_roots"), DType::f32, triangles_of(basis.metric.inverse_roots()));
  add_vectors(book, path_of(part, "vectors"), basis.vectors);
  if (basis.prediction.rank() > 0) {
    add_byte_rows(book, path_of(part, "scores"), basis.prediction.scores);
    add_byte_rows(book, path_of(part, "loadings"), basis.prediction.loadings);
  }
  std::vector<uint8_t> classes;
  std::vector<uint16_t> gains;
  for (const LevelRung& rung : part.rungs) {
    classes.insert(classes.end(), rung.classes.begin(), rung.classes.end());
    for (const float gain : rung.gains) gains.push_back(f16_from_float(gain));
  }
  book.add<uint8_t>(path_of(part, "classes"), DType::u8, {rungs, n}, classes);
  book.add<uint16_t>(path_of(part, "gains"), DType::f16, {rungs, n}, gains);
  if (part.first.empty()) return;
  book.add(path_of(part, "first_mean"), DType::f32, part.first.mean);
  std::vector<uint8_t> of_heads;
  for (const auto& rung : part.first.classes) of_heads.insert(of_heads.end(), rung.begin(), rung.end());
  book.add<uint8_t>(path_of(part, "first_classes"), DType::u8, {rungs, of_heads.size() / rungs}, of_heads);
}

template <class Values>
void check_positive(std::string_view name, const Values& values) {
  for (const auto value : values)
    if (!(value > 0) || !std::isfinite(value)) throw bad_input("/{}: {}; it must be positive", name, value);
}

/// (rows, cols); as many rows as there are, at most as many as given.
LevelRows byte_rows_from(const Book& book, const std::string& name, uint64_t max_rows, uint64_t cols) {
  const uint64_t n = book.get(name, DType::u8, 2).shape[0];
  if (n > max_rows) throw bad_input("/{}: {} rows; there are at most {}", name, n, max_rows);
  const auto levels = book.values<uint8_t>(name, DType::u8, {n, cols});
  const auto scales = book.list<float>(scales_of(name), DType::f32);
  check_positive(scales_of(name), scales);
  if (const auto zero = std::ranges::find(levels, 0); zero != levels.end())
    throw bad_input("/{}: row {} has a level of 0; the least is 1", name,
                    static_cast<uint64_t>(zero - levels.begin()) / cols);
  return with_context("/" + name, [&] {
    return LevelRows(std::vector<uint8_t>(n, 8), cols, levels, {scales.begin(), scales.end()});
  });
}

/// As many rows as have bits, at most `width`, of `width` levels.
LevelRows vectors_from(const Book& book, const std::string& name, uint64_t width) {
  const auto bits = book.list<uint8_t>(bits_of(name), DType::u8),
             packed = book.list<uint8_t>(name, DType::u8);
  if (bits.size() > width) throw bad_input("/{}: {} rows; there are at most {}", name, bits.size(), width);
  const auto scales = book.list<float>(scales_of(name), DType::f32);
  check_positive(scales_of(name), scales);
  return with_context("/" + name, [&] {
    return LevelRows({bits.begin(), bits.end()}, width, packed, {scales.begin(), scales.end()});
  });
}

std::optional<TokenFeatures> features_from(const Book& book, const TransformBookOptions& options) {
  if (options.predict_tokens == 0) return {};
  const auto shape = book.get("features", DType::u8, 2).shape;
  if (shape[0] == 0 || shape[1] == 0 || shape[1] > kMaxShape)
    throw bad_input("/features: {} values for {} ids", shape[1], shape[0]);
  return TokenFeatures(byte_rows_from(book, "features", UINT32_MAX, shape[1]),
                       as_size(options.predict_tokens));
}

ErrorMetric metric_from(const Book& book, const TransformBook::Part& part, uint64_t width) {
  const std::string name = path_of(part, "inverse_roots");
  const auto shape = book.get(name, DType::f32, 2).shape;
  const uint64_t block = shape[0] == 0 ? 0 : width / shape[0];
  if (block == 0 || width % block != 0)
    throw bad_input("/{}: {} blocks for vectors of {}", name, shape[0], width);
  const auto triangles = book.matrix<float>(name, DType::f32, {width / block, block * (block + 1) / 2});
  Matrix<float> inverse_roots(width, block);
  for (size_t i = 0; i < width; ++i)
    for (size_t r = i % block, c = 0; c <= r; ++c)
      inverse_roots(i, c) = inverse_roots(i - r + c, r) = triangles(i / block, r * (r + 1) / 2 + c);
  return with_context("/" + name, [&] { return ErrorMetric::from_inverse_roots(std::move(inverse_roots)); });
}

std::vector<LevelRung> rungs_from(const Book& book, const TransformBook::Part& part,
                                  std::span<const float> steps, uint64_t n) {
  const std::vector<uint64_t> shape{steps.size(), n};
  const auto classes = book.values<uint8_t>(path_of(part, "classes"), DType::u8, shape);
  const auto gains = book.values<uint16_t>(path_of(part, "gains"), DType::f16, shape);
  std::vector<LevelRung> rungs;
  for (size_t i = 0; i < steps.size(); ++i) {
    LevelRung& rung = rungs.emplace_back();
    rung.step = steps[i];
    append_to(rung.classes, classes.subspan(i * n, n));
    rung.gains.resize(n);
    widen(DType::f16, gains.subspan(i * n, n), rung.gains);
    check_positive(path_of(part, "gains"), rung.gains);
    for (const uint8_t level_class : rung.classes)
      if (level_class != kDeadClass && level_class >= kLevelClasses)
        throw bad_input("/{}: class {}; there are {}", path_of(part, "classes"), level_class, kLevelClasses);
  }
  return rungs;
}

std::vector<float> finite_floats(const Book& book, const std::string& name, uint64_t count) {
  const auto values = book.values<float>(name, DType::f32, {count});
  for (const float value : values)
    if (!std::isfinite(value)) throw bad_input("/{}: {} is not finite", name, value);
  return {values.begin(), values.end()};
}

/// Nothing where the book knows nothing of first tokens.
FirstTokens first_tokens_from(const Book& book, const TransformBook::Part& part, uint64_t rungs,
                              uint64_t width, uint64_t heads) {
  FirstTokens first;
  if (!book.find(path_of(part, "first_mean"))) return first;
  first.mean = finite_floats(book, path_of(part, "first_mean"), width);
  const std::string name = path_of(part, "first_classes");
  const auto classes = book.values<uint8_t>(name, DType::u8, {rungs, heads});
  for (const uint8_t level_class : classes)
    if (level_class >= kLevelClasses)
      throw bad_input("/{}: class {}; there are {}", name, level_class, kLevelClasses);
  for (uint64_t i = 0; i < rungs; ++i)
    append_to(first.classes.emplace_back(), classes.subspan(i * heads, heads));
  return first;
}

TransformBook::Part part_from(const Book& book, Side side, int first_layer, std::span<const float> steps,
                              const TransformBook& transform) {
  const uint64_t width = transform.width(side);
  const std::optional<TokenFeatures>& features = transform.features;
  TransformBook::Part part{side, first_layer, {}, {}, {}};
  part.basis.mean = finite_floats(book, path_of(part, "mean"), width);
  part.basis.metric = metric_from(book, part, width);
  part.basis.vectors = vectors_from(book, path_of(part, "vectors"), width);
  if (features) {
    Prediction& prediction = part.basis.prediction;
    prediction.scores = byte_rows_from(book, path_of(part, "scores"), features->width(), features->width());
    prediction.loadings = byte_rows_from(book, path_of(part, "loadings"), features->width(), width);
    if (prediction.loadings.rows() != prediction.rank())
      throw bad_input("/{}: {} rows for {} scores", path_of(part, "loadings"), prediction.loadings.rows(),
                      prediction.rank());
  }
  part.rungs = rungs_from(book, part, steps, part.basis.components());
  part.first =
      first_tokens_from(book, part, steps.size(), width, width / transform.layer().values_of_class());
  return part;
}

std::vector<LevelClass> classes_from(const Book& book) {
  const auto tables = book.list<uint8_t>("tables", DType::u8);
  const auto shrinks = book.values<float>("shrinks", DType::f32, {kLevelClasses, kShrunkLevels});
  std::vector<LevelClass> classes;
  with_context("/tables", [&] {
    BitReader reader(tables);
    for (size_t i = 0; i < kLevelClasses; ++i) {
      LevelClass& level_class = classes.emplace_back(LevelClass{RansModel::read(reader), {}});
      std::ranges::copy(shrinks.subspan(i * kShrunkLevels, kShrunkLevels), level_class.shrink.begin());
    }
    const uint64_t left = tables.size() * 8 - reader.position();
    if (left >= 8 || reader.get(static_cast<unsigned>(left)) != 0)
      throw bad_input("there are bits behind the last model");
  });
  return classes;
}

}  // namespace

std::vector<OptionField> TransformBookOptions::fields() {
  return {
      {"sides",
       "code keys and values of a group of layers as one vector (joint), which takes a quarter to a half fewer bits, or as two (apart)",
       &sides},
      {"layer-group",
       "consecutive layers that make one vector; 0: as many as have at most 8,192 values per token",
       &layer_group, 0, 1 << 20},
      {"most-bits", "about the most bits per value that the book serves", &max_bits, 0.01, 12},
      {"least-bits", "about the fewest bits per value that the book serves", &least_bits, 0.001, 12},
      {"vector-error",
       "a vector of the basis gets one bit more a value, up to 15, while that takes this fraction off the error that a component has at "
       "the finest step: larger, and the book is smaller, and high rates lose more",
       &vector_error, 0, 1000},
      {"rate-distortion",
       "squared error, in squared steps, that the encoder accepts to save one bit when it chooses between "
       "two levels; 0: always the nearest level",
       &rate_distortion, 0, 1},
      {"unbias", "decoding restores this fraction of the energy that rounding takes from each component",
       &unbias, 0, 1},
      {"first-finer",
       "a document's first token (an attention sink) is coded with a mean of its own and "
       "with steps this many times finer; 0: none is learned, and it is kept exactly",
       &first_finer, 0, 4096},
      {"predict-tokens",
       "predict what a token has from the ids of N tokens, itself and those before it, and transform what is left; needs --model",
       &predict_tokens, 0, 64}};
}

void TransformBookOptions::check() const {
  if (least_bits >= max_bits)
    throw usage_error("--least-bits is {}; it must be below --most-bits, {}", least_bits, max_bits);
}

int64_t TransformBookOptions::layers_of_group(int num_layers, uint64_t layer_width) const {
  if (layer_group > 0) return layer_group;
  int64_t widest = 1;
  for (int layers = 1; layers <= num_layers; ++layers)
    if (num_layers % layers == 0 && as_size(layers) * layer_width <= kMaxAutoWidth) widest = layers;
  return widest;
}

size_t TransformBook::rung_for(double bits) const {
  const auto distance = [&](const RungMeasure& measure) { return std::abs(std::log(measure.bits / bits)); };
  return static_cast<size_t>(std::ranges::min_element(measures, {}, distance) - measures.begin());
}

Book to_book(const TransformBook& transform) {
  Book book;
  book.type = kType;
  book.parameters = record_of(transform.options);
  book.parameters.set("num-layers", int64_t{transform.num_layers});
  book.parameters.set("heads", int64_t{transform.heads});
  book.parameters.set("head-dim", int64_t{transform.head_dim});
  set_value_dim(book.parameters, transform.value_dim);
  book.parameters.set("source", transform.source);
  set_rope(book.parameters, transform.rope);
  if (transform.parts.empty() || transform.classes.size() != kLevelClasses)
    throw failed("a transform without parts");
  std::vector<float> steps;
  for (const LevelRung& rung : transform.parts.front().rungs) steps.push_back(rung.step);
  std::vector<double> bits, errors;
  for (const RungMeasure& measure : transform.measures)
    bits.push_back(measure.bits), errors.push_back(measure.error);
  book.add("steps", DType::f32, steps);
  book.add("bits", DType::f64, bits);
  book.add("errors", DType::f64, errors);
  BitWriter tables;
  std::vector<float> shrinks;
  for (const LevelClass& level_class : transform.classes) {
    level_class.model.write(tables);
    shrinks.insert(shrinks.end(), level_class.shrink.begin(), level_class.shrink.end());
  }
  book.add("tables", DType::u8, tables.finish());
  book.add<float>("shrinks", DType::f32, {kLevelClasses, kShrunkLevels}, shrinks);
  if (transform.features) add_byte_rows(book, "features", transform.features->rows());
  for (const TransformBook::Part& part : transform.parts) add_part(book, part);
  return book;
}

TransformBook transform_book_from(const Book& book) {
  TransformBook transform;
  book.read_options(kType, "transform", {&transform.options});
  transform.num_layers = book.shape_parameter("num-layers");
  transform.heads = book.shape_parameter("heads");
  transform.head_dim = book.shape_parameter("head-dim");
  transform.value_dim = value_dim_in(book.parameters);
  transform.source = book.parameters.get_string("source");
  transform.rope = rope_in(book.parameters);
  const int group = book.shape_parameter("layer-group");
  if (group > transform.num_layers || transform.num_layers % group != 0)
    throw bad_input("layer groups of {} do not divide the model's {} layers", group, transform.num_layers);

  const auto steps = book.list<float>("steps", DType::f32);
  check_positive("steps", steps);
  if (steps.empty() || steps.size() > 1024)
    throw bad_input("/steps: {}; there must be 1 to 1024", steps.size());
  const auto bits = book.values<double>("bits", DType::f64, {steps.size()});
  const auto errors = book.values<double>("errors", DType::f64, {steps.size()});
  check_positive("bits", bits);
  for (size_t i = 0; i < steps.size(); ++i) transform.measures.push_back({bits[i], errors[i]});
  transform.classes = classes_from(book);
  const LevelTables checked(transform.classes, transform.options.rate_distortion);
  transform.features = features_from(book, transform.options);
  for (const Side side : transform.options.part_sides())
    for (int first = 0; first < transform.num_layers; first += group)
      if (book.find(fmt::format("{}/{}/mean", side, first)))
        transform.parts.push_back(part_from(book, side, first, steps, transform));
  if (transform.parts.empty()) throw bad_input("the transform has no part");
  for (const TransformBook::Part& part : transform.parts)
    if (part.first.empty() == transform.knows_first_tokens())
      throw bad_input("/{}: of all parts or of none", path_of(part, "first_mean"));
  if (transform.knows_first_tokens() && !(transform.options.first_finer > 0))
    throw bad_input("first-finer is {}; the book has first tokens, and it must be above 0",
                    transform.options.first_finer);
  return transform;
}

}  // namespace kvcodec
