// kvcodec choose KV (--total-bits X | --max-nll X --model PATH --text PATH) [options]
//
//   --book FILE         books of codecs that need one; may be given several times
//   --learn FILE        learn a transform from half of the documents, and try all codecs on the others
//   --codecs LIST       try these only                    --time SECONDS    begin no measurement after so long
//   --weights FILE      what errors cost the model (kvcodec sensitivity), for codecs that take it
//
//   kvcodec choose kv.h5 --total-bits 2.5 --model data/demo-model --text held-out/
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "cli/choice.hpp"
#include "cli/codec_spec.hpp"
#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/goal.hpp"
#include "cli/json.hpp"
#include "cli/loss_meter.hpp"
#include "cli/probe.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "cli/weights.hpp"
#include "formats/kv_file.hpp"
#include "lib/codec/dial.hpp"
#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// From the one that promises most; the yardsticks only where they are asked for.
constexpr std::string_view kByPromise[] = {"transform", "kvcomp", "q4", "kivi", "sparse", "rvq", "selfindex"};
constexpr std::string_view kYardsticks[] = {"fp8", "lossless", "none"};

struct ChooseOptions final : Options {
  std::string input, codecs, weights, learn;
  std::vector<std::string> books;
  GoalOptions goal;  ///< its model and texts judge any goal here
  double time = 600;
  CommonOptions common;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {
        {.name = "total-bits",
         .help = "bits per value that the file may take, everything counted except the book",
         .target = &goal.total_bits,
         .min = 0},
        {.name = "max-nll",
         .help =
             "the rise of the NLL, in nats per token, and the divergence, that --model may have on --text",
         .target = &goal.max_nll,
         .min = 0},
        {.name = "model",
         .help = "the model that made the cache, a directory or a GGUF file: its loss decides",
         .target = &goal.model}};
  }
  std::vector<OptionField> search_fields() {
    return {
        {.name = "learn",
         .help =
             "learn a transform from every other document and write it there; all codecs are then tried on the "
             "documents between",
         .target = &learn},
        {.name = "codecs",
         .help = fmt::format("try these alone, as kvcomp,kivi (default: {})", fmt::join(kByPromise, ", ")),
         .target = &codecs},
        {.name = "weights",
         .help = "sensitivity file for codecs that weigh errors: kvcomp, kivi and q4",
         .target = &weights},
        {.name = "time",
         .help = "seconds after which no measurement is begun; what was not tried is named",
         .target = &time,
         .min = 0}};
  }

  bool has_model() const { return !goal.model.empty(); }
  Judge judge() const { return goal.max_nll > 0 ? Judge::bits : has_model() ? Judge::loss : Judge::snr; }

  std::string goal_text() const {
    return goal.total_bits > 0 ? fmt::format("--total-bits is {}", goal.total_bits)
                               : fmt::format("--max-nll is {}", goal.max_nll);
  }
};

void check_goal(const ChooseOptions& options) {
  if (options.goal.total_bits > 0 && options.goal.max_nll > 0)
    throw usage_error("--total-bits and --max-nll exclude each other");
  if (options.goal.total_bits == 0 && options.goal.max_nll == 0)
    throw usage_error(
        "no goal is given: name the bits per value with --total-bits, or the loss with --max-nll");
  if (options.goal.max_nll > 0 && (options.goal.model.empty() || options.goal.texts.empty()))
    throw usage_error("--max-nll needs a model and a text to measure on: give --model and --text");
  if (options.goal.model.empty() != options.goal.texts.empty())
    throw usage_error("--model and --text go together: a loss is measured on both");
}

// Candidates ---------------------------------------------------------------------------------------

/// A book and its file.
struct NamedBook {
  std::string file;
  BookFile book;
};

