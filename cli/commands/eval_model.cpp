// kvcodec eval-model --model PATH --text PATH ... --codec SPEC ... [options]
//
//   --codec SPEC        NAME[:key=value,...] or a codes file; once for each setting
//   --task WHICH        text: predict the rest of each document; recall: find planted facts
//   --select WHICH      attend to chosen tokens only        --stream N    the cache grows through the codec
//
//   kvcodec eval-model --model data/demo-model --text docs/ --codec kivi:bits=2 --codec q4:rotate=hadamard
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/measures.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/judged_texts.hpp"
#include "cli/inputs/model_runner.hpp"
#include "formats/models/model_files.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/metrics/interval.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/metrics/recall.hpp"
#include "lib/metrics/recall_task.hpp"
#include "lib/pipeline/closed_loop.hpp"

namespace kvcodec::cli {
namespace {

enum class Task : uint8_t { text, recall };
constexpr auto names_of(Task) { return std::to_array<std::string_view>({"text", "recall"}); }

struct ModelOptions final : Options {
  std::string model, lengths;
  Task task = Task::text;
  DType dtype = DType::bf16;
  Compute compute = Compute::f32;
  SelectionOptions selection = SelectionOptions::of(SelectBy::all, SelectionSetup::best);
  WindowLayers window_layers = WindowLayers::keep;
  JudgedTextOptions texts;
  std::vector<std::string> codecs;
  int64_t stream = 0, survey = 16;
  int64_t depths = 5, questions = 10, keys = 1, values = 1;
  CommonOptions common;

