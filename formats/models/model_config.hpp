// config.json of a Hugging Face model directory.
#pragma once

#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

struct ModelDescription {
  ModelConfig config;
  std::string
      rope_scaling;  ///< what FORMAT.md calls so, on one line; empty = nothing (as ModelInfo wants it)
  std::vector<std::string> notes;  ///< what had to be guessed that may be wrong, each with the file's name
  DType dtype = DType::f32;        ///< what the weights are said to be stored in; f32 if nothing is said
};

/// Reads and checks directory + "/config.json". What is absent has the default that transformers gives it;
/// sizes that the checkpoint's tensors contradict are found when those are loaded. Throws Error(bad_input),
/// the file's name first, for a model of none of the families (formats/models/families/), for what these can be told
/// but this program does not compute (other rope scalings and activations, quantized weights …), and for values that do not fit together.
ModelDescription read_model_config(const std::string& directory);

/// The same from the text of a config.json; file: its name for messages.
ModelDescription parse_model_config(const std::string& text, const std::string& file);

}  // namespace kvcodec
