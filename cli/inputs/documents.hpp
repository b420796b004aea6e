// Documents that commands read: texts as documents of tokens, documents of kv and codes files to copy, and the cache to which dump-kv
// --append adds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/document_copy.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/cache/score_forms.hpp"
#include "formats/results/results.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"
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

/// Files that are named directly, and those in folders, at all levels, by name; names that begin with a dot are skipped. Throws
/// Error(bad_input) for folders that cannot be read or are empty.
std::vector<std::string> text_files(const std::vector<std::string>& paths);

bool is_pipe(const std::string& file);

/// Throws Error(bad_input) for a named pipe: opening one would wait for a writer.
inline void refuse_pipe(const std::string& file) {
  if (is_pipe(file))
    throw bad_input("{}: is a pipe, and nothing may ever come; give '-' to read from standard input", file);
}

/// The non-empty lines of a text file, without spaces at their ends; "-" is standard input. Throws Error(bad_input) for a file that
/// is not text; wanted: the expected content, for the message.
std::vector<std::string> lines_of(const std::string& file, const char* wanted);

/// The texts of these files and folders: each file is one, but files whose name ends in .jsonl have one per line, a JSON object with
/// "text", and optionally "id", which names it, and "metadata", an object. Notes text that is not UTF-8. Throws Error(bad_input).
std::vector<SourceText> read_texts(const CommonOptions& common, const std::vector<std::string>& paths);

/// Token ids of a text file, one document per line; empty lines are not documents. Throws Error(bad_input) for an invalid id and
/// for a file that is not text; wanted: the expected content, for the message.
std::vector<Document> read_token_lines(const std::string& file, const char* wanted);

/// Ids that the tokenizer puts before and after a text.
struct TokenTemplate {
  std::vector<uint32_t> before, behind;
};
inline TokenTemplate template_of(const Tokenizer& tokenizer) {
  const auto plain = tokenizer.encode("a", false), full = tokenizer.encode("a", true);
  const auto place = std::search(full.begin(), full.end(), plain.begin(), plain.end());
  return {{full.begin(), place}, {place + static_cast<std::ptrdiff_t>(plain.size()), full.end()}};
}

/// Adds the document, or pieces of `chunk` tokens of it, the last possibly shorter; the template surrounds each piece. Throws
/// Error(usage) for a chunk without room for more than the template.
void add_document(std::vector<Document>& documents, const Document& whole, const TokenTemplate& around,
                  uint64_t chunk);

// Files whose documents are copied ---------------------------------------------------------------------

/// Files named as arguments, and those that -T names.
struct InputFiles {
  std::vector<std::string> names;
  std::string list;

  void declare(Command& command, const std::string& help) {
    command.inputs("FILE", help, names, false);
    command.option({"inputs", "more files, one name on each line of FILE", &list}, "FILE", 'T');
  }
  /// All of them; those of the list come after the others. Throws Error(usage) if there is none, or standard input is named twice.
  std::vector<std::string> all() const;
};

/// The rule of all commands that add documents: a document with the name and tokens of an earlier one is left out; one with
/// its name and other tokens is refused, or replaces it (--replace). The caller numbers all documents in one order.
class NameRule {
 public:
  /// where: the file that they are added to, for messages. advice: what a refusal proposes besides --replace.
  NameRule(bool replace, std::string where, std::string advice = "")
      : replace_(replace), where_(std::move(where)), advice_(std::move(advice)) {}

