// What kv files say of a model's rotary embedding besides its base: the attribute rope_scaling (FORMAT.md, "The rotary
// embedding").
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "lib/model/config.hpp"

namespace kvcodec {

/// On one line; empty if there is nothing to say. object: what config.json says of the scaling; may be nullptr.
std::string describe_rope(const ModelConfig& config, const nlohmann::json* object);

/// What max_position_embeddings says is often the context before scaling by yarn or linear. Raises max_positions to that
/// behind it, once all else is read and checked.
void stretch_context(ModelConfig& config);

/// Sets how the model turns its heads (rope, local_rope, layer_rope) from such a text. config has its base, head_dim
/// and num_layers. Throws Error(bad_input), "rope_scaling: " first, for a text that says something else.
void read_rope_description(const std::string& text, ModelConfig& config);

}  // namespace kvcodec
