#include <algorithm>
#include <optional>
#include <utility>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/cache_source.hpp"
#include "formats/models/key_rope.hpp"

namespace kvcodec::cli {
namespace {

struct Export final : CommandOptions {
  std::string input, to, book, transposed, rotated, window_layers;
  int64_t version = 0, bits = 0, group = 0, page = 0;
  interop::ExportOptions form;

  std::vector<OptionField> fields() override {
    return {{.name = "to", .help = "what to write", .target = &to, .choices = format_names()},
            {"book", "file of the book the codes were made with; not needed if it is inside", &book}};
  }
  std::vector<OptionField> form_fields() {
    return {
        {"type",
         "elements: f32, f16, bf16, f64, e4m3 or e5m2, as far as the format has them; of llama also q8_0, "
         "q4_0, q4_1, q5_0, q5_1 and iq4_nl",
         &form.key_type},
        {"value-type", "elements of values, of llama (default: those of --type)", &form.value_type},
        {"kind", "which file of the format: sequence or session of llama; 1, 2, 3 or 6 of lmcache",
         &form.kind},
        {"version",
         "version of the file: of llama 2 or 3 of a sequence, 9 or 10 of a session; 1 or 2 of mlx (default: "
         "the newest)",
         &version, 1},
        {.name = "transposed",
         .help = "whether values of llama are transposed, as without flash attention (default: no)",
         .target = &transposed,
         .choices = {"yes", "no"}},
        {"rotated",
         "apply the Hadamard transform of llama.cpp's quantized caches, in blocks of K values of keys and V "
         "of values; 0 = none",
         &rotated},
        {.name = "key-pairs",
         .help =
             "how a key's dimensions lie that the rotary embedding turns together: half of them apart, or side by side "
             "(default: as the model's family has them in that program)",
         .target = &form.pairs},
        {"window-layers",
         "which layers llama.cpp keeps in its cache for sliding windows, as 0-4,6 (default: those that have "
         "forgotten tokens)",
         &window_layers},
        {"bits", "quantize to 2, 3, 4, 5, 6 or 8 bits, of mlx (default: not)", &bits, 2, 8},
        {"group", "values that share a scale, of mlx (default: 64)", &group, 4, 65536},
        {"page",
         "tokens of a file of lmcache, vllm-blocks and sglang, and of a block of vllm (default: 256, 16, 64 "
         "and 16)",
         &page, 1},
        {"layout", "axes of vllm-blocks, sglang and .npy files, as import has them", &form.layout}};
  }
};

std::string summary(const interop::ExportResult& result, const interop::CacheSource& source,
                    const interop::ExportJob& job, const interop::ForeignFormat& format, double seconds,
                    const Export& options) {
  uint64_t tokens = 0;
  for (const size_t document : job.documents) tokens += source.documents().length(document);
  return one_row({word("output", {"output"}, options.output.path),
                  word("format", {"format"}, format.name),
                  number_of("documents", {"documents"}, job.documents.size()),
                  number_of("tokens", {"tokens"}, tokens),
                  layers_measure(source.layers()),
                  {"files", result.files, {"files"}, grouped(result.files.size())},
                  number_of("bytes", {"bytes"}, result.bytes),
                  {"notes", result.notes},
                  time_measure(seconds)},
                 options.common.json);
}

/// The rotary embedding of a cache whose keys are from before it: other programs keep turned keys. std::nullopt for turned ones.
std::optional<KeyRope> rope_before(const interop::CacheSource& source) {
  ModelInfo model = source.model();
  const std::string before = std::exchange(model.key_state, ModelInfo().key_state);
  if (before == model.key_state) return std::nullopt;
  KeyRope rope = key_rope_of(model);
  if (!rope.known())
    throw bad_input(
        "{}: its keys are {}, and other programs keep turned keys: {}; dump it without --pre-rope",
        source.name(), before, rope.why_not());
  return rope;
}

std::string export_cache(Command& command) {
  Export options;
  command.describe(
      "FILE --to FORMAT [options] -o OUTPUT",
      "Writes a cache in the form in which another program loads it: a kv file, or a codes file, which is decoded on the "
      "way. What a cache was imported with is remembered, so that it goes back as it came unless options say otherwise.",
      "kvcodec export codes.h5 --to transformers -o cache.safetensors\n"
      "kvcodec export codes.h5 --to llama --documents 0 -o slot.bin\n"
      "kvcodec export kv.h5 --to mlx --documents 0 --bits 4 -o prompt.safetensors");
  command.group("Input and output");
  command.input("FILE", "kv or codes file; - is standard input", options.input);
  options.output.declare_local(command, "file to write; of lmcache, vllm, vllm-blocks and sglang a folder");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("What to write");
  command.options(options, {{"book", "FILE"}});
  command.group("What formats leave open (each takes some of these; default: as it was imported)");
  command.options(options.form_fields(), {{"rotated", "K,V"}, {"window-layers", "LIST"}, {"layout", "AXES"}});
  options.common.declare(command);
  command.parse();
  options.check_files(command, {options.input, options.book}, true);
  if (options.to.empty()) throw usage_error("--to is missing; it names the format to write");
  const interop::ForeignFormat& format = interop::foreign_format(options.to);
  if (format.writes_folder && options.output.to_stdout())
    throw usage_error("{} is a folder of files; name it with -o", format.name);
  check_taken(command, options.form_fields(), format.name, format.export_options);

  const Stopwatch watch;
  const auto source = open_cache(options.input, options.book, options.common.engine(), options.layers);
  interop::ExportOptions& form = options.form;
  form.version = static_cast<int>(std::min<int64_t>(options.version, INT32_MAX));
  form.bits = static_cast<int>(options.bits);
  form.group = static_cast<int>(options.group);
  form.page_tokens = static_cast<uint64_t>(options.page);
  form.rotated = parse_rotated(options.rotated);
  form.window_layers = parse_layers("--window-layers", options.window_layers);
  if (!options.transposed.empty()) form.transposed_values = options.transposed == "yes";
  interop::ExportJob job{.documents = options.documents.choose(source->documents(), source->name()),
                         .options = form,
                         .path = options.output.path,
                         .overwrite = options.output.replaces()};
  const auto rope = rope_before(*source);
  if (rope) job.turn = &*rope;
  std::vector<std::string> notes;
  job.pairs = interop::pairs_to_write(*source, format, form, notes);
  if (!options.output.force) job.keep = {options.input, options.book};
  std::erase_if(job.documents, [&](size_t i) { return source->documents().length(i) == 0; });
  if (job.documents.empty()) throw bad_input("{}: there are no documents with tokens", source->name());
  job.buffer_bytes = chunk_budget(options.common.memory_bytes(), 0);
  uint64_t total = 0, done = 0;
  for (const size_t document : job.documents)
    total += 2 * source->layers().size() * source->documents().length(document);
  ProgressBar bar("export", "tokens of layers", options.common.quiet);
  job.count = [&](uint64_t rows) {
    done += rows;
    bar.update(static_cast<double>(done) / 2, static_cast<double>(total) / 2);
  };
  interop::ExportResult result = format.write(*source, job);
  std::ranges::move(notes, std::back_inserter(result.notes));
  const auto with_state = std::ranges::count_if(
      job.documents, [&](size_t i) { return !source->documents().facts_of(i).state.empty(); });
  if (with_state > 0 && !format.writes_state)
    result.notes.push_back(fmt::format(
        "the state of {}, for which {} files have no place, is left out: the model cannot go on from them",
        counted(static_cast<uint64_t>(with_state), "document"), format.name));
  if (rope) result.notes.push_back("keys were pre-rope, and are turned by their positions");
  for (const std::string& note : result.notes) options.common.note("{}", note);
  return options.output.to_stdout() ? std::string()
                                    : summary(result, *source, job, format, watch.seconds(), options);
}

}  // namespace

CommandEntry export_command() {
  return {CommandGroup::code, 5, "export", "write a cache in the form of another program", export_cache};
}

}  // namespace kvcodec::cli
