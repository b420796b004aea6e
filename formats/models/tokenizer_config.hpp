// tokenizer_config.json, which stands beside tokenizer.json in a Hugging Face model directory.
#pragma once

#include <string>

#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// The tokenizer of a model directory: that of tokenizer.json (formats/models/tokenizer_json.hpp). Where a tokenizer_config.json beside
/// it names a tokenizer class of Llama, Code Llama or Gemma and says add_bos_token or add_eos_token, these switches decide
/// which tokens go around a text. Throws Error(bad_input), the file's name first, as load_tokenizer() does, and for a
/// tokenizer_config.json that is no JSON, has fields of another type, or names a token that tokenizer.json lacks.
Tokenizer load_model_tokenizer(const std::string& directory);

}  // namespace kvcodec
