#include "lib/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <pcre2.h>

#include "lib/core/error.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWordCategories = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kRecentWordCategories = "L M Nd Nl Pc";
constexpr std::string_view kLineBreak = R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
// What binary properties and the script Han gained from Unicode 14 to 16 beyond what the new characters'
// categories say.
constexpr std::string_view kRecentHan = R"(\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kRecentAlphabetic =
    R"(\x{363}-\x{36f}\x{897}\x{c04}\x{cf3}\x{f82}-\x{f83}\x{1dd3}-\x{1de6}\x{10d69}\x{10efc})"
    R"(\x{11080}-\x{11081}\x{11241}\x{113b8}-\x{113c0}\x{113c2}\x{113c5}\x{113c7}-\x{113ca})"
    R"(\x{113cc}-\x{113cd}\x{11f00}-\x{11f01}\x{11f03}\x{11f34}-\x{11f3a}\x{11f3e}-\x{11f40})"
    R"(\x{1611e}-\x{1612e}\x{1e08f})";
constexpr std::string_view kRecentLowercase = R"(\x{10fc}\x{a7f2}-\x{a7f4}\x{ab69}\x{1e030}-\x{1e06d})";
constexpr std::string_view kRecentIdeographic = R"(\x{18cff}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kRecentEmoji =
    R"(\x{1f6dc}\x{1fa75}-\x{1fa77}\x{1fa87}-\x{1fa89}\x{1fa8f}\x{1faad}-\x{1faaf}\x{1fabb}-\x{1fabf})"
    R"(\x{1fac6}\x{1face}-\x{1facf}\x{1fada}-\x{1fadc}\x{1fadf}\x{1fae8}-\x{1fae9}\x{1faf7}-\x{1faf8})";

std::string white_space() { return std::string(kWhiteSpace); }

std::string word() {
  return std::string(kWordCategories) + recent_characters(kRecentWordCategories) +
         R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
}

std::string category(std::string_view name) {
  return fmt::format(R"(\p{{{}}})", name) + recent_characters(name == "L&" ? "Lu Ll Lt" : name);
}

// A set of characters: the inside of a PCRE2 class, or all characters but those.
struct CharacterSet {
  std::string inside;
  bool negated = false;
};

constexpr std::pair<std::string_view, std::string_view> kCategoryNames[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"casedletter", "L&"},
    {"lc", "L&"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"punct", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"digit", "Nd"},
};
constexpr std::string_view kShortCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                                 "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                                 "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                                 "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// Property names are compared without case, spaces, hyphens and underscores.
std::string loose(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return out;
}

std::optional<CharacterSet> property(std::string_view given) {
  const std::string name = loose(given);
  for (const std::string_view shortened : kShortCategories) {
    if (name == loose(shortened)) return CharacterSet{category(shortened)};
  }
  for (const auto& [full, shortened] : kCategoryNames) {
    if (name == full) return CharacterSet{category(shortened)};
  }
  const std::string assigned = R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z})" + recent_characters("L M N P S Z");
  if (name == "c" || name == "other") return CharacterSet{assigned, true};
  if (name == "cn" || name == "unassigned") {
    return CharacterSet{assigned + category("Cc") + category("Cf") + R"(\p{Cs}\p{Co})", true};
  }
  if (name == "any") return CharacterSet{R"(\x{0}-\x{10ffff})"};
  if (name == "ascii") return CharacterSet{R"(\x{0}-\x{7f})"};
  if (name == "space" || name == "whitespace") return CharacterSet{white_space()};
  if (name == "word") return CharacterSet{word()};
  const auto with = [](std::string_view pcre, std::string_view categories, std::string_view recent) {
    return CharacterSet{std::string(pcre) + recent_characters(categories) + std::string(recent)};
  };
  if (name == "alpha" || name == "alphabetic") return with(R"(\p{Alphabetic})", "L Nl", kRecentAlphabetic);
  if (name == "alnum") return with(R"(\p{Alphabetic}\p{Nd})", "L Nl Nd", kRecentAlphabetic);
  if (name == "upper" || name == "uppercase") return with(R"(\p{Uppercase})", "Lu", "");
  if (name == "lower" || name == "lowercase") return with(R"(\p{Lowercase})", "Ll", kRecentLowercase);
  if (name == "ideographic") return with(R"(\p{Ideographic})", "", kRecentIdeographic);
  if (name == "emoji") return with(R"(\p{Emoji})", "", kRecentEmoji);
  if (name == "han") return with(R"(\p{sc:Han})", "", kRecentHan);
  for (const char c : name) {
    if (c < 'a' || c > 'z') return std::nullopt;
  }
  return CharacterSet{fmt::format(R"(\p{{sc:{}}})", name)};  // a script, or PCRE2 will complain
}

