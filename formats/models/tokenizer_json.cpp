#include "formats/models/tokenizer_json.hpp"

#include <filesystem>

#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

using Json = nlohmann::json;

// A value and its location, for messages.
class Node {
 public:
  Node(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw bad_input("{}: {}", path_.empty() ? "/" : path_, what);
  }

  bool has(const std::string& key) const { return object().contains(key) && !object().at(key).is_null(); }

  /// A member that must exist. null counts as existing.
  Node at(const std::string& key) const {
    const auto found = object().find(key);
    if (found == object().end()) refuse(fmt::format("\"{}\" is missing", key));
    return {*found, path_ + "/" + key};
  }
  Node at(size_t index) const { return {array().at(index), fmt::format("{}/{}", path_, index)}; }
  size_t size() const { return array().size(); }

  const Json& object() const { return check(value_->is_object(), "an object"); }
  const Json& array() const { return check(value_->is_array(), "a list"); }
  bool is_null() const { return value_->is_null(); }
  const std::string& string() const {
    return check(value_->is_string(), "a string").get_ref<const std::string&>();
  }
  bool boolean() const { return check(value_->is_boolean(), "true or false").get<bool>(); }
  uint32_t id() const {
    check(value_->is_number_unsigned() && value_->get<uint64_t>() <= UINT32_MAX,
          "a number from 0 to 4294967295");
    return value_->get<uint32_t>();
  }

  bool boolean_or(const std::string& key, bool otherwise) const {
    return has(key) ? at(key).boolean() : otherwise;
  }

  /// "type" of a step; empty if it has none.
  std::string type() const { return has("type") ? at("type").string() : std::string(); }

  [[noreturn]] void refuse_type(std::string_view supported) const {
    refuse(fmt::format("type {} is not supported; supported: {}", quote_text(type()), supported));
  }

 private:
  const Json& check(bool is_right, std::string_view expected) const {
    if (!is_right) refuse(fmt::format("is {}; expected {}", value_->type_name(), expected));
    return *value_;
  }

  const Json* value_;
  std::string path_;
};

// Calls visit for each step of a node: for none if it is null, for itself, or for those of a Sequence (which may be nested).
template <class Visit>
void for_each_step(const Node& node, const std::string& member, Visit&& visit, int depth = 0) {
  constexpr int kMaxDepth = 20;
  if (node.is_null()) return;
  if (node.type() != "Sequence") return visit(node);
  if (depth == kMaxDepth) node.refuse("Sequences are nested too deeply");
  const Node steps = node.at(member);
  for (size_t i = 0; i < steps.size(); ++i) for_each_step(steps.at(i), member, visit, depth + 1);
}

// The part `key` of the file, or null if there is none.
Node part(const Node& root, const std::string& key) {
  static const Json kNull;
  return root.has(key) ? root.at(key) : Node(kNull, "/" + key);
}

template <class Step>
std::vector<Step> read_steps(const Node& node, const std::string& member, Step (*read)(const Node&)) {
  constexpr size_t kMaxSteps = 100;  // pre-tokenizers call each other; known files have at most four
  std::vector<Step> steps;
  for_each_step(node, member, [&](const Node& step) {
    if (steps.size() == kMaxSteps)
      step.refuse(fmt::format("is step {}; at most {}", kMaxSteps + 1, kMaxSteps));
    steps.push_back(read(step));
  });
  return steps;
}

TextPattern pattern(const Node& node) {
  if (node.has("String")) return TextPattern::literal(node.at("String").string());
  if (node.has("Regex")) return TextPattern::regex(node.at("Regex").string());
  node.refuse("has neither \"String\" nor \"Regex\"");
}

