// Models in GGUF files: their configuration and their weights, as those of a Hugging Face model directory
// (model_config.hpp, safetensors.hpp) are given.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formats/gguf.hpp"
#include "formats/model_config.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// The configuration, checked. Architectures: llama (Llama, Mistral and what shares it), qwen2, qwen3. Throws
/// Error(bad_input), the file's name first, for others, for what these can be told but this program does not
/// compute (experts, rope scaling by yarn, heads that are turned in part, parts of a split file), for tensors
/// that such a model does not have, and for values that do not fit together; fields that both forms have are
/// called as config.json does.
ModelDescription describe_model(const Gguf& file);

/// The tensors under the names of Hugging Face checkpoints, query and key projections of llama in their order.
/// The file must outlive it.
class GgufWeights final : public WeightSource {
 public:
  GgufWeights(const Gguf& file, const ModelConfig& config);

  /// Throws Error(bad_input) for a tensor of a type that is not read.
  const TensorView* find(std::string_view name) const override;
  std::string name() const override { return file_.name(); }
  std::string own_name(std::string_view name) const override;

 private:
  const Gguf& file_;
  std::map<std::string, TensorView, std::less<>> views_;  ///< by the checkpoints' names; of usable types
};

}  // namespace kvcodec