std::optional<CharacterSet> posix_bracket(std::string_view name) {
  if (name == "alnum" || name == "alpha" || name == "digit" || name == "lower" || name == "space" ||
      name == "upper" || name == "word" || name == "cntrl") {
    return property(name);
  }
  if (name == "blank") return CharacterSet{R"(\p{Zs}\x{9})"};
  if (name == "punct") return CharacterSet{category("P") + category("S")};
  if (name == "xdigit") return CharacterSet{"0-9A-Fa-f"};
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Reads an Oniguruma pattern once from left to right and writes what means the same to PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {
    if (in_.size() > kMostBytes)
      throw bad_input("regular expression {}: has {} bytes; at most {} are supported", quote_text(in_),
                      in_.size(), kMostBytes);
    if (valid_utf8_prefix(in_) != in_.size()) refuse("text that is not UTF-8");
  }

  std::string run() {
    alternatives();
    if (!done()) refuse("a ')' without its '('");
    return std::move(out_);
  }

 private:
  // A word boundary becomes kilobytes, and all that stands before is moved for each repetition of a repetition. Patterns in use
  // have up to a kilobyte.
  static constexpr size_t kMostBytes = 16384;
  static constexpr int kMaxDepth = 100;  // PCRE2 itself allows 250; groups are added in translation

  [[noreturn]] void refuse(std::string_view what) const {
    throw bad_input("regular expression {}: {} at byte {} is not supported", quote_text(in_), what, at_);
  }
  [[noreturn]] void refuse_character(std::string_view what, char c) const {
    refuse(fmt::format("{}{}", what, c));
  }

  bool done() const { return at_ >= in_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!in_.substr(std::min(at_, in_.size())).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_character() {
    if (done()) refuse("an unfinished pattern");
    unsigned size;
    const char32_t character = decode_utf8(in_.data() + at_, size);
    at_ += size;
    return character;
  }

  static std::string literal(char32_t character) {
    if (character < 0x80 &&
        (is_digit(static_cast<char>(character)) || is_letter(static_cast<char>(character)))) {
      return std::string(1, static_cast<char>(character));
    }
    return fmt::format(R"(\x{{{:x}}})", static_cast<uint32_t>(character));
  }
  static std::string atom_of(const CharacterSet& set) {
    return (set.negated ? "[^" : "[") + set.inside + "]";
  }

  void enter() {
    if (++depth_ > kMaxDepth) refuse("nesting this deep");
  }

  // Everything up to the end of the group or pattern.
  void alternatives() {
    enter();
    while (!done() && peek() != ')') {
      if (take("|")) {
        out_ += '|';
        continue;
      }
      const size_t start = out_.size();
      if (atom()) {
        quantifiers(start);
      } else {
        size_t end;
        std::string interval;
        bool exact;
        if (peek() == '*' || peek() == '+' || peek() == '?' || read_interval(end, interval, exact)) {
          refuse("a repetition of what has no width");
        }
      }
    }
    --depth_;
  }

  // One thing that can be repeated (true) or not.
  bool atom() {
    size_t end;
    std::string interval;
    bool exact;
    switch (peek()) {
      case '(':
        return group();
      case '[':
        ++at_;
        out_ += character_class();
        return true;
      case '\\':
        ++at_;
        return escape();
      case '.':
        ++at_;
        out_ += '.';
        return true;
      case '^':
      case '$':
        out_ += in_[at_++];
        return false;
      case '*':
      case '+':
      case '?':
        refuse("a repetition of nothing");
      case '{':
        if (read_interval(end, interval, exact)) refuse("a repetition of nothing");
        break;
    }
    out_ += literal(take_character());
    return true;
  }

  bool group() {
    if (take("(?:") || take("(?>")) {
      const bool atomic = in_[at_ - 1] == '>';
      inside_group(atomic ? "(?>" : "(?:");
      return true;
    }
    for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"}) {
      if (take(look)) {
        inside_group(look);
        return false;
      }
    }
    if (!take("(?")) {
      ++at_;
      inside_group("(?:");  // nothing refers to groups
      return true;
    }
    return option_group();
  }

  void inside_group(std::string_view opening) {
    const bool caseless = caseless_;
    out_ += opening;
    alternatives();
    if (!take(")")) refuse("a '(' without its ')'");
    out_ += ')';
    caseless_ = caseless;
  }

  // Behind "(?": options such as i or m-i, up to ':' or ')'.
  bool option_group() {
    const bool outer_caseless = caseless_;
    std::string on, off;
    bool negative = false;
    for (;; ++at_) {
      const char c = peek();
      if (c == ':' || c == ')') break;
      if (c == '-' && !negative) {
        negative = true;
      } else if (c == 'i') {
        (negative ? off : on) += 'i';
        caseless_ = !negative;
      } else if (c == 'm') {
        (negative ? off : on) += 's';
      } else if (!(c == 'x' && negative)) {
        refuse_character("the group (?", c);
      }
    }
    const std::string opening = "(?" + on + (off.empty() ? "" : "-" + off) + ":";
    if (take(":")) {
      inside_group(opening);
      caseless_ = outer_caseless;
      return true;
    }
    // (?i) holds to the end of the group around it, whose ')' is left for that group.
    ++at_;
    out_ += opening;
    alternatives();
    out_ += ')';
    caseless_ = outer_caseless;
    return false;
  }

  // Is there an interval such as {2,3} here? Then its PCRE2 form, where it ends, and whether it was {n}.
  bool read_interval(size_t& end, std::string& text, bool& exact) const {
    if (peek() != '{') return false;
    size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<uint32_t> {
      const size_t start = at;
      uint32_t value = 0;
      while (at < in_.size() && is_digit(in_[at]) && at - start < 6)
        value = value * 10 + static_cast<uint32_t>(in_[at++] - '0');
      return at == start ? std::nullopt : std::optional(value);
    };
    const auto low = number();
    const bool comma = at < in_.size() && in_[at] == ',';
    if (comma) ++at;
    const auto high = comma ? number() : low;
    if (at >= in_.size() || in_[at] != '}' || (!low && !high)) return false;
    constexpr uint32_t kMost = 65535;  // PCRE2's limit
    if (low.value_or(0) > kMost || high.value_or(0) > kMost) refuse("a repetition of more than 65535");
    if (low && high && *low > *high) refuse("a repetition with its bounds the wrong way round");
    end = at + 1;
    exact = !comma;
    text = comma ? fmt::format("{{{},{}}}", low.value_or(0), high ? std::to_string(*high) : "")
                 : fmt::format("{{{}}}", *low);
    return true;
  }

  void quantifiers(size_t start) {
    for (bool first = true;; first = false) {
      std::string text;
      size_t end;
      bool exact = false;
      const bool interval = read_interval(end, text, exact);
      if (interval) {
        at_ = end;
      } else if (peek() == '*' || peek() == '+' || peek() == '?') {
        text = in_[at_++];
      } else {
        return;
      }
      if (!first) {  // a repetition of a repetition
        out_.insert(start, "(?:");
        out_ += ')';
      }
      out_ += text;
      if (!exact && take("?")) {
        out_ += '?';
      } else if (!interval && take("+")) {
        out_ += '+';
      }
    }
  }

  // Behind a backslash, outside a class.
  bool escape() {
    const char c = peek();
    const std::string word_atom = atom_of({word(), false});
    switch (c) {
      case 'A':
      case 'z':
      case 'Z':
        out_ += '\\';
        out_ += c;
        ++at_;
        return false;
      case 'b':
        out_ += fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word_atom);
        ++at_;
        return false;
      case 'B':
        out_ += fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word_atom);
        ++at_;
        return false;
      case 'R':
        out_ += kLineBreak;
        ++at_;
        return true;
      case 'N':
        out_ += "[^\\n]";
        ++at_;
        return true;
      case 'O':
        out_ += "(?s:.)";
        ++at_;
        return true;
      default:
        break;
    }
    if (const auto set = escaped_set()) {
      out_ += atom_of(*set);
    } else {
      out_ += literal(escaped_character());
    }
    return true;
  }

  // Behind a backslash: a set of characters, if it is one; an upper case letter means all others.
  std::optional<CharacterSet> escaped_set() {
    const char c = peek(), lower = static_cast<char>(c | 0x20);
    if (!is_letter(c) || std::string_view("dswhp").find(lower) == std::string_view::npos) return std::nullopt;
    const bool negated = c != lower;
    ++at_;
    if (lower == 'd') return CharacterSet{category("Nd"), negated};
    if (lower == 's') return CharacterSet{white_space(), negated};
    if (lower == 'w') return CharacterSet{word(), negated};
    if (lower == 'h') return CharacterSet{"0-9A-Fa-f", negated};
    if (!take("{")) refuse("a property without braces");
    const bool inverted = take("^");
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) refuse("an unfinished property");
    const std::string_view name = in_.substr(at_, end - at_);
    auto set = property(name);
    if (!set) refuse(fmt::format("the property {}", quote_text(name)));
    if (caseless_ && is_case_property(loose(name))) refuse("a property of letter case under (?i)");
    set->negated ^= negated != inverted;
    at_ = end + 1;
    return set;
  }

  static bool is_case_property(std::string_view name) {
    for (const std::string_view other : {"lu", "ll", "lt", "uppercaseletter", "lowercaseletter",
                                         "titlecaseletter", "upper", "uppercase", "lower", "lowercase"}) {
      if (name == other) return true;
    }
    return false;
  }

  // Behind a backslash: one character.
  char32_t escaped_character() {
    const char c = peek();
    if (!is_letter(c) && !is_digit(c)) return take_character();
    constexpr std::string_view kNames = "tnrfvae", kCharacters = "\t\n\r\f\v\a\x1b";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      ++at_;
      return static_cast<char32_t>(kCharacters[known]);
    }
    if (take("u")) return hexadecimal(4, 4);
    if (take("x{")) {
      const char32_t value = hexadecimal(1, 8);
      if (!take("}")) refuse("an unfinished \\x{");
      return value;
    }
    if (!take("x")) refuse_character("the escape \\", c);
    const char32_t value = hexadecimal(1, 2);
    if (value >= 0x80) refuse("a byte that is not a character");
    return value;
  }

  char32_t hexadecimal(size_t fewest, size_t most) {
    uint64_t value = 0;
    size_t digits = 0;
    for (; digits < most; ++digits, ++at_) {
      const char c = peek();
      if (is_digit(c)) {
        value = value * 16 + static_cast<uint64_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        value = value * 16 + static_cast<uint64_t>((c | 0x20) - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < fewest) refuse("a character code without its digits");
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) refuse("a code that is not a character");
    return static_cast<char32_t>(value);
  }

  // What has been read of a class so far: the inside of a PCRE2 class, and patterns that cannot stand inside
  // one.
  struct Union {
    std::string inside;
    std::vector<std::string> others;

    bool empty() const { return inside.empty() && others.empty(); }
    void add(const CharacterSet& set) {
      if (set.negated) {
        others.push_back(atom_of(set));
      } else {
        inside += set.inside;
      }
    }
    // A pattern that matches one character of the union, or one that is not in it.
    std::string pattern(bool negated) const {
      if (others.empty()) return atom_of({inside, negated});
      const std::string joined = fmt::format("{}", fmt::join(others, "|"));
      if (negated)
        return fmt::format("(?:(?!{}){})", joined, inside.empty() ? "(?s:.)" : atom_of({inside, true}));
      return inside.empty() ? fmt::format("(?:{})", joined) : fmt::format("(?:[{}]|{})", inside, joined);
    }
  };

  // Behind '[': a pattern for the class, up to and with its ']'.
  std::string character_class() {
    enter();
    const bool negated = take("^");
    std::vector<std::string> operands;  // of intersections, but the last
    Union set;
    if (peek() == ']' && in_.find(']', at_ + 1) != std::string_view::npos) {  // first, it is a character
      ++at_;
      class_character(']', set);
    }
    while (!take("]")) {
      if (done()) refuse("an unfinished class");
      if (take("&&")) {
        if (set.empty()) refuse("an intersection with nothing");
        operands.push_back(set.pattern(false));
        set = {};
      } else if (take("[:")) {
        posix(set);
      } else if (take("[")) {
        set.others.push_back(character_class());
      } else if (take("\\")) {
        if (const auto escaped = escaped_set()) {
          set.add(*escaped);
          if (peek() == '-' && peek(1) != ']') refuse("a range from a set");
        } else if (peek() == 'b') {
          ++at_;
          class_character('\b', set);
        } else {
          class_character(escaped_character(), set);
        }
      } else {
        class_character(take_character(), set);
      }
    }
    if (set.empty()) refuse("an empty class");
    --depth_;
    if (operands.empty()) return set.pattern(negated);
    std::string both;
    for (const std::string& operand : operands) both += "(?=" + operand + ")";
    both += set.pattern(false);
    return negated ? "(?:(?!" + both + ")(?s:.))" : "(?:" + both + ")";
  }

  // Behind "[:".
  void posix(Union& set) {
    const bool negated = take("^");
    const size_t end = in_.find(":]", at_);
    if (end == std::string_view::npos) refuse("an unfinished [:");
    const std::string_view name = in_.substr(at_, end - at_);
    if (caseless_ && is_case_property(name)) refuse("a property of letter case under (?i)");
    auto named = posix_bracket(name);
    if (!named) refuse(fmt::format("the class [:{}:]", name));
    named->negated ^= negated;
    set.add(*named);
    at_ = end + 2;
  }

  // A character of a class has been read; it may begin a range.
  void class_character(char32_t first, Union& set) {
    set.inside += literal(first);
    if (peek() != '-' || peek(1) == ']' || at_ + 1 >= in_.size()) return;
    ++at_;
    if (peek() == '[') refuse("a range to a class");
    char32_t last;
    if (take("\\")) {
      if (escaped_set()) refuse("a range to a set");
      last = escaped_character();
    } else {
      last = take_character();
    }
    if (last < first) refuse("a range the wrong way round");
    set.inside += '-' + literal(last);
    if (peek() == '-' && peek(1) != ']') {  // a-c-e: the second '-' stands for itself
      ++at_;
      set.inside += literal('-');
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  int depth_ = 0;
  bool caseless_ = false;
};

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? fmt::format("PCRE2 error {}", code)
                                                              : reinterpret_cast<const char*>(text);
}

}  // namespace

