#include "cli/codecs/codec_spec.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "cli/codecs/coding.hpp"
#include "formats/io/output.hpp"
#include "lib/core/mapped.hpp"

namespace kvcodec::cli {

/// Rounds of k-means that none takes: it stops where no token changes its cluster, as in the paper.
constexpr int64_t kUntilItConverges = 1'000'000;

SelectionOptions SelectionOptions::peek(const Command& command, const char* by, SelectBy otherwise) {
  return of(value_named<SelectBy>(command.peek(by)).value_or(otherwise),
            value_named<SelectionSetup>(command.peek("setup")).value_or(SelectionSetup::best));
}

SelectionOptions SelectionOptions::of(SelectBy by, SelectionSetup setup) {
  SelectionOptions options;
  options.by = by;
  options.setup = setup;
  if (setup == SelectionSetup::best) return options;
  options.first = options.newest = options.heavy = 0;
  options.candidates = 1;
  options.share = Share::each;
  // For clusters the index itself chooses the sink, and the oracle is compared with clusters.
  if (by == SelectBy::clusters) {
    options.beside = Beside::waiting;
    options.clusters.rounds = kUntilItConverges;
  }
  if (by == SelectBy::quest) options.newest = 16;  // the last page
  if (by == SelectBy::codes || by == SelectBy::signs) {
    // Their paper does not mention layers, nor query heads that share a key/value head.
    options.share = Share::max;
    options.heavy = 64;
    options.beside = Beside::generated;
    options.dense_layers = "none";
  }
  return options;
}

std::vector<OptionField> SelectionOptions::fields() {
  return {
      {.name = "by",
       .help =
           "how to score tokens: codes: by the index in the codes, or, without one, by products with their "
           "keys; signs: by the sign bits of that index alone; clusters: by the centroids in --index; "
           "quest: by Quest's bounds over pages of 16 tokens; oracle: by the true products",
       .target = &by,
       .choices = {kNamesOf<SelectBy>.begin() + 1, kNamesOf<SelectBy>.end()}},  // selectors that choose
      {"setup",
       "values of the options below that are not given: best: those that measured best on SmolLM2-135M; "
       "paper: those of the method's paper",
       &setup},
      {"share",
       "how to combine the scores of query heads that share a key/value head: by the mean of their softmax "
       "weights, by the largest or the mean score, or not at all: each head has its own selection",
       &share},
      {"budget",
       "number of tokens to select for each query, including those that are always selected; 0: as --ratio "
       "says",
       &budget, 0, 1e9},
      {"ratio",
       "tokens to select, as a fraction of those that the query sees; 0: 0.075, or all with "
       "--budget-mass",
       &ratio, 0, 1},
      {"budget-mass",
       "stop selecting, below the budget, once the selected tokens have this fraction of the attention "
       "weights, as estimated from scores and products; 0: never; needs --share weight or each",
       &mass, 0, 1},
      {"first", "first tokens of a document that are always selected", &first, 0, 1e9},
      {"newest", "newest tokens that are always selected", &newest, 0, 1e9},
      {"heavy",
       "number of tokens that are always selected because the last 32 queries of the prompt attend to them "
       "most; only codes of selfindex have such tokens, those that they keep exactly",
       &heavy, 0, 1e9},
      {"candidates",
       "preselect this many times the budget by score, then select among these tokens by the products of "
       "the query with their keys; 1: select by score alone",
       &candidates, 1, 1e6},
      {"beside",
       "tokens that are attended to beside the budget: none, those that wait for their cluster, or all that "
       "were generated, which are those behind the prompt",
       &beside},
      {"dense-layers", "layers that attend to all tokens, as 0-1, or none", &dense_layers}};
}

std::vector<OptionField> SelectionOptions::step_fields() {
  std::vector<OptionField> all = fields();
  all[0].name = "select";
  all[0].help =
      "tokens to attend to, selected anew at every step, layer and head: all of them, or the best by the "
      "index in the codes or products with their keys (codes), by sign codes (signs), semantic clusters, "
      "Quest's bounds (quest) or the true products (oracle)";
  all[0].choices = {kNamesOf<SelectBy>.begin(), kNamesOf<SelectBy>.end()};
  for (OptionField& field : all)
    if (field.name == "heavy")
      field.help =
          "tokens that are always selected because the last 32 queries of the prefix attend to them most";
  for (OptionField& field : clusters.fields()) {
    if (field.name.find("clusters") == std::string::npos) field.name = "cluster-" + field.name;
    all.push_back(std::move(field));
  }
  return all;
}

SelectionRule SelectionOptions::rule(int layers) const {
  SelectionRule rule{.by = by,
                     .budget = static_cast<uint64_t>(budget),
                     .newest = static_cast<uint64_t>(newest),
                     .first = static_cast<uint64_t>(first),
                     .heavy = static_cast<uint64_t>(heavy),
                     .candidates = static_cast<uint64_t>(candidates),
                     .mass = mass,
                     .ratio = ratio,
                     .share = share,
                     .beside = beside,
                     .dense_layers = parse_layers("dense-layers", dense_layers == "none" ? "" : dense_layers,
                                                  "none, or numbers and ranges, as 0-1"),
                     .clusters = clusters};
  // The default, limited to the layers of a smaller model.
  if (dense_layers == kFirstTwo) std::erase_if(rule.dense_layers, [&](int layer) { return layer >= layers; });
  for (const int layer : rule.dense_layers)
    if (layer >= layers)
      throw usage_error("layer {} is to attend to all tokens; the model has layers 0 to {}", layer,
                        layers - 1);
  return rule;
}

namespace {

void set_key(const std::string& part, const std::string& codec, const std::vector<OptionField>& fields) {
  const size_t equals = part.find('=');
  const std::string key = part.substr(0, equals);
  const auto field = std::ranges::find(fields, key, &OptionField::name);
  if (field == fields.end()) {
    std::vector<std::string> names(fields.size());
    std::ranges::transform(fields, names.begin(), &OptionField::name);
    throw usage_error("{} has no option '{}'; {}", codec, key,
                      advice(key, names, fmt::format("its options are {}", fmt::join(names, ", "))));
  }
  if (std::holds_alternative<bool*>(field->target)) {
    const std::string value = equals == std::string::npos ? "true" : part.substr(equals + 1);
    if (value != "true" && value != "false")
      throw usage_error("{} is '{}'; it must be true or false", key, value);
    return set_value(*field, Scalar{value == "true"});
  }
  if (equals == std::string::npos) throw usage_error("{} has no value; write {}=VALUE", key, key);
  set_from_text(*field, key, part.substr(equals + 1));
}

std::string front_name(const std::string& word) { return word.substr(0, word.find(':')); }

/// "bits=2", "unit-heads": the texts between the commas after the colon.
std::vector<std::string> settings_behind_colon(const std::string& word) {
  const size_t colon = word.find(':');
  if (colon == std::string::npos) return {};
  auto parts = split(std::string_view(word).substr(colon + 1), ',');
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

/// A parsed word: the codec, or the pair, and its settings; those of a pair have the pair's names, such as "value.bits=2".
struct Word {
  std::string name;
  std::vector<std::string> settings;
};

/// A "+" makes a pair only if a codec stands before and after it: other words have it in file names and in numbers.
Word parted(const std::string& word) {
  for (size_t at = word.find(kPairMark); at != std::string::npos; at = word.find(kPairMark, at + 1)) {
    const std::array halves{word.substr(0, at), word.substr(at + 1)};
    const auto* const keys = known_codec(front_name(halves[0]));
    const auto* const values = known_codec(front_name(halves[1]));
    if (!keys || !values || keys->is_pair() || values->is_pair()) continue;
    Word pair{front_name(halves[0]) + kPairMark + front_name(halves[1]), {}};
    for (const Side side : kSides) {
      const auto options = (side == Side::value ? values : keys)->make_options();
      const auto fields = options->fields();
      for (const std::string& part : settings_behind_colon(halves[side == Side::value])) {
        const bool own = std::ranges::count(fields, part.substr(0, part.find('=')), &OptionField::name) > 0;
        pair.settings.push_back((own ? std::string(pair_prefix(side)) : std::string()) + part);
      }
    }
    return pair;
  }
  return {front_name(word), settings_behind_colon(word)};
}

/// The selection of a word before its own keys are set: the defaults of the selector and the setup, which the word may name, with
/// the values given for all words.
SelectionOptions selection_before(const std::string& text, const GivenFields& given) {
  SelectBy by = SelectBy::all;
  SelectionSetup setup = SelectionSetup::best;
  const auto take = [&](std::string_view name, std::string_view value) {
    if (name == "select") by = value_named<SelectBy>(value).value_or(by);
    if (name == "setup") setup = value_named<SelectionSetup>(value).value_or(setup);
  };
  for (const auto& [name, value] : given) take(name, to_text(value));
  for (const std::string& part : parted(text).settings) {
    const auto words = split(part, '=');
    take(words.front(), words.back());
  }
  SelectionOptions selection = SelectionOptions::of(by, setup);
  for (const OptionField& field : selection.step_fields())
    for (const auto& [name, value] : given)
      if (name == field.name && name != "select" && name != "setup") set_value(field, value);
  return selection;
}

/// Checks keys that only apply to settings with a selection.
void check_selects(const SelectionOptions& selection, const std::vector<std::string>& given) {
  if (selection.by != SelectBy::all) return selection.check();
  for (const OptionField& field : SelectionOptions().step_fields())
    if (field.name != "select" && std::ranges::find(given, field.name) != given.end())
      throw usage_error("{} is for settings that select tokens; add select=", field.name);
}

CodecSpec parse(const std::string& text, const GivenFields& selection, DType dtype) {
  CodecSpec spec;
  spec.text = spec.label = text;
  const std::string name = parted(text).name;
  spec.dtype = dtype;
  spec.selection = selection_before(text, selection);
  std::string label;
  Preset preset = Preset::best;
  std::vector<OptionField> fields = {
      {"book", "", &spec.book}, {"weights", "", &spec.weights},
      {"rope", "", &spec.rope}, {"preset", "", &preset},
      {"label", "", &label},    {"dtype", "", &spec.dtype, {}, {}, {"bf16", "f16", "f32"}}};
  std::ranges::copy(spec.selection.step_fields(), std::back_inserter(fields));
  spec.entry = known_codec(name);
  if (spec.entry) {
    spec.options = options_from(*spec.entry, preset_in(text));
    const auto own = spec.options->fields();
    fields.insert(fields.begin(), own.begin(), own.end());
  } else if (state_of(name)) {
    spec.recipe.emplace(name);
    spec.entry = &codec_entry(*spec.recipe);
    spec.label = std::filesystem::path(name).filename().string() + text.substr(name.size());
  } else if (name.find_first_of("./") != std::string::npos && name.find(',') == std::string::npos) {
    throw usage_error("there is no file '{}'; the codecs: {}", name, fmt::join(codec_names(), ", "));
  } else {
    (void)codec_named(text);  // throws
  }
  set_keys(text, spec.recipe ? spec.recipe->name() : spec.entry->name, fields);
  const auto keys = keys_of(text);
  constexpr std::pair<const char*, const char*> kOfRecipe[] = {{"rope", "becomes of the rotary embedding"},
                                                               {"preset", "its codec's options are"},
                                                               {"weights", "errors weigh"}};
  for (const auto& [key, what] : kOfRecipe)
    if (spec.recipe && std::ranges::count(keys, key) > 0)
      throw usage_error("{} says what {}; leave out {}=", spec.recipe->name(), what, key);
  if (!label.empty()) spec.label = label;
  check_selects(spec.selection, keys);
  if (spec.options) spec.options->check();
  if (spec.entry->book_type.empty() && !spec.book.empty())
    throw usage_error("the codec {} takes no book", spec.entry->name);
  if (!spec.entry->book_type.empty() && spec.book.empty() && !spec.recipe)
    throw usage_error("the codec {} needs a {} file: book=FILE", spec.entry->name, spec.entry->book_type);
  return spec;
}

}  // namespace

OptionField preset_field(Preset& preset) {
  return {"preset",
          "values of the codec's options that are not given: default, those that do best, or paper, those "
          "of the paper that it follows",
          &preset};
}

Preset preset_in(const std::string& word, Preset otherwise) {
  Preset preset = otherwise;
  const OptionField field = preset_field(preset);
  for (const std::string& part : parted(word).settings)
    if (part.starts_with("preset=")) set_from_text(field, field.name, part.substr(field.name.size() + 1));
  return preset;
}

std::vector<std::string> codec_names() { return mapped<std::string>(codecs(), &CodecEntry::name); }

bool has_codec(const std::string& word) { return known_codec(parted(word).name) != nullptr; }

const CodecEntry& codec_named(const std::string& word) {
  const std::string name = parted(word).name;
  if (const CodecEntry* entry = known_codec(name)) return *entry;
  if (const size_t comma = name.find(','); comma != std::string::npos && known_codec(name.substr(0, comma)))
    throw usage_error("the options of a codec come after a colon: {}:{}", name.substr(0, comma),
                      word.substr(comma + 1));
  const auto names = codec_names();
  throw usage_error("'{}' is not a codec; {}", name,
                    advice(name, names, fmt::format("choose one of: {}", fmt::join(names, ", "))));
}

std::vector<std::string> keys_of(const std::string& word) {
  std::vector<std::string> keys;
  for (const std::string& part : parted(word).settings) keys.push_back(part.substr(0, part.find('=')));
  return keys;
}

void set_keys(const std::string& word, const std::string& codec, const std::vector<OptionField>& fields) {
  const auto keys = keys_of(word);
  for (const std::string& key : keys)
    if (std::ranges::count(keys, key) > 1) throw usage_error("{} is given more than once", key);
  for (const std::string& part : parted(word).settings) set_key(part, codec, fields);
}

CodecSpec parse_codec_spec(const std::string& text, const GivenFields& selection, DType dtype) {
  return with_context(fmt::format("--codec {}", text), [&] { return parse(text, selection, dtype); });
}

const Codec& SpecCodecs::make(const CodecSpec& spec, CodecContext context, uint64_t& book_bytes) {
  book_bytes = 0;
  if (!spec.book.empty()) {
    if (!books_.contains(spec.book))
      books_.emplace(spec.book, read_book(spec.book, spec.entry->book_type, false));
    const BookFile& book = books_.at(spec.book);
    if (spec.recipe) check_same_book(spec.book, book, *spec.recipe);
    context.book = &book.book;
    models_.emplace(spec.book, book.model);
  } else if (!spec.entry->book_type.empty()) {
    auto embedded = spec.recipe->embedded_book();
    if (!embedded)
      throw usage_error("{} needs the {} with digest {}: book=FILE", spec.recipe->name(),
                        spec.entry->book_type, spec.recipe->info().book_digest);
    embedded_.push_back(std::make_unique<Book>(std::move(*embedded)));
    context.book = embedded_.back().get();
    models_.emplace(spec.recipe->name(), spec.recipe->info().model);
  }
  if (context.book) book_bytes = context.book->size_bytes();
  context.engine = engine_for(*spec.entry, context.engine);
  if (!spec.weights.empty()) {
    const Weights weights = read_weights(spec.weights, context);
    models_.emplace(spec.weights, weights.file.info.model);
    context.weights = weights.by_layer();
  }
  codecs_.push_back(with_context(fmt::format("--codec {}", spec.text), [&] {
    return spec.recipe ? codec_from_record(*spec.entry, spec.recipe->info().parameters, context)
                       : make_codec(*spec.entry, *spec.options, context,
                                    choose_rope(*spec.entry, spec.rope, context));
  }));
  return *codecs_.back();
}

}  // namespace kvcodec::cli
