#include "lib/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <charconv>
#include <optional>
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
// Characters that binary properties and the script Han gained from Unicode 14 to 16 beyond what the new characters'
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

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string category(std::string_view name) {
  return fmt::format(R"(\p{{{}}})", name) + recent_characters(name == "L&" ? "Lu Ll Lt" : name);
}

// A set of characters: the inside of a PCRE2 class, or all characters but those.
struct CharacterSet {
  std::string inside;
  bool negated = false;
};

// The names of general categories, of each the shortest first.
constexpr std::string_view kCategories =
    "; l letter ; lu uppercaseletter ; ll lowercaseletter ; lt titlecaseletter ; lc casedletter ; lm modifierletter "
    "; lo otherletter ; m mark combiningmark ; mn nonspacingmark ; mc spacingmark ; me enclosingmark ; n number "
    "; nd decimalnumber digit ; nl letternumber ; no othernumber ; p punctuation punct ; pc connectorpunctuation "
    "; pd dashpunctuation ; ps openpunctuation ; pe closepunctuation ; pi initialpunctuation ; pf finalpunctuation "
    "; po otherpunctuation ; s symbol ; sm mathsymbol ; sc currencysymbol ; sk modifiersymbol ; so othersymbol "
    "; z separator ; zs spaceseparator ; zl lineseparator ; zp paragraphseparator ; cc control cntrl ; cf format "
    "; cs surrogate ; co privateuse";

// Other properties: names, the inside of a PCRE2 class, and additions since Unicode 14: by category, and single characters.
struct Property {
  std::string_view names, pcre, recent_categories, recent_characters;
};
constexpr Property kProperties[] = {
    {"alpha alphabetic", R"(\p{Alphabetic})", "L Nl", kRecentAlphabetic},
    {"alnum", R"(\p{Alphabetic}\p{Nd})", "L Nl Nd", kRecentAlphabetic},
    {"upper uppercase", R"(\p{Uppercase})", "Lu", ""},
    {"lower lowercase", R"(\p{Lowercase})", "Ll", kRecentLowercase},
    {"ideographic", R"(\p{Ideographic})", "", kRecentIdeographic},
    {"emoji", R"(\p{Emoji})", "", kRecentEmoji},
    {"han", R"(\p{sc:Han})", "", kRecentHan},
    {"any", R"(\x{0}-\x{10ffff})", "", ""},
    {"ascii", R"(\x{0}-\x{7f})", "", ""},
    {"space whitespace", kWhiteSpace, "", ""},
    {"word", kWordCategories, kRecentWordCategories, R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"},
};

// The place of a word among others that spaces separate, or npos.
size_t find_word(std::string_view words, std::string_view word) {
  return fmt::format(" {} ", words).find(fmt::format(" {} ", word));
}
bool has_word(std::string_view words, std::string_view word) {
  return find_word(words, word) != std::string::npos;
}

// Property names are compared without case, spaces, hyphens and underscores.
std::string loose(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_')
      out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  return out;
}

std::optional<CharacterSet> property(std::string_view name) {
  if (const size_t place = find_word(kCategories, name); place != std::string::npos && name != ";") {
    const std::string_view names = kCategories.substr(kCategories.rfind(';', place) + 2);
    std::string shortest(names.substr(0, names.find(' ')));
    shortest[0] = static_cast<char>(shortest[0] - 'a' + 'A');
    return CharacterSet{category(shortest == "Lc" ? "L&" : shortest)};
  }
  for (const Property& known : kProperties)
    if (has_word(known.names, name))
      return CharacterSet{fmt::format("{}{}{}", known.pcre, recent_characters(known.recent_categories),
                                      known.recent_characters)};
  const std::string assigned = R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z})" + recent_characters("L M N P S Z");
  if (name == "c" || name == "other") return CharacterSet{assigned, true};
  if (name == "cn" || name == "unassigned")
    return CharacterSet{assigned + category("Cc") + category("Cf") + R"(\p{Cs}\p{Co})", true};
  if (!std::all_of(name.begin(), name.end(), is_letter)) return std::nullopt;
  return CharacterSet{fmt::format(R"(\p{{sc:{}}})", name)};  // a script, or PCRE2 will complain
}

