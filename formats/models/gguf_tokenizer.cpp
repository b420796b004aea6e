#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "formats/io/json_file.hpp"
#include "formats/models/gguf_model.hpp"
#include "lib/core/error.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec {
namespace {

/// The name of how text is split. Files older than the key were made for the splits that became "default".
constexpr const char *kPre = "tokenizer.ggml.pre", *kPreUnsaid = "default";

/// Kinds of tokens, numbered as in tokenizer.ggml.token_type.
enum class TokenKind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

// How text is split before the merges, according to the tokenizer.json of the named models; the regular expressions are in
// Oniguruma's syntax. Text between matches is a piece too.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =  // marks belong to letters
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kEastAsian = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepseekEastAsian = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

/// A way to split text, and its names in keys.
struct PreTokenizerKind {
  std::vector<std::string_view> names;
  std::vector<const char*> splits;  ///< one behind the other
  bool ignore_merges = false;       ///< a piece that is a token is that token
  bool begins = false;              ///< a text begins with the beginning token unless a key says otherwise
  bool composes = false;            ///< text is brought to NFC first
};

const std::vector<PreTokenizerKind>& pre_tokenizers() {
  static const std::vector<PreTokenizerKind> known = {
      {{"gpt-2", "mpt", "olmo", "jais", "trillion", "phi-2", "gigachat", "mellum", "exaone4",
        "granite-docling"},
       {kGpt2Split}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {kDigit, kGpt2Split}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3},
       true,
       true},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {kQwen2}, false, false, true},
      {{"qwen35"}, {kQwen35}, false, false, true},
      {{"stablelm2", "hunyuan", "grok-2", "solar-open"}, {kQwen2}},
      {{"tekken"}, {kTekken}, true, true},
      {{"gpt-4o", "llama4"}, {kGpt4o}},
      {{"seed-coder"}, {kSeedCoder}},
      {{"deepseek-coder"}, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekEastAsian, kDigit}},
      {{"deepseek-v3"}, {R"(\p{N}{1,3})", kEastAsian, kDeepseek3}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Split, kThreeDigits}},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Split, R"(\p{N}+)", kThreeDigits}},
  };
  return known;
}

const PreTokenizerKind& pre_tokenizer_named(std::string_view name) {
  std::vector<std::string_view> all;
  for (const PreTokenizerKind& kind : pre_tokenizers()) {
    if (std::ranges::count(kind.names, name) > 0) return kind;
    all.insert(all.end(), kind.names.begin(), kind.names.end());
  }
  throw bad_input("tokenizer.ggml.pre is '{}'; known are {}", printable(name), fmt::join(all, ", "));
}

struct Tokens {
  const std::vector<std::string_view>& texts;
  std::vector<TokenKind> kinds;

  explicit Tokens(const Gguf& file) : texts(file.need_strings("tokenizer.ggml.tokens")) {
    kinds.assign(texts.size(), TokenKind::normal);
    const auto numbers = file.get_ints("tokenizer.ggml.token_type");
    if (!numbers) return;
    check_size("tokenizer.ggml.token_type", numbers->size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const int64_t kind = (*numbers)[i];
      // 0 is "undefined"; llama.cpp treats it, and unknown kinds, as a plain token.
      if (kind >= static_cast<int64_t>(TokenKind::normal) && kind <= static_cast<int64_t>(TokenKind::byte))
        kinds[i] = static_cast<TokenKind>(kind);
    }
  }

  void check_size(const char* key, size_t size) const {
    if (size != texts.size())
      throw bad_input("{} has {} entries; tokenizer.ggml.tokens has {}", key, size, texts.size());
  }

  /// True for tokens at which text is cut before anything else.
  bool is_added(size_t id) const {
    return kinds[id] == TokenKind::control || kinds[id] == TokenKind::user_defined ||
           kinds[id] == TokenKind::unknown;
  }
};

