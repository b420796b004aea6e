// kvcodec choose KV (--total-bits X | --max-nll X --model PATH --text PATH) [options]
//
//   --book FILE         books of codecs that need one; may be given several times
//   --learn FILE        learn a transform from half of the documents, and try all codecs on the others
//   --codecs LIST       try these only                    --time SECONDS    begin no measurement after so long
//   --weights FILE      what errors cost the model (kvcodec sensitivity), for codecs that take it
//
//   kvcodec choose kv.h5 --total-bits 2.5 --model data/demo-model --text held-out/
#include <algorithm>

#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/text.hpp"
#include "cli/search/codec_search.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/io/output.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

CommandEntry train_transform_command();  // which --learn runs

namespace {

struct ChooseOptions final : Options {
  std::string input, learn;
  SearchOptions search;
  CommonOptions common;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {
        {.name = "total-bits",
         .help = "bits per value that the file may take, everything counted except the book (no default)",
         .target = &search.goal.total_bits,
         .min = 0},
        {.name = "max-nll",
         .help = "most nats per token that --model may lose on --text, both in rise of the NLL and in KL "
                 "divergence (no default)",
         .target = &search.goal.max_nll,
         .min = 0},
        {.name = "model",
         .help = "the model that made the cache, a directory or a GGUF file; codecs are compared by its loss",
         .target = &search.goal.model}};
  }
  std::vector<OptionField> search_fields() {
    return {
        {.name = "learn",
         .help =
             "learn a transform from every second document and write it to FILE; all codecs are then tried "
             "on the other documents",
         .target = &learn},
        {.name = "codecs",
         .help = fmt::format("try only these codecs, as kvcomp,kivi (default: {})",
                             fmt::join(codecs_worth_trying(), ", ")),
         .target = &search.codecs},
        {.name = "weights",
         .help = "sensitivity file for codecs that weigh errors: kvcomp, kivi and q4",
         .target = &search.weights},
        {.name = "time",
         .help = "seconds after which no measurement is begun; what was not tried is named",
         .target = &search.time,
         .min = 0}};
  }
};

// Results ------------------------------------------------------------------------------------------

struct Outcome {
  SearchResult search;
  std::string command;
  std::string learn_command;  ///< "" where nothing was learned
};

Json json_of(const Attempt& attempt) {
  Json json = {{"codec", attempt.codec}};
  if (!attempt.book.empty()) json["book"] = attempt.book;
  if (!attempt.weights.empty()) json["weights"] = attempt.weights;
  json["reached"] = attempt.reached;
  if (attempt.reached) json["options"] = attempt.options;
  if (attempt.bits) json["bits_per_value"] = *attempt.bits;
  if (attempt.snr_db) json["snr_db"] = *attempt.snr_db;
  if (attempt.loss) {
    json["nll_rise"] = attempt.loss->rise;
    json["kl"] = attempt.loss->divergence;
  }
  if (attempt.nearest) json["nearest"] = *attempt.nearest;
  if (!attempt.reason.empty()) json["reason"] = attempt.reason;
  json["seconds"] = attempt.seconds;
  return json;
}

std::string json_report(const Command& command, const ChooseOptions& options, const Outcome& outcome) {
  Json json = made_by(command);
  json["goal"] = options.search.goal.of_rate() ? Json{{"total_bits", options.search.goal.total_bits}}
                                               : Json{{"max_nll", options.search.goal.max_nll}};
  constexpr const char* kJudges[] = {"bits_per_value", "loss", "snr_db"};
  json["judged_by"] = kJudges[static_cast<size_t>(options.search.judge())];
  json["sample_tokens"] = outcome.search.tokens;
  json["codecs"] = Json::array();
  for (const Attempt& attempt : outcome.search.attempts) json["codecs"].push_back(json_of(attempt));
  json["choice"] = json_of(outcome.search.chosen());
  if (!outcome.learn_command.empty()) json["learn_command"] = outcome.learn_command;
  json["command"] = outcome.command;
  return text_of(json);
}

