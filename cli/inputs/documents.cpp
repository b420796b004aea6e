#include "cli/inputs/documents.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include <fnmatch.h>

#include "formats/io/http.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec::cli {

namespace fs = std::filesystem;

std::vector<std::string> text_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::error_code error;
    if (path == "-" || !fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    try {
      for (fs::recursive_directory_iterator place(path), end; place != end; ++place) {
        if (place->path().native().size() >= PATH_MAX)
          throw bad_input(
              "{}: folders lie so deep in it that the system opens no file there (paths of {} bytes); move them up",
              path, place->path().native().size());
        const bool hidden = place->path().filename().string().starts_with(".");
        if (hidden && place->is_directory()) place.disable_recursion_pending();
        if (!hidden && place->is_regular_file()) found.push_back(place->path().string());
      }
    } catch (const fs::filesystem_error& fault) {
      throw bad_input("{}: {}", path, fault.code().message());
    }
    if (found.empty()) throw bad_input("{}: the folder holds no files", path);
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

bool is_pipe(const std::string& file) {
  std::error_code error;
  return fs::is_fifo(file, error);
}

/// Reads a whole file; "-" is standard input.
static std::string read_file(const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    std::error_code error;
    if (fs::is_directory(file, error)) throw bad_input("{}: is a folder; a text file is wanted here", file);
    refuse_pipe(file);
    errno = 0;
    opened.open(file, std::ios::binary);
    if (!opened) throw bad_input("{}: cannot be read: {}", file, std::strerror(errno));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw bad_input("{}: cannot be read to its end", file);
  return text;
}

/// The text of a file; "-" is standard input. Throws Error(bad_input) for a file that is not text (images, programs, arrays,
/// UTF-16), naming its kind if that is known. wanted: the expected content, for the message.
static std::string read_text(const std::string& file, const char* wanted) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"\x93NUMPY"sv, "a NumPy array"},
      {"PK\x03\x04"sv, "a zip archive, as those of NumPy and PyTorch are"},
      {"\x80\x02"sv, "a Python pickle"},
      {"\x80\x03"sv, "a Python pickle"},
      {"\x80\x04"sv, "a Python pickle"},
      {"\x80\x05"sv, "a Python pickle"},
      {"\x1f\x8b"sv, "compressed by gzip"},
      {"\x28\xb5\x2f\xfd"sv, "compressed by zstd"},
      {"%PDF-"sv, "a PDF document"},
      {"\x89HDF"sv, "an HDF5 file"},
      {"PAR1"sv, "a Parquet file"},
  };
  std::string text = read_file(file);
  for (const auto& [start, kind] : kKinds)
    if (text.starts_with(start)) throw bad_input("{}: this is {}, not {}", file, kind, wanted);
  if (const size_t zero = text.find('\0'); zero != std::string::npos)
    throw bad_input("{}: byte {} is zero: this is not {}", file, zero, wanted);
  return text;
}

/// Calls body(number, line) for each non-empty line of a text, without spaces at its ends; the first line is 1.
template <class Body>
static void for_each_line(std::string_view text, const Body& body) {
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (!line.empty()) body(number, line);
    begin = end + 1;
  }
}

std::vector<std::string> lines_of(const std::string& file, const char* wanted) {
  std::vector<std::string> lines;
  for_each_line(read_text(file, wanted), [&](size_t, std::string_view line) { lines.emplace_back(line); });
  return lines;
}

