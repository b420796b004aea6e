// kvcodec cat FILE... [options] -o OUT
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

struct CatOptions final : CommandOptions {
  InputFiles inputs;
  bool skip_duplicates = false;

  std::vector<OptionField> fields() override {
    return {{"skip-duplicates",
             "leave out documents whose token ids are those of one before, by their digests; those without a "
             "digest are kept",
             &skip_duplicates}};
  }
};

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
  std::vector<DocumentsOf> from;
  from.reserve(names.size());
  for (const std::string& name : names) from.push_back({name, {}});
  const std::string where = names.size() == 1 ? names.front() : "the files together";
  for (const size_t i : options.documents.choose(all, where))
    from[sources[i].first].numbers.push_back(sources[i].second);
  if (options.skip_duplicates) {
    size_t left_out = 0;
    from = without_duplicates(from, lists, left_out);
    if (left_out > 0)
      options.common.note("{} left out: same token ids as an earlier document",
                          counted(left_out, "document"));
  }
  return copy_to_file(command, options.output, options.common, from, lists);
}

}  // namespace

CommandEntry cat_command() {
  return {CommandGroup::documents, 2, "cat", "join the documents of several files in one", cat};
}

}  // namespace kvcodec::cli