  std::vector<OptionField> fields() override {
    return {
        {.name = "model",
         .help =
             "model directory as Hugging Face lays it out (config.json, *.safetensors, tokenizer.json), or a "
             "GGUF file",
         .target = &model},
        {.name = "task",
         .help = "text: predict the second part of each document; recall: answer questions about facts "
                 "planted in the text",
         .target = &task}};
  }
  std::vector<OptionField> setting_fields() {
    return {
        {.name = "dtype",
         .help = "element type of the cache: keys and values are rounded to it before and after coding",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
        {.name = "window-layers",
         .help =
             "which tokens of layers with a sliding window to compress: keep: all of the prefix; trim: only "
             "its last ones, as many as the window holds",
         .target = &window_layers},
        {.name = "stream",
         .help = "append the continuation's own keys and values to the codes, N tokens at a time, so that "
                 "later tokens attend to them as decoded; 1: token by token, as in generation (0: the "
                 "continuation's cache stays uncompressed)",
         .target = &stream,
         .min = 0},
        {.name = "survey",
         .help = "number of documents from whose prefixes codecs fit the tables that all documents share",
         .target = &survey,
         .min = 1,
         .max = 1e6}};
  }
  std::vector<OptionField> recall_fields() {
    return {{.name = "lengths",
             .help = "lengths of the documents in tokens, as 256,512 (default: --chunk)",
             .target = &lengths},
            {.name = "depths",
             .help = "places of the fact that is asked for, from the start of the text to its end",
             .target = &depths,
             .min = 1,
             .max = 1000},
            {.name = "questions",
             .help = "questions for each length and depth",
             .target = &questions,
             .min = 1,
             .max = 1e6},
            {.name = "keys",
             .help = "facts planted, each about another word",
             .target = &keys,
             .min = 1,
             .max = 1000},
            {.name = "values",
             .help = "numbers planted for the word asked for; each is a right answer",
             .target = &values,
             .min = 1,
             .max = 1000}};
  }
};

// Documents ----------------------------------------------------------------------------------------

struct RecallQuestion {
  int64_t length;
  double depth;
  AskedBy asked;
};

struct RecallTask {
  std::vector<RecallQuestion> questions;
  std::vector<LoopDocument> documents;
  std::vector<size_t> answers;  ///< of each document, judged tokens before its answer
};

std::vector<int64_t> parse_lengths(const std::string& text, int64_t otherwise) {
  if (text.empty()) return {otherwise};
  std::vector<int64_t> lengths;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t length = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, length);
    if (error != std::errc{} || stop != text.data() + end || length < 1)
      throw usage_error("--lengths is '{}'; it must be numbers such as 256,512", text);
    lengths.push_back(length);
    begin = end + 1;
  }
  return lengths;
}

RecallTask make_recall_task(const ModelOptions& options, const Tokenizer& tokenizer, const Texts& texts,
                            int64_t length) {
  RecallText text;
  if (options.texts.special) text.before = template_of(tokenizer).before;
  std::string all;
  for (size_t i = 0; i < texts.files.size(); ++i) {
    const auto tokens =
        with_context(texts.files[i], [&] { return tokenizer.encode(texts.contents[i], false); });
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
    all += texts.contents[i] + "\n";
  }
  text.words = recall_words(all);
  RecallTask task;
  constexpr int64_t kSeeds = int64_t{1} << 32;  // each leaves room for as many questions
  if (options.common.seed >= kSeeds)
    throw usage_error("--seed is {}; with --task recall it must be below {}", options.common.seed, kSeeds);
  auto seed = static_cast<uint64_t>(options.common.seed) << 32;
  for (const int64_t own : parse_lengths(options.lengths, length))
    for (int64_t d = 0; d < options.depths; ++d) {
      const double depth = recall_depth(static_cast<size_t>(d), static_cast<size_t>(options.depths));
      for (int64_t q = 0; q < options.questions; ++q) {
        const RecallOptions recall{.length = static_cast<size_t>(own),
                                   .depth = depth,
                                   .keys = static_cast<size_t>(options.keys),
                                   .values = static_cast<size_t>(options.values)};
        auto documents = make_recall_question(tokenizer, text, recall, seed++);
        task.questions.push_back({own, depth, {task.documents.size(), documents.size()}});
        for (RecallDocument& document : documents) {
          task.answers.push_back(document.answer - document.prefix - 1);
          task.documents.push_back({std::move(document.tokens), document.prefix});
        }
      }
    }
  return task;
}

// Settings -----------------------------------------------------------------------------------------

struct Settings {
  std::vector<CodecSpec> specs;
  SpecCodecs codecs;
  std::vector<LoopSetting> loop;
  std::vector<uint64_t> book_bytes;
};

/// What of the selection was given for all settings.
GivenFields given_selection(const Command& command, ModelOptions& options) {
  GivenFields given;
  for (const OptionField& field : options.selection.step_fields())
    if (command.given(field.name)) given.emplace_back(field.name, value_of(field));
  return given;
}

/// What selecting needs is not to be given where nothing selects.
void check_selection(const GivenFields& given, const Settings& settings) {
  if (std::ranges::any_of(settings.specs,
                          [](const CodecSpec& spec) { return spec.selection.by != SelectBy::all; }))
    return;
  for (const auto& [name, value] : given)
    if (name != "select")
      throw usage_error("--{} is for settings that select tokens, and none does; add --select", name);
}

/// Of a cache that is decoded: its codes choose by the signs of their index, or as the products with it do.
SelectionRule step_rule(const CodecSpec& spec, const ModelConfig& config) {
  SelectionRule rule = spec.selection.rule(config.num_layers);
  if (rule.by == SelectBy::codes)
    rule.by = spec.entry->capabilities.has_index ? SelectBy::signs : SelectBy::oracle;
  return rule;
}

void make_settings(const ModelOptions& options, const GivenFields& selection, const ModelConfig& config,
                   Settings& settings) {
  for (const std::string& text : options.codecs)
    settings.specs.push_back(parse_codec_spec(text, selection, options.dtype));
  const bool whole = options.window_layers == WindowLayers::keep ||
                     std::ranges::all_of(config.window, [](int64_t window) { return window == 0; });
  for (const CodecSpec& spec : settings.specs) {
    // As encode does with a cache of 32 bits; what keeps all as it is keeps that too.
    const bool exact = spec.entry->name == "none";
    CodecContext context{.num_layers = config.num_layers,
                         .heads = config.num_kv_heads,
                         .head_dim = config.head_dim,
                         .one_shape = !config.is_latent() && whole,
                         .query_heads = config.num_q_heads,
                         .storage = spec.dtype == DType::f32 && !exact ? DType::bf16 : spec.dtype,
                         .engine = options.common.engine(),
                         .rope = KeyRope::of(config)};
    settings.loop.push_back({&settings.codecs.make(spec, context, settings.book_bytes.emplace_back()),
                             spec.dtype, step_rule(spec, config)});
  }
}

// Results ------------------------------------------------------------------------------------------

/// All documents of one setting.
struct Summary {
  StoredBits stored;  ///< with what they share
  StoredBits shared;
  uint64_t book_bytes = 0;
  PredictionEstimates predictions;
  double divergence_99 = 0;  ///< the 99th percentile, over all judged tokens

