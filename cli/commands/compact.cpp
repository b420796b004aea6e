// kvcodec compact FILE [-o OUT]
//
//   kvcodec compact corpus.h5
#include <filesystem>
#include <numeric>

#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/document_files.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct CompactOptions {
  std::string input;
  CommonOptions common;
  OutputOptions output;
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
  options.output.check(options.common);
  if (!options.output.in_place) options.output.keep({options.input});
  options.common.apply(command, false);

  const auto held = options.output.hold(options.input, options.common);
  const std::vector<DocumentList> lists{list_documents(options.input)};
  std::vector<size_t> all(lists.front().documents.count());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<DocumentsOf> from{{options.input, all}};
  std::error_code no_size;
  const bool here = std::filesystem::is_regular_file(options.input, no_size);
  const uint64_t before = here ? std::filesystem::file_size(options.input, no_size) : 0;
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        copy_documents(from, lists, output, command.provenance(lists.front().type.history));
        return copied_file(output, from, lists);
      },
      [&](const CopiedFile& copied) {
        if (before > copied.bytes)
          options.common.note("{}: {} fewer", copied.output, size_text(before - copied.bytes));
        return summary({copied}, options.common);
      },
      held.get());
}

}  // namespace

CommandEntry compact_command() {
  return {CommandGroup::documents, 4, "compact", "write a file anew without bytes that no document needs",
          compact};
}

}  // namespace kvcodec::cli
