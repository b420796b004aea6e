// kvcodec eval-model --model PATH --text PATH ... --codec SPEC ... [options]
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/ranges.h>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/codec/model_layers.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/metrics/recall_task.hpp"
#include "lib/pipeline/closed_loop.hpp"

namespace kvcodec::cli {
namespace {

enum class Task : uint8_t { text, recall, variables, common, frequent, questions, generate };
constexpr auto names_of(Task) {
  return std::to_array<std::string_view>(
      {"text", "recall", "variables", "common", "frequent", "questions", "generate"});
}
/// --values of each family if nothing else is said.
constexpr int64_t kValues[] = {1, 5, 10, 3};

struct ModelOptions final : CommandOptions {
  std::string model, lengths, answers;
  Task task = Task::text;
  DType dtype = DType::bf16;
  Compute compute = Compute::f32;
  SelectionOptions selection = SelectionOptions::of(SelectBy::all, SelectionSetup::best);
  WindowLayers window_layers = WindowLayers::keep;
  JudgedTextOptions texts;
  std::vector<std::string> codecs;
  int64_t stream = 0, survey = 16, joined = 1, recompute = 0, written = 0;
  int64_t depths = 5, questions = 10, keys = 1, values = 0, asked = 1;

  /// The family of questions that are made; none where they are given, or nothing is asked.
  std::optional<RecallFamily> family() const {
    if (task < Task::recall || task > Task::frequent) return {};
    return static_cast<RecallFamily>(static_cast<int>(task) - static_cast<int>(Task::recall));
  }
  bool asks() const { return family() || task == Task::questions; }

  std::vector<OptionField> fields() override {
    return {
        model_field(model),
        {"task",
         "text: predict the second part of each document; generate: predict what the model itself writes behind the first "
         "part, always the likeliest token; or answer questions about facts planted in the text (recall), chains of variables "
         "planted in it, lists of its common or frequent words, or the text (questions, of --answers)",
         &task}};
  }
  std::vector<OptionField> setting_fields() {
    return {
        {.name = "dtype",
         .help = "element type of the cache: keys and values are rounded to it before and after coding",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
        {"window-layers",
         "which tokens of layers with a sliding window to compress: keep: all of the prefix; trim: only its "
         "last ones, as many as the window holds",
         &window_layers},
        {"stream",
         "append the continuation's own keys and values to the codes, N tokens at a time, so that later "
         "tokens attend to them as decoded; 1: token by token, as in generation (0: the continuation's "
         "cache stays uncompressed)",
         &stream, 0},
        {"joined",
         "put each prefix together of N documents of equal length, which the model reads each by itself; it is compared "
         "with a model that reads the whole",
         &joined, 1, 1e6},
        {"recompute",
         "with --joined, read the first N tokens of each later document again, behind those before it",
         &recompute, 0},
        {"survey", "number of documents from whose prefixes codecs fit the tables that all documents share",
         &survey, 1, 1e6}};
  }
  std::vector<OptionField> recall_fields() {
    return {
        {"lengths", "lengths of the documents in tokens, as 256,512 (default: --chunk)", &lengths},
        {"depths", "places of the fact that is asked for, from the start of the text to its end", &depths, 1,
         1000},
        {"questions", "questions for each length and depth", &questions, 1, 1e6},
        {"keys", "facts planted, each about another word, or chains", &keys, 1, 1000},
        {"values",
         "what a right answer has: numbers of a word, names of a chain, words of a list (0: 1, 5, 10 common or 3 frequent)",
         &values, 0, 1000},
        {"asked", "facts or chains that each document is asked for, each by itself, from place to place",
         &asked, 1, 1000},
        {"answers",
         "file of questions about the texts: in each line the number of a text, a question and its answer, with "
         "tabs between",
         &answers}};
  }
};

/// A question, and where its answers are.
struct AskedQuestion {
  int64_t length = 0;  ///< tokens of the document; 0 of a text that is given
  double depth = 0;
  size_t document = 0, number = 0;
  std::vector<std::string> expected;
};

/// The documents to run, and the questions about them.
struct Tasks {
  int64_t length = 0;   ///< tokens of a document of text
  int64_t written = 0;  ///< that the model itself writes behind each prefix, in place of the text
  std::vector<LoopDocument> documents;
  std::vector<AskedQuestion> questions;  ///< none of text
  Joining joining = {};
  std::vector<uint32_t> ends;  ///< tokens that end an answer

