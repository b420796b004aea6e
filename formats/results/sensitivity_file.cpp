#include "formats/results/sensitivity_file.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/cache/header_io.hpp"

namespace kvcodec {
namespace {

constexpr char kSensitivityType[] = "sensitivity", kKeyState[] = "key_state";
constexpr double kFinite = std::numeric_limits<double>::max(), kAny = std::numeric_limits<double>::infinity();

/// One dataset: a number of each layer's side, or of each noise that it was probed with.
struct Column {
  const char* path;
  size_t per_side;
  double most;
  double& (*of)(Sensitivity& side, size_t i);

  std::vector<uint64_t> row_shape() const {
    return per_side == 1 ? std::vector<uint64_t>{2} : std::vector<uint64_t>{2, per_side};
  }
};

constexpr Column kColumns[] = {
    {"/variance", 1, kFinite, [](Sensitivity& s, size_t) -> double& { return s.variance; }},
    {"/deviation", 2, kFinite, [](Sensitivity& s, size_t i) -> double& { return s.probes[i].deviation; }},
    {"/divergence", 2, kFinite,
     [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.mean; }},
    {"/divergence_half_width", 2, kAny,
     [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.half_width; }},
    {"/nats", 1, kFinite, [](Sensitivity& s, size_t) -> double& { return s.nats.mean; }},
    {"/nats_half_width", 1, kAny, [](Sensitivity& s, size_t) -> double& { return s.nats.half_width; }},
};

/// Calls body(number) for all numbers of a column, in the order in which they are stored.
template <class Body>
void for_each_number(const Column& column, std::vector<std::array<Sensitivity, 2>>& layers, Body body) {
  for (auto& layer : layers)
    for (Sensitivity& side : layer)
      for (size_t i = 0; i < column.per_side; ++i) body(column.of(side, i));
}

// Fisher matrices.
constexpr char kFisher[] = "/fisher";

std::string fisher_path(Side side) { return fmt::format("{}/{}", kFisher, side); }

void read_column(const h5::File& file, const Column& column,
                 std::vector<std::array<Sensitivity, 2>>& layers) {
  const h5::Dataset dataset = file.dataset(column.path);
  std::vector<uint64_t> shape = column.row_shape();
  shape.insert(shape.begin(), layers.size());
  dataset.expect(DType::f64, shape);
  std::vector<double> values(layers.size() * 2 * column.per_side);
  dataset.read(0, layers.size(), std::as_writable_bytes(std::span(values)));
  for_each_number(column, layers, [&, i = size_t{0}](double& number) mutable {
    number = values[i];
    if (!(number >= 0 && number <= column.most))
      throw dataset.error("layer {}: {} cannot be", i / 2 / column.per_side, number);
    ++i;
  });
}

void check_fits(const OutputFile& output, const Fisher& fisher, const ModelInfo& model) {
  const auto dim = static_cast<size_t>(model.head_dim);
  bool fits = fisher.layers == model.num_layers && fisher.heads == model.num_kv_heads;
  for (const auto& matrices : fisher.matrices) {
    fits = fits && matrices.size() == static_cast<size_t>(fisher.layers) * static_cast<size_t>(fisher.heads);
    for (const Matrix<float>& matrix : matrices) fits = fits && matrix.rows() == dim && matrix.cols() == dim;
  }
  if (!fits)
    throw failed("{}: Fisher matrices of {} layers and {} heads; the model has {} and {} of {}",
                 output.target(), fisher.layers, fisher.heads, model.num_layers, model.num_kv_heads, dim);
}

void write_fisher(h5::File& file, const Fisher& fisher, const ModelInfo& model) {
  const auto heads = static_cast<uint64_t>(model.num_kv_heads), dim = static_cast<uint64_t>(model.head_dim);
  file.make_group(kFisher);
  file.set_text(kFisher, kKeyState, fisher.keys_before_rope ? "pre-rope" : "post-rope");
  for (const Side side : kSides) {
    std::vector<float> values;
    for (const Matrix<float>& matrix : fisher.matrices[static_cast<size_t>(side)])
      values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
    write_dataset<float>(file, fisher_path(side), DType::f32, values, {heads, dim, dim});
  }
}

/// The matrix of one head. Throws for what no sum of g g^T can be.
Matrix<float> checked_matrix(const h5::Dataset& dataset, std::span<const float> values, size_t dim, int layer,
                             size_t head) {
  Matrix<float> matrix(dim, dim);
  std::ranges::copy(values, matrix.data());
  for (size_t i = 0; i < dim; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const float value = matrix(i, j);
      if (!std::isfinite(value) || (i == j && value < 0))
        throw dataset.error("layer {}, head {}: {} cannot be", layer, head, value);
      if (value != matrix(j, i))
        throw dataset.error("layer {}, head {}: the matrix is not symmetric ({} and {})", layer, head, value,
                            matrix(j, i));
    }
  return matrix;
}

Fisher read_fisher(const h5::File& file, const ModelInfo& model) {
  const std::string state = file.text(kFisher, kKeyState);
  if (state != "pre-rope" && state != "post-rope")
    throw file.error(kFisher, "attribute 'key_state' is '{}'; post-rope and pre-rope are possible", state);
  Fisher fisher{.layers = model.num_layers,
                .heads = model.num_kv_heads,
                .keys_before_rope = state == "pre-rope",
                .matrices = {}};
  const auto layers = static_cast<uint64_t>(model.num_layers),
             heads = static_cast<uint64_t>(model.num_kv_heads), dim = static_cast<uint64_t>(model.head_dim);
  for (const Side side : kSides) {
    const h5::Dataset dataset = open_dataset(file, fisher_path(side), DType::f32, {layers, heads, dim, dim});
    std::vector<float> values(heads * dim * dim);
    for (int layer = 0; layer < fisher.layers; ++layer) {
      dataset.read(static_cast<uint64_t>(layer), 1, std::as_writable_bytes(std::span(values)));
      for (size_t head = 0; head < heads; ++head)
        fisher.matrices[static_cast<size_t>(side)].push_back(checked_matrix(
            dataset, std::span(values).subspan(head * dim * dim, dim * dim), dim, layer, head));
    }
  }
  return fisher;
}

}  // namespace

void write_sensitivities(OutputFile& output, const SensitivityInfo& info, const Provenance& provenance) {
  if (info.layers.size() != static_cast<size_t>(info.model.num_layers))
    throw failed("{}: sensitivities of {} layers; the model has {}", output.target(), info.layers.size(),
                 info.model.num_layers);
  if (info.fisher) check_fits(output, *info.fisher, info.model);
  h5::File file = h5::File::create(output);
  auto layers = info.layers;
  for (const Column& column : kColumns) {
    std::vector<double> values;
    for_each_number(column, layers, [&](double number) { values.push_back(number); });
    write_dataset<double>(file, column.path, DType::f64, values, column.row_shape());
  }
  if (info.fisher) write_fisher(file, *info.fisher, info.model);
  finish_result(file, kSensitivityType, info.model, &info.parameters, provenance);
}

SensitivityFile read_sensitivities(const std::string& name) {
  SensitivityFile result;
  const h5::File file = open_file(name, kSensitivityType, result.type);
  SensitivityInfo& info = result.info;
  info = {read_model(file), read_parameters(file), {}, {}};
  info.layers.resize(static_cast<size_t>(info.model.num_layers));
  for (const Column& column : kColumns) read_column(file, column, info.layers);
  if (file.has(kFisher)) info.fisher = read_fisher(file, info.model);
  return result;
}

}  // namespace kvcodec