/// merged: tokens that merges name, which the vocabulary must contain even if they are added tokens.
void add_tokens(const Tokens& tokens, const std::unordered_set<std::string_view>& merged,
                TokenizerSpec& spec) {
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const std::string_view text = tokens.texts[id];
    if (text.empty()) continue;  // no text can become it
    const auto number = static_cast<uint32_t>(id);
    const bool is_special = tokens.kinds[id] != TokenKind::user_defined;
    if (tokens.is_added(id))
      spec.added_tokens.push_back({.content = std::string(text), .id = number, .special = is_special});
    if (!tokens.is_added(id) || merged.contains(text)) spec.vocabulary.emplace_back(text, number);
  }
}

/// Files do not record that a token absorbs the white space after it, as all but three of Phi 3's do.
void set_strips(const Gguf& file, TokenizerSpec& spec) {
  if (file.get_string("general.architecture") != "phi3") return;
  for (AddedToken& token : spec.added_tokens)
    token.rstrip = token.content != "<unk>" && token.content != "<s>" && token.content != "<|endoftext|>";
}

/// The token that a key names, for the beginning or the end of a text.
uint32_t special_token(const Gguf& file, const Tokens& tokens, const char* key,
                       std::optional<int64_t> otherwise) {
  const auto given = file.get_int(key);
  const auto id = given ? given : otherwise;
  if (!id) throw bad_input("key '{}' is missing, but texts are to have that token", key);
  if (*id < 0 || static_cast<uint64_t>(*id) >= tokens.texts.size())
    throw bad_input("{} is {}; there are {} tokens", key, *id, tokens.texts.size());
  return static_cast<uint32_t>(*id);
}

void add_template(const Gguf& file, const Tokens& tokens, bool begins, bool has_defaults,
                  TokenizerSpec& spec) {
  const auto otherwise = [&](int64_t id) { return has_defaults ? std::optional(id) : std::nullopt; };
  if (file.get_bool("tokenizer.ggml.add_bos_token").value_or(begins))
    spec.prefix = {special_token(file, tokens, "tokenizer.ggml.bos_token_id", otherwise(1))};
  if (file.get_bool("tokenizer.ggml.add_eos_token").value_or(false))
    spec.suffix = {special_token(file, tokens, "tokenizer.ggml.eos_token_id", otherwise(2))};
}

TokenizerSpec byte_level(const Gguf& file) {
  const Tokens tokens(file);
  const std::string pre = file.get_string(kPre).value_or(kPreUnsaid);
  TokenizerSpec spec;
  std::unordered_set<std::string_view> added, merged;
  for (size_t id = 0; id < tokens.texts.size(); ++id)
    if (tokens.is_added(id)) added.insert(tokens.texts[id]);
  const auto note = [&](std::string_view token) {
    if (const auto named = added.find(token); named != added.end()) merged.insert(*named);
  };
  for (const std::string_view merge : file.need_strings("tokenizer.ggml.merges")) {
    const size_t space = merge.find(' ', 1);  // a part is never empty
    if (space == std::string_view::npos || space + 1 == merge.size())
      throw bad_input("tokenizer.ggml.merges: '{}' is not two tokens with a space between", printable(merge));
    const auto& [left, right] = spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    note(left), note(right), note(left + right);
  }
  add_tokens(tokens, merged, spec);
  split_as(pre, spec);
  spec.decoders.emplace().emplace_back(ByteLevelDecoder{});
  add_template(file, tokens, pre_tokenizer_named(pre).begins, false, spec);
  return spec;
}

struct ScoredMerge {
  std::string_view left, right;
  float score;
};

/// Every way to make a plain token from two others. Among all neighbours that make a token, SentencePiece joins those that make the
/// one with the best score, leftmost first.
std::vector<ScoredMerge> merges_of(const Tokens& tokens, const std::vector<float>& scores) {
  constexpr size_t kMaxTokenBytes = 1000;  // SentencePiece's own tokens have at most a few dozen
  std::unordered_set<std::string_view> parts;
  for (size_t id = 0; id < tokens.texts.size(); ++id)
    if (tokens.kinds[id] == TokenKind::normal) parts.insert(tokens.texts[id]);
  std::vector<ScoredMerge> merges;
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const std::string_view text = tokens.texts[id];
    if (tokens.kinds[id] != TokenKind::normal) continue;
    if (text.size() > kMaxTokenBytes)
      throw bad_input("token {} has {} bytes; at most {} are supported", id, text.size(), kMaxTokenBytes);
    if (!std::isfinite(scores[id])) throw bad_input("the score of token {} is {}", id, scores[id]);
    for (size_t cut = 1; cut < text.size(); ++cut)
      if (parts.contains(text.substr(0, cut)) && parts.contains(text.substr(cut)))
        merges.push_back({text.substr(0, cut), text.substr(cut), scores[id]});
  }
  std::ranges::stable_sort(merges, std::greater(), &ScoredMerge::score);
  return merges;
}

