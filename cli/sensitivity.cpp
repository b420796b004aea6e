// kvcodec sensitivity --model PATH --text PATH ... [options] -o FILE
//
//   --noise-target X    what the larger of two noises is to cost, about        --sink N    first tokens without noise
//
//   kvcodec sensitivity --model data/demo-model --text docs/ --max-documents 8 -o weights.h5
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/judged_texts.hpp"
#include "cli/product.hpp"
#include "cli/progress.hpp"
#include "cli/sensitivity_text.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "formats/model_files.hpp"
#include "formats/sensitivity_file.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {
namespace {

struct MeasureOptions final : Options {
  std::string model;
  JudgedTextOptions texts;
  SensitivityOptions noise;
  CommonOptions common;
  OutputOptions output;

  std::vector<OptionField> fields() override {
    return {{.name = "model",
             .help = "model directory as Hugging Face lays it out, or a GGUF file",
             .target = &model}};
  }
};

void declare(Command& command, MeasureOptions& options) {
  command.describe(
      "--model PATH --text PATH ... [options] -o FILE",
      "Measures how much a model suffers from errors in its cache, by layer and side. The model reads the first "
      "part of each document; noise is put on the keys or the values of one layer; the model goes on, and its "
      "next-token distributions are held against those without noise (KL). Two sizes of noise are tried for each "
      "layer and side, so that what is said holds for small errors: a codec's loss is about the sum over layers "
      "and sides of this sensitivity times its mean squared error. Keys take rounding alike before and after the "
      "rotary embedding.",
      "kvcodec sensitivity --model data/demo-model --text docs/ --max-documents 8 -o weights.h5");
  command.group("What is run");
  command.option(options.fields()[0], "PATH");
  options.texts.declare_texts(command);
  command.group("Documents");
  for (const auto& field : options.texts.fields()) command.option(field);
  command.group("Noise");
  for (const auto& field : options.noise.fields()) command.option(field);
  options.output.declare(command, "sensitivities");
  options.common.declare(command);
}

void check_combination(const MeasureOptions& options) {
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.texts.empty()) throw usage_error("no text is named; give files or folders with --text");
  options.output.check(options.common);
}

SensitivityInfo measure(MeasureOptions& options, ModelFiles& files) {
  const ModelConfig& config = files.description().config;
  LlamaModel model(config, files.weights());
  if (Engine* const engine = options.common.engine()) model.use(engine->prefill(model.weights()));
  const int64_t length = document_length(options.texts, config);
  const JudgedTexts texts = judged_texts(options.texts, options.common, files.tokenizer(),
                                         read_texts(options.texts, options.common), length);
  check_context(texts.documents, config);
  options.noise.seed = options.common.seed;
  options.noise.memory = options.common.memory_bytes();
  SensitivityInfo info{
      .model = model_info(options.model, files, false), .parameters = to_record(options.noise), .layers = {}};
  info.parameters.set("seed", options.common.seed);
  info.parameters.set("documents", static_cast<int64_t>(texts.documents.size()));
  info.parameters.set("length", length);
  info.parameters.set("prefix", static_cast<int64_t>(texts.documents.front().prefix));
  ProgressBar bar("sensitivity", "continuations", options.common.quiet);
  info.layers = measure_sensitivities(model, texts.documents, options.noise, bar.callback());
  return info;
}

std::string summary(const Command& command, const MeasureOptions& options, const SensitivityInfo& info,
                    double seconds) {
  if (options.common.json) {
    Json json = made_by(command);
    json["output"] = options.output.path;
    json["model"] = to_json(info.model);
    json["parameters"] = to_json(info.parameters);
    json["layers"] = sensitivity_json(info.layers);
    json["seconds"] = seconds;
    return text_of(json);
  }
  return fmt::format("{}: {} of {} tokens; {}\n\n", info.model.model,
                     counted(static_cast<uint64_t>(info.parameters.get_int("documents")), "document"),
                     info.parameters.get_int("length"), time_text(seconds)) +
         sensitivity_table(info.layers);
}

}  // namespace

std::string sensitivity(Command& command) {
  MeasureOptions options;
  declare(command, options);
  command.parse();
  check_combination(options);
  options.common.apply(command, true);
  const Stopwatch watch;
  const auto files = open_model(options.model);
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        SensitivityInfo info = measure(options, *files);
        const Engine* const engine = options.common.engine();
        if (engine && !engine->exact()) command.add_to_history("--device cuda");  // other roundings
        write_sensitivities(output, info, command.provenance());
        return info;
      },
      [&](const SensitivityInfo& info) { return summary(command, options, info, watch.seconds()); });
}

}  // namespace kvcodec::cli