struct MatchMemory::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

MatchMemory::MatchMemory() : impl_(std::make_unique<Impl>()) {
  constexpr size_t kStackStart = size_t{64} << 10,
                   kStackMost = size_t{8} << 20;  // beyond it the interpreter takes over
  constexpr uint32_t kHeapMost = 1u << 20;  // KiB: what the interpreter may take; its own limit is 20 GiB
  // A pattern that runs into this many backtracks (about a second) is taken for one that never ends.
  constexpr uint32_t kMostBacktracks = 100'000'000;
  impl_->data = pcre2_match_data_create(1, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  impl_->stack = pcre2_jit_stack_create(kStackStart, kStackMost, nullptr);  // nullptr where there is no JIT
  if (!impl_->data || !impl_->context) throw std::bad_alloc();
  pcre2_set_match_limit(impl_->context, kMostBacktracks);
  pcre2_set_heap_limit(impl_->context, kHeapMost);
  if (impl_->stack) pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
}

MatchMemory::~MatchMemory() = default;

struct TextPattern::Impl {
  std::string literal;  // if there is neither of the following
  bool (*is_member)(char32_t) = nullptr;
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  bool compiled_to_machine_code = false;
};

TextPattern::TextPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextPattern::~TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;

TextPattern TextPattern::literal(std::string text) {
  auto impl = std::make_unique<Impl>();
  impl->literal = std::move(text);
  return TextPattern(std::move(impl));
}

TextPattern TextPattern::characters(bool (*is_member)(char32_t)) {
  auto impl = std::make_unique<Impl>();
  impl->is_member = is_member;
  return TextPattern(std::move(impl));
}

TextPattern TextPattern::regex(std::string_view pattern) {
  const std::string translated = translate_pattern(pattern);
  return with_context("regular expression " + quote_text(pattern), [&] { return pcre(translated); });
}

TextPattern TextPattern::pcre(const std::string& pattern) {
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                 &at, context.get()));
  if (!impl->code) {
    throw bad_input("{}, at {}", pcre_message(error),
                    quote_text(std::string_view(pattern).substr(at > 20 ? at - 20 : 0)));
  }
  impl->compiled_to_machine_code = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return TextPattern(std::move(impl));
}

