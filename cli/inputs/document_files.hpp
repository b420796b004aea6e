// What commands share that copy documents of kv and codes files: their inputs, and what they say in the end.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "formats/cache/document_copy.hpp"

namespace kvcodec::cli {

/// Files named as arguments, and those that -T names.
struct InputFiles {
  std::vector<std::string> names;
  std::string list;

  void declare(Command& command, const std::string& help);
  /// All of them, those of the list behind the others. Throws Error(usage) if there is none, or standard input is named
  /// twice.
  std::vector<std::string> all() const;
};

/// Documents of files without those whose token ids have the digest of one before; how many these are goes to `left_out`.
/// A document without a digest is kept.
std::vector<DocumentsOf> without_duplicates(const std::vector<DocumentsOf>& from,
                                            const std::vector<DocumentList>& lists, size_t& left_out);

/// What was written.
struct CopiedFile {
  std::string output;
  uint64_t documents = 0, tokens = 0, bytes = 0;
};
/// Documents of these files as they were counted, and the size of the file that was written.
CopiedFile copied_file(const OutputFile& output, const std::vector<DocumentsOf>& from,
                       const std::vector<DocumentList>& lists);
std::string summary(const std::vector<CopiedFile>& files, const CommonOptions& common);

/// The digest of a document in digits, or nothing.
std::string digest_text(const DocumentFacts& facts);

/// The user's metadata, or null. Throws Error(bad_input) for what is not a JSON object; where: file and document.
Json metadata_json(const DocumentFacts& facts, const std::string& where);

}  // namespace kvcodec::cli