std::string cell(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string table_of(const ChooseOptions& options, const Outcome& outcome) {
  const bool has_model = !options.search.goal.model.empty();
  const bool books = std::ranges::any_of(outcome.search.attempts,
                                         [](const Attempt& attempt) { return !attempt.book.empty(); });
  std::vector<Table::Column> columns = {{"codec"}};
  if (books) columns.push_back({.title = "book", .left = true});
  columns.push_back({"bits", "/value"});
  columns.push_back({"SNR", "dB"});
  if (has_model) {
    columns.push_back({"NLL rise", "nats"});
    columns.push_back({"KL", "nats"});
  }
  columns.push_back({"time"});
  columns.push_back({.title = "", .left = true});
  Table table(columns);
  for (size_t i = 0; i < outcome.search.attempts.size(); ++i) {
    const Attempt& attempt = outcome.search.attempts[i];
    std::vector<std::string> cells = {attempt.codec};
    if (books) cells.push_back(attempt.book.empty() ? "-" : attempt.book);
    cells.push_back(cell(attempt.bits, 3));
    cells.push_back(cell(attempt.snr_db, 1));
    if (has_model) {
      const auto& loss = attempt.loss;
      cells.push_back(loss ? fmt::format("{:.5f}", loss->rise) : "-");
      cells.push_back(loss ? fmt::format("{:.5f}", loss->divergence) : "-");
    }
    cells.push_back(time_text(attempt.seconds));
    cells.push_back(i == outcome.search.choice ? "chosen" : attempt.reason);
    table.row(std::move(cells));
  }
  return table.text();
}

std::string text_report(const ChooseOptions& options, const Outcome& outcome) {
  return table_of(options, outcome) + "\n" +
         (outcome.learn_command.empty() ? "" : outcome.learn_command + "\n") + outcome.command + "\n";
}

void declare(Command& command, ChooseOptions& options) {
  command.describe(
      "KV (--total-bits X | --max-nll X --model PATH --text PATH ...) [options]",
      "Tries codecs on a sample of a cache, each with the options that reach the goal, and says which is best: of "
      "those that keep to --total-bits the one with which the model loses least (without --model, whose "
      "signal-to-noise ratio is highest), of those that keep to --max-nll the one that takes the fewest bits. Prints "
      "what each reaches, and the command that encodes the cache with the choice.",
      "kvcodec choose kv.h5 --total-bits 2.5\n"
      "kvcodec choose kv.h5 --max-nll 0.02 --model data/demo-model --text held-out/ --book transform.h5");
  command.group("Input");
  command.input("KV", "kv file; - is standard input", options.input);
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Goal");
  command.options(options, {{"model", "PATH"}});
  command.repeated("text", "text files and folders for --model; not those that are to be encoded",
                   options.search.goal.texts, "PATH");
  command.group("Search");
  command.repeated("book", "dictionary, codebooks or transform, for the codec that needs it",
                   options.search.books, "FILE");
  command.options(options.search_fields(),
                  {{"learn", "FILE"}, {"codecs", "LIST"}, {"weights", "FILE"}, {"time", "SECONDS"}});
  options.common.declare(command);
}

void check_files(const ChooseOptions& options) {
  std::vector<std::string> read = options.search.books;
  read.push_back(options.input);
  read.push_back(options.search.weights);
  check_inputs(read);
  if (options.learn.empty()) return;
  if (options.input == "-")
    throw usage_error("--learn reads the cache once more; KV cannot be standard input");
  if (state_of(options.learn))
    throw usage_error("--learn {}: the file exists; name it with --book, or let --learn write another",
                      options.learn);
}

/// Runs train-transform on these documents, and returns the command line that repeats it.
std::string learn_transform(const ChooseOptions& options, const Documents& all,
                            const std::vector<size_t>& documents) {
  std::vector<std::string> arguments = {options.input, "--documents", words_for(all, documents), "-o",
                                        options.learn};
  if (!options.search.weights.empty())
    arguments.insert(arguments.end(), {"--weights", options.search.weights});
  if (!options.common.memory.empty()) arguments.insert(arguments.end(), {"--memory", options.common.memory});
  if (options.common.quiet) arguments.emplace_back("--quiet");
  Command training("train-transform", "", std::move(arguments));
  with_context("--learn", [&] { (void)train_transform_command().run(training); });
  return training.history_line();
}

Outcome choose_codec(const ChooseOptions& options, const KvReader& kv) {
  const Stopwatch since;
  SearchOptions search = options.search;
  const auto documents = options.documents.choose(kv.documents(), kv.name());
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  search.check_books();
  Outcome outcome;
  LearningSplit split{documents, documents};
  if (!options.learn.empty()) {
    if (!tries_codec(search, "transform"))
      throw usage_error("--learn is for the codec transform, which --codecs leaves out");
    split = split_for_learning(documents);
    if (documents.size() == 1)
      options.common.note(
          "{} has one document, which is learned from and tried on: the transform looks better "
          "than it is on others",
          kv.name());
    outcome.learn_command = learn_transform(options, kv.documents(), split.learned);
    search.books.push_back(options.learn);
  }
  outcome.search = search_codecs(search, {kv, documents, split.tried, layers}, options.common, since);
  outcome.command =
      encode_command(outcome.search.chosen(), {options.input, options.documents.text, options.layers.text});
  return outcome;
}

std::string choose(Command& command) {
  ChooseOptions options;
  declare(command, options);
  command.parse();
  options.search.check_goal();
  check_files(options);
  options.common.apply(command, true);
  const KvReader kv(options.input);
  const Outcome outcome = choose_codec(options, kv);
  return options.common.json ? json_report(command, options, outcome) : text_report(options, outcome);
}

}  // namespace

CommandEntry choose_command() {
  return {CommandGroup::code, 1, "choose", "find the codec and the options that serve a cache best", choose};
}

}  // namespace kvcodec::cli
