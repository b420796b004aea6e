#include "formats/models/tokenizer_config.hpp"

#include <filesystem>
#include <optional>
#include <string_view>

#include "formats/io/json_file.hpp"
#include "formats/models/tokenizer_json.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{16}
                                      << 20;  // Gemma 3's, which lists 6,242 tokens, has a megabyte

/// A class of tokenizers that makes the template itself, and what its tokens are called where nothing is said.
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

/// A token: its text, or an object that has the text as its content.
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

/// Releases of transformers before 5, and the programs that make GGUF files, follow the switches; transformers 5 takes what
/// tokenizer.json says. The two differ for models of DeepSeek, whose tokenizer.json has no template. Where no switch is said,
/// the file was written by releases that agree with its tokenizer.json.
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

Tokenizer load_model_tokenizer(const std::string& directory) {
  const std::string file = directory + "/tokenizer.json", config = directory + "/tokenizer_config.json";
  TokenizerSpec spec = read_tokenizer_json(file);
  std::error_code error;
  if (std::filesystem::exists(config, error)) {
    const nlohmann::json object = read_json_object(config, kMostConfigBytes);
    with_context(config, [&] { set_template(JsonFields(object), spec); });
  }
  return with_context(file, [&] { return Tokenizer(std::move(spec)); });
}

}  // namespace kvcodec
