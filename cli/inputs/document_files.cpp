#include "cli/inputs/document_files.hpp"

#include <filesystem>
#include <set>

#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

void InputFiles::declare(Command& command, const std::string& help) {
  command.inputs("FILE", help, names, false);
  command.option({.name = "inputs", .help = "more files, one name on each line of FILE", .target = &list},
                 "FILE", 'T');
}

std::vector<std::string> InputFiles::all() const {
  std::vector<std::string> files = names;
  if (!list.empty())
    for (std::string& name : lines_of(list, "a list of file names")) files.push_back(std::move(name));
  if (files.empty()) throw usage_error("no file is named; name one, or a list of them with -T");
  check_inputs(files);
  return files;
}

std::vector<DocumentsOf> without_duplicates(const std::vector<DocumentsOf>& from,
                                            const std::vector<DocumentList>& lists, size_t& left_out) {
  std::set<Digest128> seen;
  std::vector<DocumentsOf> kept;
  left_out = 0;
  for (size_t file = 0; file < from.size(); ++file) {
    kept.push_back({from[file].file, {}});
    for (const size_t number : from[file].numbers) {
      const auto digest = lists[file].documents.facts_of(number).digest;
      if (digest && !seen.insert(*digest).second)
        ++left_out;
      else
        kept.back().numbers.push_back(number);
    }
  }
  return kept;
}

CopiedFile copied_file(const OutputFile& output, const std::vector<DocumentsOf>& from,
                       const std::vector<DocumentList>& lists) {
  CopiedFile copied{.output = output.target()};
  for (size_t file = 0; file < from.size(); ++file)
    for (const size_t number : from[file].numbers) {
      ++copied.documents;
      copied.tokens += lists[file].documents.length(number);
    }
  std::error_code no_size;
  copied.bytes = std::filesystem::file_size(output.path(), no_size);
  return copied;
}

std::string summary(const std::vector<CopiedFile>& files, const CommonOptions& common) {
  if (common.json) {
    Json outputs = Json::array();
    for (const CopiedFile& file : files)
      outputs.push_back({{"output", file.output},
                         {"documents", file.documents},
                         {"tokens", file.tokens},
                         {"file_bytes", file.bytes}});
    return text_of({{"outputs", outputs}});
  }
  Table table({{"file"}, {"documents"}, {"tokens"}, {"size"}});
  for (const CopiedFile& file : files)
    table.row({file.output, grouped(file.documents), grouped(file.tokens), size_text(file.bytes)});
  return table.text();
}

std::string digest_text(const DocumentFacts& facts) { return facts.digest ? hex_of(*facts.digest) : ""; }

Json metadata_json(const DocumentFacts& facts, const std::string& where) {
  if (facts.metadata.empty()) return nullptr;
  return parse_json_object(facts.metadata, where + ": metadata");
}

}  // namespace kvcodec::cli
