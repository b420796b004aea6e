// Patterns of tokenizers, found in text by PCRE2.
//
// tokenizer.json files are written for Oniguruma, whose regular expressions PCRE2 reads differently in
// places. A pattern is therefore translated construct by construct; constructs without a known translation
// are refused rather than guessed:
//
//   \s \S       White_Space (PCRE2 adds U+180E)
//   \w \W \b    Alphabetic, M, Nd, Pc, and the six characters ² ³ ¹ ¼ ½ ¾ (PCRE2: L, N, underscore)
//   \d, \h      Nd; a hexadecimal digit (PCRE2: horizontal white space)
//   \v, \R      U+000B; any line break (PCRE2: \v is any vertical white space)
//   ^ $ .       at every line, as in Ruby; (?m) lets the dot match line feeds, which PCRE2 calls (?s)
//   (?i)        up to the end of the group, alternatives included: a(?i)b|c is a(?i:b|c)
//   {n,m}+      a repeated interval, not a possessive one; {n}? is optional, not lazy; {,n} is {0,n}
//   [a[b]&&c]   unions and intersections of classes
//   \p{Han}     the property Script (PCRE2: Script_Extensions)
//   \p{L} …     as of Unicode 16.0, whatever the version of the PCRE2 library (14.0 or later): general
//               categories, Alphabetic, Uppercase, Lowercase, Ideographic, Emoji, the script Han; other
//               scripts are those of the PCRE2 library
//
// (?i) folds one character to one: (?i:ss) does not match ß, as Oniguruma would.
// Refused: named groups, back references, conditionals, absent operators, \K, \G, \X, octal and control
// escapes, (?x).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

struct pcre2_real_code_8;

namespace kvcodec {

/// A pattern to find in text. Immutable; any number of threads may search at the same time.
class TextPattern {
 public:
  /// Matches this string.
  static TextPattern literal(std::string text) { return TextPattern(std::move(text)); }
  /// Matches a regular expression in the syntax of Oniguruma. Throws Error(bad_input) naming the place of
  /// an error or of an unsupported construct.
  static TextPattern regex(std::string_view pattern);
  /// Matches single characters of a set.
  static TextPattern characters(bool (*is_member)(char32_t)) { return TextPattern(is_member); }
  /// Matches a regular expression in the syntax of PCRE2.
  static TextPattern pcre(const std::string& pattern);

  /// The state of a search through a text.
  struct Cursor {
    size_t position = 0;                    ///< where the search continues
    size_t last_end = SIZE_MAX;             ///< end of the previous match, SIZE_MAX: none
    size_t match_begin = 0, match_end = 0;  ///< the match found, bytes
  };

  /// Moves to the next match in text, well-formed UTF-8, and returns true if there is one. Matches do not
  /// overlap; an empty match directly behind the previous one does not count. Throws Error(bad_input) if the
  /// pattern backtracks without end.
  bool next(std::string_view text, Cursor& cursor) const;

 private:
  using Code = std::shared_ptr<const pcre2_real_code_8>;
  using Matcher = std::variant<std::string, bool (*)(char32_t), Code>;
  explicit TextPattern(Matcher matcher) : matcher_(std::move(matcher)) {}
  bool find(std::string_view text, Cursor& cursor) const;
  Matcher matcher_;
};

/// An Oniguruma pattern in PCRE2's syntax, for the options UTF, UCP and MULTILINE with LF as the line end.
/// For tests.
std::string translate_pattern(std::string_view pattern);

/// Inside of a PCRE2 character class for `\w` as Rust's regex crate has it: Alphabetic, M, Nd, Pc and the two
/// joiners.
std::string rust_word_characters();
/// The same for white space.
std::string white_space_characters();

}  // namespace kvcodec