  template <class Value>
  std::vector<Value> distinct(Value AskedQuestion::*member) const {
    std::vector<Value> values;
    for (const AskedQuestion& question : questions)
      if (std::ranges::find(values, question.*member) == values.end()) values.push_back(question.*member);
    return values;
  }
};

std::vector<int64_t> parse_lengths(const std::string& text, int64_t otherwise) {
  if (text.empty()) return {otherwise};
  std::vector<int64_t> lengths;
  for (const std::string& word : split(text, ',')) {
    lengths.push_back(number_in<int64_t>(word).value_or(0));
    if (lengths.back() < 1) throw usage_error("--lengths is '{}'; it must be numbers such as 256,512", text);
  }
  return lengths;
}

/// The text that a model wrote, without space before it.
std::string answer_text(const Tokenizer& tokenizer, std::span<const uint32_t> written) {
  std::string text = tokenizer.decode(written, true);
  return text.erase(0, text.find_first_not_of(" \n"));
}

/// Adds a question about the last document. The answer is whole once nothing that follows could change what counts.
void add_question(const ModelOptions& options, const Tokenizer& tokenizer, RecallQuestion question,
                  AskedQuestion asked, Tasks& tasks) {
  asked.document = tasks.documents.size() - 1;
  asked.number = tasks.documents.back().questions.size();
  asked.expected = question.expected;
  const auto whole = [&tokenizer, made = options.family().has_value(), ends = tasks.ends,
                      expected = std::move(question.expected)](std::span<const uint32_t> written) {
    if (std::ranges::find(ends, written.back()) != ends.end()) return true;
    const std::string text = answer_text(tokenizer, written);
    return made ? recall_of(text, expected) == 1 : text.find('\n') != std::string::npos;
  };
  tasks.documents.back().questions.push_back({std::move(question.tokens), question.written, whole});
  tasks.questions.push_back(std::move(asked));
}

void make_questions(const ModelOptions& options, const Tokenizer& tokenizer,
                    const std::vector<SourceText>& texts, Tasks& tasks) {
  RecallText text;
  if (options.texts.special) text.before = template_of(tokenizer).before;
  std::string all;
  for (const SourceText& source : texts) {
    append_to(text.tokens, with_context(source.name, [&] { return tokenizer.encode(source.text, false); }));
    all += source.text + "\n";
  }
  text.words = recall_words(all);
  constexpr int64_t kSeeds = int64_t{1} << 32;  // each leaves room for this many questions
  if (options.common.seed >= kSeeds)
    throw usage_error("--seed is {}; with --task {} it must be below {}", options.common.seed,
                      name_of(options.task), kSeeds);
  auto seed = static_cast<uint64_t>(options.common.seed) << 32;
  const size_t places = options.task == Task::recall ? as_size(options.depths) : 1;
  for (const int64_t own : parse_lengths(options.lengths, tasks.length))
    for (size_t d = 0; d < places; ++d)
      for (int64_t q = 0; q < options.questions; ++q) {
        RecallOptions recall{.family = *options.family(),
                             .length = static_cast<size_t>(own),
                             .depths = {},
                             .keys = as_size(options.keys),
                             .values = as_size(options.values),
                             .written = as_size(options.written)};
        for (size_t i = 0; i < as_size(options.asked); ++i)
          recall.depths.push_back(recall_depth((d + i) % places, places));
        RecallDocument document = make_recall_document(tokenizer, text, recall, seed++);
        const size_t prefix = document.tokens.size();
        tasks.documents.push_back({std::move(document.tokens), prefix});
        for (size_t i = 0; i < document.questions.size(); ++i)
          add_question(options, tokenizer, std::move(document.questions[i]),
                       {.length = own, .depth = recall.depths[i], .expected = {}}, tasks);
      }
}

/// Questions of a file about the texts.
void read_questions(const ModelOptions& options, const Tokenizer& tokenizer,
                    const std::vector<SourceText>& texts, Tasks& tasks) {
  constexpr int64_t kWritten = 32;  // as in RULER
  std::vector<std::vector<RecallQuestion>> questions(texts.size());
  for (const std::string& line : lines_of(options.answers, "questions and answers")) {
    const std::vector<std::string> parts = split(line, '\t');
    const auto number = number_in<uint64_t>(parts.front()).value_or(0);
    if (parts.size() != 3 || number < 1 || number > texts.size())
      throw bad_input("{}: '{}' is not the number of one of {}, a question and its answer, with tabs between",
                      options.answers, line, counted(texts.size(), "text"));
    questions[number - 1].push_back({tokenizer.encode("\n\nQuestion: " + parts[1] + "\nAnswer:", false),
                                     {parts[2]},
                                     as_size(options.written > 0 ? options.written : kWritten)});
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (questions[i].empty()) continue;
    LoopDocument& document = tasks.documents.emplace_back();
    if (options.texts.special) document.tokens = template_of(tokenizer).before;
    append_to(document.tokens,
              with_context(texts[i].name, [&] { return tokenizer.encode(texts[i].text, false); }));
    document.prefix = document.tokens.size();
    for (RecallQuestion& question : questions[i])
      add_question(options, tokenizer, std::move(question), {}, tasks);
  }
}

Tasks make_tasks(const ModelOptions& options, const ModelFiles& files, const Tokenizer& tokenizer) {
  const ModelConfig& config = files.description().config;
  Tasks tasks;
  tasks.length = document_length(options.texts, config);
  tasks.joining = {.pieces = as_size(options.joined), .recomputed = as_size(options.recompute)};
  if (options.texts.special) tasks.joining.begin = template_of(tokenizer).before;
  if (options.asks()) tasks.ends = files.end_tokens();
  const auto texts = read_texts(options.common, options.texts.texts);
  if (options.task == Task::generate) tasks.written = options.written > 0 ? options.written : 64;
  if (options.family())
    make_questions(options, tokenizer, texts, tasks);
  else if (options.asks())
    read_questions(options, tokenizer, texts, tasks);
  else
    tasks.documents = judged_texts(options.texts, options.common, tokenizer, texts, tasks.length);
  check_context(tasks.documents, config);
  return tasks;
}

/// Puts what the model writes in the place of what follows each prefix. The first token behind a prefix is given in all runs.
void write_on(const LlamaModel& model, Tasks& tasks, const CommonOptions& common) {
  ProgressBar bar("generate", "documents", common.quiet);
  const size_t count = as_size(tasks.written) + 1;
  Rng rng(0);
  for (size_t i = 0; i < tasks.documents.size(); ++i) {
    LoopDocument& document = tasks.documents[i];
    document.tokens.resize(document.prefix);
    GrowingDocument growing(model, document.prefix + count);
    std::span<const uint32_t> fresh = document.tokens;
    while (document.tokens.size() < document.prefix + count) {
      document.tokens.push_back(choose_token(growing.read(fresh), {}, rng));
      fresh = {&document.tokens.back(), 1};
    }
    bar.update(static_cast<double>(i + 1), static_cast<double>(tasks.documents.size()));
  }
}

struct Settings {
  std::vector<CodecSpec> specs;
  SpecCodecs codecs;
  std::vector<LoopSetting> loop;
  std::vector<uint64_t> book_bytes;
  ScoreForms scores;
};

void make_settings(const ModelOptions& options, const GivenFields& selection, ModelFiles& files,
                   Settings& settings) {
  const ModelConfig& config = files.description().config;
  settings.scores = score_forms(files);
  for (const std::string& text : options.codecs)
    settings.specs.push_back(parse_codec_spec(text, selection, options.dtype));
  for (const CodecSpec& spec : settings.specs) {
    const bool exact = spec.entry->capabilities.lossless;  // as encode does it
    CodecContext context{.num_layers = config.num_layers,
                         .heads = config.max_kv_heads(),
                         .head_dim = config.max_head_dim(),
                         .layer_shapes = layer_shapes_of(config),
                         .query_heads = config.num_q_heads,
                         .storage = spec.dtype == DType::f32 && !exact ? DType::bf16 : spec.dtype,
                         .engine = options.common.engine(),
                         .rope = KeyRope::of(config),
                         .scores = settings.scores};
    // Codes without an index select like the products with the decoded cache.
    SelectionRule rule = spec.selection.rule(config.num_layers);
    if (rule.by == SelectBy::codes && !spec.entry->capabilities.has_index) rule.by = SelectBy::oracle;
    settings.loop.push_back(
        {&settings.codecs.make(spec, context, settings.book_bytes.emplace_back()), spec.dtype, rule});
  }
}

struct Summary {
  StoredBits stored;  ///< with what they share
  StoredBits shared;
  uint64_t book_bytes = 0;
  PredictionEstimates predictions;
  Estimate agreed;           ///< first tokens of a document that are all the likeliest
  double divergence_99 = 0;  ///< the 99th percentile, over all judged tokens
  SelectionCount selected;

