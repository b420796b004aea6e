#include "lib/tokenizer/charsmap.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec {
namespace {

constexpr size_t kUnitBytes = sizeof(uint32_t);

uint32_t read_number(std::string_view bytes, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < kUnitBytes; ++i)
    number |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return number;
}

bool has_value(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

size_t num_characters(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return count;
}

size_t first_size(std::string_view text) {
  unsigned size;
  decode_utf8(text.data(), size);
  return size;
}

}  // namespace

CharacterMap::CharacterMap(std::string_view bytes) {
  if (bytes.size() < kUnitBytes)
    throw bad_input("the character map has {} bytes; expected 4 or more", bytes.size());
  const size_t trie_bytes = read_number(bytes, 0) / kUnitBytes * kUnitBytes;
  bytes.remove_prefix(kUnitBytes);
  if (trie_bytes == 0 || trie_bytes > bytes.size())
    throw bad_input("the trie of the character map has {} bytes; expected 4 to {}", trie_bytes, bytes.size());
  for (size_t at = 0; at < trie_bytes; at += kUnitBytes) units_.push_back(read_number(bytes, at));
  replacements_ = bytes.substr(trie_bytes);
  if (valid_utf8_prefix(replacements_) != replacements_.size())
    throw bad_input("the replacements of the character map are not UTF-8");
}

uint32_t CharacterMap::unit(uint32_t place) const {
  if (place >= units_.size())
    throw bad_input("the character map leads to unit {} of {}", place, units_.size());
  return units_[place];
}

// What the map has for the shortest string that begins the text.
std::optional<std::string_view> CharacterMap::find(std::string_view text) const {
  uint32_t place = offset(units_[0]);
  for (const char c : text) {
    const uint32_t byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    place ^= byte;
    const uint32_t here = unit(place);
    if (label(here) != byte) return std::nullopt;
    place ^= offset(here);
    if (!has_value(here)) continue;
    const size_t begin = value(unit(place));
    const bool is_character_begin =
        begin == replacements_.size() ||
        (begin < replacements_.size() && (static_cast<unsigned char>(replacements_[begin]) & 0xc0) != 0x80);
    if (!is_character_begin) throw bad_input("a replacement of the character map begins at byte {}", begin);
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

// Writes the result, and keeps the reference's account of where in the text each character comes from: each
// one of a replacement from the one in its place, those that are more from the last. What is replaced by
// nothing stays in the account, so that places drift apart.
class CharacterMap::Writer {
 public:
  Writer(std::string_view text, size_t origin, size_t most_bytes)
      : text_(text), origin_(origin), most_bytes_(most_bytes) {
    out_.reserve(text.size());
  }

  void keep(std::string_view character) { write(character, 1); }

  void replace(std::string_view old, std::string_view replacement) {
    size_t left = num_characters(old);
    while (!replacement.empty()) {
      const size_t size = first_size(replacement);
      const bool is_last = size == replacement.size();
      const size_t taken = is_last ? left : std::min<size_t>(left, 1);
      write(replacement.substr(0, size), taken);
      left -= taken;
      replacement.remove_prefix(size);
    }
    is_changed_ = true;
  }

  /// origin as before if nothing has been replaced.
  std::string finish(size_t& origin) {
    if (is_changed_) origin = from_origin_;
    return std::move(out_);
  }

 private:
  // taken: how many characters of the text this one stands for.
  void write(std::string_view character, size_t taken) {
    if (out_.size() + character.size() > most_bytes_)
      throw bad_input("the normalizers make more than {} bytes of {}", most_bytes_, text_.size());
    out_ += character;
    if (taken > 0) last_ = at_;
    if (last_ < origin_) from_origin_ = out_.size();
    for (; taken > 0 && at_ < text_.size(); --taken) at_ += first_size(text_.substr(at_));
  }

  std::string_view text_;
  size_t origin_, most_bytes_;
  std::string out_;
  size_t from_origin_ = 0;
  size_t at_ = 0;    ///< how far the account is in the text, bytes
  size_t last_ = 0;  ///< where the last character comes from
  bool is_changed_ = false;
};

std::string CharacterMap::apply(std::string_view text, size_t most_bytes, size_t& origin) const {
  constexpr size_t kLargeCluster = 6;  // bytes
  Writer writer(text, origin, most_bytes);
  GraphemeClusters clusters(text);
  for (std::string_view cluster = clusters.next(); !cluster.empty(); cluster = clusters.next()) {
    if (cluster.size() < kLargeCluster) {
      if (const auto replacement = find(cluster)) {
        writer.replace(cluster, *replacement);
        continue;
      }
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, first_size(cluster));
      const auto replacement = find(character);
      if (replacement) {
        writer.replace(character, *replacement);
      } else {
        writer.keep(character);
      }
      cluster.remove_prefix(character.size());
    }
  }
  return writer.finish(origin);
}

}  // namespace kvcodec
