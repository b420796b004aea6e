// The rotary embedding of GGUF files.
#include <cmath>

#include <nlohmann/json.hpp>

#include "formats/io/json_file.hpp"
#include "formats/models/gguf_fields.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::gguf {
namespace {

using Kind = RopeScaling::Kind;
using Json = nlohmann::json;

constexpr double kTheta = 10000;  // what llama.cpp takes where nothing is said
// Numbers that frequencies are divided by: of llama3's scaling, and of longrope's for short and long documents.
constexpr const char *kDivisors = "rope_freqs.weight", *kShort = "rope_factors_short.weight",
                     *kLong = "rope_factors_long.weight";

std::vector<float> divisors_of(const Fields& fields, const char* name, int dims) {
  const Gguf::Tensor& tensor = fields.file().tensors().find(name)->second;
  const uint64_t wanted = static_cast<uint64_t>(dims) / 2;
  if (tensor.usable != TensorType::f32 || tensor.view.shape != std::vector{wanted})
    throw bad_input("tensor '{}': is {} [{}]; it must be F32 [{}]", name, tensor.type,
                    fmt::join(tensor.view.shape, ", "), wanted);
  return read_floats(tensor.view);
}

/// The length of the first training.
double original_positions(const Fields& fields, const ModelConfig& config) {
  return fields.number_or("rope.scaling.original_context_length", config.max_positions);
}

Json read_linear(double factor, RopeScaling& scaling) {
  scaling.kind = Kind::linear;
  scaling.factor = factor;
  return {{"rope_type", "linear"}, {"factor", factor}};
}

/// The factor of attention is what all take who say nothing; programs differ in what they make of keys for it.
Json read_yarn(const Fields& fields, double factor, const ModelConfig& config, RopeScaling& scaling) {
  for (const char* name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"})
    fields.must_be(fmt::format("rope.scaling.{}", name), 1);
  fields.must_be("rope.scaling.yarn_log_multiplier", 0);
  scaling.kind = Kind::yarn;
  scaling.factor = factor;
  scaling.original_positions = original_positions(fields, config);
  scaling.fast_turns = fields.number_or("rope.scaling.yarn_beta_fast", scaling.fast_turns);
  scaling.slow_turns = fields.number_or("rope.scaling.yarn_beta_slow", scaling.slow_turns);
  if (factor > 1) scaling.attention_factor = 0.1 * std::log(factor) + 1;
  return {{"rope_type", "yarn"}};
}

Json read_longrope(const Fields& fields, int dims, const ModelConfig& config, RopeScaling& scaling) {
  scaling.kind = Kind::longrope;
  scaling.divisors = divisors_of(fields, kShort, dims);
  scaling.long_divisors = divisors_of(fields, kLong, dims);
  scaling.original_positions = original_positions(fields, config);
  scaling.factor = config.max_positions > 0 ? config.max_positions / scaling.original_positions : 1;
  scaling.attention_factor = fields.number_or("rope.scaling.attn_factor", 1);
  return {
      {"rope_type", "longrope"}, {"short_factor", scaling.divisors}, {"long_factor", scaling.long_divisors}};
}

/// The factor of linear and yarn; 1: nothing is scaled.
double factor_of(const Fields& fields) {
  const auto linear = fields.get_number("rope.scale_linear");  // the name in older files
  const double factor = fields.number_or("rope.scaling.factor", linear.value_or(1));
  return factor == 0 ? 1 : factor;  // 0: as if the key were not there
}

void refuse_two(const Fields& fields, const std::string& type) {
  std::vector<std::string> kinds;
  if (type == "linear" || type == "yarn") kinds.push_back(fields.key("rope.scaling.factor"));
  for (const char* name : {kDivisors, kShort})
    if (fields.has_tensor(name)) kinds.push_back(fmt::format("tensor '{}'", name));
  if (kinds.size() > 1)
    throw bad_input("{} are both there; only one kind of scaling is supported", fmt::join(kinds, " and "));
}

/// Sets the scaling; what config.json would say of it, or null.
Json read_scaling(const Fields& fields, int dims, const ModelConfig& config, RopeScaling& scaling) {
  const double factor = factor_of(fields);
  std::string type = fields.get_string("rope.scaling.type").value_or(factor == 1 ? "none" : "linear");
  if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
    throw bad_input("{} is '{}'; supported are 'none', 'linear', 'yarn' and 'longrope'",
                    fields.key("rope.scaling.type"), printable(type));
  if (type == "linear" && factor == 1) type = "none";
  refuse_two(fields, type);
  const bool has_short = fields.has_tensor(kShort), has_long = fields.has_tensor(kLong);
  if (has_short != has_long || (type == "longrope" && !has_short))
    throw bad_input("tensor '{}' is missing; rope scaling of type 'longrope' has two",
                    has_short ? kLong : kShort);
  if (has_short) return read_longrope(fields, dims, config, scaling);
  if (fields.has_tensor(kDivisors)) {
    scaling.kind = Kind::divided;
    scaling.divisors = divisors_of(fields, kDivisors, dims);
    return {{"rope_type", "divided"}, {"divisors", scaling.divisors}};
  }
  if (type == "linear") return read_linear(factor, scaling);
  if (type == "yarn") return read_yarn(fields, factor, config, scaling);
  return {};
}

}  // namespace

std::string read_rope(const Fields& fields, bool may_be_partial, ModelConfig& config) {
  constexpr const char* kDims = "rope.dimension_count";
  const int dims = fields.size_or(kDims, config.head_dim);
  if (dims != config.head_dim && !may_be_partial)
    throw bad_input("{} is {}; only the length of a key ({}) is supported", fields.key(kDims), dims,
                    config.head_dim);
  if (dims < 1) throw bad_input("{} is {}; it must be positive", fields.key(kDims), dims);
  config.rope.theta = fields.number_or("rope.freq_base", kTheta);
  config.rope.dims = dims == config.head_dim ? 0 : dims;
  const Json text = read_scaling(fields, dims, config, config.rope.scaling);
  return text.is_null() ? "" : text.dump();
}

bool is_rope_tensor(std::string_view name) { return name == kDivisors || name == kShort || name == kLong; }

}  // namespace kvcodec::gguf
