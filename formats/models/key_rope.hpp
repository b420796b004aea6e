// The rotary embedding of the keys of a cache, according to its file's description of the model (FORMAT.md, "Keys before the rotary
// embedding").
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "formats/cache/header.hpp"
#include "lib/model/config.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec {

/// The rotary embedding of the cache's keys. It is not known(), and gives the reason, if the keys are from before the embedding, if
/// the file does not describe the embedding, or if its description is invalid; such files can still be read.
KeyRope key_rope_of(const ModelInfo& model);

/// The description of a model's rotary embedding besides its base in kv files, the attribute rope_scaling (FORMAT.md, "The rotary
/// embedding"), on one line; empty if there is nothing to describe. object: the scaling in config.json; may be nullptr.
std::string describe_rope(const ModelConfig& config, const nlohmann::json* object);

/// max_position_embeddings is often the context before scaling by yarn or linear. Raises max_positions to the context after
/// scaling, once all else is read and checked.
void stretch_context(ModelConfig& config);

/// Sets how the model turns its heads (rope, local_rope, layer_rope) from such a text. config already has its base, head_dim and
/// num_layers. Throws Error(bad_input), beginning with "rope_scaling: ", for an invalid text.
void read_rope_description(const std::string& text, ModelConfig& config);

/// In which programs keep the pairs of a family's models side by side.
struct PairHabits {
  bool in_llama_cpp = false;  ///< as its GGUF files have the rows of q and k
  bool in_weights = false;    ///< in programs that turn keys as the model's own weights have them
};
/// std::nullopt: the family is not known.
std::optional<PairHabits> pair_habits(std::string_view family);

/// The family of that general.architecture of GGUF files; empty if none is known.
std::string_view family_of_architecture(std::string_view architecture);

}  // namespace kvcodec
