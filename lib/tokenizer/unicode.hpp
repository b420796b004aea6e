// Characters, for the tokenizer: UTF-8, normalization forms, and the character sets that pre-tokenizers split
// at.
//
// Which characters are digits or punctuation changes from one version of Unicode to the next, and token ids
// with it. What counts here is what the reference implementation (Hugging Face `tokenizers` 0.2x) goes by;
// each function names the version.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcodec {

/// The character that begins at text, which is well-formed UTF-8; size: its bytes, 1..4.
inline char32_t decode_utf8(const char* text, unsigned& size) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const auto tail = [&](int i) { return byte(i) & 0x3f; };
  if (byte(0) < 0x80) return size = 1, byte(0);
  if (byte(0) < 0xe0) return size = 2, (byte(0) & 0x1f) << 6 | tail(1);
  if (byte(0) < 0xf0) return size = 3, (byte(0) & 0x0f) << 12 | tail(1) << 6 | tail(2);
  return size = 4, (byte(0) & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
}

void append_utf8(std::string& out, char32_t character);

/// How many bytes at the start of text are well-formed UTF-8 (Unicode 15.0, table 3-7); text.size() if all
/// are.
size_t valid_utf8_prefix(std::string_view text);

/// The text with U+FFFD for each maximal ill-formed part, as `bytes.decode("utf-8", "replace")` does in
/// Python.
std::string repair_utf8(std::string_view text);

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

/// The normalization form of well-formed UTF-8 (Unicode Annex 15), by utf8proc. The reference's tables end at
/// Unicode 11: compatibility decompositions that came later are left out here too; sequences with combining
/// marks that came later, and U+11938, may differ. Time linear in the text except for runs of combining marks,
/// which are sorted.
std::string normalize(std::string_view text, UnicodeForm form);

/// Cuts well-formed UTF-8 into extended grapheme clusters (Unicode Annex 29), by utf8proc.
class GraphemeClusters {
 public:
  explicit GraphemeClusters(std::string_view text) : text_(text) {}
  std::string_view next();  ///< empty at the end

 private:
  std::string_view text_;  ///< what is left
};

/// Each character's lower case of Unicode 17 by itself (no rule that depends on neighbours).
std::string lowercase(std::string_view text);

bool is_white_space(char32_t character);  ///< property White_Space; the same set since Unicode 6.3
bool is_numeric(char32_t character);      ///< general categories Nd, Nl and No of Unicode 17
bool is_punctuation(
    char32_t character);  ///< general category P of Unicode 8, and all of ASCII's punctuation and symbols

/// Ranges of the characters that Unicode 15.0, 15.1 and 16.0 added whose general category begins with one of
/// the letters or pairs of letters in `categories`, separated by spaces ("L", "Lu Ll", "N"), as the inside of
/// a PCRE2 character class. With these a pattern means the same whatever version from 14.0 on the PCRE2
/// library was built with.
std::string recent_characters(std::string_view categories);

/// The text in quotes for a one-line message: control characters as \xHH, cut after 60 bytes or so.
std::string quote_text(std::string_view text);

}  // namespace kvcodec
