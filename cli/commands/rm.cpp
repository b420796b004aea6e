#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

struct RmOptions final : CommandOptions {
  std::string input;
  bool in_place = false;

  std::vector<OptionField> fields() override {
    return {
        {"in-place", "replace FILE by what is left of it, once that is complete; instead of -o", &in_place}};
  }
};

std::string rm(Command& command) {
  RmOptions options;
  command.describe(
      "FILE --documents LIST (-o OUT | --in-place) [options]",
      "Takes documents out of a kv or codes file: writes all others to another file, or in the place of the first. "
      "Rows and streams are copied as they are. A file that is replaced is complete at every moment: the old one until "
      "the new one is.",
      "kvcodec rm corpus.h5 --documents 3,7-9 -o rest.h5\n"
      "kvcodec rm corpus.h5 --documents @withdrawn.txt --in-place");
  command.group("Input and output");
  command.input("FILE", "kv or codes file; - is standard input", options.input);
  options.output.declare(command, "file to write");
  command.options(options);
  command.group("Documents");
  options.documents.declare(command, "take out these documents", "required");
  options.common.declare(command);
  command.parse();
  if (!options.documents.given())
    throw usage_error("no document is named; name those to remove with --documents");
  if (options.in_place) {
    if (!options.output.path.empty()) throw usage_error("--in-place and -o both name the output; give one");
    if (options.input == "-") throw usage_error("standard input cannot be replaced; name an output with -o");
    options.output.path = options.input;
    options.output.in_place = true;
  }
  options.check_files(command, {options.output.in_place ? "" : options.input}, false);

  const auto held = options.output.hold(options.input, options.common);
  const std::vector<DocumentList> lists{list_documents(options.input)};
  const Documents& documents = lists.front().documents;
  const auto removed = options.documents.choose(documents, options.input);
  std::vector<size_t> left;
  for (size_t i = 0; i < documents.count(); ++i)
    if (!std::ranges::binary_search(removed, i)) left.push_back(i);
  return copy_to_file(command, options.output, options.common, {{{options.input, left}}, lists}, held.get());
}

}  // namespace

CommandEntry rm_command() { return {CommandGroup::documents, 3, "rm", "take documents out of a file", rm}; }

}  // namespace kvcodec::cli
