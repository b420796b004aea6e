// Models in GGUF files: their configuration, weights and tokenizers, in the form used for a Hugging Face model directory
// (model_config.hpp, safetensors.hpp, tokenizer_json.hpp).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/gguf.hpp"
#include "formats/models/model_config.hpp"
#include "lib/model/weights.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// The configuration, checked. Throws Error(bad_input), beginning with the file's name: for an architecture of none of the
/// families, for a setting of these architectures that this program does not implement (other rope scalings …), and for values that
/// contradict each other. Messages use the field names of config.json if it has the field.
ModelDescription describe_model(const Gguf& file);

/// The tensors under the names that the file gives them. If the file stores the rows of query and key projections in another order
/// than Hugging Face checkpoints do, they are returned in the order of the checkpoints. The file must outlive this object.
class GgufWeights final : public WeightSource {
 public:
  GgufWeights(const Gguf& file, const ModelConfig& config);

  /// Throws Error(bad_input) for a tensor of an unsupported type.
  const TensorView* find(std::string_view name) const override;
  std::string name() const override { return file_.name(); }
  /// Refuses any other tensor.
  void refuse_others(const TensorSet& found) const override;

 private:
  const Gguf& file_;
  std::map<std::string, TensorView, std::less<>> turned_;  ///< those whose rows are not in order
};

// The tokenizer, in the keys tokenizer.ggml.*.

/// Guesses that may be wrong, each with the file's name: how text is split, if no key determines it.
std::vector<std::string> tokenizer_notes(const Gguf& file);

/// Sets how text is split before the merges (normalizers, pre-tokenizers, ignore_merges) according to a name of tokenizer.ggml.pre.
/// Throws Error(bad_input) for an unknown name.
void split_as(std::string_view name, TokenizerSpec& spec);

/// The tokenizer: of model gpt2 (byte-pair encoding of bytes by ranked merges; tokenizer.ggml.pre names how text is split) or llama
/// (SentencePiece's byte-pair encoding by the scores of tokens). Control, user-defined and unknown tokens become added tokens.
/// Throws Error(bad_input), beginning with the file's name, for other models, an unknown name in tokenizer.ggml.pre, lists that do
/// not fit together, and like Tokenizer.
Tokenizer load_tokenizer(const Gguf& file);

}  // namespace kvcodec
