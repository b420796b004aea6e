// Text to token ids and back, as in the tokenizers of the Llama, Mistral, Qwen, GPT-2 and Falcon families:
// byte-pair encoding (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units,
// ACL 2016), on bytes (GPT-2) or on characters with a fallback to bytes (SentencePiece); and as in those of
// the T5 and XLM-RoBERTa families: the most likely pieces by a unigram language model (Kudo: Subword
// Regularization, ACL 2018).
//
// The steps, in the order of the reference implementation (Hugging Face `tokenizers`), which gives the same ids:
//   1. added tokens that are not normalized are cut out of the text
//   2. the text between them is normalized, and the normalized added tokens are cut out
//   3. the pre-tokenizers split the rest into pieces (words)
//   4. within each piece the merges join characters to tokens, best rank first, leftmost first; or the piece
//      becomes the tokens whose scores have the largest sum
//   5. the ids of the template (beginning and end of text) are put around
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/tokenizer/regex.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec {

/// Ways to treat the matches of a splitting pattern. Pieces for "-" and "the-final--countdown":
enum class SplitBehavior {
  isolated,              ///< the - final - - countdown
  removed,               ///< the final countdown
  merged_with_previous,  ///< the- final- - countdown
  merged_with_next,      ///< the -final - -countdown
  contiguous,            ///< the - final -- countdown
};
constexpr auto names_of(SplitBehavior) {
  return std::to_array<std::string_view>(
      {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
}

// Normalization steps; each turns a text into a text.

/// Puts `text` before any text except the empty one.
struct PrependNormalizer {
  std::string text;
};
/// Writes `content` for each match.
struct ReplaceNormalizer {
  TextPattern pattern;
  std::string content;
};
/// Removes white space from the ends.
struct StripNormalizer {
  bool left = true, right = true;
};
struct LowercaseNormalizer {};
using TextNormalizer = std::variant<UnicodeForm, PrependNormalizer, ReplaceNormalizer, StripNormalizer,
                                    LowercaseNormalizer, CharacterMap>;

// Pre-tokenizer steps; each turns a piece of text into pieces.

struct SplitStep {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< the text between the matches counts as the match
};
/// Splits as GPT-2 does (use_regex), then writes each byte as a printable character: GPT-2's byte alphabet.
struct ByteLevelStep {
  bool add_prefix_space = true;  ///< puts a space before a piece that has none
  bool use_regex = true;
};
enum class PrependScheme { first, never, always };
constexpr auto names_of(PrependScheme) {
  return std::to_array<std::string_view>({"first", "never", "always"});
}
/// Writes spaces as `replacement`, puts one before the piece (always, or only before the one that begins the
/// text), and splits in front of each.
struct MetaspaceStep {
  std::string replacement;
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};
using PreTokenizer = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

/// GPT-2's pattern for splitting text, as its authors published it.
inline constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Decoding steps; each turns a list of token texts into another, which is finally joined.

/// GPT-2's byte alphabet back to bytes; ill-formed UTF-8 becomes U+FFFD. One text results.
struct ByteLevelDecoder {};
/// Runs of <0x..> tokens become the characters they spell, or one U+FFFD for each.
struct ByteFallbackDecoder {};
/// Joins all to one.
struct FuseDecoder {};
struct ReplaceDecoder {
  TextPattern pattern;
  std::string content;
};
/// Removes `content`, one character, up to `start` times from the front of each text and up to `stop` times from
/// its end.
struct StripDecoder {
  std::string content;
  size_t start = 0, stop = 0;
};
/// Writes a space for `replacement`; nothing in the first token, unless `prepend` is never.
struct MetaspaceDecoder {
  std::string replacement;
  PrependScheme prepend = PrependScheme::always;
};
using TokenDecoder = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, ReplaceDecoder,
                                  StripDecoder, MetaspaceDecoder>;

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool special = false;      ///< left out by decode on demand
  bool normalized = false;   ///< searched in the normalized text, in its own normalized form
  bool single_word = false;  ///< only if no word character is next to it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space behind it
};

/// A unigram language model: each token's score is the logarithm of its probability.
struct UnigramSpec {
  std::vector<double> scores;          ///< of the vocabulary, in its order
  std::optional<uint32_t> unknown_id;  ///< for characters that have no token
};

/// All data of a tokenizer. formats/models/tokenizer_json.hpp reads it from a file.
struct TokenizerSpec {
  /// Token and id; ids differ, but may have holes.
  std::vector<std::pair<std::string, uint32_t>> vocabulary;
  /// Best first; both parts of a pair, and their merge, are in the vocabulary.
  std::vector<std::pair<std::string, std::string>> merges;
  /// The rank of each merge: the lowest first, the leftmost where they are equal; empty: their places in the list.
  std::vector<uint32_t> merge_ranks;
  std::optional<std::string> unknown_token;  ///< for characters that have no token; without: they are dropped
  bool fuse_unknown = false;                 ///< neighbouring unknown characters become one token
  bool byte_fallback = false;                ///< characters that have no token become <0x..> tokens
  bool ignore_merges = false;  ///< a piece that is a token is that token, whatever the merges say
  /// Instead of merges; of the four above only byte_fallback counts then.
  std::optional<UnigramSpec> unigram;
  std::vector<AddedToken> added_tokens;
  std::vector<TextNormalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::vector<uint32_t> prefix, suffix;               ///< ids around a text with add_special
  std::optional<std::vector<TokenDecoder>> decoders;  ///< without: tokens are joined by spaces
};

/// Templates in use put one or two tokens around a text; every text is run with all of them.
inline constexpr size_t kMaxTemplateTokens = 1024;
/// The largest vocabularies have some 260,000 tokens; a single wild id must not make a table by id huge.
inline constexpr uint32_t kMaxTokenIds = 1u << 24;

/// Immutable after construction; any number of threads may use it at the same time.
class Tokenizer {
 public:
  /// Throws Error(bad_input) for a specification that contradicts itself: an id or token given twice, an id
  /// above 2^24, a merge of tokens that the vocabulary lacks, an added token that becomes empty or longer than 1024 bytes, more than
  /// kMaxTemplateTokens around a text, ByteLevel twice. For a unigram model also: no tokens at all, a score that is not a finite
  /// number, an unknown id that is not a token's, and a token of more than 1024 bytes.
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Token ids of a text. Added tokens are recognized wherever they stand in it; add_special puts the
  /// template's ids around. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal ill-formed
  /// part, as Python's errors="replace" does. Time is O(n log n) at worst, linear where the vocabulary does
  /// not reach across words; always linear for a unigram model. Throws Error(bad_input) for a character that
  /// has no token if the unknown token named is not in the vocabulary either, or a unigram model has none, for
  /// a pattern that backtracks without end, and where the normalizers make more than 1 MiB, and 64 bytes for each one, of a text.
  std::vector<uint32_t> encode(std::string_view text, bool add_special) const;

  /// The first `limit` ids of encode(text, false), or all if there are fewer. Takes the time of only the text that it needs,
  /// if a pre-tokenizer cuts the text.
  std::vector<uint32_t> encode_first(std::string_view text, size_t limit) const;

  /// The text of token ids, well-formed UTF-8 unless the vocabulary is not. skip_special leaves special
  /// tokens out. Throws Error(bad_input) for an id that is not a token's. Not the inverse of encode if a
  /// normalizer or a fallback to U+FFFD lost something; and with a SentencePiece tokenizer a part of a text
  /// decodes without its first space.
  std::string decode(std::span<const uint32_t> ids, bool skip_special = false) const;

  uint32_t vocabulary_size() const;  ///< largest id + 1, added tokens included
  /// The id of an added token or one of the vocabulary, and the spelling of an id there, valid as long as this.
  std::optional<uint32_t> id_of(std::string_view token) const;
  std::optional<std::string_view> token_of(uint32_t id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
