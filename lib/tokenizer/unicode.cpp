#include "lib/tokenizer/unicode.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <span>

#include <utf8proc.h>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

struct Range {
  char32_t first, last;
};

constexpr bool operator<(const Range& range, char32_t character) { return range.last < character; }

// The tables are facts of the Unicode Character Database, as ranges of characters, ascending.
// clang-format off
// Numbers that are younger than utf8proc 2.8 (Unicode 15).
constexpr Range kRecentNumeric[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x11de0, 0x11de9}, {0x16130, 0x16139},
    {0x16d70, 0x16d79}, {0x16ff4, 0x16ff6}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
};
// Characters that Unicode 8 called punctuation and later versions do not; punctuation that is younger than Unicode 8.
constexpr Range kFormerPunctuation[] = {{0x166d, 0x166d}, {0x111c9, 0x111c9}};
constexpr Range kYoungPunctuation[] = {
    {0x61d, 0x61d}, {0x9fd, 0x9fd}, {0xa76, 0xa76}, {0xc77, 0xc77}, {0xc84, 0xc84}, {0x1b4e, 0x1b4f},
    {0x1b7d, 0x1b7f}, {0x2e43, 0x2e4f}, {0x2e52, 0x2e5d}, {0x10d6e, 0x10d6e}, {0x10ead, 0x10ead},
    {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8}, {0x1144b, 0x1144f},
    {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1183b, 0x1183b},
    {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46}, {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2},
    {0x11b00, 0x11b09}, {0x11be1, 0x11be1}, {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8},
    {0x11f43, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16d6d, 0x16d6f}, {0x16e97, 0x16e9a},
    {0x16fe2, 0x16fe2}, {0x1e5ff, 0x1e5ff}, {0x1e95e, 0x1e95f},
};
// General categories of characters that Unicode 15 and 16 added.
struct CategoryRange {
  char32_t first, last;
  char category[3];
};
constexpr CategoryRange kRecent[] = {
    {0x897, 0x897, "Mn"}, {0xcf3, 0xcf3, "Mc"}, {0xece, 0xece, "Mn"}, {0x1b4e, 0x1b4f, "Po"},
    {0x1b7f, 0x1b7f, "Po"}, {0x1c89, 0x1c89, "Lu"}, {0x1c8a, 0x1c8a, "Ll"}, {0x2427, 0x2429, "So"},
    {0x2ffc, 0x2fff, "So"}, {0x31e4, 0x31e5, "So"}, {0x31ef, 0x31ef, "So"}, {0xa7cb, 0xa7cc, "Lu"},
    {0xa7cd, 0xa7cd, "Ll"}, {0xa7da, 0xa7da, "Lu"}, {0xa7db, 0xa7db, "Ll"}, {0xa7dc, 0xa7dc, "Lu"},
    {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo"}, {0x10d4e, 0x10d4e, "Lm"},
    {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"}, {0x10d69, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"},
    {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"}, {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo"},
    {0x10efc, 0x10eff, "Mn"}, {0x1123f, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"},
    {0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"}, {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"},
    {0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"}, {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"},
    {0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"}, {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"},
    {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"}, {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"},
    {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"}, {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd"},
    {0x11b00, 0x11b09, "Po"}, {0x11bc0, 0x11be0, "Lo"}, {0x11be1, 0x11be1, "Po"}, {0x11bf0, 0x11bf9, "Nd"},
    {0x11f00, 0x11f01, "Mn"}, {0x11f02, 0x11f02, "Lo"}, {0x11f03, 0x11f03, "Mc"}, {0x11f04, 0x11f10, "Lo"},
    {0x11f12, 0x11f33, "Lo"}, {0x11f34, 0x11f35, "Mc"}, {0x11f36, 0x11f3a, "Mn"}, {0x11f3e, 0x11f3f, "Mc"},
    {0x11f40, 0x11f40, "Mn"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"}, {0x11f43, 0x11f4f, "Po"},
    {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo"}, {0x13439, 0x1343f, "Cf"},
    {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"}, {0x13460, 0x143fa, "Lo"},
    {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"}, {0x1612a, 0x1612c, "Mc"}, {0x1612d, 0x1612f, "Mn"},
    {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"}, {0x16d43, 0x16d6a, "Lo"}, {0x16d6b, 0x16d6c, "Lm"},
    {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo"}, {0x1b132, 0x1b132, "Lo"},
    {0x1b155, 0x1b155, "Lo"}, {0x1cc00, 0x1ccef, "So"}, {0x1ccf0, 0x1ccf9, "Nd"}, {0x1cd00, 0x1ceb3, "So"},
    {0x1d2c0, 0x1d2d3, "No"}, {0x1df25, 0x1df2a, "Ll"}, {0x1e030, 0x1e06d, "Lm"}, {0x1e08f, 0x1e08f, "Mn"},
    {0x1e4d0, 0x1e4ea, "Lo"}, {0x1e4eb, 0x1e4eb, "Lm"}, {0x1e4ec, 0x1e4ef, "Mn"}, {0x1e4f0, 0x1e4f9, "Nd"},
    {0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"}, {0x1e5f1, 0x1e5fa, "Nd"},
    {0x1e5ff, 0x1e5ff, "Po"}, {0x1f6dc, 0x1f6dc, "So"}, {0x1f774, 0x1f776, "So"}, {0x1f77b, 0x1f77f, "So"},
    {0x1f7d9, 0x1f7d9, "So"}, {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"}, {0x1fa75, 0x1fa77, "So"},
    {0x1fa87, 0x1fa89, "So"}, {0x1fa8f, 0x1fa8f, "So"}, {0x1faad, 0x1faaf, "So"}, {0x1fabb, 0x1fabf, "So"},
    {0x1fac6, 0x1fac6, "So"}, {0x1face, 0x1facf, "So"}, {0x1fada, 0x1fadc, "So"}, {0x1fadf, 0x1fadf, "So"},
    {0x1fae8, 0x1fae9, "So"}, {0x1faf7, 0x1faf8, "So"}, {0x1fbcb, 0x1fbef, "So"}, {0x2b739, 0x2b739, "Lo"},
    {0x2ebf0, 0x2ee5d, "Lo"}, {0x31350, 0x323af, "Lo"},
};

// Characters whose compatibility decomposition is younger than the reference's tables.
constexpr Range kNoCompatibilityDecomposition[] = {
    {0x32ff, 0x32ff}, {0xa7f2, 0xa7f4}, {0xab69, 0xab69}, {0x10781, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
    {0x1e030, 0x1e06d}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};
// clang-format on

// Lower case that is younger than utf8proc 2.8 (Unicode 15): character and offset.
struct CaseRange {
  char32_t first, last;
  int32_t offset;
};
constexpr CaseRange kRecentLowercaseOf[] = {
    {0x1c89, 0x1c89, 1},      {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
    {0xa7cc, 0xa7cc, 1},      {0xa7ce, 0xa7ce, 1},
    {0xa7d2, 0xa7d2, 1},      {0xa7d4, 0xa7d4, 1},
    {0xa7da, 0xa7da, 1},      {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
    {0x10d50, 0x10d65, 0x20}, {0x16ea0, 0x16eb8, 0x1b},
};

bool contains(std::span<const Range> ranges, char32_t character) {
  const auto range = std::lower_bound(ranges.begin(), ranges.end(), character);
  return range != ranges.end() && range->first <= character;
}

bool is_letter_or_digit(char32_t ascii) {
  return (ascii >= '0' && ascii <= '9') || (ascii >= 'A' && ascii <= 'Z') || (ascii >= 'a' && ascii <= 'z');
}

// Bytes of the well-formed character at the start of text, or 0; then `bad` is the size of its maximal
// ill-formed part.
unsigned well_formed(std::string_view text, unsigned& bad) {
  const auto first = static_cast<unsigned char>(text[0]);
  bad = 1;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const unsigned size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte is narrower after some first bytes: no overlong forms, no surrogates, nothing above
  // U+10FFFF.
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (text.size() < 2) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  if (second < low || second > high) return 0;
  for (bad = 2; bad < size; ++bad)
    if (bad >= text.size() || !is_utf8_tail(text[bad])) return 0;
  return size;
}

void append_decomposed(std::vector<utf8proc_int32_t>& out, char32_t character, utf8proc_option_t options) {
  if ((options & UTF8PROC_COMPAT) && contains(kNoCompatibilityDecomposition, character)) {
    out.push_back(static_cast<utf8proc_int32_t>(character));
    return;
  }
  constexpr int kRoom = 32;  // the longest decomposition, of U+FDFA, has 18 characters
  utf8proc_int32_t parts[kRoom];
  int boundary = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character), parts, kRoom, options, &boundary);
  if (count < 0 || count > kRoom)
    throw failed("cannot normalize U+{:04X}: {}", static_cast<uint32_t>(character), utf8proc_errmsg(count));
  out.insert(out.end(), parts, parts + count);
}

// Canonical ordering: each run of combining marks by combining class, marks of the same class in their order.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto run = characters.begin(); run != characters.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, characters.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(run, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

}  // namespace

void append_utf8(std::string& out, char32_t character) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    unsigned bad;
    const unsigned size = well_formed(text.substr(at), bad);
    if (size == 0) return at;
    at += size;
  }
  return at;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    unsigned bad;
    well_formed(text, bad);
    append_utf8(out, 0xfffd);
    text.remove_prefix(bad);
  }
  return out;
}

std::string normalize(std::string_view text, UnicodeForm form) {
  const bool compose = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const bool compatibility = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatibility ? UTF8PROC_COMPAT : UTF8PROC_STABLE));
  const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(text[i]) < 0x80; };
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> characters;
  // ASCII never changes, and never combines with the character before it. So the text is normalized in pieces
  // that begin at an ASCII character (with which marks behind it may combine) and end before the next one.
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    while (next < text.size() && is_ascii(next)) ++next;
    if (next == text.size()) {
      out.append(text.substr(at));
      break;
    }
    const size_t piece = next > at ? next - 1 : next;
    out.append(text.substr(at, piece - at));
    characters.clear();
    for (at = piece; at < text.size() && (at == piece || !is_ascii(at));) {
      unsigned size;
      append_decomposed(characters, decode_utf8(text.data() + at, size), options);
      at += size;
    }
    order_marks(characters);
    auto count = static_cast<utf8proc_ssize_t>(characters.size());
    if (compose) {
      count = utf8proc_normalize_utf32(characters.data(), count,
                                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (count < 0) throw failed("cannot normalize text: {}", utf8proc_errmsg(count));
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      append_utf8(out, static_cast<char32_t>(characters[static_cast<size_t>(i)]));
    }
  }
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    unsigned size;
    const char32_t character = decode_utf8(text.data() + at, size);
    at += size;
    const auto recent =
        std::find_if(std::begin(kRecentLowercaseOf), std::end(kRecentLowercaseOf),
                     [&](const CaseRange& r) { return character >= r.first && character <= r.last; });
    if (character < 0x80) {
      out.push_back(static_cast<char>(character >= 'A' && character <= 'Z' ? character + 0x20 : character));
    } else if (recent != std::end(kRecentLowercaseOf)) {
      append_utf8(out, character + static_cast<char32_t>(recent->offset));
    } else if (character == 0x130) {  // the one character whose lower case is two: i and a dot above
      append_utf8(out, 'i');
      append_utf8(out, 0x307);
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
    }
  }
  return out;
}

std::string_view first_cluster(std::string_view text) {
  // Replaces marks that are younger than utf8proc 2.8 (Unicode 15) by one that it knows.
  const auto known = [](char32_t c) {
    const bool is_recent = c == 0x897 || (c >= 0x1acf && c <= 0x1add) || (c >= 0x1ae0 && c <= 0x1aeb);
    return static_cast<utf8proc_int32_t>(is_recent ? 0x300 : c);
  };
  char32_t last = 0;
  unsigned size;
  utf8proc_int32_t state = 0;
  for (size_t end = 0; end < text.size(); end += size) {
    const char32_t character = decode_utf8(text.data() + end, size);
    const bool both_ascii = last < 0x80 && character < 0x80;
    if (end > 0 && (both_ascii ? !(last == '\r' && character == '\n')
                               : utf8proc_grapheme_break_stateful(known(last), known(character), &state)))
      return text.substr(0, end);
    last = character;
  }
  return text;
}

// The character map -----------------------------------------------------------------------------------

namespace {

static_assert(std::endian::native == std::endian::little, "units are read as they lie in the file");
constexpr size_t kUnitBytes = sizeof(uint32_t);

uint32_t read_number(std::string_view bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, kUnitBytes);
  return number;
}

bool has_value(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

size_t num_characters(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), is_utf8_tail));
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

// Returns the replacement of the shortest beginning of the text that is in the map.
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
    if (begin > replacements_.size() || (begin < replacements_.size() && is_utf8_tail(replacements_[begin])))
      throw bad_input("a replacement of the character map begins at byte {}", begin);
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

// Writes the result, and tracks where in the text each character comes from, as the reference does: the i-th
// character of a replacement from the i-th of what it replaces, further ones from the last. The position does
// not move past text that is replaced by nothing, so it falls behind.
class CharacterMap::Writer {
 public:
  Writer(std::string_view text, size_t origin, size_t max_bytes)
      : text_(text), origin_(origin), max_bytes_(max_bytes) {
    out_.reserve(text.size());
  }

  void keep(std::string_view character) { write(character, 1); }

  void replace(std::string_view old, std::string_view replacement) {
    size_t left = num_characters(old);
    while (!replacement.empty()) {
      const size_t size = first_character_size(replacement);
      const bool is_last = size == replacement.size();
      const size_t taken = is_last ? left : std::min<size_t>(left, 1);
      write(replacement.substr(0, size), taken);
      left -= taken;
      replacement.remove_prefix(size);
    }
    is_changed_ = true;
  }

  /// Leaves origin as it is if nothing has been replaced.
  std::string finish(size_t& origin) {
    if (is_changed_) origin = from_origin_;
    return std::move(out_);
  }

 private:
  // taken: number of characters of the text that this one stands for.
  void write(std::string_view character, size_t taken) {
    if (out_.size() + character.size() > max_bytes_)
      throw bad_input("the normalizers make more than {} bytes of {}", max_bytes_, text_.size());
    out_ += character;
    if (taken > 0) last_ = at_;
    if (last_ < origin_) from_origin_ = out_.size();
    for (; taken > 0 && at_ < text_.size(); --taken) at_ += first_character_size(text_.substr(at_));
  }

  std::string_view text_;
  size_t origin_, max_bytes_;
  std::string out_;
  size_t from_origin_ = 0;
  size_t at_ = 0;    ///< position in the text, bytes
  size_t last_ = 0;  ///< position that the last character comes from
  bool is_changed_ = false;
};

std::string CharacterMap::apply(std::string_view text, size_t max_bytes, size_t& origin) const {
  constexpr size_t kLargeCluster = 6;  // bytes
  Writer writer(text, origin, max_bytes);
  while (!text.empty()) {
    std::string_view cluster = first_cluster(text);
    text.remove_prefix(cluster.size());
    const bool is_whole = cluster.size() < kLargeCluster && find(cluster);
    while (!cluster.empty()) {
      const std::string_view part =
          cluster.substr(0, is_whole ? cluster.size() : first_character_size(cluster));
      if (const auto replacement = find(part))
        writer.replace(part, *replacement);
      else
        writer.keep(part);
      cluster.remove_prefix(part.size());
    }
  }
  return writer.finish(origin);
}

// Sets of characters ----------------------------------------------------------------------------------

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) ||
         contains(kRecentNumeric, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7f && !is_letter_or_digit(c);
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const bool is_now = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return is_now ? !contains(kYoungPunctuation, c) : contains(kFormerPunctuation, c);
}

std::string recent_characters(std::string_view categories) {
  const auto is_wanted = [&](std::string_view category) {
    for (size_t at = 0; at < categories.size();) {
      const size_t end = std::min(categories.find(' ', at), categories.size());
      if (category.starts_with(categories.substr(at, end - at))) return true;
      at = end + 1;
    }
    return false;
  };
  std::string out;
  for (const CategoryRange& range : kRecent) {
    if (!is_wanted(range.category)) continue;
    fmt::format_to(std::back_inserter(out), "\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(range.first),
                   static_cast<uint32_t>(range.last));
  }
  return out;
}

std::string quote_text(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    if (at >= kMaxBytes) {
      out += "\"...";
      return out;
    }
    unsigned bad;
    const unsigned size = well_formed(text.substr(at), bad);
    if (size == 0 || static_cast<unsigned char>(text[at]) < 0x20 || text[at] == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(text[at]));
      ++at;
    } else {
      out.append(text.substr(at, size));
      at += size;
    }
  }
  out += '"';
  return out;
}

}  // namespace kvcodec