/// A line of a .jsonl file. where: file and line, which is also the name of a text without "id".
static SourceText text_of_line(std::string_view line, const std::string& where) {
  const nlohmann::json object = parse_json_object(line, where);
  return with_context(where, [&] {
    const JsonFields fields(object);
    const auto text = fields.get_string("text");
    if (!text) throw bad_input("has no \"text\"; each line of a .jsonl file is an object with one");
    SourceText source{.name = where, .text = *text};
    if (const auto* id = fields.find("id")) {
      if (!id->is_string() && !id->is_number_integer())
        throw bad_input("\"id\" is a JSON {}; a string or an integer is wanted", id->type_name());
      source.name = id->is_string() ? id->get<std::string>() : id->dump();
      if (source.name.find('\0') != std::string::npos)
        throw bad_input("\"id\" is {}, which has a zero byte; names end at one", id->dump());
    }
    if (const auto* metadata = fields.find("metadata")) {
      if (!metadata->is_object())
        throw bad_input("\"metadata\" is a JSON {}; an object is wanted", metadata->type_name());
      source.metadata = metadata->dump();
    }
    return source;
  });
}

std::vector<SourceText> read_texts(const CommonOptions& common, const std::vector<std::string>& paths) {
  std::vector<SourceText> texts;
  for (const std::string& file : text_files(paths)) {
    std::string text = read_text(file, "text in UTF-8");
    if (const size_t good = valid_utf8_prefix(text); good < text.size())
      common.note("{}: byte {} is not UTF-8; such bytes are read as U+FFFD", file, good);
    if (file.ends_with(".jsonl"))
      for_each_line(text, [&](size_t number, std::string_view line) {
        texts.push_back(text_of_line(line, fmt::format("{}:{}", file, number)));
      });
    else
      texts.push_back({.name = file, .text = std::move(text)});
  }
  return texts;
}

std::vector<Document> read_token_lines(const std::string& file, const char* wanted) {
  constexpr std::string_view kBetween = " \t\r,";
  std::vector<Document> documents;
  for_each_line(read_text(file, wanted), [&](size_t number, std::string_view line) {
    Document document{.name = fmt::format("{}:{}", file, number), .tokens = {}};
    for (size_t at = 0; (at = line.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
      const std::string_view word = line.substr(at, line.find_first_of(kBetween, at) - at);
      const auto id = number_in<uint32_t>(word);
      if (!id)
        throw bad_input("{}: line {} has '{}', which is not a token id", file, number, word.substr(0, 40));
      document.tokens.push_back(*id);
      at += word.size();
    }
    if (!document.tokens.empty()) documents.push_back(std::move(document));
  });
  return documents;
}

void add_document(std::vector<Document>& documents, const Document& whole, const TokenTemplate& around,
                  uint64_t chunk) {
  const auto& [name, tokens, metadata] = whole;
  const size_t extra = around.before.size() + around.behind.size();
  if (chunk > 0 && chunk <= extra)
    throw usage_error("--chunk is {}; {} of these are special tokens, it must be larger", chunk, extra);
  const size_t piece = chunk > 0 ? chunk - extra : std::max<size_t>(tokens.size(), 1);
  const size_t pieces = (tokens.size() + piece - 1) / piece;
  for (size_t p = 0; p < pieces; ++p) {
    Document document{pieces > 1 || chunk > 0 ? fmt::format("{}#{}", name, p) : name, around.before,
                      metadata};
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(p * piece);
    document.tokens.insert(document.tokens.end(), first,
                           first + static_cast<std::ptrdiff_t>(std::min(piece, tokens.size() - p * piece)));
    document.tokens.insert(document.tokens.end(), around.behind.begin(), around.behind.end());
    documents.push_back(std::move(document));
  }
}

// --documents: numbers, names, globs, and files that list these --------------------------------------

namespace {

/// The parts of "a,b", with "\," for a comma inside one and "\\" for a backslash.
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == ',' || text[i + 1] == '\\'))
      parts.back() += text[++i];
    else if (text[i] == ',')
      parts.emplace_back();
    else
      parts.back() += text[i];
  }
  return parts;
}

/// Collects the documents that words name, more than a few by hashing: a selection from a corpus may have a hundred thousand names.
class Chooser {
 public:
  Chooser(const Documents& documents, const std::string& where) : documents_(documents), where_(where) {}

  /// In the order of the words, each document once.
  std::vector<size_t> choose(const std::string& text) {
    if (!add_named(text) && !text.empty())
      for (const std::string& word : split_names(text)) add_word(word);
    return std::move(chosen_);
  }

