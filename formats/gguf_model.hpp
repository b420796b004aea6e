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

/// The configuration, checked. Throws Error(bad_input), the file's name first, for an architecture of none of those in
/// gguf_families/, for what these can be told but this program does not compute (other rope scalings …), and for values
/// that do not fit together; fields that both forms have are called as config.json does.
ModelDescription describe_model(const Gguf& file);

/// The tensors under their own names, query and key projections whose rows are stored in another order in that of
/// checkpoints. The file must outlive it.
class GgufWeights final : public WeightSource {
 public:
  GgufWeights(const Gguf& file, const ModelConfig& config);

  /// Throws Error(bad_input) for a tensor of a type that is not read.
  const TensorView* find(std::string_view name) const override;
  std::string name() const override { return file_.name(); }
  /// Refuses any other.
  void refuse_others(const TensorSet& found) const override;

 private:
  const Gguf& file_;
  std::map<std::string, TensorView, std::less<>> turned_;  ///< those whose rows are not in order
};

}  // namespace kvcodec