  /// A document that is there.
  void add(std::string_view name, size_t number) { numbers_.emplace(name, number); }
  /// True if a new document is taken; else it is left out. same(number): whether it has the tokens of that document. Throws
  /// Error(bad_input) for one that is refused.
  bool takes(std::string_view name, size_t number, const std::function<bool(size_t before)>& same);
  /// Erases new documents that takes(document, number) refuses, and those that gave way to later ones. The first has number `first`.
  template <class Document, class Takes>
  void keep(std::vector<Document>& documents, size_t first, const Takes& takes) {
    size_t number = first;
    const auto taken = mapped<bool>(documents, [&](const auto& one) { return takes(one, number++); });
    std::vector<Document> kept;  // only now is it known which gave way
    for (size_t i = 0; i < documents.size(); ++i)
      if (taken[i] && !gave_way(first + i)) kept.push_back(std::move(documents[i]));
    documents = std::move(kept);
  }
  /// Leaves a document out whatever its name.
  void leave_out(std::string_view name) { stored_.emplace_back(name); }
  /// True for a document whose place a later one has taken.
  bool gave_way(size_t number) const { return gone_.contains(number); }

  bool replaces() const { return !replaced_.empty(); }
  /// Notes documents that were left out, and those that were replaced.
  void note(const CommonOptions& common) const;
  /// For JSON: their names, if there are any.
  Measures measures() const {
    Measures measures;
    if (!stored_.empty()) measures.push_back({"stored_before", stored_});
    if (!replaced_.empty()) measures.push_back({"replaced", replaced_});
    return measures;
  }

 private:
  bool replace_;
  std::string where_, advice_;
  std::multimap<std::string, size_t, std::less<>> numbers_;  // of the documents of each name
  std::set<size_t> gone_;
  std::vector<std::string> stored_, replaced_;
};

OptionField replace_field(bool& replace);

/// The options --replace and --continue of commands that --append documents to a file which may have some of their names.
struct Additions {
  bool replace = false;    ///< NameRule
  bool continues = false;  ///< a document may continue one of the file

  OptionField replace_field() { return cli::replace_field(replace); }
  /// what: the documents that continue others.
  OptionField continue_field(const std::string& what) {
    return {"continue", "with --append, let " + what, &continues};
  }
  /// Throws Error(usage) for both, and for one of them without --append. what: that to which --continue adds.
  void check(const Command& command, bool appends, const char* what) const;
};

/// Documents that --keep-going leaves out, because they are damaged.
class DamagedDocuments {
 public:
  /// number: that of the document in its file.
  void add(const std::string& file, size_t number, std::string_view name, const Error& reason) {
    documents_.push_back({file, std::string(name), number, reason.what()});
  }
  /// Notes each of them, and sets the command's exit status, if there are any. left: how many documents are whole. Throws
  /// Error(bad_input) if none is.
  void report(Command& command, const CommonOptions& common, size_t left) const;
  /// For JSON: each with its reason, if there are any.
  Measures measures() const;

 private:
  struct Document {
    std::string file, name;
    size_t number = 0;
    std::string reason;
  };
  std::vector<Document> documents_;
};

OptionField keep_going_field(bool& keep_going);

/// Documents of files without those whose token ids have the digest of an earlier one; their number goes to `left_out`. A document
/// without a digest is kept.
std::vector<DocumentsOf> without_duplicates(const std::vector<DocumentsOf>& from,
                                            const std::vector<DocumentList>& lists, size_t& left_out);

/// Notes that kvcodec compact would free more than half of a file, if it would. For JSON: how many bytes. Nothing for files that
/// compact cannot change: standard input, and files on servers.
Measures note_spare(const CommonOptions& common, const std::string& file, const DocumentList& list);

/// A file that was written, for the summary.
struct CopiedFile {
  std::string output;
  uint64_t documents = 0, tokens = 0, bytes = 0;
  Measures left_out = {};  ///< for JSON: documents that the command left out or replaced
};
/// Documents of these files, as counted, and the size of the written file.
CopiedFile copied_file(const OutputFile& output, const std::vector<DocumentsOf>& from,
                       const std::vector<DocumentList>& lists);
std::string summary(const std::vector<CopiedFile>& files, const CommonOptions& common);
/// Documents that are copied, and their files.
struct Copy {
  std::vector<DocumentsOf> from;
  const std::vector<DocumentList>& lists;
  Measures left_out = {};  ///< CopiedFile::left_out
};
/// Writes these documents to the output, with the histories of the files, and returns summary(). held: as for run_to_file.
std::string copy_to_file(const Command& command, const OutputOptions& output, const CommonOptions& common,
                         const Copy& copy, const HeldFile* held = nullptr);