 private:
  /// A few names are compared with all; for more it is faster to hash all names first.
  bool add_named(const std::string& name) {
    constexpr int kFew = 4;
    bool found = false;
    if (++named_ <= kFew) {
      for (size_t i = 0; i < documents_.count(); ++i)
        if (documents_.names[i] == name) add(i), found = true;
      return found;
    }
    if (numbers_.empty())
      for (size_t i = 0; i < documents_.count(); ++i) numbers_.emplace(documents_.names[i], i);
    const auto [first, end] = numbers_.equal_range(name);
    for (auto place = first; place != end; ++place) add(place->second);
    return first != end;
  }

  void add_word(const std::string& word) {
    if (add_named(word) || add_numbered(word)) return;
    if (word.starts_with("@")) return add_file(word.substr(1));
    if (word.find_first_of("*?[") != std::string::npos) return add_matching(word);
    std::vector<std::string> names;
    for (size_t i = 0; i < documents_.count(); ++i) names.emplace_back(documents_.names[i]);
    throw bad_input("{}: there is no document '{}'; {}", where_, word,
                    advice(word, names, "kvcodec ls lists them"));
  }

  bool add_numbered(const std::string& word) {
    const auto range = number_range(word);
    if (!range) return false;
    const auto& [first, last] = *range;
    if (first > last)
      throw usage_error("--documents has '{}'; a range goes from the lower to the higher number", word);
    if (last >= documents_.count())
      throw bad_input("{}: there is no document {}; it has {}, numbered from 0", where_,
                      std::max<uint64_t>(first, documents_.count()), documents_.count());
    for (uint64_t i = first; i <= last; ++i) add(i);
    return true;
  }

  void add_matching(const std::string& glob) {
    const auto found = matching_documents(documents_, glob);
    if (found.empty())
      throw bad_input("{}: no document's name fits '{}'; kvcodec ls lists them", where_, glob);
    for (const size_t i : found) add(i);
  }

  void add_file(const std::string& name) {
    for (const std::string& line : lines_of(name, "a list of documents"))
      with_context(name, [&] {
        if (line.starts_with("@")) throw bad_input("'{}': a list of documents cannot name another", line);
        add_word(line);
      });
  }

  void add(size_t document) {
    if (known_.insert(document).second) chosen_.push_back(document);
  }

  const Documents& documents_;
  const std::string& where_;
  std::vector<size_t> chosen_;
  std::unordered_set<size_t> known_;  // of those
  int named_ = 0;                     // names looked up so far
  std::unordered_multimap<std::string_view, size_t> numbers_;
};

}  // namespace

std::vector<size_t> matching_documents(const Documents& documents, const std::string& glob) {
  std::vector<size_t> found;
  for (size_t i = 0; i < documents.count(); ++i)
    if (::fnmatch(glob.c_str(), std::string(documents.names[i]).c_str(), 0) == 0) found.push_back(i);
  return found;
}

std::string words_for(const Documents& documents, const std::vector<size_t>& numbers) {
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < documents.count(); ++i) names.insert(documents.names[i]);
  // Names take precedence over numbers: a number that is also a name gets leading zeros.
  const auto no_name = [&](std::string word) {
    while (names.contains(word)) word.insert(0, "0");
    return word;
  };
  std::vector<std::string> words;
  for (size_t i = 0; i < numbers.size();) {
    const size_t first = numbers[i], begin = i;
    while (i < numbers.size() && numbers[i] == first + (i - begin)) ++i;
    words.push_back(no_name(i - begin == 1 ? std::to_string(first)
                                           : fmt::format("{}-{}", first, first + (i - begin) - 1)));
  }
  return no_name(fmt::format("{}", fmt::join(words, ",")));
}

void DocumentSelection::declare(Command& by, const std::string& what, const std::string& unless) {
  command = &by;
  by.option({"documents",
             what +
                 ": numbers from 0, as 0,3-7, names, with \\, for a comma in one, globs of names, or "
                 "@FILE with one of these on each line (" +
                 unless + ")",
             &text},
            "LIST");
  by.record_as_given("documents");
}

