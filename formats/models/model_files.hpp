// A model that is named on the command line: a Hugging Face model directory, or a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/models/model_config.hpp"
#include "lib/attention/score_forms.hpp"
#include "lib/model/weights.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Configuration, weights and tokenizer of one model. Each part is read when it is requested, so that a run without a tokenizer
/// does not read one.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  /// Checked. Errors of all functions: Error(bad_input), beginning with the file's name.
  virtual const ModelDescription& description() const = 0;
  /// Mapped into memory; they live as long as this object.
  virtual const WeightSource& weights() = 0;
  /// Identifies the weights; reads all of them.
  virtual std::string digest() = 0;
  virtual Tokenizer tokenizer() const = 0;
  /// Guesses about the tokenizer that may be wrong, like ModelDescription::notes.
  virtual std::vector<std::string> tokenizer_notes() const { return {}; }
  /// The program that writes messages as the model was trained on them (chat.hpp); empty if there is none.
  virtual std::string chat_template() const = 0;
  /// Tokens that end what the model writes; none if its files name none.
  virtual std::vector<uint32_t> end_tokens() const = 0;
};

/// named: a directory with config.json, *.safetensors and tokenizer.json; a GGUF file, which is any regular file; a folder
/// models--ORG--NAME of the hub's cache; or ORG/NAME, which is looked up there. Reads the configuration. Nothing is downloaded.
std::unique_ptr<ModelFiles> open_model(const std::string& named);

/// The description of that model in outputs, without ModelInfo::source. pre_rope: keys are those before the rotary embedding.
ModelInfo model_info(const std::string& path, const ModelDescription& description, bool pre_rope);

/// The same, with the digest of its weights as source.
inline ModelInfo model_info(const std::string& path, ModelFiles& files, bool pre_rope) {
  ModelInfo info = model_info(path, files.description(), pre_rope);
  info.source = "weights " + files.digest();
  return info;
}

/// The form of the model's scores of attention.
ScoreForms score_forms(ModelFiles& files);

}  // namespace kvcodec
