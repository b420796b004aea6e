#include <algorithm>
#include <filesystem>

#include "cli/frame/common.hpp"
#include "cli/frame/run.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/core/checked.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/cache_gradients.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/train.hpp"

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

/// Tokens of the documents that the model's predictions are differentiated for.
constexpr int64_t kJudgedTokens = 1024;

struct PrepareOptions final : CommandOptions {
  std::string model;
  std::vector<std::string> texts;
  int64_t tokens = 98304, chunk = 2048, judged = 16;

  std::vector<OptionField> fields() override {
    return {{"tokens", "learn from N tokens, as many of each text file", &tokens, 4096, 1LL << 40},
            {"chunk", "cut the texts into documents of N tokens, at most the model's context", &chunk, 64},
            {"judged-documents",
             "documents of 1,024 tokens, spread evenly over the texts, on which the cost of errors "
             "is measured",
             &judged, 1}};
  }
};

/// Time and room that the steps will take.
struct Costs {
  double dump_seconds = 0, judge_seconds = 0, train_seconds = 0;
  uint64_t disk = 0, memory = 0;

  double seconds() const { return dump_seconds + judge_seconds + train_seconds; }
};

/// Seconds that the model takes for a token, when it reads a few hundred.
double seconds_for_token(const LlamaModel& model) {
  struct Nothing final : PrefillSink {
    void layer(const LayerChunk& /*chunk*/) override {}
  } nothing;
  std::vector<uint32_t> tokens(256);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint32_t>(i % as_size(model.config().vocabulary_size));
  const std::vector<uint64_t> offsets{0, tokens.size()};
  const Stopwatch watch;
  model.prefill({tokens, offsets}, {}, nothing);
  return watch.seconds() / static_cast<double>(tokens.size());
}

/// Seconds that this machine takes for a multiplication and an addition in a product of matrices, on one thread.
double seconds_for_product() {
  constexpr size_t kSize = 768;
  const Matrix<float> a(kSize, kSize), b(kSize, kSize);
  Matrix<float> c(kSize, kSize);
  gemm(1, a, b, 0, c);  // the first product starts what the library needs
  const Stopwatch watch;
  gemm(1, a, b, 0, c);
  return watch.seconds() / static_cast<double>(kSize * kSize * kSize);
}

Costs costs_of(const PrepareOptions& options, ModelFiles& files) {
  const LlamaModel model = make_model(files, options.common);
  const ModelInfo info = model_info(options.model, files.description(), false);
  const GroupShape layer = group_shape(info, {0}, Side::both);
  const auto tokens = static_cast<double>(options.tokens);
  const double token = seconds_for_token(model), product = seconds_for_product();
  const int64_t group = TransformBookOptions().layers_of_group(info.num_layers, layer.width());
  const size_t width = as_size(group) * layer.width(), parts = as_size(info.num_layers / group);
  Costs costs;
  costs.dump_seconds = tokens * token;
  // Half of a document is read, and the other half there and back.
  costs.judge_seconds = 2.5 * static_cast<double>(options.judged * kJudgedTokens) * token;
  // The covariance, eigenvectors, and levels of samples at all rungs.
  const auto w = static_cast<double>(width);
  costs.train_seconds = static_cast<double>(parts) * product * (tokens * w * w + 60 * w * w * w);
  costs.disk = as_size(options.tokens) * as_size(info.num_layers) * layer.width() * 2;
  costs.memory = learn_transform_bytes(std::vector(parts, width), 0, as_size(options.tokens));
  return costs;
}

/// A run of another command of this program.
struct Step {
  std::vector<std::string> words;
  std::string output;
  bool runs_model = true;
};

/// The common options as they were given, for a step.
std::vector<std::string> common_words(const Command& command, const CommonOptions& common, bool runs_model) {
  std::vector<std::string> words;
  const auto pass = [&](const char* name, const std::string& value) {
    if (command.given(name)) words.insert(words.end(), {fmt::format("--{}", name), value});
  };
  pass("threads", std::to_string(common.threads));
  pass("seed", std::to_string(common.seed));
  pass("memory", common.memory);
  if (runs_model) pass("device", std::string(name_of(common.device)));
  if (common.quiet) words.emplace_back("--quiet");
  if (common.json) words.emplace_back("--json");
  return words;
}