  double bits() const { return stored.bits_per_value(); }
  double bits_with_book() const { return stored.bits_per_value(book_bytes); }
};

/// A document's score under one setting, or in the run that kept its cache.
using ScoreOf = std::function<const LoopScore&(const LoopResult&)>;

ScoreOf reference_score() {
  return [](const LoopResult& result) -> const LoopScore& { return result.reference; };
}

ScoreOf setting_score(size_t i) {
  return [i](const LoopResult& result) -> const LoopScore& { return result.settings[i]; };
}

Summary summarize(const std::vector<LoopResult>& results, const ScoreOf& of) {
  Summary summary;
  std::vector<PredictionSums> own, reference;
  std::vector<float> divergences;
  for (const LoopResult& result : results) {
    divergences.insert(divergences.end(), of(result).divergences.begin(), of(result).divergences.end());
    summary.stored.add(of(result).stored);
    own.push_back(of(result).sums);
    reference.push_back(result.reference.sums);
  }
  summary.predictions = estimate_predictions(own, reference);
  summary.divergence_99 = quantile(divergences, 0.99);
  return summary;
}

Summary summarize_setting(const std::vector<LoopResult>& results, const ClosedLoop& loop,
                          const Settings& settings, size_t i) {
  Summary summary = summarize(results, setting_score(i));
  summary.shared = loop.shared(i);
  summary.stored.add(summary.shared);
  summary.book_bytes = settings.book_bytes[i];
  return summary;
}

/// Of one setting (or the reference), which documents' answers came out.
std::vector<uint8_t> answered_documents(const RecallTask& task, const std::vector<LoopResult>& results,
                                        const ScoreOf& of) {
  std::vector<uint8_t> all;
  for (size_t i = 0; i < results.size(); ++i) all.push_back(answered(of(results[i]).right, task.answers[i]));
  return all;
}

/// The share of questions answered, of those that `chosen` picks.
ShareEstimate accuracy(const RecallTask& task, const std::vector<uint8_t>& answered,
                       const std::function<bool(const RecallQuestion&)>& chosen) {
  std::vector<AskedBy> questions;
  for (const RecallQuestion& question : task.questions)
    if (chosen(question)) questions.push_back(question.asked);
  return recall_accuracy(questions, answered);
}

/// Of a setting, bits per value of the documents of that length, with all that documents share.
double bits_at(const RecallTask& task, const std::vector<LoopResult>& results, const ScoreOf& of,
               const Summary& summary, int64_t length) {
  StoredBits stored = summary.shared;
  for (const RecallQuestion& question : task.questions)
    if (question.length == length)
      for (size_t i = question.asked.first; i < question.asked.first + question.asked.count; ++i)
        stored.add(of(results[i]).stored);
  return stored.bits_per_value();
}

template <class Value>
std::vector<Value> distinct(const RecallTask& task, Value RecallQuestion::*member) {
  std::vector<Value> values;
  for (const RecallQuestion& question : task.questions)
    if (std::ranges::find(values, question.*member) == values.end()) values.push_back(question.*member);
  return values;
}

// Text ---------------------------------------------------------------------------------------------

std::string number(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

std::string half_width(const Estimate& estimate, int digits) {
  return std::isfinite(estimate.half_width) ? number(estimate.half_width, digits) : "-";
}

/// A mean and its interval, which JSON says in one field. percent: a share, whose interval is "-" where it is wider than
/// all shares there are.
Measures estimate(const char* key, Table::Column column, const Estimate& estimate, int digits,
                  bool percent = false) {
  const double factor = percent ? 100 : 1, most = percent ? 1 : INFINITY;
  return {{key, to_json(estimate), std::move(column), number(factor * estimate.mean, digits)},
          {nullptr,
           {},
           {"+-", "95%"},
           estimate.half_width < most ? number(factor * estimate.half_width, digits) : "-"}};
}

Measures measures_of(const PredictionEstimates& predictions) {
  Measures measures = {
      {"nll", to_json(predictions.surprise), {"NLL", "nats"}, number(predictions.surprise.mean, 4)}};
  for (const Measures& more : {estimate("nll_rise", {"NLL rise", "nats"}, predictions.rise, 5),
                               estimate("kl", {"KL", "nats"}, predictions.divergence, 5),
                               estimate("same_top1", {"same top-1", "%"}, predictions.same_best, 2, true)})
    measures = joined(std::move(measures), more);
  measures.push_back({"right_top1", to_json(predictions.right)});
  return measures;
}

Measures measures_of(const Summary& summary, bool books) {
  Measures measures = {decimal(nullptr, {"bits", "/value"}, summary.bits(), 3)};
  if (books) measures.push_back(decimal(nullptr, {"bits", "with book"}, summary.bits_with_book(), 3));
  for (Measure& measure : measures_of(summary.predictions)) {
    if (measure.key && measure.key == std::string_view("same_top1"))
      measures.push_back(decimal(nullptr, {"KL", "99th pct"}, summary.divergence_99, 4));
    if (measure.key && measure.key == std::string_view("kl"))
      measure.value["quantile_99"] = summary.divergence_99;
    measures.push_back(std::move(measure));
  }
  return measures;
}

bool any_books(const Settings& settings) {
  return std::ranges::any_of(settings.book_bytes, [](uint64_t bytes) { return bytes > 0; });
}

std::string text_table(const Settings& settings, const std::vector<Summary>& summaries) {
  MeasureTable table("setting");
  for (size_t i = 0; i < summaries.size(); ++i)
    table.row(settings.specs[i].label, measures_of(summaries[i], any_books(settings)));
  return table.text();
}

std::string recall_table(const RecallTask& task, const Settings& settings,
                         const std::vector<Summary>& summaries, const std::vector<LoopResult>& results,
                         int64_t length) {
  const auto depths = distinct(task, &RecallQuestion::depth);
  std::vector<Table::Column> columns = {
      {"setting"}, {"bits", "/value"}, {"right", "%"}, {"95% interval", "%"}};
  for (const double depth : depths)
    columns.push_back(
        {.title = fmt::format("{:.2f}", depth), .unit = "", .left = false, .group = "right in % by depth"});
  Table table(columns);
  const auto add = [&](const std::string& label, const std::string& bits, const ScoreOf& score) {
    const std::vector<uint8_t> of = answered_documents(task, results, score);
    const ShareEstimate all = accuracy(task, of, [&](const RecallQuestion& q) { return q.length == length; });
    std::vector<std::string> cells = {label, bits, fmt::format("{:.1f}", 100 * all.share),
                                      fmt::format("{:.1f}-{:.1f}", 100 * all.low, 100 * all.high)};
    for (const double depth : depths)
      cells.push_back(fmt::format("{:.0f}", 100 * accuracy(task, of, [&](const RecallQuestion& q) {
                                                    return q.length == length && q.depth == depth;
                                                  }).share));
    table.row(std::move(cells));
  };
  add("uncompressed", "-", reference_score());
  table.rule();
  for (size_t i = 0; i < settings.specs.size(); ++i) {
    const double bits = bits_at(task, results, setting_score(i), summaries[i], length);
    add(settings.specs[i].label, fmt::format("{:.3f}", bits), setting_score(i));
  }
  return table.text();
}

// JSON ---------------------------------------------------------------------------------------------

Json json_of(const ShareEstimate& estimate) {
  return {{"share", estimate.share}, {"low_95", estimate.low}, {"high_95", estimate.high}};
}

Json selection_json(SelectionOptions selection) { return to_json(to_record(selection)); }

Json json_of(const CodecSpec& spec, const Summary& summary) {
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
  if (spec.selection.by != SelectBy::all) json["selection"] = selection_json(spec.selection);
  if (spec.recipe) json["history"] = spec.recipe->type().history;
  return json;
}

/// summary: of a setting; nullptr: of the uncompressed cache, which has no rate.
Json recall_json(const RecallTask& task, const std::vector<LoopResult>& results, const ScoreOf& score,
                 const Summary* summary) {
  const std::vector<uint8_t> of = answered_documents(task, results, score);
  Json json = json_of(accuracy(task, of, [](const RecallQuestion&) { return true; }));
  json["cells"] = Json::array();
  for (const int64_t length : distinct(task, &RecallQuestion::length))
    for (const double depth : distinct(task, &RecallQuestion::depth)) {
      Json cell = {{"length", length}, {"depth", depth}};
      if (summary) cell["bits_per_value"] = bits_at(task, results, score, *summary, length);
      cell.update(json_of(accuracy(
          task, of, [&](const RecallQuestion& q) { return q.length == length && q.depth == depth; })));
      json["cells"].push_back(cell);
    }
  return json;
}

// ----------------------------------------------------------------------------------------------------

void declare(Command& command, ModelOptions& options) {
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
      "kvcodec eval-model --model data/demo-model --text docs/ --task recall --codec fp8 --codec q4");
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
  command.group("Task recall");
  command.options(options.recall_fields(), {{"lengths", "LIST"}});
  declare_compute(command, options.compute);
  options.common.declare(command);
}

void check_combination(const Command& command, const ModelOptions& options) {
  if (options.model.empty())
    throw usage_error("no model is named; give its directory or GGUF file with --model");
  if (options.texts.texts.empty()) throw usage_error("no text is named; give files or folders with --text");
  if (options.codecs.empty()) throw usage_error("no setting is named; give codecs with --codec");
  for (const char* only : {"lengths", "depths", "questions", "keys", "values"})
    if (command.given(only) && options.task != Task::recall)
      throw usage_error("--{} is for --task recall", only);
  for (const char* only : {"prefix", "max-documents", "max-tokens"})
    if (command.given(only) && options.task == Task::recall)
      throw usage_error("--{} is for --task text", only);
  if (command.given("chunk") && command.given("lengths"))
    throw usage_error("--chunk and --lengths exclude each other");
}

/// What is run: documents, and for planted facts what was asked in them.
struct Tasks {
  bool recall = false;
  int64_t length = 0;  ///< tokens of a document of text
  JudgedTexts text;
  RecallTask questions;

