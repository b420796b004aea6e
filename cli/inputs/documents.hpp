// Text files as documents of tokens: what dump-kv and eval-model read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec::cli {

struct Document {
  std::string name;
  std::vector<uint32_t> tokens;
  std::string metadata = {};  ///< a JSON object; empty = none
};

/// A text that is to become documents.
struct SourceText {
  std::string name, text;
  std::string metadata = {};  ///< a JSON object; empty = none
};

/// Files named directly, and those in folders, all levels, by name; what begins with a dot is left out.
/// Throws Error(bad_input) for folders that cannot be read or hold nothing.
std::vector<std::string> text_files(const std::vector<std::string>& paths);

bool is_pipe(const std::string& file);

/// Throws Error(bad_input) for a named pipe: opening one would wait for a writer.
void refuse_pipe(const std::string& file);

/// All of a file; "-" is standard input.
std::string read_text(const std::string& file);

/// The lines of a text file that are not empty, without spaces at their ends; "-" is standard input. Throws
/// Error(bad_input) for what is not text; wanted: what it should be, for the message.
std::vector<std::string> lines_of(const std::string& file, const char* wanted);

/// Throws Error(bad_input) for what is not text at all (images, programs, arrays, UTF-16), saying what it is
/// where that is known. wanted: what it should be, for the message.
void refuse_binary(const std::string& file, std::string_view text, const char* wanted);

/// The same for text that the tokenizer reads, with a note where it will have to replace bytes.
void check_is_text(const CommonOptions& common, const std::string& file, std::string_view text);

/// The texts of these files and folders: each file is one, but files whose name ends in .jsonl have one in each line, a JSON object
/// with "text", and perhaps "id", which names it, and "metadata", an object. Notes what is not UTF-8. Throws Error(bad_input).
std::vector<SourceText> read_texts(const CommonOptions& common, const std::vector<std::string>& paths);

/// Token ids of a text file, one document per line; empty lines are not documents. Throws Error(bad_input) for what is not an
/// id, and where the file is not text, which says what is wanted.
std::vector<Document> read_token_lines(const std::string& file, const char* wanted);

/// Ids that the tokenizer puts before and behind a text.
struct TokenTemplate {
  std::vector<uint32_t> before, behind;
};
TokenTemplate template_of(const Tokenizer& tokenizer);

/// The document, or pieces of `chunk` tokens of it, the last perhaps shorter; the template goes around each piece.
/// Throws Error(usage) for a chunk that the template fills.
void add_document(std::vector<Document>& documents, const Document& whole, const TokenTemplate& around,
                  uint64_t chunk);

}  // namespace kvcodec::cli
