// A model as it is named on the command line: a Hugging Face model directory, or a GGUF file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/models/model_config.hpp"
#include "lib/model/weights.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Configuration, weights and tokenizer of one model. Each part is read when it is asked for, so that a run
/// that needs no tokenizer does without.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  /// Checked. Errors of all functions: Error(bad_input), the file's name first.
  virtual const ModelDescription& description() const = 0;
  /// Mapped into memory; live as long as this.
  virtual const WeightSource& weights() = 0;
  /// Identifies the weights; reads all of them.
  virtual std::string digest() = 0;
  virtual Tokenizer tokenizer() const = 0;
  /// Guesses about the tokenizer that may be wrong, as ModelDescription::notes.
  virtual std::vector<std::string> tokenizer_notes() const { return {}; }
};

/// named: a directory with config.json, *.safetensors and tokenizer.json, or a GGUF file, which is any regular file; or a folder
/// models--ORG--NAME of the hub's cache, or ORG/NAME, which is looked for there. Reads the configuration. Nothing is downloaded.
std::unique_ptr<ModelFiles> open_model(const std::string& named);

/// The description that outputs have of the model that is named so, except for where the cache came from.
ModelInfo model_info(const std::string& path, const ModelDescription& description, bool pre_rope);

/// The same, with the digest of its weights. pre_rope: whether keys are those before the rotary embedding.
ModelInfo model_info(const std::string& path, ModelFiles& files, bool pre_rope);

}  // namespace kvcodec