  double bits() const { return stored.bits_per_value(); }
  double bits_with_book() const { return stored.bits_per_value(book_bytes); }
};

/// The number of a setting; std::nullopt: the uncompressed cache.
using Which = std::optional<size_t>;

const LoopScore& score(const LoopResult& result, Which setting) {
  return setting ? result.settings[*setting] : result.reference;
}

struct EvalOutcome {
  Tasks tasks;
  std::vector<LoopResult> results;  ///< of each document
  std::vector<Summary> summaries;   ///< of each setting
  Summary reference;
  std::vector<std::vector<std::string>>
      answers;  ///< to each question: with the uncompressed cache, and each setting's
  uint64_t tokens = 0, judged = 0;
  bool rounded = false;  ///< on a device, with other roundings
  double seconds = 0;
};

Summary summarize(const std::vector<LoopResult>& results, Which setting) {
  Summary summary;
  std::vector<PredictionSums> own, reference;
  std::vector<float> divergences;
  std::vector<double> agreed;
  for (const LoopResult& result : results) {
    const LoopScore& of = score(result, setting);
    divergences.insert(divergences.end(), of.divergences.begin(), of.divergences.end());
    summary.stored.add(of.stored);
    summary.selected.add(of.selected);
    const auto wrong = std::ranges::find(of.right, 0);
    agreed.push_back(static_cast<double>(wrong - of.right.begin()));
    own.push_back(of.sums);
    reference.push_back(result.reference.sums);
  }
  summary.predictions = estimate_predictions(own, reference);
  summary.agreed = mean_by_document(agreed, std::vector<double>(agreed.size(), 1.0));
  if (!divergences.empty()) summary.divergence_99 = quantile(divergences, 0.99);
  return summary;
}

EvalOutcome run_tasks(const ModelOptions& options, const LlamaModel& model, const Settings& settings,
                      const Tokenizer& tokenizer, Tasks tasks) {
  Engine* const engine = options.common.engine();
  ClosedLoop loop(model, settings.loop,
                  {.stream = as_size(options.stream),
                   .survey_documents = as_size(options.survey),
                   .memory = options.common.memory_bytes(),
                   .window_layers = options.window_layers,
                   .joining = tasks.joining,
                   .engine = engine,
                   .scores = settings.scores});
  EvalOutcome outcome;
  outcome.tasks = std::move(tasks);
  {
    ProgressBar bar("eval-model", "tokens", options.common.quiet);
    outcome.results = loop.run(outcome.tasks.documents, bar.callback());
  }
  outcome.rounded = engine && !engine->exact();
  outcome.reference = summarize(outcome.results, {});
  for (size_t i = 0; i < settings.specs.size(); ++i) {
    Summary& summary = outcome.summaries.emplace_back(summarize(outcome.results, i));
    summary.shared = loop.shared(i);
    summary.stored.add(summary.shared);
    summary.book_bytes = settings.book_bytes[i];
  }
  outcome.tokens = tokens_of(outcome.tasks.documents);
  for (const LoopResult& result : outcome.results) outcome.judged += result.reference.sums.tokens;
  for (const AskedQuestion& question : outcome.tasks.questions) {
    const LoopResult& result = outcome.results[question.document];
    std::vector<std::string>& answers = outcome.answers.emplace_back();
    answers.push_back(answer_text(tokenizer, result.reference.answers[question.number]));
    for (const LoopScore& own : result.settings)
      answers.push_back(answer_text(tokenizer, own.answers[question.number]));
    for (std::string& text : answers)
      if (!options.family()) text = text.substr(0, text.find('\n'));
  }
  return outcome;
}

/// recall_of or word_f1.
using AnswerMeasure = double (*)(std::string_view answer, std::span<const std::string> expected);

/// The mean over questions, limited to that length and depth if they are given.
ShareEstimate mean_of(AnswerMeasure measure, const EvalOutcome& outcome, Which setting,
                      std::optional<int64_t> length = {}, std::optional<double> depth = {}) {
  double sum = 0;
  uint64_t count = 0;
  for (size_t i = 0; i < outcome.answers.size(); ++i) {
    const AskedQuestion& question = outcome.tasks.questions[i];
    if ((length && question.length != *length) || (depth && question.depth != *depth)) continue;
    sum += measure(outcome.answers[i][setting ? *setting + 1 : 0], question.expected);
    ++count;
  }
  return share_of(sum, count);
}

/// Bits per value of the documents of that length, including the streams that all documents share.
double bits_at(const EvalOutcome& outcome, size_t setting, int64_t length) {
  StoredBits stored = outcome.summaries[setting].shared;
  for (const AskedQuestion& question : outcome.tasks.questions)
    if (question.length == length && question.number == 0)
      stored.add(outcome.results[question.document].settings[setting].stored);
  return stored.bits_per_value();
}

/// A mean and its interval, which are one field in JSON. percent: a share, whose interval is "-" if it is wider than the range of
/// shares.
void add_estimate(Measures& measures, const char* key, Table::Column column, const Estimate& estimate,
                  int digits, bool percent = false) {
  const double factor = percent ? 100 : 1, limit = percent ? 1 : INFINITY;
  const double half = estimate.half_width < limit ? factor * estimate.half_width : std::nan("");
  measures.push_back(decimal(key, std::move(column), factor * estimate.mean, digits));
  measures.back().value = to_json(estimate);
  measures.push_back(decimal(nullptr, {"+-", "95%"}, half, digits));
}

/// Tokens that a step of a head attends to, on average.
Measures selected_measures(const SelectionCount& count) {
  const auto mean = [&](uint64_t sum) {
    return count.selections > 0 ? static_cast<double>(sum) / static_cast<double>(count.selections)
                                : std::nan("");
  };
  return {decimal("tokens", {"tokens", "of each"}, mean(count.tokens), 1),
          decimal("visible", {"out of"}, mean(count.visible), 1),
          decimal("beside", {"and", "beside"}, mean(count.beside), 1)};
}

/// Columns that only some tables have.
struct Columns {
  bool books = false;     ///< the rate that counts the book
  bool selected = false;  ///< tokens that steps attend to
  bool agreed = false;    ///< tokens that come out alike
  bool predicted = true;  ///< what is judged token by token
};

/// rated: includes the rate.
Measures measures_of(const Summary& summary, bool rated, Columns columns = {}) {
  const PredictionEstimates& predictions = summary.predictions;
  Measures measures;
  if (rated) measures.push_back(decimal(nullptr, {"bits", "/value"}, summary.bits(), 3));
  if (columns.books) measures.push_back(decimal(nullptr, {"bits", "with book"}, summary.bits_with_book(), 3));
  if (columns.selected) measures = joined(std::move(measures), selected_measures(summary.selected));
  measures.push_back(decimal("nll", {"NLL", "nats"}, predictions.surprise.mean, 4));
  measures.back().value = to_json(predictions.surprise);
  add_estimate(measures, "nll_rise", {"NLL rise", "nats"}, predictions.rise, 5);
  add_estimate(measures, "kl", {"KL", "nats"}, predictions.divergence, 5);
  if (rated) {
    measures[measures.size() - 2].value["quantile_99"] = summary.divergence_99;
    measures.push_back(decimal(nullptr, {"KL", "99th pct"}, summary.divergence_99, 4));
  }
  if (columns.agreed) add_estimate(measures, "agreed_tokens", {"alike", "tokens"}, summary.agreed, 1);
  add_estimate(measures, "same_top1", {"same top-1", "%"}, predictions.same_best, 2, true);
  measures.push_back({"right_top1", to_json(predictions.right)});
  return measures;
}

std::string recall_table(const ModelOptions& options, const Settings& settings, const EvalOutcome& outcome,
                         int64_t length) {
  MeasureTable table("setting");
  const auto add = [&](const std::string& label, Which setting) {
    const ShareEstimate all = mean_of(recall_of, outcome, setting, length);
    const double bits = setting ? bits_at(outcome, *setting, length) : std::nan("");
    Measures measures = {
        decimal(nullptr, {"bits", "/value"}, bits, 3), decimal(nullptr, {"right", "%"}, 100 * all.share, 1),
        word(nullptr, {"95% interval", "%"}, fmt::format("{:.1f}-{:.1f}", 100 * all.low, 100 * all.high))};
    if (!options.family())
      measures.push_back(decimal(nullptr, {"F1", "%"}, 100 * mean_of(word_f1, outcome, setting).share, 1));
    for (const double depth : outcome.tasks.distinct(&AskedQuestion::depth))
      if (options.task == Task::recall)
        measures.push_back(decimal(nullptr,
                                   {.title = fmt::format("{:.2f}", depth), .group = "right in % by depth"},
                                   100 * mean_of(recall_of, outcome, setting, length, depth).share, 0));
    table.row(label, measures);
  };
  add("uncompressed", {});
  table.rule();
  for (size_t i = 0; i < settings.specs.size(); ++i) add(settings.specs[i].label, i);
  return table.text();
}

Json json_of(const ShareEstimate& estimate) {
  return {{"share", estimate.share}, {"low_95", estimate.low}, {"high_95", estimate.high}};
}

Json recall_json(const ModelOptions& options, const EvalOutcome& outcome, Which setting) {
  Json json = json_of(mean_of(recall_of, outcome, setting));
  if (!options.family()) json["f1"] = mean_of(word_f1, outcome, setting).share;
  json["answers"] = Json::array();
  for (const auto& answers : outcome.answers) json["answers"].push_back(answers[setting ? *setting + 1 : 0]);
  json["cells"] = Json::array();
  for (const int64_t length : outcome.tasks.distinct(&AskedQuestion::length))
    for (const double depth : outcome.tasks.distinct(&AskedQuestion::depth)) {
      Json cell = {{"length", length}};
      if (options.task == Task::recall) cell["depth"] = depth;
      if (setting) cell["bits_per_value"] = bits_at(outcome, *setting, length);
      cell.update(json_of(mean_of(recall_of, outcome, setting, length, depth)));
      json["cells"].push_back(cell);
    }
  return json;
}

Json json_of(const CodecSpec& spec, const Summary& summary, Columns columns) {
  Json ledger = Json::object();
  for (const Category category : kCategories)
    if (const uint64_t bits = summary.stored.category[static_cast<size_t>(category)]; bits > 0)
      ledger[std::string(name_of(category))] = static_cast<double>(bits) / 8;
  Json json = {{"setting", spec.text},
               {"label", spec.label},
               {"codec", spec.entry->name},
               {"dtype", spec.dtype},
               {"values", summary.stored.values},
               {"bits_per_value", summary.bits()},
               {"bits_per_value_with_book", summary.bits_with_book()},
               {"book_bytes", summary.book_bytes},
               {"ledger_bytes", ledger}};
  if (SelectionOptions selection = spec.selection; selection.by != SelectBy::all) {
    Record options = to_record(selection);
    for (const OptionField& field : selection.step_fields())
      if (selection.by == SelectBy::clusters && field.name.find("cluster") != std::string::npos)
        options.set(field.name, value_of(field));
    json["selection"] = to_json(options);
    json["selected"] = json_of(selected_measures(summary.selected));
  }
  if (spec.recipe) json["history"] = spec.recipe->type().history;
  if (columns.predicted) json.update(json_of(measures_of(summary, true, columns)));
  return json;
}

std::string json_report(const Command& command, const ModelOptions& options, const Settings& settings,
                        const EvalOutcome& outcome) {
  const Tasks& tasks = outcome.tasks;
  Json json = made_by(command);
  json.update({{"model", options.model},
               {"task", options.task},
               {"dtype", options.dtype},
               {"stream", options.stream},
               {"documents", tasks.documents.size()},
               {"tokens", outcome.tokens},
               {"judged_tokens", outcome.judged},
               {"seconds", outcome.seconds}});
  if (outcome.rounded) json["device"] = "cuda";
  if (options.window_layers == WindowLayers::trim) json["window_layers"] = options.window_layers;
  if (options.joined > 1) json.update({{"joined", options.joined}, {"recompute", options.recompute}});
  json["uncompressed"] = options.asks() ? Json::object() : json_of(measures_of(outcome.reference, false));
  if (options.family())
    json.update({{"seed", options.common.seed},
                 {"keys", options.keys},
                 {"values_per_key", options.values},
                 {"asked", options.asked}});
  if (options.asks()) {
    json["questions"] = tasks.questions.size();
    json["expected"] = mapped<std::vector<std::string>>(tasks.questions, &AskedQuestion::expected);
    json["uncompressed"]["recall"] = recall_json(options, outcome, {});
  } else {
    json.update({{"length", tasks.documents[0].tokens.size()}, {"prefix", tasks.documents[0].prefix}});
    if (tasks.written > 0) json["written"] = tasks.written;
  }
  json["settings"] = Json::array();
  for (size_t i = 0; i < settings.specs.size(); ++i) {
    json["settings"].push_back(json_of(settings.specs[i], outcome.summaries[i],
                                       {.agreed = tasks.written > 0, .predicted = !options.asks()}));
    if (options.asks()) json["settings"].back()["recall"] = recall_json(options, outcome, i);
  }
  return text_of(json);
}

/// The question in short, as "one of 12 keys".
std::string facts_text(const ModelOptions& options) {
  if (options.task == Task::common || options.task == Task::frequent)
    return fmt::format("the first {} words", options.values);
  if (options.task == Task::questions) return "questions about texts";
  const char* const what = options.task == Task::variables ? "chain" : "key";
  std::string text = options.asked > 1  ? fmt::format("{} of {} {}s", options.asked, options.keys, what)
                     : options.keys > 1 ? fmt::format("one of {} {}s", options.keys, what)
                                        : fmt::format("one {}", what);
  if (options.values > 1)
    text += fmt::format(", {} {}", options.values, options.task == Task::variables ? "names" : "values");
  return text;
}

std::string text_report(const ModelOptions& options, const Settings& settings, const EvalOutcome& outcome) {
  const Tasks& tasks = outcome.tasks;
  std::string out = fmt::format(
      "{}: {} of {} tokens, {}; cache in {}{}{}{}{}; {}\n", options.model,
      counted(tasks.documents.size(), "document"), grouped(outcome.tokens),
      options.asks() ? counted(tasks.questions.size(), "question") : grouped(outcome.judged) + " judged",
      name_of(options.dtype),
      options.stream > 0 ? fmt::format(", continued {} tokens at a time", options.stream) : "",
      options.joined > 1
          ? fmt::format(", joined of {}, {} tokens of each read again", options.joined, options.recompute)
          : "",
      options.window_layers == WindowLayers::trim ? ", windows only where layers have them" : "",
      outcome.rounded ? "; on a device" : "", time_text(outcome.seconds));
  for (const int64_t own : tasks.distinct(&AskedQuestion::length))
    out += fmt::format("\n{}{}, {}\n\n", name_of(options.task),
                       own > 0 ? fmt::format(" in {} tokens", own) : "", facts_text(options)) +
           recall_table(options, settings, outcome, own);
  if (options.asks()) return out;
  const Estimate& surprise = outcome.reference.predictions.surprise;
  const Columns columns = {
      .books = std::ranges::any_of(settings.book_bytes, [](uint64_t bytes) { return bytes > 0; }),
      .selected = std::ranges::any_of(outcome.summaries,
                                      [](const Summary& summary) { return summary.selected.selections > 0; }),
      .agreed = tasks.written > 0};
  MeasureTable table("setting");
  for (size_t i = 0; i < settings.specs.size(); ++i)
    table.row(settings.specs[i].label, measures_of(outcome.summaries[i], true, columns));
  return out +
         fmt::format(
             "uncompressed: NLL {:.4f} nats{}\n\n", surprise.mean,
             std::isfinite(surprise.half_width) ? fmt::format(" (+-{:.4f})", surprise.half_width) : "") +
         table.text();
}

/// Throws Error(usage) for options of other tasks.
void check_options_of(Task task, const Command& command) {
  using enum Task;
  const std::vector<Task> made = {recall, variables, common, frequent};
  const std::pair<std::vector<const char*>, std::vector<Task>> kOnly[] = {
      {{"lengths", "questions", "values"}, made},
      {{"keys", "asked"}, {recall, variables}},
      {{"depths"}, {recall}},
      {{"answers"}, {questions}},
      {{"written"}, {recall, variables, common, frequent, questions, generate}},
      {{"prefix", "max-documents", "max-tokens"}, {text, generate}}};
  for (const auto& [options, tasks] : kOnly)
    for (const char* option : options)
      if (command.given(option) && std::ranges::find(tasks, task) == tasks.end())
        throw usage_error(
            "--{} is for --task {}", option,
            fmt::join(mapped<std::string_view>(tasks, [](Task each) { return name_of(each); }), ", "));
}

std::string eval_model(Command& command) {
  ModelOptions options;
  options.selection = SelectionOptions::peek(command, "select", options.selection.by);
  command.describe(
      "--model PATH --text PATH ... --codec SPEC ... [options]",
      "Measures what a model loses when its cache is compressed. The model reads the first part of each "
      "document; its keys and values are encoded and decoded again under each setting; the model then reads "
      "the rest of the document with that cache. The table shows the bits per value of the cache, the "
      "negative log-likelihood of the text (NLL) and its rise over that with the uncompressed cache, the "
      "divergence of the next-token distributions from those with the uncompressed cache (KL), and how often "
      "the likeliest token is the same, with 95% intervals from the differences between documents.\n\n"
      "A setting is one word, NAME[:key=value,...]. NAME is a codec, or a codes file whose codec and "
      "options are used. The keys are the codec's options of encode without their dashes, book=FILE, "
      "weights=FILE, rope=, dtype=, label=, select=, and the options of the selection, as budget=.",
      "kvcodec eval-model --model data/demo-model --text docs/ \\\n"
      "  --codec kivi:bits=2,window=0 --codec sparse:book=dict.h5,sparsity=32\n"
      "kvcodec eval-model --model DIR --text docs/ --task recall --codec q4");
  const auto fields = options.fields();
  command.group("What is run");
  command.option(fields[0], "PATH");
  options.texts.declare_texts(command);
  command.repeated("codec", "a setting, NAME[:key=value,...] or a codes file; once for each", options.codecs,
                   "SPEC");
  command.option(fields[1]);
  command.group("Documents");
  command.options(options.texts);
  command.group("The cache");
  command.options(options.setting_fields());
  command.group("Attention to few tokens");
  command.options(options.selection.step_fields(), {{"dense-layers", "LIST"}});
  command.group("What the model writes");
  command.option(
      {"written",
       "tokens that the model writes, at most (0: 64 to generate; 32 about texts; twice those of a right answer)",
       &options.written, 0, 1e6});
  command.group("Questions");
  command.options(options.recall_fields(), {{"lengths", "LIST"}, {"answers", "FILE"}});
  declare_compute(command, options.compute);
  options.common.declare(command);
  command.parse();
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.texts.empty()) throw usage_error("no text is named; give files or folders with --text");
  if (options.codecs.empty()) throw usage_error("no setting is named; give codecs with --codec");
  check_options_of(options.task, command);
  if (options.task == Task::questions && options.answers.empty())
    throw usage_error("--task questions needs --answers, a file of questions and answers");
  if (options.joined == 1 && command.given("recompute"))
    throw usage_error("--recompute is for prefixes that are joined; add --joined");
  if (command.given("keys") && options.keys < options.asked)
    throw usage_error("--asked is {}, but --keys plants {}", options.asked,
                      counted(as_size(options.keys), "fact"));
  if (options.family() && options.values == 0)
    options.values = kValues[static_cast<size_t>(*options.family())];
  options.keys = std::max(options.keys, options.asked);
  if (command.given("chunk") && command.given("lengths"))
    throw usage_error("--chunk and --lengths exclude each other");
  options.common.apply(command, true);