/// Writes the documents of a file, except those whose place others have taken, and behind them all of a second file that was made alike.
void copy_replacing(const NameRule& rule, const std::string& file, const std::string& added,
                    OutputFile& output, const Provenance& provenance);

/// The user's metadata, or null. Throws Error(bad_input) for text that is not a JSON object; where: file and document.
Json metadata_json(const DocumentFacts& facts, const std::string& where);

// The cache that dump-kv --append adds documents to ---------------------------------------------------

/// A kv file that other runs cannot change meanwhile, and its content.
class GrowingCache {
 public:
  /// Waits for another run that changes it. Throws Error(bad_input) for a file that dump-kv cannot extend: one without token ids,
  /// one that was imported, or one that cannot be changed in place.
  GrowingCache(const OutputOptions& output, const CommonOptions& common);

  const KvReader& kv() const { return *kv_; }
  const HeldFile& held() const { return *held_; }
  /// True if its keys are those before the rotary embedding.
  bool before_rope() const { return kv().model().key_state == "pre-rope"; }
  /// True if the document with that number is of these tokens, from position 0 on; if any document is.
  bool is_of(size_t document, std::span<const uint32_t> tokens) const {
    const Documents& documents = kv().documents();
    if (documents.length(document) != tokens.size() || digests_[document] != token_digest(tokens))
      return false;
    return tokens.empty() ||
           kv().positions(documents.offsets[document + 1] - 1, 1).front() + 1 == tokens.size();  // they rise
  }
  bool has(std::span<const uint32_t> tokens) const { return known_.contains(token_digest(tokens)); }
  /// Call it after all writes: kv() becomes invalid.
  void close() { kv_.reset(); }

 private:
  std::unique_ptr<HeldFile> held_;
  std::optional<KvReader> kv_;
  std::vector<Digest128> digests_;  // of its documents' ids
  std::set<Digest128> known_;       // likewise
};

// Documents that two files share, found by name and positions: one file may hold only a range of a document's tokens -------

/// True if both documents have the same ids at the same positions, or no tokens. Files without ids cannot show it.
bool same_tokens(const TokenFile& file, size_t document, const TokenFile& other, size_t other_document);

/// A document of another file and the location of its tokens in the original.
struct Match {
  size_t original_document = 0, other_document = 0;
  uint64_t original = 0, other = 0, count = 0;  ///< first token in each file, and their number
};

/// Finds the documents of `other` whose numbers are in `wanted` (ascending) in the original; empty ones are left out. It also looks
/// for the unwanted documents before the last wanted one, so that documents of the same name match different ones; these are not
/// returned. Throws Error(bad_input) for a wanted document that the original does not have, or has with other token ids.
std::vector<Match> match_documents(const TokenFile& original, const TokenFile& other,
                                   const std::vector<size_t>& wanted);
/// The same for all of them.
inline std::vector<Match> match_documents(const TokenFile& original, const TokenFile& other) {
  return match_documents(original, other, DocumentSelection().choose(other.documents(), other.name()));
}

/// Throws Error(bad_input) unless the keys of that file are in the state in which attention uses them: products of queries with
/// other keys are not scores.
void check_scores(const std::string& name, const ModelInfo& model);

/// The form of scores of attention in the file's model. If the file does not say it, a note says that they are taken as they are.
ScoreForms forms_of_scores(const KvReader& kv, const CommonOptions& common);

/// check_same_model (formats/cache/header.hpp) and check_scores for a cache whose queries will be multiplied with the keys in the
/// codes; and there must be queries of these layers.
void check_queries(const KvReader& kv, const CodesReader& codes, const std::vector<int>& layers);

}  // namespace kvcodec::cli