/// The codecs to try, in the order of promise whatever the order of the list.
std::vector<const CodecEntry*> codecs_to_try(const std::string& list) {
  std::vector<std::string> asked;
  if (!list.empty()) {
    asked = split(list, ',');
    with_context("--codecs", [&] {
      for (const std::string& name : asked) (void)codec_named(name);
    });
  }
  std::vector<const CodecEntry*> chosen;
  const auto take = [&](std::string_view name) {
    if (list.empty() || std::ranges::count(asked, name) > 0)
      chosen.push_back(&codec_named(std::string(name)));
  };
  for (const std::string_view name : kByPromise) take(name);
  if (!list.empty())
    for (const std::string_view name : kYardsticks) take(name);
  return chosen;
}

/// Reads the books. Throws Error(usage) for one that no codec to be tried takes.
std::vector<NamedBook> read_books(const std::vector<std::string>& files,
                                  const std::vector<const CodecEntry*>& codecs) {
  std::vector<NamedBook> books;
  for (const std::string& file : files) {
    books.push_back({file, read_book(file, "", false)});
    const std::string& type = books.back().book.type.type;
    if (std::ranges::none_of(codecs, [&](const CodecEntry* codec) { return codec->book_type == type; }))
      throw usage_error("--book {}: it is a {} file, which none of the codecs to be tried takes", file, type);
  }
  return books;
}

struct Candidate {
  const CodecEntry* codec = nullptr;
  const NamedBook* book = nullptr;  ///< nullptr: it needs none, or there is none
};

/// Each codec with each book that it takes.
std::vector<Candidate> candidates_of(const std::vector<const CodecEntry*>& codecs,
                                     const std::vector<NamedBook>& books) {
  std::vector<Candidate> candidates;
  for (const CodecEntry* codec : codecs) {
    const size_t before = candidates.size();
    if (!codec->book_type.empty())
      for (const NamedBook& book : books)
        if (book.book.type.type == codec->book_type) candidates.push_back({codec, &book});
    if (candidates.size() == before) candidates.push_back({codec, nullptr});
  }
  return candidates;
}

// Trying -------------------------------------------------------------------------------------------

/// Thrown before a measurement that would begin after --time.
struct TimeIsUp {};

/// What all attempts have in common.
struct Trial {
  const ChooseOptions& options;
  const KvReader& kv;
  std::vector<size_t> documents;
  std::vector<int> layers;
  Probe probe;
  std::optional<LossMeter> meter;
  Stopwatch watch;

  bool time_is_up() const { return watch.seconds() >= options.time; }
};

/// One codec with one book: finds its options and measures them.
class Tryout {
 public:
  /// before_try: called before each measurement.
  Tryout(const Trial& trial, const Candidate& candidate, std::function<void()> before_try)
      : trial_(trial), candidate_(candidate), before_try_(std::move(before_try)) {
    attempt_.codec = entry().name;
    if (candidate.book) attempt_.book = candidate.book->file;
  }

  /// Throws Error(bad_input) where the codec, or its book, does not fit the cache.
  Attempt run() {
    const Stopwatch watch;
    if (!entry().book_type.empty() && !candidate_.book) {
      attempt_.reason = fmt::format("needs a {} file: name one with --book", entry().book_type);
      return attempt_;
    }
    try {
      try_options();
    } catch (const TimeIsUp&) {
      miss("stopped: the time was over");
    } catch (const GoalMissed& missed) {
      miss_by(missed.nearest(), " at least");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      miss(error.what());
    }
    attempt_.seconds = watch.seconds();
    return attempt_;
  }

 private:
  const CodecEntry& entry() const { return *candidate_.codec; }

  /// Weights for the search alone, or for the codec, where it takes any.
  bool weighs() const {
    return !trial_.options.weights.empty() && (allocates_bits(entry()) || entry().capabilities.takes_weights);
  }

  /// Whether they are the codec's: it then needs them to encode.
  bool codec_weighs() const { return weighs() && !allocates_bits(entry()); }

  std::unique_ptr<Codec> make(const Options& options, bool weighed) const {
    const KvReader& kv = trial_.kv;
    CodecContext context =
        context_of(kv.model(), kv.documents(), kv.dtype() == DType::f32 ? DType::bf16 : kv.dtype(),
                   candidate_.book ? &candidate_.book->book.book : nullptr);
    context.engine = engine_for(entry(), trial_.options.common.engine());
    if (weighed) take_weights(trial_.options.weights, context);
    return kvcodec::make_codec(entry(), options, context, choose_rope(entry(), std::nullopt, context));
  }

