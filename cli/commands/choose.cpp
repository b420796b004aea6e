#include <algorithm>
#include <cmath>

#include "cli/frame/common.hpp"
#include "cli/search/codec_search.hpp"
#include "formats/cache/kv_file.hpp"

namespace kvcodec::cli {

CommandEntry train_transform_command();  // --learn runs it

namespace {

struct ChooseOptions final : CommandOptions {
  std::string input, learn;
  SearchOptions search;

  std::vector<OptionField> fields() override {
    return {
        {"total-bits",
         "bits per value that the file may take, everything counted except the book (no default)",
         &search.goal.total_bits, 0},
        {"max-nll",
         "most nats per token that --model may lose on --text, both in rise of the NLL and in KL divergence "
         "(no default)",
         &search.goal.max_nll, 0},
        {"model",
         "the model that made the cache, a directory or a GGUF file; codecs are compared by its loss",
         &search.goal.model}};
  }
  std::vector<OptionField> search_fields() {
    return {
        {"learn",
         "learn a transform from every second document and write it to FILE; all codecs are then tried on "
         "the other documents",
         &learn},
        {"codecs",
         fmt::format("try only these codecs, as kvcomp,kivi (default: {})",
                     fmt::join(codecs_worth_trying(), ", ")),
         &search.codecs},
        {"weights", "sensitivity file for codecs that weigh errors: kvcomp, kivi and q4", &search.weights},
        {"time", "seconds after which no measurement is begun; what was not tried is named", &search.time,
         0}};
  }
};

struct Outcome {
  SearchResult search;
  std::string command;
  std::string learn_command;  ///< "" where nothing was learned
};

/// JSON omits the fields for which the codec has no value.
Measures measures_of(const Attempt& attempt, const SearchResult& search, bool has_model) {
  Measures all = {{"codec", attempt.codec}};
  const auto add = [&](const char* key, Table::Column column, std::optional<double> value, int digits) {
    all.push_back(decimal(value ? key : nullptr, std::move(column), value.value_or(std::nan("")), digits));
  };
  const auto add_text = [&](const char* key, const std::string& text, Table::Column column = {}) {
    all.push_back(word(text.empty() ? nullptr : key, std::move(column), text.empty() ? "-" : text));
  };
  const bool books =
      std::ranges::any_of(search.attempts, [](const Attempt& one) { return !one.book.empty(); });
  add_text("book", attempt.book, books ? Table::Column{.title = "book", .left = true} : Table::Column{});
  add_text("weights", attempt.weights);
  all.push_back({"reached", attempt.reached});
  if (attempt.reached) all.push_back({"options", attempt.options});
  add("bits_per_value", {"bits", "/value"}, attempt.bits, 3);
  add("snr_db", {"SNR", "dB"}, attempt.snr_db, 1);
  const bool queries =
      std::ranges::any_of(search.attempts, [](const Attempt& one) { return one.attention_db.has_value(); });
  add("attention_db", queries ? Table::Column{"attention", "dB"} : Table::Column{}, attempt.attention_db, 1);
  if (has_model) {
    const auto& loss = attempt.loss;
    add("nll_rise", {"NLL rise", "nats"}, loss ? std::optional(loss->rise) : std::nullopt, 5);
    add("kl", {"KL", "nats"}, loss ? std::optional(loss->divergence) : std::nullopt, 5);
  }
  add("nearest", {}, attempt.nearest, 0);
  add_text("reason", attempt.reason);
  all.push_back(time_measure(attempt.seconds));
  all.push_back(
      word(nullptr, {.title = " ", .left = true}, &attempt == &search.chosen() ? "chosen" : attempt.reason));
  return all;
}

std::string report(const Command& command, const ChooseOptions& options, const Outcome& outcome) {
  const SearchResult& search = outcome.search;
  const GoalOptions& goal = options.search.goal;
  constexpr const char* kJudges[] = {"bits_per_value", "loss", "attention_db", "snr_db"};
  Json json = made_by(command);
  json.update(
      {{"goal", goal.of_rate() ? Json{{"total_bits", goal.total_bits}} : Json{{"max_nll", goal.max_nll}}},
       {"judged_by", kJudges[static_cast<size_t>(search.judge)]},
       {"sample_tokens", search.tokens},
       {"codecs", Json::array()}});
  MeasureTable table("codec");
  for (const Attempt& attempt : search.attempts) {
    const Measures measures = measures_of(attempt, search, !goal.model.empty());
    json["codecs"].push_back(json_of(measures));
    table.row(attempt.codec, measures);
  }
  json["choice"] = json["codecs"][search.choice];
  if (!outcome.learn_command.empty()) json["learn_command"] = outcome.learn_command;
  json["command"] = outcome.command;
  if (options.common.json) return text_of(json);
  return table.text() + "\n" + (outcome.learn_command.empty() ? "" : outcome.learn_command + "\n") +
         outcome.command + "\n";
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

std::string choose(Command& command) {
  ChooseOptions options;
  command.describe(
      "KV (--total-bits X | --max-nll X --model PATH --text PATH ...) [options]",
      "Tries codecs on a sample of a cache, each with the options that reach the goal, and says which is best: of "
      "those that keep to --total-bits the one with which the model loses least (without --model, whose "
      "errors change attention least), of those that keep to --max-nll the one that takes the fewest bits. Prints "
      "what each reaches, and the command that encodes the cache with the choice.",
      "kvcodec choose kv.h5 --total-bits 2.5\n"
      "kvcodec choose kv.h5 --max-nll 0.02 --model DIR --text more/ --book book.h5");
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
  command.parse();
  options.search.check_goal();
  std::vector<std::string> read = options.search.books;
  read.push_back(options.input);
  read.push_back(options.search.weights);
  check_inputs(read);
  if (!options.learn.empty() && options.input == "-")
    throw usage_error("--learn reads the cache once more; KV cannot be standard input");
  if (!options.learn.empty() && state_of(options.learn))
    throw usage_error("--learn {}: the file exists; name it with --book, or let --learn write another",
                      options.learn);
  options.common.apply(command, true);
  const KvReader kv(options.input);
  const Stopwatch since;
  SearchOptions& search = options.search;
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
  return report(command, options, outcome);
}

}  // namespace

CommandEntry choose_command() {
  return {CommandGroup::code, 1, "choose", "find the codec and the options that serve a cache best", choose};
}

}  // namespace kvcodec::cli
