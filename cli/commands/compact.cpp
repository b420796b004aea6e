#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

struct CompactOptions final : CommandOptions {
  std::string input;
};

std::string compact(Command& command) {
  CompactOptions options;
  command.describe(
      "FILE [-o OUT] [options]",
      "Writes a kv or codes file anew without bytes that no document needs, and each document's codes in one "
      "piece: encode --append leaves behind what it replaced, and encode stores layer by layer. Nothing is "
      "coded anew. Without -o FILE is replaced once the new one is complete.",
      "kvcodec compact corpus.h5\n"
      "kvcodec compact corpus.h5 -o smaller.h5");
  command.group("Input and output");
  command.input("FILE", "kv or codes file; - is standard input", options.input);
  options.output.declare(command, "file to write");
  options.common.declare(command);
  command.parse();
  if (options.output.path.empty()) {
    if (options.input == "-") throw usage_error("standard input cannot be replaced; name an output with -o");
    options.output.path = options.input;
    options.output.in_place = true;
  }
  options.check_files(command, {options.output.in_place ? "" : options.input}, false);

  const auto held = options.output.hold(options.input, options.common);
  const std::vector<DocumentList> lists{list_documents(options.input)};
  const auto all = options.documents.choose(lists.front().documents, options.input);
  const uint64_t before = file_bytes(options.input);
  std::string report =
      copy_to_file(command, options.output, options.common, {{{options.input, all}}, lists}, held.get());
  if (const uint64_t after = file_bytes(options.output.path); before > after && after > 0)
    options.common.note("{}: {} fewer", options.output.path, size_text(before - after));
  return report;
}

}  // namespace

CommandEntry compact_command() {
  return {CommandGroup::documents, 4, "compact", "write a file anew without bytes that no document needs",
          compact};
}

}  // namespace kvcodec::cli