  void try_options() {
    const auto options = entry().make_options();
    const auto usual = make(*options, false);  // weights need options that the search sets
    check_token_ids(trial_.kv, *usual);
    (void)whole_groups(trial_.layers, usual->layer_group(), ErrorKind::usage, "layers");
    if (dial_of(entry()).turn)
      search(*options);
    else
      try_fixed(*usual);
  }

  void search(Options& options) {
    const GoalContext context{entry(),
                              trial_.kv,
                              trial_.documents,
                              trial_.layers,
                              weighs() ? trial_.options.weights : std::string(),
                              trial_.options.common,
                              [this](const Options& with) { return make(with, codec_weighs()); },
                              before_try_};
    const FoundOptions found = find_options(trial_.options.goal, context, trial_.probe,
                                            trial_.meter ? &*trial_.meter : nullptr, options);
    attempt_.options = found.words;
    if (codec_weighs()) attempt_.weights = trial_.options.weights;
    attempt_.loss = found.loss;
    measure(*make(*found.options, codec_weighs()));
    attempt_.reached = true;
  }

  /// A codec whose rate no option turns reaches the goal as it is, or not.
  void try_fixed(const Codec& codec) {
    measure(codec);
    const ChooseOptions& options = trial_.options;
    const double reached = options.goal.total_bits > 0 ? *attempt_.bits : attempt_.loss->worst();
    if (reached <= (options.goal.total_bits > 0 ? options.goal.total_bits : options.goal.max_nll))
      attempt_.reached = true;
    else
      miss_by(reached, "");
  }

  void measure(const Codec& codec) {
    before_try_();
    attempt_.bits = trial_.probe.bits(codec);
    attempt_.snr_db = Probe::snr_db(trial_.probe.energies(codec));
    if (trial_.meter && !attempt_.loss) {
      before_try_();
      attempt_.loss = trial_.meter->loss(codec);
    }
  }

  void miss(const std::string& reason) { attempt_.reason = reason; }

  /// least: " at least" where options were searched.
  void miss_by(double nearest, const char* least) {
    if (!std::isfinite(nearest)) return miss("none of its options fits the cache");
    attempt_.nearest = nearest;
    miss(trial_.options.goal.total_bits > 0 ? fmt::format("takes {:.2f} bits per value{}", nearest, least)
                                            : fmt::format("loses {:.4f} nats per token{}", nearest, least));
  }

  const Trial& trial_;
  const Candidate& candidate_;
  std::function<void()> before_try_;
  Attempt attempt_;
};

/// Tries one after the other. What does not fit the cache is an attempt that failed, unless nothing fits: then the cache is to
/// blame, and the first such error is thrown.
std::vector<Attempt> try_all(const Trial& trial, const std::vector<Candidate>& candidates) {
  std::vector<Attempt> attempts;
  std::optional<Error> unfit;
  ProgressBar bar("choose", "codecs", trial.options.common.quiet);
  for (const Candidate& candidate : candidates) {
    const auto done = static_cast<double>(attempts.size()), all = static_cast<double>(candidates.size());
    int tries = 0;
    const auto before_try = [&] {
      if (trial.time_is_up()) throw TimeIsUp();
      // How many tries there will be is not known: each takes a tenth of what is left.
      bar.update(done + 1 - std::pow(0.9, tries++), all, candidate.codec->name);
    };
    if (trial.time_is_up()) {
      attempts.push_back({.codec = candidate.codec->name, .reason = kNoTimeLeft});
      continue;
    }
    try {
      attempts.push_back(Tryout(trial, candidate, before_try).run());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::bad_input) throw;
      if (!unfit) unfit = error;
      attempts.push_back({.codec = candidate.codec->name,
                          .book = candidate.book ? candidate.book->file : std::string(),
                          .reason = error.what()});
    }
  }
  const bool measured =
      std::ranges::any_of(attempts, [](const Attempt& one) { return one.reached || one.nearest; });
  if (unfit && !measured) throw Error(*unfit);
  return attempts;
}

