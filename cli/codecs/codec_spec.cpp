#include "cli/codecs/codec_spec.hpp"

#include <algorithm>
#include <filesystem>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/weights.hpp"
#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "formats/io/output.hpp"
#include "lib/codec/pair_codec.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Keys that every word may have, as fields of the spec.
struct SharedKeys final : Options {
  std::string book, weights, label;
  DType dtype = DType::bf16;
  std::optional<RopeChoice> rope;
  Preset preset = Preset::best;

  std::vector<OptionField> fields() override {
    return {{"book", "", &book},   {"weights", "", &weights},
            {"rope", "", &rope},   {"preset", "", &preset},
            {"label", "", &label}, {"dtype", "", &dtype, {}, {}, {"bf16", "f16", "f32"}}};
  }
};

void set_key(const std::string& part, const std::string& codec, const std::vector<OptionField>& fields) {
  const size_t equals = part.find('=');
  const std::string key = part.substr(0, equals);
  const auto field = std::ranges::find(fields, key, &OptionField::name);
  if (field == fields.end()) {
    std::vector<std::string> names;
    names.reserve(fields.size());
    for (const OptionField& each : fields) names.push_back(each.name);
    const std::string meant = suggestion(key, names);
    throw usage_error("{} has no option '{}'; {}", codec, key,
                      meant.empty() ? fmt::format("its options are {}", fmt::join(names, ", "))
                                    : fmt::format("did you mean {}?", meant));
  }
  if (auto* const* flag = std::get_if<bool*>(&field->target)) {
    const std::string value = equals == std::string::npos ? "true" : part.substr(equals + 1);
    if (value != "true" && value != "false")
      throw usage_error("{} is '{}'; it must be true or false", key, value);
    **flag = value == "true";
    return;
  }
  if (equals == std::string::npos) throw usage_error("{} has no value; write {}=VALUE", key, key);
  set_from_text(*field, key, part.substr(equals + 1));
}

std::string front_name(const std::string& word) { return word.substr(0, word.find(':')); }

/// The words that a pair's word is made of, that of keys and that of values; else the word itself. Other words have the mark
/// too, in files and in numbers: a codec is to follow, and nothing but its options.
std::vector<std::string> halves_of(const std::string& word) {
  const auto names_one = [](const std::string& half) {
    const std::string name = front_name(half);
    return name.find(kPairMark) == std::string::npos && known_codec(name);
  };
  for (size_t at = word.find(kPairMark); at != std::string::npos; at = word.find(kPairMark, at + 1)) {
    const std::string keys = word.substr(0, at), values = word.substr(at + 1);
    if (names_one(keys) && names_one(values)) return {keys, values};
  }
  return {word};
}

std::string name_in(const std::string& word) {
  const auto halves = halves_of(word);
  std::string name = front_name(halves[0]);
  if (halves.size() == 2) name += kPairMark + front_name(halves[1]);
  return name;
}

