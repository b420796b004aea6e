// Tokenizers of Hugging Face: tokenizer.json, and tokenizer_config.json beside it.
#pragma once

#include <string>
#include <string_view>

#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Reads a tokenizer.json: models BPE and Unigram; normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip,
/// Lowercase, Precompiled; pre-tokenizers ByteLevel, Split, Punctuation, Digits, Metaspace, Whitespace,
/// WhitespaceSplit; post-processors TemplateProcessing (for one text) and ByteLevel; decoders ByteLevel,
/// ByteFallback, Fuse, Replace, Strip, Metaspace; Sequences of each. `truncation`, `padding` and `dropout` are ignored: they are
/// for batches and for training. Throws Error(bad_input) that names the file, the place in it as a JSON pointer, and the expected
/// value: for a missing file or one that is not JSON, an unsupported type or option, more than 100 normalizers, pre-tokenizers or
/// decoders, an invalid pattern or character map, and fields that are missing or of another type.
TokenizerSpec read_tokenizer_json(const std::string& file);

/// The same from memory; name: the file's name in messages.
TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& name);

/// The tokenizer of a model directory: that of tokenizer.json. If a tokenizer_config.json beside it names a tokenizer class of
/// Llama, Code Llama or Gemma and sets add_bos_token or add_eos_token, these switches decide which tokens surround a text. Throws
/// Error(bad_input), beginning with the file's name, like read_tokenizer_json() and Tokenizer, and for a tokenizer_config.json that
/// is not JSON, has fields of another type, or names a token that tokenizer.json lacks.
Tokenizer load_model_tokenizer(const std::string& directory);

}  // namespace kvcodec