// Results ------------------------------------------------------------------------------------------

struct Outcome {
  std::vector<Attempt> attempts;
  size_t choice = 0;
  std::string command;
  std::string learn_command;  ///< "" where nothing was learned
  uint64_t tokens = 0;        ///< of the sample
};

/// Says what came nearest.
[[noreturn]] void complain(const ChooseOptions& options, const std::vector<Attempt>& attempts) {
  const auto late = untried(attempts);
  const std::string left_out =
      late.empty() ? std::string()
                   : fmt::format("; not tried within --time {}: {}", options.time, fmt::join(late, ", "));
  if (const auto nearest = nearest_of(attempts)) {
    const Attempt& one = attempts[*nearest];
    throw usage_error("{}; no codec that was tried reaches it, and {} comes nearest: it {}{}",
                      options.goal_text(), one.codec, one.reason, left_out);
  }
  std::vector<std::string> reasons;
  for (const Attempt& one : attempts)
    if (one.reason != kNoTimeLeft) reasons.push_back(fmt::format("{} {}", one.codec, one.reason));
  throw usage_error("{}; no codec could be measured{}{}{}", options.goal_text(), reasons.empty() ? "" : ": ",
                    fmt::join(reasons, "; "), left_out);
}

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
  json["goal"] = options.goal.total_bits > 0 ? Json{{"total_bits", options.goal.total_bits}}
                                             : Json{{"max_nll", options.goal.max_nll}};
  constexpr const char* kJudges[] = {"bits_per_value", "loss", "snr_db"};
  json["judged_by"] = kJudges[static_cast<size_t>(options.judge())];
  json["sample_tokens"] = outcome.tokens;
  json["codecs"] = Json::array();
  for (const Attempt& attempt : outcome.attempts) json["codecs"].push_back(json_of(attempt));
  json["choice"] = json_of(outcome.attempts[outcome.choice]);
  if (!outcome.learn_command.empty()) json["learn_command"] = outcome.learn_command;
  json["command"] = outcome.command;
  return text_of(json);
}

std::string cell(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string table_of(const ChooseOptions& options, const Outcome& outcome) {
  const bool books =
      std::ranges::any_of(outcome.attempts, [](const Attempt& attempt) { return !attempt.book.empty(); });
  std::vector<Table::Column> columns = {{"codec"}};
  if (books) columns.push_back({.title = "book", .left = true});
  columns.push_back({"bits", "/value"});
  columns.push_back({"SNR", "dB"});
  if (options.has_model()) {
    columns.push_back({"NLL rise", "nats"});
    columns.push_back({"KL", "nats"});
  }
  columns.push_back({"time"});
  columns.push_back({.title = "", .left = true});
  Table table(columns);
  for (size_t i = 0; i < outcome.attempts.size(); ++i) {
    const Attempt& attempt = outcome.attempts[i];
    std::vector<std::string> cells = {attempt.codec};
    if (books) cells.push_back(attempt.book.empty() ? "-" : attempt.book);
    cells.push_back(cell(attempt.bits, 3));
    cells.push_back(cell(attempt.snr_db, 1));
    if (options.has_model()) {
      const auto& loss = attempt.loss;
      cells.push_back(loss ? fmt::format("{:.5f}", loss->rise) : "-");
      cells.push_back(loss ? fmt::format("{:.5f}", loss->divergence) : "-");
    }
    cells.push_back(time_text(attempt.seconds));
    cells.push_back(i == outcome.choice ? "chosen" : attempt.reason);
    table.row(std::move(cells));
  }
  return table.text();
}

std::string text_report(const ChooseOptions& options, const Outcome& outcome) {
  return table_of(options, outcome) + "\n" +
         (outcome.learn_command.empty() ? "" : outcome.learn_command + "\n") + outcome.command + "\n";
}

void note_judge(const ChooseOptions& options) {
  if (options.judge() == Judge::snr)
    options.common.note(
        "codecs are judged by the signal-to-noise ratio, which says little of what a model loses; with --model and "
        "--text its loss decides");
}

void note_time(const ChooseOptions& options, const std::vector<Attempt>& attempts) {
  const auto late = untried(attempts);
  if (!late.empty())
    options.common.note("not tried within --time {}: {}", options.time, fmt::join(late, ", "));
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
                   options.goal.texts, "PATH");
  command.group("Search");
  command.repeated("book", "dictionary, codebooks or transform, for the codec that needs it", options.books,
                   "FILE");
  command.options(options.search_fields(),
                  {{"learn", "FILE"}, {"codecs", "LIST"}, {"weights", "FILE"}, {"time", "SECONDS"}});
  options.common.declare(command);
}

