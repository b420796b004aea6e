#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

struct CatOptions final : CommandOptions {
  InputFiles inputs;
  bool skip_duplicates = false, replace = false, keep_going = false;

  std::vector<OptionField> fields() override {
    return {
        {"skip-duplicates",
         "leave out documents whose token ids are those of one before, by their digests, whatever their names; those "
         "without a digest are kept",
         &skip_duplicates},
        replace_field(replace),
        keep_going_field(keep_going)};
  }
};

/// Reads all documents, and leaves out those that are damaged.
void leave_out_damaged(std::vector<DocumentsOf>& from, const CommonOptions& common,
                       DamagedDocuments& damaged) {
  size_t total = 0, done = 0;
  for (const DocumentsOf& one : from) total += one.numbers.size();
  ProgressBar bar("check", "documents", common.quiet);
  for (DocumentsOf& one : from) {
    if (one.numbers.empty()) continue;
    const DocumentSource source(one.file);
    std::vector<size_t> whole;
    source.check(one.numbers, [&](size_t number, const std::optional<Error>& damage) {
      if (damage)
        damaged.add(one.file, number, source.list().documents.names[number], *damage);
      else
        whole.push_back(number);
      bar.update(static_cast<double>(++done), static_cast<double>(total));
    });
    one.numbers = std::move(whole);
  }
}

/// The tokens of the file that was asked for last.
class OpenTokens {
 public:
  const TokenFile& of(const std::string& file, const std::string& type) {
    if (open_ && file == file_) return *open_;
    open_.reset();
    file_ = file;
    if (type == "kv")
      open_ = std::make_unique<KvReader>(file);
    else
      open_ = std::make_unique<CodesReader>(file);
    return *open_;
  }

 private:
  std::string file_;
  std::unique_ptr<TokenFile> open_;
};

/// Applies the rule to the documents of all files but the first, whose own may have equal names. Returns those that are copied.
std::vector<DocumentsOf> named_once(const std::vector<DocumentsOf>& from,
                                    const std::vector<DocumentList>& lists, NameRule& rule) {
  std::vector<std::pair<size_t, size_t>> places;  // of each document: file, and number in it
  std::vector<size_t> taken;
  OpenTokens tokens_before, tokens;
  for (size_t file = 0; file < from.size(); ++file)
    for (const size_t number : from[file].numbers) {
      const std::string_view name = lists[file].documents.names[number];
      const size_t place = places.size();
      places.emplace_back(file, number);
      const auto same = [&](size_t before) {
        const auto [file_before, number_before] = places[before];
        return same_tokens(tokens_before.of(from[file_before].file, lists[file_before].type.type),
                           number_before, tokens.of(from[file].file, lists[file].type.type), number);
      };
      if (file == 0)
        rule.add(name, place);
      else if (!rule.takes(name, place, same))
        continue;
      taken.push_back(place);
    }
  auto kept = mapped<DocumentsOf>(from, [&](const DocumentsOf& one) { return DocumentsOf{one.file, {}}; });
  for (const size_t place : taken)
    if (!rule.gave_way(place)) kept[places[place].first].numbers.push_back(places[place].second);
  return kept;
}

std::string cat(Command& command) {
  CatOptions options;
  command.describe(
      "FILE... [options] -o OUT",
      "Writes the documents of several kv files, or of several codes files, into one, in the order in which they are "
      "named. Rows and streams are copied as they are, nothing is coded anew. The files must be made alike: of one "
      "model, with the same layers, codec, options and book. Of codes whose documents share tables, these must be the "
      "same, as in shards that encode --shard made of one cache.",
      "kvcodec cat shard-*.h5 -o corpus.h5\n"
      "kvcodec cat corpus.h5 --documents 'wiki/*' -o wiki.h5");
  command.group("Input and output");
  options.inputs.declare(command, "kv files, or codes files; - is standard input");
  options.output.declare(command, "file to write");
  command.group("Documents");
  options.documents.declare(command);
  command.options(options);
  options.common.declare(command);
  command.parse();
  const auto names = options.inputs.all();
  options.check_files(command, names, false);

  std::vector<DocumentList> lists;
  for (const std::string& name : names) {
    lists.push_back(list_documents(name));
    if (lists.back().type.type != lists.front().type.type)
      throw bad_input("{}: is a {} file; {} is a {} file: only files of one type can be joined", name,
                      lists.back().type.type, names.front(), lists.front().type.type);
  }
  // The selection numbers documents across all files.
  Documents all;
  std::vector<std::pair<size_t, size_t>> sources;  // of each document: file, and number in it
  for (size_t file = 0; file < lists.size(); ++file)
    for (size_t i = 0; i < lists[file].documents.count(); ++i) {
      all.add(lists[file].documents.names[i], lists[file].documents.length(i));
      sources.emplace_back(file, i);
    }
  auto from = mapped<DocumentsOf>(names, [&](const std::string& name) { return DocumentsOf{name, {}}; });
  const std::string where = names.size() == 1 ? names.front() : "the files together";
  for (const size_t i : options.documents.choose(all, where))
    from[sources[i].first].numbers.push_back(sources[i].second);
  DamagedDocuments damaged;
  if (options.keep_going) {
    leave_out_damaged(from, options.common, damaged);
    size_t left = 0;
    for (const DocumentsOf& one : from) left += one.numbers.size();
    damaged.report(command, options.common, left);
  }
  if (options.skip_duplicates) {
    size_t left_out = 0;
    from = without_duplicates(from, lists, left_out);
    if (left_out > 0)
      options.common.note("{} left out: same token ids as an earlier document",
                          counted(left_out, "document"));
  }
  NameRule rule(options.replace, options.output.path);
  from = named_once(from, lists, rule);
  rule.note(options.common);
  return copy_to_file(command, options.output, options.common,
                      {from, lists, joined(rule.measures(), damaged.measures())});
}

}  // namespace

CommandEntry cat_command() {
  return {CommandGroup::documents, 2, "cat", "join the documents of several files in one", cat};
}

}  // namespace kvcodec::cli