template <NamedEnum E>
E named(const Node& node) {
  if (const auto value = value_named<E>(node.string())) return *value;
  const auto& names = kNamesOf<E>;
  node.refuse(fmt::format("is {}; expected {} or {}", quote_text(node.string()),
                          fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
}

std::string character(const Node& node) {
  const std::string& text = node.string();
  unsigned size = 0;
  if (!text.empty()) decode_utf8(text.data(), size);
  if (text.empty() || size != text.size())
    node.refuse(fmt::format("is {}; expected one character", quote_text(text)));
  return text;
}

// From version 0.14 of the reference on, "prepend_scheme" gives it; before, "add_prefix_space" did.
PrependScheme prepend_scheme(const Node& node) {
  const bool no_prefix = node.has("add_prefix_space") && !node.at("add_prefix_space").boolean();
  if (!node.has("prepend_scheme")) return no_prefix ? PrependScheme::never : PrependScheme::always;
  const Node scheme = node.at("prepend_scheme");
  if (no_prefix && scheme.string() != "never")
    scheme.refuse("contradicts \"add_prefix_space\": false; expected \"never\"");
  return named<PrependScheme>(scheme);
}

void add_vocabulary(const Node& node, TokenizerSpec& spec) {
  spec.vocabulary.reserve(node.object().size());
  for (const auto& [token, id] : node.object().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX)
      node.refuse(fmt::format("the id of {} is {}; expected a number from 0 to 4294967295", quote_text(token),
                              quote_text(id.dump())));
    spec.vocabulary.emplace_back(token, id.get<uint32_t>());
  }
}

// Either "left right" or ["left", "right"].
void add_merges(const Node& node, TokenizerSpec& spec) {
  spec.merges.reserve(node.size());
  for (const Json& merge : node.array()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const auto refuse = [&] {
      node.refuse(fmt::format("merge {} is {}; expected \"left right\" or [\"left\", \"right\"]",
                              spec.merges.size(), quote_text(merge.dump())));
    };
    if (!merge.is_string()) refuse();
    const auto& text = merge.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;  // the first line of a merges.txt
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) refuse();
    spec.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

void read_merges_model(const Node& model, TokenizerSpec& spec) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.has(affix) && !model.at(affix).string().empty())
      model.at(affix).refuse(
          fmt::format("is {}; only the empty string is supported", quote_text(model.at(affix).string())));
  add_vocabulary(model.at("vocab"), spec);
  add_merges(model.at("merges"), spec);
  if (model.has("unk_token") && !model.at("unk_token").string().empty())
    spec.unknown_token = model.at("unk_token").string();
  spec.fuse_unknown = model.boolean_or("fuse_unk", false);
  spec.byte_fallback = model.boolean_or("byte_fallback", false);
  spec.ignore_merges = model.boolean_or("ignore_merges", false);
}

// A list of pairs, a token and its score; the index of a pair is the token's id.
void read_unigram_model(const Node& model, TokenizerSpec& spec) {
  UnigramSpec& unigram = spec.unigram.emplace();
  const Node entries = model.at("vocab");
  spec.vocabulary.reserve(entries.size());
  unigram.scores.reserve(entries.size());
  for (const Json& entry : entries.array()) {
    if (!(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number()))
      entries.refuse(fmt::format("token {} is {}; expected [\"token\", score]", spec.vocabulary.size(),
                                 quote_text(entry.dump())));
    spec.vocabulary.emplace_back(entry[0].get<std::string>(), static_cast<uint32_t>(spec.vocabulary.size()));
    unigram.scores.push_back(entry[1].get<double>());
  }
  if (model.has("unk_id")) unigram.unknown_id = model.at("unk_id").id();
  spec.byte_fallback = model.boolean_or("byte_fallback", false);
}

void read_model(const Node& model, TokenizerSpec& spec) {
  const std::string type = model.type();
  if (type == "Unigram") return read_unigram_model(model, spec);
  // Files of the first versions do not name the type.
  if (!(type == "BPE" || (type.empty() && model.has("merges")))) model.refuse_type("BPE, Unigram");
  read_merges_model(model, spec);
}

void read_added_tokens(const Node& tokens, TokenizerSpec& spec) {
  if (tokens.is_null()) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Node node = tokens.at(i);
    const auto flag = [&](const char* key) { return node.at(key).boolean(); };
    AddedToken token{.content = node.at("content").string(),
                     .id = node.at("id").id(),
                     .special = flag("special"),
                     .normalized = flag("normalized"),
                     .single_word = flag("single_word"),
                     .lstrip = flag("lstrip"),
                     .rstrip = flag("rstrip")};
    // The reference skips empty ones.
    if (!token.content.empty()) spec.added_tokens.push_back(std::move(token));
  }
}

// Base 64 with padding (RFC 4648).
std::string from_base64(const Node& node) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = node.string();
  if (text.size() % 4 != 0) node.refuse(fmt::format("has {} digits; expected a multiple of 4", text.size()));
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  unsigned num_bits = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t digit = kDigits.find(text[at]);
    if (digit == std::string_view::npos) node.refuse(fmt::format("digit {} is not one of base 64", at));
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return bytes;
}

