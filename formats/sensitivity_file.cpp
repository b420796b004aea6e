#include "formats/sensitivity_file.hpp"

#include <cmath>

#include "formats/h5.hpp"
#include "formats/header_io.hpp"
#include "formats/record_json.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kType = "sensitivity";

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

}  // namespace

void write_sensitivities(OutputFile& output, const SensitivityInfo& info, const Provenance& provenance) {
  if (info.layers.size() != static_cast<size_t>(info.model.num_layers))
    throw failed("{}: sensitivities of {} layers; the model has {}", output.target(), info.layers.size(),
                 info.model.num_layers);
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
  write_model(file, info.model);
  file.set_text("/", "parameters", to_json_text(info.parameters));
  write_file_type(file, std::string(kType), provenance);
  file.close();
}

SensitivityFile read_sensitivities(const std::string& name) {
  SensitivityFile result;
  const h5::File file = open_file(name, kType, result.type);
  SensitivityInfo& info = result.info;
  info.model = read_model(file);
  info.parameters = with_context(file.name() + ": attribute 'parameters'",
                                 [&] { return record_from_json(file.text("/", "parameters")); });
  info.layers.resize(static_cast<size_t>(info.model.num_layers));
  for (const Column& column : kColumns) read_column(file, column, info);
  return result;
}

}  // namespace kvcodec