void check_files(const ChooseOptions& options) {
  std::vector<std::string> read = options.books;
  read.push_back(options.input);
  read.push_back(options.weights);
  check_inputs(read);
  if (options.learn.empty()) return;
  if (options.input == "-")
    throw usage_error("--learn reads the cache once more; KV cannot be standard input");
  if (std::filesystem::exists(options.learn))
    throw usage_error("--learn {}: the file exists; name it with --book, or let --learn write another",
                      options.learn);
}

/// Learns a transform as train-transform does, and returns the command that repeats it.
std::string learn_transform(const ChooseOptions& options, const std::vector<size_t>& documents) {
  const std::vector<int> numbers(documents.begin(), documents.end());
  std::vector<std::string> arguments = {options.input, "--documents", ranges_text(numbers), "-o",
                                        options.learn};
  if (!options.weights.empty()) arguments.insert(arguments.end(), {"--weights", options.weights});
  if (!options.common.memory.empty()) arguments.insert(arguments.end(), {"--memory", options.common.memory});
  if (options.common.quiet) arguments.emplace_back("--quiet");
  Command training("train-transform", "", std::move(arguments));
  with_context("--learn", [&] { (void)train_transform(training); });
  return training.history_line();
}

Outcome choose_codec(const ChooseOptions& options, const KvReader& kv) {
  const Stopwatch watch;
  const auto codecs = codecs_to_try(options.codecs);
  auto books = read_books(options.books, codecs);
  const auto documents = options.documents.choose(kv.documents(), kv.name());
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  Outcome outcome;
  LearningSplit split{documents, documents};
  if (!options.learn.empty()) {
    if (std::ranges::find(codecs, "transform", &CodecEntry::name) == codecs.end())
      throw usage_error("--learn is for the codec transform, which --codecs leaves out");
    split = split_for_learning(documents);
    if (documents.size() == 1)
      options.common.note(
          "{} has one document, which is learned from and tried on: the transform looks better "
          "than it is on others",
          kv.name());
    outcome.learn_command = learn_transform(options, split.learned);
    const auto learned = read_books({options.learn}, codecs);
    books.insert(books.end(), learned.begin(), learned.end());
  }
  Trial trial{options, kv,   documents, layers, Probe(kv, documents, split.tried, layers, kSampleTokens),
              {},      watch};
  if (options.has_model()) trial.meter.emplace(options.goal.model, options.goal.texts, kv, options.common);
  outcome.attempts = try_all(trial, candidates_of(codecs, books));
  const auto best = best_of(outcome.attempts, options.judge());
  if (!best) complain(options, outcome.attempts);
  outcome.choice = *best;
  outcome.command =
      encode_command(outcome.attempts[*best], {options.input, options.documents.text, options.layers.text});
  outcome.tokens = trial.probe.tokens();
  return outcome;
}

}  // namespace

std::string choose(Command& command) {
  ChooseOptions options;
  declare(command, options);
  command.parse();
  check_goal(options);
  check_files(options);
  options.common.apply(command, true);
  const KvReader kv(options.input);
  const Outcome outcome = choose_codec(options, kv);
  note_judge(options);
  note_time(options, outcome.attempts);
  return options.common.json ? json_report(command, options, outcome) : text_report(options, outcome);
}

}  // namespace kvcodec::cli
