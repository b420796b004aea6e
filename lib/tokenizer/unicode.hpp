// Characters, for the tokenizer: UTF-8, normalization forms, and the character sets of pre-tokenizers.
//
// The set of digits or punctuation changes from one version of Unicode to the next, and token ids change
// with it. The versions here are those of the reference implementation (Hugging Face `tokenizers` 0.2x);
// each function names its version.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// Bytes of the first character of well-formed UTF-8; 0 if the text is empty.
inline size_t first_character_size(std::string_view text) {
  unsigned size = 0;
  if (!text.empty()) decode_utf8(text.data(), size);
  return size;
}

/// True if it is a byte of a character behind its first one.
inline bool is_utf8_tail(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

void append_utf8(std::string& out, char32_t character);

/// Number of bytes at the start of text that are well-formed UTF-8 (Unicode 15.0, table 3-7); text.size()
/// if all are.
size_t valid_utf8_prefix(std::string_view text);

/// The text with U+FFFD for each maximal ill-formed part, as `bytes.decode("utf-8", "replace")` does in
/// Python.
std::string repair_utf8(std::string_view text);

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };
constexpr auto names_of(UnicodeForm) {
  return std::to_array<std::string_view>({"NFC", "NFD", "NFKC", "NFKD"});
}

/// The normalization form of well-formed UTF-8 (Unicode Annex 15), by utf8proc. The reference's tables end at
/// Unicode 11: later compatibility decompositions are left out here too; later sequences with combining marks,
/// and U+11938, may differ. Time linear in the text except for runs of combining marks, which are sorted.
std::string normalize(std::string_view text, UnicodeForm form);

/// The first extended grapheme cluster (Unicode Annex 29) of well-formed UTF-8, by utf8proc; empty if the text is.
std::string_view first_cluster(std::string_view text);

/// The normalizer that SentencePiece compiles into its models: strings and their replacements.
///
/// The map is one block of bytes, all numbers little-endian: the size of a trie in bytes; the trie, units of 32
/// bits; then the replacements, each ended by a zero byte. The trie is a double array (Darts-clone's): from the
/// unit at place p with offset o, the child by byte b is at p ^ o ^ b, if bits 0..7 and 31 of that unit equal b;
/// if bit 8 is set, the unit at p ^ o holds a value in bits 0..30, the begin of the replacement. The offset is
/// in bits 10..30, times 256 if bit 9 is set.
///
/// The text is processed by grapheme clusters. One of less than 6 bytes becomes, as a whole, the replacement of
/// the shortest string that begins it; all others go character by character. That loses marks behind a character
/// that is in the map itself; the reference, whose ids these are, does the same, and models were used with it.
///
/// Immutable after construction.
class CharacterMap {
 public:
  /// Throws Error(bad_input) if the bytes are not such a map.
  explicit CharacterMap(std::string_view bytes);

  /// The normalized form of well-formed UTF-8. origin: in, the number of the first bytes of text that count as
  /// its beginning; out, the same for the result, counted as in the reference. Throws Error(bad_input) if the
  /// map leads outside of itself, and when the result becomes longer than max_bytes.
  std::string apply(std::string_view text, size_t max_bytes, size_t& origin) const;

 private:
  class Writer;
  std::optional<std::string_view> find(std::string_view text) const;
  uint32_t unit(uint32_t place) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// Each character's lower case of Unicode 17 by itself (no rule that depends on neighbours).
std::string lowercase(std::string_view text);

bool is_white_space(char32_t character);  ///< property White_Space; the same set since Unicode 6.3
bool is_numeric(char32_t character);      ///< general categories Nd, Nl and No of Unicode 17
bool is_punctuation(char32_t character);  ///< category P of Unicode 8, and ASCII's punctuation and symbols

/// Ranges of the characters that Unicode 15.0, 15.1 and 16.0 added whose general category begins with one of
/// the letters or pairs of letters in `categories`, separated by spaces ("L", "Lu Ll", "N"), as the inside of
/// a PCRE2 character class. With these a pattern means the same whatever version from 14.0 on the PCRE2
/// library was built with.
std::string recent_characters(std::string_view categories);

/// The text in quotes for a one-line message: control characters as \xHH, cut after 60 bytes or so.
std::string quote_text(std::string_view text);

}  // namespace kvcodec