TokenizerSpec sentence_piece(const Gguf& file) {
  const Tokens tokens(file);
  if (file.get_bool("tokenizer.ggml.remove_extra_whitespaces").value_or(false))
    throw bad_input("tokenizer.ggml.remove_extra_whitespaces is set, which is not supported");
  const auto scores = file.get_floats("tokenizer.ggml.scores");
  if (!scores) throw bad_input("key 'tokenizer.ggml.scores' is missing");
  tokens.check_size("tokenizer.ggml.scores", scores->size());
  TokenizerSpec spec;
  add_tokens(tokens, {}, spec);
  set_strips(file, spec);
  uint32_t rank = 0;
  float last = 0;
  for (const ScoredMerge& merge : merges_of(tokens, *scores)) {
    if (!spec.merges.empty() && merge.score != last) ++rank;
    last = merge.score;
    spec.merges.emplace_back(merge.left, merge.right);
    spec.merge_ranks.push_back(rank);
  }
  spec.byte_fallback = std::ranges::count(tokens.kinds, TokenKind::byte) > 0;
  const uint32_t unknown = special_token(file, tokens, "tokenizer.ggml.unknown_token_id", 0);
  spec.unknown_token = tokens.texts[unknown];
  if (tokens.is_added(unknown)) spec.vocabulary.emplace_back(tokens.texts[unknown], unknown);
  spec.fuse_unknown = true;

  const std::string space = "\u2581";
  const bool prefix = file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  if (prefix) spec.normalizers.emplace_back(PrependNormalizer{space});
  spec.normalizers.emplace_back(ReplaceNormalizer{TextPattern::literal(" "), space});
  auto& decoders = spec.decoders.emplace();
  decoders.emplace_back(ReplaceDecoder{TextPattern::literal(space), " "});
  decoders.emplace_back(ByteFallbackDecoder{});
  decoders.emplace_back(FuseDecoder{});
  if (prefix) decoders.emplace_back(StripDecoder{.content = " ", .start = 1});
  add_template(file, tokens, true, true, spec);
  return spec;
}

}  // namespace

void split_as(std::string_view name, TokenizerSpec& spec) {
  const PreTokenizerKind& pre = pre_tokenizer_named(name);
  spec.ignore_merges = pre.ignore_merges;
  spec.normalizers.clear();
  if (pre.composes) spec.normalizers.emplace_back(UnicodeForm::nfc);
  spec.pre_tokenizers.clear();
  for (const char* split : pre.splits) spec.pre_tokenizers.emplace_back(SplitStep{TextPattern::regex(split)});
  spec.pre_tokenizers.emplace_back(ByteLevelStep{false, false});
}

std::vector<std::string> tokenizer_notes(const Gguf& file) {
  if (file.get_string("tokenizer.ggml.model") != "gpt2" || file.has(kPre)) return {};
  return {fmt::format(
      "{}: no key {} says how the tokenizer splits text; it is split as '{}', so token ids may be others than the model's",
      file.name(), kPre, kPreUnsaid)};
}

Tokenizer load_tokenizer(const Gguf& file) {
  return with_context(file.name(), [&] {
    const std::string model = file.need_string("tokenizer.ggml.model");
    if (model == "gpt2") return Tokenizer(byte_level(file));
    if (model == "llama") return Tokenizer(sentence_piece(file));
    throw bad_input("tokenizer.ggml.model is '{}'; supported are gpt2 and llama", printable(model));
  });
}

}  // namespace kvcodec