std::vector<Step> steps_of(const PrepareOptions& options, const ModelFiles& files,
                           const std::vector<std::string>& texts, const std::string& folder) {
  const ModelConfig& config = files.description().config;
  const auto within = [&](int64_t length) {
    return std::to_string(config.max_positions > 0 ? std::min<int64_t>(length, config.max_positions)
                                                   : length);
  };
  const int64_t share = options.tokens / std::ssize(texts);
  std::vector<Step> steps;
  std::vector<std::string> learn{"train-transform"};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string kv = fmt::format("{}/kv-{}.h5", folder, i);
    steps.push_back({{"dump-kv", "--model", options.model, "--text", texts[i], "--chunk",
                      within(options.chunk), "--max-tokens", std::to_string(std::max<int64_t>(share, 1)),
                      "--queries", "none", "--skip-existing", "--overwrite"},
                     kv,
                     true});
    learn.push_back(kv);
  }
  const std::string weights = folder + "/sensitivity.h5", without = beyond_gradients(config);
  if (!without.empty())
    options.common.note("{} cannot be differentiated: errors are weighed by noise, a number for each layer",
                        without);
  Step judge{{"sensitivity", "--model", options.model, "--chunk", within(kJudgedTokens), "--max-documents",
              std::to_string(options.judged), "--metric", without.empty() ? "fisher" : "scalar",
              "--skip-existing", "--overwrite"},
             weights,
             true};
  for (const std::string& text : texts) judge.words.insert(judge.words.end(), {"--text", text});
  steps.push_back(std::move(judge));
  learn.insert(learn.end(), {"--weights", weights});
  if (options.output.replaces()) learn.emplace_back("--overwrite");
  steps.push_back({std::move(learn), options.output.path, false});
  return steps;
}

std::string prepare(Command& command) {
  PrepareOptions options;
  command.describe(
      "MODEL --text PATH ... [options] -o BOOK",
      "Learns what the codec transform needs for a model, in one command: the keys and values of texts "
      "(dump-kv), what errors cost the model there (sensitivity --metric fisher), and the basis "
      "(train-transform). Texts of several kinds make a book that serves all of them. It says beforehand "
      "what it will take. Finished parts are kept in the folder BOOK.steps until the book is there: the same "
      "command goes on after an interruption.",
      "kvcodec prepare DIR --text data/text/pride-and-prejudice.txt -o book.h5\n"
      "kvcodec encode kv.h5 --codec transform --book book.h5 --bits 0.5 -o codes.h5");
  command.group("Input and output");
  command.input("MODEL", "model directory as Hugging Face lays it out, or a GGUF file", options.model);
  command.repeated("text", "text files and folders (all files in them, by name, without hidden ones)",
                   options.texts, "PATH");
  options.output.declare_local(command, "transform file to write");
  command.group("Learning");
  command.options(options.fields());
  options.common.declare(command);
  command.parse();
  if (options.texts.empty()) throw usage_error("no text is named; give files or folders with --text");
  const std::vector<std::string> texts = text_files(options.texts);
  std::vector<std::string> read = texts;
  read.push_back(options.model);
  options.check_files(command, read, true);
  if (std::ranges::count(texts, "-") > 0 || options.output.to_stdout())
    throw usage_error("standard input and output cannot be gone on with; name files");
  if (fs::exists(options.output.path) && !options.output.replaces())
    throw usage_error("{}: is there; --overwrite replaces it", options.output.path);

  const Stopwatch watch;
  const std::string folder = options.output.path + ".steps";
  std::vector<Step> steps;
  {
    const auto files = open_model(options.model);
    steps = steps_of(options, *files, texts, folder);
    const Costs costs = costs_of(options, *files);
    options.common.note(
        "about {}: {} to read {} tokens, {} to measure what errors cost, {} to learn; {} in {}, and {} of memory "
        "besides the model's",
        time_text(costs.seconds()), time_text(costs.dump_seconds), options.tokens,
        time_text(costs.judge_seconds), time_text(costs.train_seconds), size_text(costs.disk), folder,
        size_text(costs.memory));
  }
  // A folder that cannot be made is an error of the first step.
  std::error_code ignored;
  fs::create_directory(folder, ignored);
  std::string report;
  for (Step& step : steps) {
    step.words.insert(step.words.end(), {"-o", step.output});
    for (std::string& word : common_words(command, options.common, step.runs_model))
      step.words.push_back(std::move(word));
    ProgramRun run;
    report = run_words(step.words, command.team(), run);
  }
  // The folder stays if it holds anything else.
  for (const Step& step : steps)
    if (step.output != options.output.path) fs::remove(step.output, ignored);
  fs::remove(folder, ignored);
  return report;
}

}  // namespace

CommandEntry prepare_command() {
  return {CommandGroup::prepare, 6, "prepare", "learn what the codec transform needs for a model", prepare};
}

}  // namespace kvcodec::cli
