// config.json of a Hugging Face model directory.
#pragma once

#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

struct ModelDescription {
  ModelConfig config;
  std::string rope_scaling;        ///< as of ModelInfo: what FORMAT.md calls so, on one line; empty = nothing
  std::vector<std::string> notes;  ///< guesses that may be wrong, each with the file's name
  DType dtype = DType::f32;        ///< the declared type of the stored weights; f32 if none is declared
};

/// Reads and checks directory + "/config.json". Absent fields have the defaults of transformers; sizes that contradict the checkpoint's
/// tensors are detected when those are loaded. Throws Error(bad_input), beginning with the file's name, for a model of none of the
/// families (formats/models/families/), for settings of these that this program does not compute (other rope scalings and activations,
/// quantized weights …), and for values that do not fit together.
ModelDescription read_model_config(const std::string& directory);

/// The same for the text of a config.json; file: its name for messages.
ModelDescription parse_model_config(const std::string& text, const std::string& file);

}  // namespace kvcodec
