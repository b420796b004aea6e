// The normalizer that SentencePiece compiles into its models: strings and what is written for them.
//
// The map is one block of bytes, all numbers little-endian: the size of a trie in bytes; the trie, units of 32
// bits; then the replacements, each ended by a zero byte. The trie is a double array (Darts-clone's): from the
// unit at place p with offset o, the child by byte b is at p ^ o ^ b, if bits 0..7 and 31 of that unit equal b;
// bit 8 says that the unit at p ^ o holds a value in bits 0..30, which is where the replacement begins. The
// offset is in bits 10..30, times 256 if bit 9 is set.
//
// The text is gone through by grapheme clusters. One of less than 6 bytes becomes, as a whole, what the map has
// for the shortest string that begins it; all others go character by character. That loses marks behind a
// character that is in the map itself; it is what the reference does, whose ids these are, and what models were
// used with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec {

/// Immutable after construction.
class CharacterMap {
 public:
  /// Throws Error(bad_input) if the bytes are not such a map.
  explicit CharacterMap(std::string_view bytes);

  /// The normalized form of well-formed UTF-8. origin: how many of the first bytes of text count as its
  /// beginning; becomes how many of the result do, by the reference's own account. Throws Error(bad_input)
  /// where the map leads outside of itself, and when the result becomes longer than most_bytes.
  std::string apply(std::string_view text, size_t most_bytes, size_t& origin) const;

 private:
  class Writer;
  std::optional<std::string_view> find(std::string_view text) const;
  uint32_t unit(uint32_t place) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace kvcodec