std::vector<size_t> DocumentSelection::choose(const Documents& documents, const std::string& where) const {
  auto chosen = choose_in_order(documents, where);
  std::ranges::sort(chosen);
  return chosen;
}

std::vector<size_t> DocumentSelection::choose_in_order(const Documents& documents,
                                                       const std::string& where) const {
  return given() ? Chooser(documents, where).choose(text) : numbers_below<size_t>(documents.count());
}

// Files whose documents are copied ---------------------------------------------------------------------

std::vector<std::string> InputFiles::all() const {
  std::vector<std::string> files = names;
  if (!list.empty())
    for (std::string& name : lines_of(list, "a list of file names")) files.push_back(std::move(name));
  if (files.empty()) throw usage_error("no file is named; name one, or a list of them with -T");
  check_inputs(files);
  return files;
}

bool NameRule::takes(std::string_view name, size_t number, const std::function<bool(size_t before)>& same) {
  const auto [first, last] = numbers_.equal_range(name);
  if (std::any_of(first, last, [&](const auto& before) { return same(before.second); })) {
    leave_out(name);
    return false;
  }
  if (first != last) {
    if (!replace_)
      throw bad_input(
          "{}: has a document '{}' already, with other tokens; --replace puts the new one in its place{}",
          where_, name, advice_);
    for (auto before = first; before != last; ++before) gone_.insert(before->second);
    numbers_.erase(first, last);
    replaced_.emplace_back(name);
  }
  numbers_.emplace(name, number);
  return true;
}

void NameRule::note(const CommonOptions& common) const {
  common.note_documents(
      fmt::format("{} has {} of these already, with the same token ids, and keeps them as they are", where_,
                  counted(stored_.size(), "document")),
      stored_);
  common.note_documents(fmt::format("{}: replaced {}", where_, counted(replaced_.size(), "document")),
                        replaced_);
}

OptionField replace_field(bool& replace) {
  return {
      "replace",
      "put a document in the place of one that has its name and other tokens, which is otherwise refused; one with "
      "the same tokens is left out",
      &replace};
}

void Additions::check(const Command& command, bool appends, const char* what) const {
  for (const char* of_append : {"replace", "continue"})
    if (!appends && command.given(of_append))
      throw usage_error("--{} is about documents that --append adds; leave it out", of_append);
  if (replace && continues)
    throw usage_error("--replace puts documents in the place of others, and --continue adds to {}; give one",
                      what);
}

void DamagedDocuments::report(Command& command, const CommonOptions& common, size_t left) const {
  for (const Document& document : documents_)
    common.note("document {} ('{}') is damaged and left out: {}", document.number, document.name,
                document.reason);
  if (documents_.empty()) return;
  if (left == 0)
    throw bad_input("no document is written, because all {} are damaged; the first: {}", documents_.size(),
                    documents_.front().reason);
  command.set_status(kDamageLeftOut);
}

Measures DamagedDocuments::measures() const {
  if (documents_.empty()) return {};
  Json list = Json::array();
  for (const Document& document : documents_)
    list.push_back({{"file", document.file},
                    {"number", document.number},
                    {"name", document.name},
                    {"reason", document.reason}});
  return {{"damaged", list}};
}