bool TextPattern::find(std::string_view text, Cursor& cursor, MatchMemory& memory) const {
  if (impl_->is_member) {
    while (cursor.position < text.size()) {
      unsigned size;
      const char32_t character = decode_utf8(text.data() + cursor.position, size);
      if (impl_->is_member(character)) {
        cursor.match_begin = cursor.position;
        cursor.match_end = cursor.position + size;
        return true;
      }
      cursor.position += size;
    }
    return false;
  }
  if (!impl_->code) {
    cursor.match_begin = text.find(impl_->literal, cursor.position);
    cursor.match_end = cursor.match_begin + impl_->literal.size();
    return cursor.match_begin != std::string_view::npos;
  }
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* data = memory.impl_->data;
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (impl_->compiled_to_machine_code) {
    result = pcre2_jit_match(impl_->code.get(), subject, text.size(), cursor.position, PCRE2_NO_UTF_CHECK,
                             data, memory.impl_->context);
  }
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = pcre2_match(impl_->code.get(), subject, text.size(), cursor.position,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, memory.impl_->context);
  }
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw bad_input("a regular expression of the tokenizer cannot be matched at byte {}: {}", cursor.position,
                    pcre_message(result));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  cursor.match_begin = range[0];
  cursor.match_end = range[1];
  return true;
}

bool TextPattern::next(std::string_view text, Cursor& cursor, MatchMemory& memory) const {
  while (cursor.position <= text.size()) {
    if (!find(text, cursor, memory)) break;
    if (cursor.match_begin == cursor.match_end && cursor.match_end == cursor.last_end) {
      unsigned size = 1;
      if (cursor.position < text.size()) decode_utf8(text.data() + cursor.position, size);
      cursor.position += size;
      continue;
    }
    cursor.position = cursor.last_end = cursor.match_end;
    return true;
  }
  cursor.position = SIZE_MAX;
  return false;
}

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

std::string rust_word_characters() {
  return std::string(kWordCategories) + recent_characters(kRecentWordCategories) + R"(\x{200c}\x{200d})";
}

std::string white_space_characters() { return white_space(); }

}  // namespace kvcodec
