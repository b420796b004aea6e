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
// Characters that Unicode 15 and 16 added, by general category, as the inside of a PCRE2 class.
constexpr struct {
  std::string_view category, characters;
} kRecent[] = {
    {"Cf", R"(\x{13439}-\x{1343f})"},
    {"Ll", R"(\x{1c8a}\x{a7cd}\x{a7db}\x{10d70}-\x{10d85}\x{1df25}-\x{1df2a})"},
    {"Lm", R"(\x{10d4e}\x{10d6f}\x{16d40}-\x{16d42}\x{16d6b}-\x{16d6c}\x{1e030}-\x{1e06d}\x{1e4eb})"},
    {"Lo", R"(\x{105c0}-\x{105f3}\x{10d4a}-\x{10d4d}\x{10d4f}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240})"
        R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
        R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446})"
        R"(\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d43}-\x{16d6a}\x{18cff}\x{1b132}\x{1b155})"
        R"(\x{1e4d0}-\x{1e4ea}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"},
    {"Lu", R"(\x{1c89}\x{a7cb}-\x{a7cc}\x{a7da}\x{a7dc}\x{10d50}-\x{10d65})"},
    {"Mc", R"(\x{cf3}\x{113b8}-\x{113ba}\x{113c2}\x{113c5}\x{113c7}-\x{113ca}\x{113cc}-\x{113cd}\x{113cf})"
        R"(\x{11f03}\x{11f34}-\x{11f35}\x{11f3e}-\x{11f3f}\x{11f41}\x{1612a}-\x{1612c})"},
    {"Mn", R"(\x{897}\x{ece}\x{10d69}-\x{10d6d}\x{10efc}-\x{10eff}\x{11241}\x{113bb}-\x{113c0}\x{113ce})"
        R"(\x{113d0}\x{113d2}\x{113e1}-\x{113e2}\x{11f00}-\x{11f01}\x{11f36}-\x{11f3a}\x{11f40}\x{11f42})"
        R"(\x{11f5a}\x{13440}\x{13447}-\x{13455}\x{1611e}-\x{16129}\x{1612d}-\x{1612f}\x{1e08f})"
        R"(\x{1e4ec}-\x{1e4ef}\x{1e5ee}-\x{1e5ef})"},
    {"Nd", R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139})"
        R"(\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})"},
    {"No", R"(\x{1d2c0}-\x{1d2d3})"},
    {"Pd", R"(\x{10d6e})"},
    {"Po", R"(\x{1b4e}-\x{1b4f}\x{1b7f}\x{113d4}-\x{113d5}\x{113d7}-\x{113d8}\x{11b00}-\x{11b09}\x{11be1})"
        R"(\x{11f43}-\x{11f4f}\x{16d6d}-\x{16d6f}\x{1e5ff})"},
    {"Sm", R"(\x{10d8e}-\x{10d8f})"},
    {"So", R"(\x{2427}-\x{2429}\x{2ffc}-\x{2fff}\x{31e4}-\x{31e5}\x{31ef}\x{1cc00}-\x{1ccef}\x{1cd00}-\x{1ceb3})"
        R"(\x{1f6dc}\x{1f774}-\x{1f776}\x{1f77b}-\x{1f77f}\x{1f7d9}\x{1f8b2}-\x{1f8bb}\x{1f8c0}-\x{1f8c1})"
        R"(\x{1fa75}-\x{1fa77}\x{1fa87}-\x{1fa89}\x{1fa8f}\x{1faad}-\x{1faaf}\x{1fabb}-\x{1fabf}\x{1fac6})"
        R"(\x{1face}-\x{1facf}\x{1fada}-\x{1fadc}\x{1fadf}\x{1fae8}-\x{1fae9}\x{1faf7}-\x{1faf8})"
        R"(\x{1fbcb}-\x{1fbef})"},
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

static_assert(std::endian::native == std::endian::little, "units are read as they lie in the file");
constexpr size_t kUnitBytes = sizeof(uint32_t);

static uint32_t read_number(std::string_view bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, kUnitBytes);
  return number;
}

static bool has_value(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t value(uint32_t unit) { return unit & 0x7fffffffu; }
static uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

static size_t num_characters(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), is_utf8_tail));
}

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
  // A category is two letters; one letter names all that begin with it.
  const std::string wanted = fmt::format(" {} ", categories);
  const auto is_wanted = [&](std::string_view name) {
    return wanted.find(fmt::format(" {} ", name)) != std::string::npos;
  };
  std::string out;
  for (const auto& [category, characters] : kRecent)
    if (is_wanted(category) || is_wanted(category.substr(0, 1))) out += characters;
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
