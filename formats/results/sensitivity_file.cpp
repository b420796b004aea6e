#include "formats/results/sensitivity_file.hpp"

#include <algorithm>
#include <cmath>

#include "formats/cache/header_io.hpp"
#include "formats/cache/record_json.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kSensitivityType = "sensitivity";

/// One dataset: a number of each layer's side, or of each noise that it was probed with.
struct Column {
  const char* path;
  size_t per_side;
  double& (*of)(Sensitivity& side, size_t i);
  bool may_be_infinite;
};

constexpr Column kColumns[] = {
    {"/variance", 1, [](Sensitivity& s, size_t) -> double& { return s.variance; }, false},
    {"/deviation", 2, [](Sensitivity& s, size_t i) -> double& { return s.probes[i].deviation; }, false},
    {"/divergence", 2, [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.mean; },
     false},
    {"/divergence_half_width", 2,
     [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.half_width; }, true},
    {"/nats", 1, [](Sensitivity& s, size_t) -> double& { return s.nats.mean; }, false},
    {"/nats_half_width", 1, [](Sensitivity& s, size_t) -> double& { return s.nats.half_width; }, true},
};

std::vector<uint64_t> row_shape(const Column& column) {
  return column.per_side == 1 ? std::vector<uint64_t>{2} : std::vector<uint64_t>{2, column.per_side};
}

void check(const h5::Dataset& dataset, const Column& column, double value, size_t layer) {
  if (std::isnan(value) || (std::isinf(value) && !column.may_be_infinite) || value < 0)
    throw dataset.error("layer {}: {} cannot be", layer, value);
}

void read_column(const h5::File& file, const Column& column, SensitivityInfo& info) {
  const h5::Dataset dataset = file.dataset(column.path);
  std::vector<uint64_t> shape = row_shape(column);
  shape.insert(shape.begin(), info.layers.size());
  dataset.expect(DType::f64, shape);
  std::vector<double> values(info.layers.size() * 2 * column.per_side);
  dataset.read(0, info.layers.size(), std::as_writable_bytes(std::span(values)));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t side = i / column.per_side;
    check(dataset, column, values[i], side / 2);
    column.of(info.layers[side / 2][side % 2], i % column.per_side) = values[i];
  }
}

// Fisher matrices.
constexpr const char* kFisher = "/fisher";

std::string fisher_path(Side side) { return fmt::format("{}/{}", kFisher, side); }

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
  file.set_text(kFisher, "key_state", fisher.keys_before_rope ? "pre-rope" : "post-rope");
  for (const Side side : kSides) {
    h5::DatasetWriter dataset(file, fisher_path(side), DType::f32, {heads, dim, dim},
                              static_cast<uint64_t>(model.num_layers));
    for (int layer = 0; layer < fisher.layers; ++layer) {
      std::vector<float> values;  // of a whole row of the dataset
      for (int head = 0; head < fisher.heads; ++head) {
        const Matrix<float>& matrix = fisher.of(side, layer, head);
        values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
      }
      dataset.append_values<float>(values);
    }
    dataset.finish();
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
  const auto layers = static_cast<uint64_t>(model.num_layers),
             heads = static_cast<uint64_t>(model.num_kv_heads), dim = static_cast<uint64_t>(model.head_dim);
  const std::string state = file.text(kFisher, "key_state");
  if (state != "pre-rope" && state != "post-rope")
    throw file.error(kFisher, "attribute 'key_state' is '{}'; post-rope and pre-rope are possible", state);
  Fisher fisher{.layers = model.num_layers,
                .heads = model.num_kv_heads,
                .keys_before_rope = state == "pre-rope",
                .matrices = {}};
  for (const Side side : kSides) {
    const h5::Dataset dataset = file.dataset(fisher_path(side));
    dataset.expect(DType::f32, std::array{layers, heads, dim, dim});
    std::vector<float> values(heads * dim * dim);
    for (int layer = 0; layer < model.num_layers; ++layer) {
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
    h5::DatasetWriter dataset(file, column.path, DType::f64, row_shape(column), layers.size());
    std::vector<double> values;
    for (auto& layer : layers)
      for (Sensitivity& side : layer)
        for (size_t i = 0; i < column.per_side; ++i) values.push_back(column.of(side, i));
    dataset.append_values<double>(values);
    dataset.finish();
  }
  if (info.fisher) write_fisher(file, *info.fisher, info.model);
  write_model(file, info.model);
  file.set_text("/", "parameters", to_json_text(info.parameters));
  write_file_type(file, std::string(kSensitivityType), info.model, provenance);
  file.close();
}

SensitivityFile read_sensitivities(const std::string& name) {
  SensitivityFile result;
  const h5::File file = open_file(name, kSensitivityType, result.type);
  SensitivityInfo& info = result.info;
  info.model = read_model(file, result.type);
  info.parameters = with_context(file.name() + ": attribute 'parameters'",
                                 [&] { return record_from_json(file.text("/", "parameters")); });
  info.layers.resize(static_cast<size_t>(info.model.num_layers));
  for (const Column& column : kColumns) read_column(file, column, info);
  if (file.has(kFisher)) info.fisher = read_fisher(file, info.model);
  return result;
}

}  // namespace kvcodec
