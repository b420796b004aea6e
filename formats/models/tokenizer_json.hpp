// Tokenizers as Hugging Face stores them: tokenizer.json.
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
/// option that is not supported, and fields that are missing or of another type.
TokenizerSpec read_tokenizer_json(const std::string& file);

/// The same from memory; name: what messages call it.
TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& name);

/// Reads a tokenizer.json and builds the tokenizer. Errors of both name the file.
Tokenizer load_tokenizer(const std::string& file);

}  // namespace kvcodec