  const Stopwatch watch;
  const std::unique_ptr<ModelFiles> files = open_model(options.model);
  Settings settings;
  GivenFields selection;  // the part that was given for all settings
  for (const OptionField& field : options.selection.step_fields())
    if (command.given(field.name)) selection.emplace_back(field.name, value_of(field));
  make_settings(options, selection, *files, settings);
  const bool selects = std::ranges::any_of(
      settings.specs, [](const CodecSpec& spec) { return spec.selection.by != SelectBy::all; });
  for (const auto& [name, value] : selection)
    if (name != "select" && !selects)
      throw usage_error("--{} is for settings that select tokens, and none does; add --select", name);
  settings.codecs.check_model(options.model, *files);
  LlamaModel model = make_model(*files, options.common, options.compute);
  const Tokenizer tokenizer = make_tokenizer(*files, options.common);
  Tasks tasks = make_tasks(options, *files, tokenizer);
  keep_weights(model, {.tokens = tokens_of(tasks.documents)});
  if (tasks.written > 0) write_on(model, tasks, options.common);
  EvalOutcome outcome = run_tasks(options, model, settings, tokenizer, std::move(tasks));
  outcome.seconds = watch.seconds();
  return options.common.json ? json_report(command, options, settings, outcome)
                             : text_report(options, settings, outcome);
}

}  // namespace

CommandEntry eval_model_command() {
  return {CommandGroup::look, 4, "eval-model", "measure what compressing its cache does to a model",
          eval_model};
}

}  // namespace kvcodec::cli