OptionField keep_going_field(bool& keep_going) {
  return {
      "keep-going",
      "leave out documents that are damaged, each with a note, write the others, and end with status 5; without "
      "this option the first damage ends the command",
      &keep_going};
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

Measures note_spare(const CommonOptions& common, const std::string& file, const DocumentList& list) {
  const uint64_t spare = list.spare_bytes();
  if (spare <= list.file_bytes / 2 || file == "-" || is_far(file)) return {};
  common.note("{}: kvcodec compact would free about {} of {}", file, size_text(spare),
              size_text(list.file_bytes));
  return {{"compact_frees", spare}};
}

CopiedFile copied_file(const OutputFile& output, const std::vector<DocumentsOf>& from,
                       const std::vector<DocumentList>& lists) {
  CopiedFile copied{.output = output.target()};
  for (size_t file = 0; file < from.size(); ++file)
    for (const size_t number : from[file].numbers) {
      ++copied.documents;
      copied.tokens += lists[file].documents.length(number);
    }
  copied.bytes = file_bytes(output.path());
  return copied;
}

std::string summary(const std::vector<CopiedFile>& files, const CommonOptions& common) {
  Json outputs = Json::array();
  MeasureTable table("file");
  for (const CopiedFile& file : files) {
    const Measures measures{{"output", file.output},
                            number_of("documents", {"documents"}, file.documents),
                            number_of("tokens", {"tokens"}, file.tokens),
                            {"file_bytes", file.bytes, {"size"}, size_text(file.bytes)}};
    outputs.push_back(json_of(joined(measures, file.left_out)));
    table.row(file.output, measures);
  }
  return common.json ? text_of({{"outputs", outputs}}) : table.text();
}

std::string copy_to_file(const Command& command, const OutputOptions& output, const CommonOptions& common,
                         const Copy& copy, const HeldFile* held) {
  const auto histories = mapped<std::vector<std::string>>(
      copy.lists, [](const DocumentList& list) { return list.type.history; });
  return run_to_file(
      output,
      [&](OutputFile& file) {
        copy_documents(copy.from, copy.lists, file, command.provenance(merged_history(histories)));
        CopiedFile copied = copied_file(file, copy.from, copy.lists);
        copied.left_out = copy.left_out;
        return copied;
      },
      [&](const CopiedFile& copied) { return summary({copied}, common); }, held);
}

void copy_replacing(const NameRule& rule, const std::string& file, const std::string& added,
                    OutputFile& output, const Provenance& provenance) {
  const std::vector<DocumentList> lists{list_documents(file), list_documents(added)};
  std::vector<DocumentsOf> from{{file, {}}, {added, DocumentSelection().choose(lists[1].documents, added)}};
  for (const size_t i : DocumentSelection().choose(lists[0].documents, file))
    if (!rule.gave_way(i)) from[0].numbers.push_back(i);
  copy_documents(from, lists, output, provenance);
}

Json metadata_json(const DocumentFacts& facts, const std::string& where) {
  if (facts.metadata.empty()) return nullptr;
  return parse_json_object(facts.metadata, where + ": metadata");
}

// The cache that dump-kv --append adds documents to ---------------------------------------------------

GrowingCache::GrowingCache(const OutputOptions& output, const CommonOptions& common)
    : held_(output.hold(output.path, common)) {
  kv_.emplace(output.path);
  const bool changeable = held_ && held_->changeable();
  if (!changeable || !kv().model().imported.empty())
    throw bad_input(
        "{}: {}; dump the documents to a file of their own, and join both by kvcodec cat", kv().name(),
        changeable ? "was imported, and an export restores what was imported" : "cannot be changed in place");
  if (!kv().has_tokens()) throw bad_input("{}: it has no token ids; nothing can be added to it", kv().name());
  const Documents& documents = kv().documents();
  for (size_t i = 0; i < documents.count(); ++i) {
    const auto known = documents.facts_of(i).digest;
    digests_.push_back(known ? *known : token_digest(kv().tokens_of(i)));
  }
  known_ = {digests_.begin(), digests_.end()};
}

// Documents that two files hold ------------------------------------------------------------------------

/// The original's row of the first of the tokens at these positions; std::nullopt unless that document has all of them.
static std::optional<uint64_t> find_tokens(const TokenFile& original, size_t document,
                                           const std::vector<uint64_t>& wanted) {
  const uint64_t first = original.documents().offsets[document];
  const auto positions = original.positions_of(document);
  const auto found = std::lower_bound(positions.begin(), positions.end(), wanted.front());
  const auto left = static_cast<size_t>(positions.end() - found);
  if (left < wanted.size() || !std::equal(wanted.begin(), wanted.end(), found)) return {};
  return first + static_cast<uint64_t>(found - positions.begin());
}

bool same_tokens(const TokenFile& file, size_t document, const TokenFile& other, size_t other_document) {
  const uint64_t count = file.documents().length(document), first = file.documents().offsets[document],
                 other_first = other.documents().offsets[other_document];
  if (other.documents().length(other_document) != count) return false;
  if (count == 0) return true;
  if (!file.has_tokens() || !other.has_tokens()) return false;
  const auto digest = file.documents().facts_of(document).digest,
             other_digest = other.documents().facts_of(other_document).digest;
  // A digest saves reading the ids of `file`, which may have many documents of one name.
  if (digest && *digest != (other_digest ? *other_digest : token_digest(other.tokens(other_first, count))))
    return false;
  return file.positions(first, count) == other.positions(other_first, count) &&
         (digest || file.tokens(first, count) == other.tokens(other_first, count));
}

std::vector<Match> match_documents(const TokenFile& original, const TokenFile& other,
                                   const std::vector<size_t>& wanted) {
  std::vector<Match> matches;
  // Documents that have not been matched, by name, in the file's order.
  std::unordered_map<std::string_view, std::deque<size_t>> unmatched;
  for (size_t i = 0; i < original.documents().count(); ++i)
    unmatched[original.documents().names[i]].push_back(i);
  const size_t end = wanted.empty() ? 0 : wanted.back() + 1;
  for (size_t i = 0; i < end; ++i) {
    const uint64_t first = other.documents().offsets[i], count = other.documents().length(i);
    if (count == 0) continue;
    const bool needed = std::binary_search(wanted.begin(), wanted.end(), i);
    const std::string_view name = other.documents().names[i];
    const auto positions = other.positions(first, count);
    std::deque<size_t>& named = unmatched[name];
    std::optional<uint64_t> place;
    const auto found = std::ranges::find_if(named, [&](size_t candidate) {
      return (place = find_tokens(original, candidate, positions)).has_value();
    });
    if (!place && !needed) continue;
    if (!place)
      throw bad_input("{}: {} has no document '{}' with positions {} to {}", other.name(), original.name(),
                      name, positions.front(), positions.back());
    const size_t document = *found;
    named.erase(found);
    if (!needed) continue;
    if (original.has_tokens() && other.has_tokens() &&
        original.tokens(*place, count) != other.tokens(first, count))
      throw bad_input("{}: document '{}' has other tokens than in {}", other.name(), name, original.name());
    matches.push_back({document, i, *place, first, count});
  }
  return matches;
}

void check_scores(const std::string& name, const ModelInfo& model) {
  if (model.key_state != "post-rope")
    throw bad_input(
        "{}: its keys are {}, so that products with queries are not scores; use a cache that was dumped "
        "without --pre-rope",
        name, model.key_state);
}

ScoreForms forms_of_scores(const KvReader& kv, const CommonOptions& common) {
  ScoreForms forms = score_forms(kv.model());
  if (!forms.known)
    common.note(
        "{}: it does not say what its model does to scores of attention; here it is a plain softmax over all "
        "earlier tokens, without windows, caps and sinks",
        kv.name());
  return forms;
}

void check_queries(const KvReader& kv, const CodesReader& codes, const std::vector<int>& layers) {
  check_scores(codes.name(), codes.info().model);
  check_same_model(kv.name(), kv.model(), codes.name(), codes.info().model);
  if (kv.query_tokens() == 0)
    throw bad_input("{}: it holds no queries; kvcodec dump-kv --queries last:32 stores some", kv.name());
  for (const int layer : layers)
    if (const auto& there = kv.query_layers(); std::ranges::count(there, layer) == 0)
      throw bad_input("{}: there are no queries of layer {}, which {} has; it has those of layers {}",
                      kv.name(), layer, codes.name(), ranges_text(there));
}

}  // namespace kvcodec::cli
