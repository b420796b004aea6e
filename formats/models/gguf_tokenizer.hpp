// Tokenizers in GGUF files: the keys tokenizer.ggml.*.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/models/gguf.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// The tokenizer's description: of model gpt2 (byte-pair encoding of bytes by ranked merges, text split as
/// tokenizer.ggml.pre names) or llama (SentencePiece's byte-pair encoding by the scores of tokens). Control,
/// user-defined and unknown tokens become added tokens. Throws Error(bad_input) for other models, a name of
/// tokenizer.ggml.pre that is not known, and lists that do not fit together.
TokenizerSpec tokenizer_of(const Gguf& file);

/// What had to be guessed that may be wrong, each with the file's name: how text is split, where no key says it.
std::vector<std::string> tokenizer_notes(const Gguf& file);

/// Sets how text is split before the merges (normalizers, pre-tokenizers, ignore_merges) to what a name of
/// tokenizer.ggml.pre stands for. Throws Error(bad_input) for a name that is not known.
void split_as(std::string_view name, TokenizerSpec& spec);

/// Builds the tokenizer. Errors of both name the file.
Tokenizer load_tokenizer(const Gguf& file);

}  // namespace kvcodec
