// Models in GGUF files: their configuration, weights and tokenizers, as those of a Hugging Face model directory
// (model_config.hpp, safetensors.hpp, tokenizer_json.hpp) are given.
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

/// The configuration, checked. Throws Error(bad_input), the file's name first: for an architecture of
/// none of the families, for a setting of these architectures that this program does not implement (other
/// rope scalings …), and for values that contradict each other. Messages use the field names of config.json
/// where it has them.
ModelDescription describe_model(const Gguf& file);

/// The tensors under the names that the file gives them. Where the file stores the rows of query and key
/// projections in another order than Hugging Face checkpoints do, they are given in the checkpoints' order.
/// The file must outlive it.
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

// The tokenizer, in the keys tokenizer.ggml.*.

/// Guesses that may be wrong, each with the file's name: how text is split, where no key says it.
std::vector<std::string> tokenizer_notes(const Gguf& file);

/// Sets how text is split before the merges (normalizers, pre-tokenizers, ignore_merges) to what a name of
/// tokenizer.ggml.pre stands for. Throws Error(bad_input) for a name that is not known.
void split_as(std::string_view name, TokenizerSpec& spec);

/// The tokenizer: of model gpt2 (byte-pair encoding of bytes by ranked merges, text split as tokenizer.ggml.pre names) or llama
/// (SentencePiece's byte-pair encoding by the scores of tokens). Control, user-defined and unknown tokens become added tokens.
/// Throws Error(bad_input), the file's name first, for other models, a name of tokenizer.ggml.pre that is not known, lists that
/// do not fit together, and as Tokenizer does.
Tokenizer load_tokenizer(const Gguf& file);

}  // namespace kvcodec