TextNormalizer read_normalizer(const Node& node) {
  const std::string type = node.type();
  if (const auto form = value_named<UnicodeForm>(type)) return *form;
  if (type == "Prepend") return PrependNormalizer{node.at("prepend").string()};
  if (type == "Replace") return ReplaceNormalizer{pattern(node.at("pattern")), node.at("content").string()};
  if (type == "Strip")
    return StripNormalizer{node.at("strip_left").boolean(), node.at("strip_right").boolean()};
  if (type == "Lowercase") return LowercaseNormalizer{};
  if (type == "Precompiled") return CharacterMap(from_base64(node.at("precompiled_charsmap")));
  node.refuse_type("Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase, Precompiled");
}

PreTokenizer read_pre_tokenizer(const Node& node) {
  const std::string type = node.type();
  if (type == "ByteLevel")
    return ByteLevelStep{node.at("add_prefix_space").boolean(), node.boolean_or("use_regex", true)};
  if (type == "Split")
    return SplitStep{pattern(node.at("pattern")), named<SplitBehavior>(node.at("behavior")),
                     node.at("invert").boolean()};
  if (type == "Punctuation")
    return SplitStep{TextPattern::characters(is_punctuation), node.has("behavior")
                                                                  ? named<SplitBehavior>(node.at("behavior"))
                                                                  : SplitBehavior::isolated};
  if (type == "Digits")
    return SplitStep{TextPattern::characters(is_numeric), node.at("individual_digits").boolean()
                                                              ? SplitBehavior::isolated
                                                              : SplitBehavior::contiguous};
  if (type == "Metaspace")
    return MetaspaceStep{character(node.at("replacement")), prepend_scheme(node),
                         node.boolean_or("split", true)};
  if (type == "Whitespace")  // runs of word characters, and runs of others
    return SplitStep{
        TextPattern::pcre(fmt::format("[{0}]+|[^{0}{1}]+", rust_word_characters(), white_space_characters())),
        SplitBehavior::removed, true};
  if (type == "WhitespaceSplit")
    return SplitStep{TextPattern::characters(is_white_space), SplitBehavior::removed};
  node.refuse_type("Sequence, ByteLevel, Split, Punctuation, Digits, Metaspace, Whitespace, WhitespaceSplit");
}

// Reads the ids that a template puts before and after the text (its sequence A).
void read_template(const Node& node, TokenizerSpec& spec) {
  std::vector<uint32_t> prefix, suffix;
  const Node pieces = node.at("single");
  bool seen = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Node piece = pieces.at(i);
    if (piece.has("Sequence")) {
      if (seen || piece.at("Sequence").at("id").string() != "A") piece.refuse("expected sequence A once");
      seen = true;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").string();
    const Node ids = node.at("special_tokens").at(name).at("ids");
    // Templates, pieces and ids multiply: a small file may require more memory than there is.
    const size_t around =
        spec.prefix.size() + spec.suffix.size() + prefix.size() + suffix.size() + ids.size();
    if (around > kMaxTemplateTokens)
      piece.refuse(
          fmt::format("puts token {} around a text; at most {} are plausible", around, kMaxTemplateTokens));
    for (size_t j = 0; j < ids.size(); ++j) (seen ? suffix : prefix).push_back(ids.at(j).id());
  }
  if (!seen) pieces.refuse("the text itself (sequence A) is missing");
  // A later template surrounds the result of an earlier one.
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
}

TokenDecoder read_decoder(const Node& node) {
  const std::string type = node.type();
  const auto count = [&](const char* key) -> size_t { return node.at(key).id(); };
  if (type == "ByteLevel") return ByteLevelDecoder{};
  if (type == "ByteFallback") return ByteFallbackDecoder{};
  if (type == "Fuse") return FuseDecoder{};
  if (type == "Replace") return ReplaceDecoder{pattern(node.at("pattern")), node.at("content").string()};
  if (type == "Strip") return StripDecoder{character(node.at("content")), count("start"), count("stop")};
  if (type == "Metaspace") return MetaspaceDecoder{character(node.at("replacement")), prepend_scheme(node)};
  node.refuse_type("Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace");
}

