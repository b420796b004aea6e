// Tokenizers as Hugging Face stores them: tokenizer.json, and tokenizer_config.json beside it.
#pragma once

#include <string>
#include <string_view>

#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Reads a tokenizer.json: models BPE and Unigram; normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip,
/// Lowercase, Precompiled; pre-tokenizers ByteLevel, Split, Punctuation, Digits, Metaspace, Whitespace,
/// WhitespaceSplit; post-processors TemplateProcessing (for one text) and ByteLevel; decoders ByteLevel,
/// ByteFallback, Fuse, Replace, Strip, Metaspace; Sequences of each. `truncation`, `padding` and `dropout` are
/// not taken over: they are for batches and for training. Throws Error(bad_input) that names the file, the
/// place in it as a JSON pointer, and what would be right: for a file that is not there or not JSON, a type or
/// option that is not supported, more than 100 normalizers, pre-tokenizers or decoders, a pattern or character map that is
/// wrong, and fields that are missing or of another type.
TokenizerSpec read_tokenizer_json(const std::string& file);

/// The same from memory; name: what messages call it.
TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& name);

/// The tokenizer of a model directory: that of tokenizer.json. Where a tokenizer_config.json beside it names a tokenizer class of
/// Llama, Code Llama or Gemma and says add_bos_token or add_eos_token, these switches decide which tokens go around a text.
/// Throws Error(bad_input), the file's name first, as read_tokenizer_json() and Tokenizer do, and for a tokenizer_config.json that
/// is no JSON, has fields of another type, or names a token that tokenizer.json lacks.
Tokenizer load_model_tokenizer(const std::string& directory);

}  // namespace kvcodec