  const std::vector<LoopDocument>& documents() const { return recall ? questions.documents : text.documents; }
};

Tasks make_tasks(const ModelOptions& options, const ModelFiles& files) {
  const ModelConfig& config = files.description().config;
  const Tokenizer tokenizer = make_tokenizer(files, options.common);
  Tasks tasks;
  tasks.recall = options.task == Task::recall;
  tasks.length = document_length(options.texts, config);
  const Texts texts = read_texts(options.texts, options.common);
  if (tasks.recall)
    tasks.questions = make_recall_task(options, tokenizer, texts, tasks.length);
  else
    tasks.text = judged_texts(options.texts, options.common, tokenizer, texts, tasks.length);
  check_context(tasks.documents(), config);
  return tasks;
}

/// All that came out.
struct Outcome {
  std::vector<LoopResult> results;  ///< of each document
  std::vector<Summary> summaries;   ///< of each setting
  PredictionEstimates reference;    ///< of the uncompressed cache
  uint64_t tokens = 0, judged = 0;
  bool rounded = false;  ///< on a device, with other roundings
  double seconds = 0;
};

Outcome run_tasks(const ModelOptions& options, const LlamaModel& model, const Settings& settings,
                  const Tasks& tasks) {
  Engine* const engine = options.common.engine();
  ClosedLoop loop(model, settings.loop,
                  {.stream = static_cast<size_t>(options.stream),
                   .survey_documents = static_cast<size_t>(options.survey),
                   .memory = options.common.memory_bytes(),
                   .window_layers = options.window_layers,
                   .engine = engine});
  Outcome outcome;
  {
    ProgressBar bar("eval-model", "tokens", options.common.quiet);
    outcome.results = loop.run(tasks.documents(), bar.callback());
  }
  outcome.rounded = engine && !engine->exact();
  for (size_t i = 0; i < settings.specs.size(); ++i)
    outcome.summaries.push_back(summarize_setting(outcome.results, loop, settings, i));
  outcome.reference = summarize(outcome.results, reference_score()).predictions;
  for (const LoopDocument& document : tasks.documents()) outcome.tokens += document.tokens.size();
  for (const LoopResult& result : outcome.results) outcome.judged += result.reference.sums.tokens;
  return outcome;
}

Json facts_json(const ModelOptions& options, const Tasks& tasks, const Outcome& outcome) {
  return {{"model", options.model},
          {"task", options.task},
          {"dtype", options.dtype},
          {"stream", options.stream},
          {"documents", tasks.documents().size()},
          {"tokens", outcome.tokens},
          {"judged_tokens", outcome.judged},
          {"seconds", outcome.seconds}};
}

std::string json_report(const Command& command, const ModelOptions& options, const Settings& settings,
                        const Tasks& tasks, const Outcome& outcome) {
  Json json = made_by(command);
  json.update(facts_json(options, tasks, outcome));
  if (outcome.rounded) json["device"] = "cuda";
  if (options.window_layers == WindowLayers::trim) json["window_layers"] = options.window_layers;
  json["uncompressed"] = json_of(measures_of(outcome.reference));
  if (tasks.recall) {
    json["seed"] = options.common.seed;
    json["keys"] = options.keys;
    json["values_per_key"] = options.values;
    json["uncompressed"]["recall"] =
        recall_json(tasks.questions, outcome.results, reference_score(), nullptr);
  } else {
    json["length"] = tasks.length;
    json["prefix"] = tasks.documents()[0].prefix;
  }
  json["settings"] = Json::array();
  for (size_t i = 0; i < settings.specs.size(); ++i) {
    Json one = json_of(settings.specs[i], outcome.summaries[i]);
    one.update(json_of(measures_of(outcome.summaries[i], false)));
    if (tasks.recall)
      one["recall"] = recall_json(tasks.questions, outcome.results, setting_score(i), &outcome.summaries[i]);
    json["settings"].push_back(one);
  }
  return text_of(json);
}

std::string facts_text(const ModelOptions& options) {
  if (options.keys > 1 && options.values > 1)
    return fmt::format("one of {} keys, any of its {} values", options.keys, options.values);
  if (options.keys > 1) return fmt::format("one of {} keys", options.keys);
  return options.values > 1 ? fmt::format("one of {} values", options.values) : "single facts";
}

std::string text_report(const ModelOptions& options, const Settings& settings, const Tasks& tasks,
                        const Outcome& outcome) {
  std::string out = fmt::format(
      "{}: {} of {} tokens, {} judged; cache in {}{}{}{}; {}\n", options.model,
      counted(tasks.documents().size(), "document"), grouped(outcome.tokens), grouped(outcome.judged),
      name_of(options.dtype),
      options.stream > 0 ? fmt::format(", continued {} tokens at a time", options.stream) : std::string(),
      options.window_layers == WindowLayers::trim ? ", windows only where layers have them" : "",
      outcome.rounded ? "; on a device" : "", time_text(outcome.seconds));
  if (tasks.recall) {
    for (const int64_t own : distinct(tasks.questions, &RecallQuestion::length))
      out += fmt::format("\nrecall in {} tokens, {}\n\n", own, facts_text(options)) +
             recall_table(tasks.questions, settings, outcome.summaries, outcome.results, own);
    return out;
  }
  const Estimate& surprise = outcome.reference.surprise;
  return out +
         fmt::format("uncompressed: NLL {} nats{}\n\n", number(surprise.mean, 4),
                     std::isfinite(surprise.half_width) ? fmt::format(" (+-{})", half_width(surprise, 4))
                                                        : std::string()) +
         text_table(settings, outcome.summaries);
}

std::string eval_model(Command& command) {
  ModelOptions options;
  // What these name decides what the others are where they are not given.
  options.selection = SelectionOptions::of(
      value_named<SelectBy>(command.peek("select")).value_or(options.selection.by),
      value_named<SelectionSetup>(command.peek("setup")).value_or(options.selection.setup));
  declare(command, options);
  command.parse();
  check_combination(command, options);
  options.common.apply(command, true);

  const Stopwatch watch;
  const std::unique_ptr<ModelFiles> files = open_model(options.model);
  const ModelConfig& config = files->description().config;
  Settings settings;
  const GivenFields selection = given_selection(command, options);
  make_settings(options, selection, config, settings);
  check_selection(selection, settings);
  settings.codecs.check_model(options.model, *files);
  LlamaModel model = make_model(*files, options.common, options.compute);
  const Tasks tasks = make_tasks(options, *files);
  keep_weights(model, {.tokens = tokens_of(tasks.documents())});
  Outcome outcome = run_tasks(options, model, settings, tasks);
  outcome.seconds = watch.seconds();
  return options.common.json ? json_report(command, options, settings, tasks, outcome)
                             : text_report(options, settings, tasks, outcome);
}

}  // namespace

CommandEntry eval_model_command() {
  return {CommandGroup::look, 4, "eval-model", "measure what compressing its cache does to a model",
          eval_model};
}

}  // namespace kvcodec::cli