std::optional<CharacterSet> posix_bracket(std::string_view name) {
  if (has_word("alnum alpha digit lower space upper word cntrl", name)) return property(name);
  if (name == "blank") return CharacterSet{R"(\p{Zs}\x{9})"};
  if (name == "punct") return CharacterSet{category("P") + category("S")};
  if (name == "xdigit") return CharacterSet{"0-9A-Fa-f"};
  return std::nullopt;
}

// Reads an Oniguruma pattern once from left to right and writes what means the same to PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {
    if (in_.size() > kMaxBytes)
      throw bad_input("regular expression {}: has {} bytes; at most {} are supported", quote_text(in_),
                      in_.size(), kMaxBytes);
    if (valid_utf8_prefix(in_) != in_.size()) refuse("text that is not UTF-8");
  }

  std::string run() {
    alternatives();
    if (!done()) refuse("a ')' without its '('");
    return std::move(out_);
  }

 private:
  // Bounds time and memory: a word boundary becomes kilobytes, and each repetition of a repetition moves its whole atom. Patterns
  // in use have up to a kilobyte.
  static constexpr size_t kMaxBytes = 16384;
  static constexpr int kMaxDepth = 100;  // PCRE2 itself allows 250; groups are added in translation

  [[noreturn]] void refuse(std::string_view what) const {
    throw bad_input("regular expression {}: {} at byte {} is not supported", quote_text(in_), what, at_);
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
    const char c = static_cast<char>(character);
    if (character < 0x80 && (is_digit(c) || is_letter(c))) return std::string(1, c);
    return fmt::format(R"(\x{{{:x}}})", static_cast<uint32_t>(character));
  }
  static std::string atom_of(const CharacterSet& set) {
    return (set.negated ? "[^" : "[") + set.inside + "]";
  }

  void enter() {
    if (++depth_ > kMaxDepth) refuse("nesting this deep");
  }

  // Translates all up to the end of the group or pattern.
  void alternatives() {
    enter();
    while (!done() && peek() != ')') {
      const size_t start = out_.size();
      if (take("|"))
        out_ += '|';
      else if (atom())
        repetitions(start);
      else if (repetition())
        refuse("a repetition of what has no width");
    }
    --depth_;
  }

  // Translates one atom. True if it can be repeated.
  bool atom() {
    if (repetition()) refuse("a repetition of nothing");
    const char c = peek();
    if (c == '(') return group();
    if (take("[")) {
      out_ += character_class();
    } else if (take("\\")) {
      return escape();
    } else if (c == '.' || c == '^' || c == '$') {
      out_ += in_[at_++];
      return c == '.';
    } else {
      out_ += literal(take_character());
    }
    return true;
  }

  bool group() {
    for (const std::string_view opening : {"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!"})
      if (take(opening)) {
        inside_group(opening);
        return opening == "(?:" || opening == "(?>";
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

  // Translates a group behind its "(?": options such as i or m-i, up to ':' or ')'.
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
        refuse(fmt::format("the group (?{}", c));
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

  // A repetition in PCRE2's syntax, its end in the pattern, and its kind.
  struct Repetition {
    std::string text;
    size_t end;
    bool is_interval = false, is_exact = false;
  };
  std::optional<Repetition> repetition() const {
    if (peek() == '*' || peek() == '+' || peek() == '?')
      return Repetition{.text = std::string(1, peek()), .end = at_ + 1};
    if (peek() != '{') return std::nullopt;
    const char *at = in_.data() + at_ + 1, *const end = in_.data() + in_.size();
    constexpr uint32_t kMax = 65535;  // PCRE2's limit
    const auto number = [&]() -> std::optional<uint32_t> {
      uint32_t value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      if (std::exchange(at, stop) == stop) return std::nullopt;
      return error == std::errc{} ? value : kMax + 1;
    };
    const auto low = number();
    const bool has_comma = at < end && *at == ',';
    if (has_comma) ++at;
    const auto high = has_comma ? number() : low;
    if (at == end || *at != '}' || (!low && !high)) return std::nullopt;
    if (low.value_or(0) > kMax || high.value_or(0) > kMax) refuse("a repetition of more than 65535");
    if (low && high && *low > *high) refuse("a repetition with its bounds the wrong way round");
    return Repetition{
        .text = has_comma ? fmt::format("{{{},{}}}", low.value_or(0), high ? std::to_string(*high) : "")
                          : fmt::format("{{{}}}", *low),
        .end = static_cast<size_t>(at - in_.data()) + 1,
        .is_interval = true,
        .is_exact = !has_comma};
  }

  // Translates the repetitions of the atom that begins at `start` of the output.
  void repetitions(size_t start) {
    bool is_first = true;
    while (const auto repeated = repetition()) {
      at_ = repeated->end;
      if (!std::exchange(is_first, false)) {  // a repetition of a repetition
        out_.insert(start, "(?:");
        out_ += ')';
      }
      out_ += repeated->text;
      if (!repeated->is_exact && take("?"))
        out_ += '?';
      else if (!repeated->is_interval && take("+"))
        out_ += '+';
    }
  }

  // Translates an escape outside a class, behind its backslash. True if it can be repeated.
  bool escape() {
    constexpr struct {
      char name;
      std::string_view text;
      bool has_width;
    } kEscapes[] = {{'A', R"(\A)", false},   {'z', R"(\z)", false},
                    {'Z', R"(\Z)", false},   {'R', R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))", true},
                    {'N', R"([^\n])", true}, {'O', "(?s:.)", true}};
    for (const auto& known : kEscapes)
      if (take({&known.name, 1})) {
        out_ += known.text;
        return known.has_width;
      }
    if (const bool negated = take("B"); negated || take("b")) {
      const std::string word = atom_of(*property("word"));
      out_ += negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                      : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
      return false;
    }
    const auto set = escaped_set();
    out_ += set ? atom_of(*set) : literal(escaped_character());
    return true;
  }

  // Reads a set of characters behind a backslash, if there is one. An upper case letter means all others.
  std::optional<CharacterSet> escaped_set() {
    const char c = peek(), lower = static_cast<char>(c | 0x20);
    if (!is_letter(c) || std::string_view("dswhp").find(lower) == std::string_view::npos) return std::nullopt;
    const bool negated = c != lower;
    ++at_;
    if (lower == 'd') return CharacterSet{category("Nd"), negated};
    if (lower == 's' || lower == 'w')
      return CharacterSet{property(lower == 's' ? "space" : "word")->inside, negated};
    if (lower == 'h') return CharacterSet{"0-9A-Fa-f", negated};
    if (!take("{")) refuse("a property without braces");
    const bool inverted = take("^");
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) refuse("an unfinished property");
    const std::string_view given = in_.substr(at_, end - at_);
    const std::string name = loose(given);
    auto set = property(name);
    if (!set) refuse(fmt::format("the property {}", quote_text(given)));
    refuse_case_property(name);
    set->negated ^= negated != inverted;
    at_ = end + 1;
    return set;
  }

  void refuse_case_property(std::string_view name) const {
    if (caseless_ &&
        has_word("lu ll lt uppercaseletter lowercaseletter titlecaseletter upper uppercase lower lowercase",
                 name))
      refuse("a property of letter case under (?i)");
  }

  // Reads one character behind a backslash.
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
    if (!take("x")) refuse(fmt::format("the escape \\{}", c));
    const char32_t value = hexadecimal(1, 2);
    if (value >= 0x80) refuse("a byte that is not a character");
    return value;
  }

  char32_t hexadecimal(size_t min_digits, size_t max_digits) {
    const std::string_view digits = in_.substr(std::min(at_, in_.size()), max_digits);
    uint32_t value = 0;
    const char* const end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
    const auto count = static_cast<size_t>(end - digits.data());
    if (count < min_digits) refuse("a character code without its digits");
    at_ += count;
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) refuse("a code that is not a character");
    return value;
  }

  // The part of a class that has been read so far: the inside of a PCRE2 class, and patterns that cannot stand inside
  // one.
  struct Union {
    std::string inside;
    std::vector<std::string> others;

    bool empty() const { return inside.empty() && others.empty(); }
    void add(const CharacterSet& set) {
      if (set.negated)
        others.push_back(atom_of(set));
      else
        inside += set.inside;
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

  // Reads a class behind its '[', with its ']'. Returns a pattern for it.
  std::string character_class() {
    enter();
    const bool negated = take("^");
    std::vector<std::string> operands;  // of intersections, all but the last
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

  // Reads a POSIX bracket behind its "[:".
  void posix(Union& set) {
    const bool negated = take("^");
    const size_t end = in_.find(":]", at_);
    if (end == std::string_view::npos) refuse("an unfinished [:");
    const std::string_view name = in_.substr(at_, end - at_);
    refuse_case_property(name);
    auto named = posix_bracket(name);
    if (!named) refuse(fmt::format("the class [:{}:]", name));
    named->negated ^= negated;
    set.add(*named);
    at_ = end + 2;
  }

  // Adds a character of a class that has been read, or the range that it begins.
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

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? fmt::format("PCRE2 error {}", code)
                                                              : reinterpret_cast<const char*>(text);
}

template <auto kFree>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

// The memory that matching needs beside the pattern.
struct MatchMemory {
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack;

  MatchMemory() {
    constexpr size_t kStackStart = 64 << 10, kMaxStack = 8 << 20;  // beyond it the interpreter takes over
    constexpr uint32_t kMaxHeap = 1u << 20;  // KiB: what the interpreter may take; its own limit is 20 GiB
    // A pattern that runs into this many backtracks (about a second) is taken for one that never ends.
    constexpr uint32_t kMaxBacktracks = 100'000'000;
    if (!data || !context) throw std::bad_alloc();
    stack.reset(pcre2_jit_stack_create(kStackStart, kMaxStack, nullptr));  // nullptr where there is no JIT
    pcre2_set_match_limit(context.get(), kMaxBacktracks);
    pcre2_set_heap_limit(context.get(), kMaxHeap);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

TextPattern TextPattern::regex(std::string_view pattern) {
  const std::string translated = translate_pattern(pattern);
  return with_context("regular expression " + quote_text(pattern), [&] { return pcre(translated); });
}

TextPattern TextPattern::pcre(const std::string& pattern) {
  const std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                    context.get()),
      pcre2_code_free);
  if (!code)
    throw bad_input("{}, at {}", pcre_message(error),
                    quote_text(std::string_view(pattern).substr(at > 20 ? at - 20 : 0)));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // where it fails, the interpreter matches
  return TextPattern(Code(code));
}

bool TextPattern::find(std::string_view text, Cursor& cursor) const {
  if (const auto* literal = std::get_if<std::string>(&matcher_)) {
    cursor.match_begin = text.find(*literal, cursor.position);
    cursor.match_end = cursor.match_begin + literal->size();
    return cursor.match_begin != std::string_view::npos;
  }
  if (const auto* is_member = std::get_if<bool (*)(char32_t)>(&matcher_)) {
    unsigned size;
    for (size_t at = cursor.position; at < text.size(); at += size) {
      if (!(*is_member)(decode_utf8(text.data() + at, size))) continue;
      cursor.match_begin = at;
      cursor.match_end = at + size;
      return true;
    }
    return false;
  }
  thread_local const MatchMemory memory;
  const auto match = [&](uint32_t options) {
    return pcre2_match(std::get<Code>(matcher_).get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                       cursor.position, PCRE2_NO_UTF_CHECK | options, memory.data.get(),
                       memory.context.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    throw bad_input("a regular expression of the tokenizer cannot be matched at byte {}: {}", cursor.position,
                    pcre_message(result));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(memory.data.get());
  cursor.match_begin = range[0];
  cursor.match_end = range[1];
  return true;
}

bool TextPattern::next(std::string_view text, Cursor& cursor) const {
  while (cursor.position <= text.size() && find(text, cursor)) {
    const bool is_again = cursor.match_begin == cursor.match_end && cursor.match_end == cursor.last_end;
    if (!is_again) {
      cursor.position = cursor.last_end = cursor.match_end;
      return true;
    }
    unsigned size = 1;
    if (cursor.position < text.size()) decode_utf8(text.data() + cursor.position, size);
    cursor.position += size;
  }
  cursor.position = SIZE_MAX;
  return false;
}

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

std::string rust_word_characters() {
  return std::string(kWordCategories) + recent_characters(kRecentWordCategories) + R"(\x{200c}\x{200d})";
}

std::string white_space_characters() { return std::string(kWhiteSpace); }

}  // namespace kvcodec
