#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/model_runner.hpp"

namespace kvcodec::cli {
namespace {

enum class Metric : uint8_t {
  scalar,  ///< a number for each layer and side, by noise
  fisher,  ///< and a matrix for each of their heads, by derivatives
};
constexpr auto names_of(Metric) { return std::to_array<std::string_view>({"scalar", "fisher"}); }

struct MeasureOptions final : CommandOptions {
  std::string model;
  Metric metric = Metric::scalar;
  int64_t noise_documents = 0;
  JudgedTextOptions texts;
  SensitivityOptions noise;

  MeasureOptions() { texts.spread = true; }

  std::vector<OptionField> fields() override {
    return {{"model", "model directory as Hugging Face lays it out, or a GGUF file", &model},
            {"metric",
             "scalar: a number for each layer and side, by noise; fisher: and for each of their heads the "
             "Fisher information, by derivatives",
             &metric},
            {"noise-documents",
             "put noise on the first N documents only (default: all; with --metric fisher none: noise only "
             "shows that derivatives are right)",
             &noise_documents, 0}};
  }

  /// Documents to which noise is added: noise takes 120 continuations of a document with 30 layers, derivatives one forward and one
  /// backward pass.
  std::span<const LoopDocument> noisy(std::span<const LoopDocument> all) const {
    if (noise_documents == 0) return metric == Metric::fisher ? all.first(0) : all;
    return all.first(std::min(all.size(), static_cast<size_t>(noise_documents)));
  }
};

SensitivityInfo measure(MeasureOptions& options, ModelFiles& files) {
  const ModelConfig& config = files.description().config;
  LlamaModel model = make_model(files, options.common);
  const int64_t length = document_length(options.texts, config);
  const auto documents = judged_texts(options.texts, options.common, make_tokenizer(files, options.common),
                                      read_texts(options.common, options.texts.texts), length);
  check_context(documents, config);
  options.noise.seed = options.common.seed;
  options.noise.memory = options.common.memory_bytes();
  SensitivityInfo info{.model = model_info(options.model, files, false),
                       .parameters = to_record(options.noise),
                       .layers = {},
                       .fisher = {}};
  info.parameters.set("metric", std::string(name_of(options.metric)));
  info.parameters.set("seed", options.common.seed);
  const auto noisy = options.noisy(documents);
  info.parameters.set("documents", std::ssize(documents));
  info.parameters.set("noise-documents", std::ssize(noisy));
  info.parameters.set("length", length);
  info.parameters.set("prefix", static_cast<int64_t>(documents.front().prefix));
  if (!noisy.empty()) check_sensitivities(config, noisy, options.noise);
  keep_weights(model, {.tokens = tokens_of(documents)});
  if (options.metric == Metric::fisher) {
    ProgressBar bar("sensitivity", "documents", options.common.quiet);
    info.fisher = measure_fisher(
        model, documents,
        {.sink = options.noise.sink, .seed = options.noise.seed, .memory = options.noise.memory},
        bar.callback());
  }
  if (noisy.empty()) return info;
  ProgressBar bar("sensitivity", "continuations", options.common.quiet);
  info.layers = measure_sensitivities(model, noisy, options.noise, bar.callback());
  return info;
}

std::string sensitivity(Command& command) {
  MeasureOptions options;
  command.describe(
      "--model PATH --text PATH ... [options] -o FILE",
      "Measures how much errors in the keys and in the values of each layer cost a model. The model reads "
      "the first part of each document; noise is added to the keys or the values of one layer; the model "
      "continues, and its next-token distributions are compared with those without noise (KL). Two sizes of "
      "noise are tried for each layer and side, to show where the measure holds: as long as errors are "
      "small, a codec loses about the sum, over layers and sides, of this sensitivity times its mean "
      "squared error. Rounding errors in keys cost the same before and after the rotary embedding. With "
      "--metric fisher the predictions are also differentiated by each key and value: the Fisher "
      "information, a matrix for each head, shows how much errors cost in each direction.",
      "kvcodec sensitivity --model DIR --text docs/ --max-documents 8 -o weights.h5");
  command.group("What is run");
  const std::vector<OptionField> own = options.fields();
  command.option(own[0], "PATH");
  options.texts.declare_texts(command);
  command.option(own[1]);
  command.group("Documents");
  command.options(options.texts);
  command.group("Noise");
  command.option(own[2]);
  command.options(options.noise);
  options.output.declare_with_skip(command, "sensitivities");
  options.common.declare(command);
  command.parse();
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.texts.empty()) throw usage_error("no text is named; give files or folders with --text");
  std::vector<std::string> read = text_files(options.texts.texts);
  read.push_back(options.model);
  options.check_files(command, read, true);
  if (std::string report; options.output.made_before(command, options.common, read, report)) return report;
  const Stopwatch watch;
  const auto files = open_model(options.model);
  if (!files->description().config.delta.layers.empty())
    throw usage_error("{}: sensitivities are of layers with keys and values; some of the model's have none",
                      options.model);
  if (files->description().config.is_latent())
    throw usage_error("{}: sensitivities are of keys and values; with latent attention values lie in keys",
                      options.model);
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        SensitivityInfo info = measure(options, *files);
        options.common.record_device(command);
        write_sensitivities(output, info, command.provenance());
        return info;
      },
      [&](const SensitivityInfo& info) {
        if (options.common.json) {
          Json json = made_by(command);
          json["output"] = options.output.path;
          json["model"] = to_json(info.model);
          json["parameters"] = to_json(info.parameters);
          json["layers"] = sensitivity_json(info);
          json["seconds"] = watch.seconds();
          return text_of(json);
        }
        const int64_t documents = info.parameters.get_int("documents"),
                      noisy = info.parameters.get_int("noise-documents");
        return fmt::format("{}: {} of {} tokens{}; {}\n\n", info.model.model,
                           counted(static_cast<uint64_t>(documents), "document"),
                           info.parameters.get_int("length"),
                           noisy == 0          ? ", by derivatives"
                           : noisy < documents ? fmt::format(", noise on {} of them", noisy)
                                               : "",
                           time_text(watch.seconds())) +
               sensitivity_table(info);
      });
}

}  // namespace

CommandEntry sensitivity_command() {
  return {CommandGroup::look, 5, "sensitivity", "measure how much errors of each layer's cache hurt a model",
          sensitivity};
}

}  // namespace kvcodec::cli
