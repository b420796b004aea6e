// The rotary embedding of config.json.
#include <algorithm>
#include <cmath>

#include "formats/models/family.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::families {
namespace {

std::string rope_type_of(const JsonFields& rope) {
  const auto newer = rope.get_string("rope_type"), older = rope.get_string("type");
  if (newer && older && *newer != *older)
    throw bad_input("rope_scaling says both rope_type '{}' and type '{}'", printable(*newer),
                    printable(*older));
  const std::string type = newer ? *newer : older.value_or("default");
  // Phi 3 had other names for it.
  return type == "su" || (type == "yarn" && rope.find("short_factor")) ? "longrope" : type;
}

/// How much longer the context is than that of the first training.
double stretch_of(const JsonFields& rope, const JsonFields& fields, const RopeScaling& scaling) {
  if (const auto factor = rope.get_number("factor")) return *factor;
  if (!(scaling.original_positions > 0)) return 0;  // refused when all is checked
  return fields.need_number("max_position_embeddings") / scaling.original_positions;
}

double original_positions(const JsonFields& rope, const JsonFields& fields, double otherwise) {
  for (const JsonFields* const place : {&fields, &rope})
    if (const auto original = place->get_number("original_max_position_embeddings")) return *original;
  if (otherwise > 0) return otherwise;
  return fields.need_number("max_position_embeddings");
}

void read_llama3(const JsonFields& rope, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = rope.need_number("factor");
  scaling.low_frequency_factor = rope.need_number("low_freq_factor");
  scaling.high_frequency_factor = rope.need_number("high_freq_factor");
}

void read_yarn(const JsonFields& rope, const JsonFields& fields, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::yarn;
  scaling.factor = stretch_of(rope, fields, scaling);
  // 0 stands for the default too.
  const auto turns = [&](const char* name, double otherwise) {
    const double value = rope.get_number(name).value_or(otherwise);
    return value == 0 ? otherwise : value;
  };
  scaling.fast_turns = turns("beta_fast", scaling.fast_turns);
  scaling.slow_turns = turns("beta_slow", scaling.slow_turns);
  scaling.whole_bounds = rope.get_bool("truncate").value_or(true);
  const auto loudness = [&](double weight) {
    return scaling.factor <= 1 ? 1 : 0.1 * weight * std::log(scaling.factor) + 1;
  };
  const double one = rope.get_number("mscale").value_or(0),
               all = rope.get_number("mscale_all_dim").value_or(0);
  const double usual = one != 0 && all != 0 ? loudness(one) / loudness(all) : loudness(1);
  scaling.attention_factor = rope.get_number("attention_factor").value_or(usual);
}

std::vector<float> read_divisors(const JsonFields& rope, std::string_view type, const char* name) {
  const nlohmann::json* list = rope.find(name);
  std::vector<float> divisors;
  if (list && list->is_array())
    for (const nlohmann::json& value : *list)
      if (value.is_number()) divisors.push_back(value.get<float>());
  if (!list || !list->is_array() || divisors.size() != list->size())
    throw bad_input("rope scaling of type '{}' needs {}, a list of numbers", type, name);
  return divisors;
}

void read_longrope(const JsonFields& rope, const JsonFields& fields, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::longrope;
  scaling.divisors = read_divisors(rope, "longrope", "short_factor");
  scaling.long_divisors = read_divisors(rope, "longrope", "long_factor");
  scaling.factor = stretch_of(rope, fields, scaling);
  const double usual =
      scaling.factor > 1 ? std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original_positions)) : 1;
  scaling.attention_factor = rope.get_number("attention_factor").value_or(usual);
}

RopeScaling scaling_of(const JsonFields& rope, const JsonFields& fields, double original) {
  RopeScaling scaling;
  const std::string type = rope_type_of(rope);
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.need_number("factor");
    return scaling;
  }
  if (type == "divided") {  // what GGUF files make of llama3; no config.json has it
    scaling.kind = RopeScaling::Kind::divided;
    scaling.divisors = read_divisors(rope, type, "divisors");
    return scaling;
  }
  if (type != "llama3" && type != "yarn" && type != "longrope")
    throw bad_input(
        "rope_scaling is of type '{}'; supported are 'default', 'linear', 'llama3', 'yarn' and 'longrope'",
        printable(type));
  scaling.original_positions = original_positions(rope, fields, original);
  if (type == "llama3") read_llama3(rope, scaling);
  if (type == "yarn") read_yarn(rope, fields, scaling);
  if (type == "longrope") read_longrope(rope, fields, scaling);
  return scaling;
}

}  // namespace

Rope rope_of(const JsonFields& config, const nlohmann::json* object, double theta,
             double original_positions) {
  Rope rope;
  rope.theta = theta;
  if (!object) return rope;
  const JsonFields fields(*object);
  rope.theta = fields.get_number("rope_theta").value_or(theta);
  rope.scaling = scaling_of(fields, config, original_positions);
  return rope;
}

}  // namespace kvcodec::families
