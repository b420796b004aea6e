#include <numeric>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/joined_cache.hpp"
#include "formats/cache/kv_file.hpp"

namespace kvcodec::cli {
namespace {

struct JoinCommand final : CommandOptions {
  JoinOptions join;
  std::string name;
  std::optional<DType> dtype;

  std::vector<OptionField> fields() override {
    return {{"name", "name of the new document (default: the documents' names with + between them)", &name},
            {.name = "dtype",
             .help = "element type of the output (default: that of the caches, or f32 if they differ)",
             .target = &dtype,
             .choices = {"bf16", "f16", "f32"}}};
  }
};

void write_joined(const JoinedCache& cache, const JoinCommand& options, const std::string& name, DType dtype,
                  OutputFile& output, const Provenance& provenance) {
  std::vector<uint64_t> positions(cache.tokens());
  std::iota(positions.begin(), positions.end(), static_cast<uint64_t>(options.join.at));
  const std::vector<uint32_t> ids = cache.ids();
  DocumentFacts facts;
  if (!ids.empty()) facts.digest = token_digest(ids);
  facts.state = cache.state();
  KvWriter writer(output, cache.model(), dtype, cache.layers(), std::nullopt);
  writer.clip();
  Documents documents;
  documents.add(name, cache.tokens(), cache.left_out(), facts);
  writer.expect(documents);
  writer.add_document(name, ids, positions, cache.left_out(), facts);
  ProgressBar bar("join", "tokens", options.common.quiet);
  cache.read([&](Side side, int layer, uint64_t first, MatrixView<const float> rows) {
    writer.append(side, layer, rows);
    bar.update(static_cast<double>(first + rows.rows()), static_cast<double>(cache.tokens()));
  });
  writer.finish(provenance);
}

std::string join(Command& command) {
  JoinCommand options;
  command.describe(
      "FILE... [options] -o KV",
      "Makes one document of several: their tokens lie one behind the other, in the order of the files and of the documents in "
      "them, and keys are turned to their new positions. So a context is put together from documents that were computed once, each "
      "by itself. Codes are decoded on the way. Documents that were computed by themselves have not seen those before them: "
      "eval-model --joined measures what that costs a model.",
      "kvcodec join codes.h5 --documents a.txt,b.txt --keep-bos first -o context.h5\n"
      "kvcodec generate context.h5 --model data/demo-model --prompt 'Who'");
  command.group("Input and output");
  command.inputs("FILE", "kv and codes files of one model", options.join.files);
  options.output.declare(command, "kv file to write");
  command.group("What is joined, and how");
  options.documents.declare(command);
  command.options(options.join, {{"book", "FILE"}});
  command.options(options);
  command.refuse("layers", "join takes all layers; choose --layers when you encode or decode");
  options.common.declare(command);
  command.parse();
  std::vector<std::string> read = options.join.files;
  read.push_back(options.join.book);
  options.check_files(command, read, true);

  const Stopwatch watch;
  const JoinedCache cache(options.join, options.documents, options.common.engine(), false);
  if (cache.dropped() > 0)
    options.common.note(
        "{} without their first token, {}: files do not say whether it begins all texts of the model",
        counted(cache.dropped(), "document"), cache.ids().front());
  const std::string name = options.name.empty() ? cache.name() : options.name;
  const DType dtype = options.dtype.value_or(cache.dtype());
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        options.common.record_device(command);
        write_joined(cache, options, name, dtype, output, command.provenance(history_of(options.join)));
        return 0;
      },
      [&](int) {
        return one_row(
            {word("output", {"context"}, options.output.path),
             number_of("documents", {"documents"}, cache.count()),
             number_of("tokens", {"tokens"}, cache.tokens()),
             number_of("dropped_tokens", {"left out"}, cache.dropped()), layers_measure(cache.layers()),
             word("dtype", {"dtype"}, name_of(dtype)), time_measure(watch.seconds())},
            options.common.json);
      });
}

}  // namespace

CommandEntry join_command() {
  return {CommandGroup::documents, 6, "join", "make one document, a context, of several", join};
}

}  // namespace kvcodec::cli
