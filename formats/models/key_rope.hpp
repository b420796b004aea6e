// How the keys of a cache were turned, by what its file says of the model (FORMAT.md, "Keys before the rotary
// embedding").
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "formats/cache/header.hpp"
#include "lib/model/config.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec {

/// The rotary embedding of the cache's keys. It is not known(), and says why, if the keys are from before the
/// embedding, if the file does not describe the embedding, or if its description is invalid; such files can
/// still be read.
KeyRope key_rope_of(const ModelInfo& model);

/// The text that kv files have for a model's rotary embedding besides its base, the attribute rope_scaling (FORMAT.md, "The rotary
/// embedding"), on one line; empty if there is nothing to say. object: what config.json says of the scaling; may be nullptr.
std::string describe_rope(const ModelConfig& config, const nlohmann::json* object);

/// The number that max_position_embeddings says is often the context before scaling by yarn or linear. Raises max_positions to that
/// behind it, once all else is read and checked.
void stretch_context(ModelConfig& config);

/// Sets how the model turns its heads (rope, local_rope, layer_rope) from such a text. config has its base, head_dim
/// and num_layers. Throws Error(bad_input), "rope_scaling: " first, for a text that says something else.
void read_rope_description(const std::string& text, ModelConfig& config);

}  // namespace kvcodec
