#include "cli/frame/json.hpp"

#include <cmath>

#include "kvcodec/version.hpp"

namespace kvcodec::cli {
namespace {

/// Of all results that --json prints; another number where a key goes or changes its meaning.
constexpr int kResultSchema = 1;

}  // namespace

Json to_json(const Record& record) {
  Json json = Json::object();
  for (const auto& [name, value] : record.items())
    std::visit([&json, &key = name](const auto& v) { json[key] = v; }, value);
  return json;
}

Json to_json(const ModelInfo& model) {
  Json json = {{"model", model.model},
               {"num_layers", model.num_layers},
               {"num_q_heads", model.num_q_heads},
               {"num_kv_heads", model.num_kv_heads},
               {"head_dim", model.head_dim},
               {"rope_theta", model.rope_theta},
               {"rope_scaling", model.rope_scaling},
               {"key_state", model.key_state},
               {"source", model.source}};
  for (int layer = 0; layer < model.num_layers && !model.one_shape(); ++layer) {
    const LayerShape shape = model.layer_shape(layer);
    json["layer_shapes"].push_back({{"layer", layer},
                                    {"heads", shape.heads},
                                    {"key_dim", shape.key_dim},
                                    {"value_dim", shape.value_dim},
                                    {"values_in_keys", shape.values_in_keys},
                                    {"source", shape.source < 0 ? Json(nullptr) : Json(shape.source)}});
  }
  if (!model.imported.empty()) json["imported"] = model.imported;
  return json;
}

Json to_json(const Documents& documents) {
  Json json = Json::array();
  for (size_t i = 0; i < documents.count(); ++i)
    json.push_back({{"name", documents.names[i]}, {"tokens", documents.length(i)}});
  return json;
}

Json to_json(const Estimate& estimate) {
  return {{"mean", estimate.mean},
          {"half_width_95", std::isfinite(estimate.half_width) ? Json(estimate.half_width) : Json(nullptr)}};
}

std::string text_of(const Json& json) {
  // What results look like, and what made them: keys are only ever added to a schema.
  Json whole = json;
  if (whole.is_object()) {
    whole = {{"schema", kResultSchema}, {"program_version", kVersion}};
    whole.update(json);
  }
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json made_by(const Command& command) {
  return {{"generator", generator()}, {"created", timestamp()}, {"command", command.history_line()}};
}

}  // namespace kvcodec::cli