TokenizerSpec read_root(const Node& root) {
  TokenizerSpec spec;
  if (root.has("version") && root.at("version").string() != "1.0")
    root.at("version").refuse(
        fmt::format("is {}; only \"1.0\" is known", quote_text(root.at("version").string())));
  read_model(root.at("model"), spec);
  read_added_tokens(part(root, "added_tokens"), spec);
  spec.normalizers = read_steps(part(root, "normalizer"), "normalizers", read_normalizer);
  spec.pre_tokenizers = read_steps(part(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer);
  for_each_step(part(root, "post_processor"), "processors", [&](const Node& step) {
    const std::string type = step.type();
    if (type == "TemplateProcessing") return read_template(step, spec);
    if (type != "ByteLevel")
      step.refuse_type("Sequence, TemplateProcessing, ByteLevel");  // ByteLevel changes no ids
  });
  if (root.has("decoder")) spec.decoders = read_steps(root.at("decoder"), "decoders", read_decoder);
  return spec;
}

// tokenizer_config.json ----------------------------------------------------------------------------

/// A class of tokenizers that makes the template itself, and the default names of its tokens.
struct TokenizerClass {
  std::string_view name;
  const char *begin, *end;
};
constexpr TokenizerClass kClasses[] = {{"LlamaTokenizer", "<s>", "</s>"},
                                       {"CodeLlamaTokenizer", "<s>", "</s>"},
                                       {"GemmaTokenizer", "<bos>", "<eos>"}};

const TokenizerClass* class_named(std::string_view name) {
  constexpr std::string_view kFast = "Fast";
  if (name.ends_with(kFast)) name.remove_suffix(kFast.size());
  for (const TokenizerClass& known : kClasses)
    if (known.name == name) return &known;
  return nullptr;
}

/// A token: its text, or an object with the text as its content.
std::string token_named(const JsonFields& fields, const char* name, const char* otherwise) {
  const nlohmann::json* const value = fields.find(name);
  if (!value) return otherwise;
  const nlohmann::json* const text = value->is_object() ? JsonFields(*value).find("content") : value;
  if (!text || !text->is_string())
    throw bad_input("{} is {}; it must be a token's text, or an object with it as content", name,
                    printable(value->dump(-1, ' ', true)));
  return text->get<std::string>();
}

uint32_t id_of(const TokenizerSpec& spec, const char* name, const std::string& text) {
  for (const AddedToken& token : spec.added_tokens)
    if (token.content == text) return token.id;
  for (const auto& [token, id] : spec.vocabulary)
    if (token == text) return id;
  throw bad_input("{} is '{}', which is to go around texts but is no token of tokenizer.json", name,
                  printable(text));
}

/// Releases of transformers before 5, and the programs that make GGUF files, follow add_bos_token and add_eos_token; transformers 5
/// follows tokenizer.json. They differ for models of DeepSeek, whose tokenizer.json has no template. A file without these two was
/// written by a release that agrees with its tokenizer.json.
void set_template(const JsonFields& fields, TokenizerSpec& spec) {
  const TokenizerClass* const own = class_named(fields.get_string("tokenizer_class").value_or(""));
  if (!own) return;
  const std::optional<bool> begins = fields.get_bool("add_bos_token"),
                            ends = fields.get_bool("add_eos_token");
  if (!begins && !ends) return;
  spec.prefix.clear(), spec.suffix.clear();
  if (begins.value_or(true))
    spec.prefix = {id_of(spec, "bos_token", token_named(fields, "bos_token", own->begin))};
  if (ends.value_or(false))
    spec.suffix = {id_of(spec, "eos_token", token_named(fields, "eos_token", own->end))};
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& name) {
  const Json root = parse_json_object(json, name);
  return with_context(name, [&] { return read_root({root, ""}); });
}

TokenizerSpec read_tokenizer_json(const std::string& file) {
  constexpr uint64_t kMaxFileBytes = uint64_t{128} << 20;  // the largest vocabularies take some 35 MB
  const Json root = read_json_object(file, kMaxFileBytes);
  return with_context(file, [&] { return read_root({root, ""}); });
}

Tokenizer load_model_tokenizer(const std::string& directory) {
  const std::string file = directory + "/tokenizer.json", config = directory + "/tokenizer_config.json";
  TokenizerSpec spec = read_tokenizer_json(file);
  constexpr uint64_t kMaxConfigBytes = 16 << 20;  // Gemma 3's, which lists 6,242 tokens, has a megabyte
  std::error_code error;
  if (std::filesystem::exists(config, error)) {
    const nlohmann::json object = read_json_object(config, kMaxConfigBytes);
    with_context(config, [&] { set_template(JsonFields(object), spec); });
  }
  return with_context(file, [&] { return Tokenizer(std::move(spec)); });
}

}  // namespace kvcodec