/// "bits=2", "unit-heads": what stands between the commas behind the colon.
std::vector<std::string> settings_behind_colon(const std::string& word) {
  std::vector<std::string> parts;
  const size_t colon = word.find(':');
  for (size_t begin = colon == std::string::npos ? word.size() : colon + 1; begin < word.size();) {
    const size_t end = std::min(word.find(',', begin), word.size());
    parts.push_back(word.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The same of a word; of a pair's, options of its codecs are called as the pair calls them: "value.bits=2".
std::vector<std::string> settings_in(const std::string& word) {
  const auto halves = halves_of(word);
  if (halves.size() == 1) return settings_behind_colon(word);
  std::vector<std::string> parts;
  for (const Side side : kSides) {
    const std::string& half = halves[side == Side::value];
    const auto options = find_codec(front_name(half)).make_options();
    const auto fields = options->fields();
    for (const std::string& part : settings_behind_colon(half)) {
      const bool own = std::ranges::count(fields, part.substr(0, part.find('=')), &OptionField::name) > 0;
      parts.push_back((own ? std::string(pair_prefix(side)) : std::string()) + part);
    }
  }
  return parts;
}

const CodecEntry& codec_of(const CodesReader& codes) {
  if (const CodecEntry* entry = known_codec(codes.info().codec)) return *entry;
  throw bad_input("{}: it was made by the codec '{}', which this kvcodec does not have", codes.name(),
                  codes.info().codec);
}

/// The selection of a word before its own keys are set: as the selector and the setup have it, which the word may name,
/// and with what is given for all words.
SelectionOptions selection_before(const std::string& text, const GivenFields& given) {
  SelectBy by = SelectBy::all;
  SelectionSetup setup = SelectionSetup::best;
  const auto take = [&](std::string_view name, std::string_view value) {
    if (name == "select") by = value_named<SelectBy>(value).value_or(by);
    if (name == "setup") setup = value_named<SelectionSetup>(value).value_or(setup);
  };
  for (const auto& [name, value] : given)
    if (const auto* word = std::get_if<std::string>(&value)) take(name, *word);
  for (const std::string& part : settings_in(text)) {
    const size_t equals = std::min(part.find('='), part.size());
    take(std::string_view(part).substr(0, equals),
         std::string_view(part).substr(std::min(equals + 1, part.size())));
  }
  SelectionOptions selection = SelectionOptions::of(by, setup);
  for (const OptionField& field : selection.step_fields())
    for (const auto& [name, value] : given)
      if (name == field.name && name != "select" && name != "setup") set_value(field, value);
  return selection;
}

/// Keys that only settings take that select.
void check_selects(const SelectionOptions& selection, const std::vector<std::string>& given) {
  if (selection.by != SelectBy::all) return selection.check();
  SelectionOptions any;
  for (const OptionField& field : any.step_fields())
    if (field.name != "select" && std::ranges::find(given, field.name) != given.end())
      throw usage_error("{} is for settings that select tokens; add select=", field.name);
}

CodecSpec parse(const std::string& text, const GivenFields& selection, DType dtype) {
  CodecSpec spec;
  spec.text = spec.label = text;
  const std::string name = name_in(text);
  SharedKeys shared;
  shared.dtype = dtype;
  spec.selection = selection_before(text, selection);
  std::vector<OptionField> fields = shared.fields();
  for (OptionField& field : spec.selection.step_fields()) fields.push_back(std::move(field));
  spec.entry = known_codec(name);
  if (spec.entry) {
    spec.options = options_from(*spec.entry, preset_in(text));
    const auto own = spec.options->fields();
    fields.insert(fields.begin(), own.begin(), own.end());
  } else if (state_of(name)) {
    spec.recipe.emplace(name);
    spec.entry = &codec_of(*spec.recipe);
    spec.label = std::filesystem::path(name).filename().string() + text.substr(name.size());
  } else if (name.find_first_of("./") != std::string::npos && name.find(',') == std::string::npos) {
    throw usage_error("there is no file '{}'; the codecs: {}", name, fmt::join(codec_names(), ", "));
  } else {
    (void)codec_named(text);  // throws
  }
  set_keys(text, spec.recipe ? spec.recipe->name() : spec.entry->name, fields);
  spec.book = shared.book;
  spec.weights = shared.weights;
  spec.dtype = shared.dtype;
  spec.rope = shared.rope;
  if (spec.rope && spec.recipe)
    throw usage_error("{} says what becomes of the rotary embedding; leave out rope=", spec.recipe->name());
  if (spec.recipe && std::ranges::count(keys_of(text), "preset") > 0)
    throw usage_error("{} says what its codec's options are; leave out preset=", spec.recipe->name());
  if (!spec.weights.empty() && spec.recipe)
    throw usage_error("{} says what errors weigh; leave out weights=", spec.recipe->name());
  if (!shared.label.empty()) spec.label = shared.label;
  check_selects(spec.selection, keys_of(text));
  if (spec.options) spec.options->check();
  if (spec.entry->book_type.empty() && !spec.book.empty())
    throw usage_error("the codec {} takes no book", spec.entry->name);
  if (!spec.entry->book_type.empty() && spec.book.empty() && !spec.recipe)
    throw usage_error("the codec {} needs a {} file: book=FILE", spec.entry->name, spec.entry->book_type);
  return spec;
}

}  // namespace

OptionField preset_field(Preset& preset) {
  return {
      .name = "preset",
      .help =
          "values of the codec's options that are not given: default, those that do best, or paper, those "
          "of the paper that it follows",
      .target = &preset};
}

std::unique_ptr<Options> options_from(const CodecEntry& entry, Preset preset) {
  auto options = entry.make_options();
  if (preset == Preset::paper) take_paper_form(entry, *options);
  return options;
}

Preset preset_in(const std::string& word, Preset otherwise) {
  Preset preset = otherwise;
  const OptionField field = preset_field(preset);
  for (const std::string& part : settings_in(word))
    if (part.starts_with("preset=")) set_from_text(field, field.name, part.substr(field.name.size() + 1));
  return preset;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecEntry& entry : codecs()) names.emplace_back(entry.name);
  return names;
}

bool has_codec(const std::string& word) { return known_codec(name_in(word)) != nullptr; }

const CodecEntry& codec_named(const std::string& word) {
  const std::string name = name_in(word);
  if (const CodecEntry* entry = known_codec(name)) return *entry;
  if (const size_t comma = name.find(','); comma != std::string::npos && known_codec(name.substr(0, comma)))
    throw usage_error("the options of a codec come after a colon: {}:{}", name.substr(0, comma),
                      word.substr(comma + 1));
  const auto names = codec_names();
  const std::string meant = suggestion(name, names);
  throw usage_error("'{}' is not a codec; {}", name,
                    meant.empty() ? fmt::format("choose one of: {}", fmt::join(names, ", "))
                                  : fmt::format("did you mean {}?", meant));
}

std::vector<std::string> keys_of(const std::string& word) {
  std::vector<std::string> keys;
  for (const std::string& part : settings_in(word)) keys.push_back(part.substr(0, part.find('=')));
  return keys;
}

void set_keys(const std::string& word, const std::string& codec, const std::vector<OptionField>& fields) {
  std::vector<std::string> given;
  for (const std::string& part : settings_in(word)) {
    const std::string key = part.substr(0, part.find('='));
    if (std::ranges::find(given, key) != given.end()) throw usage_error("{} is given more than once", key);
    given.push_back(key);
    set_key(part, codec, fields);
  }
}

CodecSpec parse_codec_spec(const std::string& text, const GivenFields& selection, DType dtype) {
  return with_context(fmt::format("--codec {}", text), [&] { return parse(text, selection, dtype); });
}

void SpecCodecs::check_model(const std::string& named, ModelFiles& files) const {
  for (const auto& [file, model] : models_)
    if (!model.weights().empty()) check_same_weights(file, model, named, model_info(named, files, false));
}

const Codec& SpecCodecs::make(const CodecSpec& spec, CodecContext context, uint64_t& book_bytes) {
  book_bytes = 0;
  if (!spec.book.empty()) {
    auto place = books_.find(spec.book);
    if (place == books_.end())
      place = books_.emplace(spec.book, read_book(spec.book, spec.entry->book_type, false)).first;
    if (spec.recipe && place->second.digest != spec.recipe->info().book_digest)
      throw bad_input("{}: the digest of this {} is {}; {} was made with {}", spec.book,
                      spec.entry->book_type, place->second.digest, spec.recipe->name(),
                      spec.recipe->info().book_digest);
    context.book = &place->second.book;
    models_.emplace(spec.book, place->second.model);
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
