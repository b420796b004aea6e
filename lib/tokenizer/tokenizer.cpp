#include "lib/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include "lib/core/error.hpp"
#include "lib/tokenizer/charsmap.hpp"
#include "lib/tokenizer/model.hpp"
#include "lib/tokenizer/regex.hpp"

namespace kvcodec {
namespace {

// GPT-2's way of splitting text, as its authors published it.
constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// GPT-2's byte alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100,
// U+0101 … in turn.
struct ByteAlphabet {
  std::array<std::string, 256> character;  ///< UTF-8
  std::unordered_map<char32_t, char> byte;

  ByteAlphabet() {
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const char32_t c = printable ? b : next++;
      append_utf8(character[b], c);
      byte[c] = static_cast<char>(b);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

TextPattern compile(const PatternSpec& spec) {
  return spec.is_regex ? TextPattern::regex(spec.text) : TextPattern::literal(spec.text);
}

size_t first_character_size(std::string_view text) {
  if (text.empty()) return 0;
  unsigned size;
  decode_utf8(text.data(), size);
  return size;
}

char32_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  unsigned size;
  return decode_utf8(text.data() + at, size);
}

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    unsigned size;
    if (!is_white_space(decode_utf8(text.data() + at, size))) break;
    at += size;
  }
  return at;
}

// Size of the text without the white space at its end.
size_t without_trailing_white_space(std::string_view text) {
  while (!text.empty() && is_white_space(last_character(text))) {
    do {
      text.remove_suffix(1);
    } while ((static_cast<unsigned char>(text.data()[text.size()]) & 0xc0) == 0x80);
  }
  return text.size();
}

// A text in work. `origin`: how many of its first bytes come from the very beginning of the input, that is,
// would be given offset 0 of it. Only the Metaspace step asks (PrependScheme::first), but a step before it
// may have moved that beginning.
struct Section {
  std::string_view text;
  size_t origin = 0;
  bool at_origin = false;  ///< when it was cut out, it began there

  Section part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), origin > begin ? origin - begin : 0, begin < origin};
  }
};

// Sets of strings, found in text all at once: the longest of those that begin first. A trie; a search looks
// at most as far ahead as the longest string, at positions whose byte begins one.
class StringFinder {
 public:
  // Throws Error(bad_input) for an empty string and for one given twice.
  void add(std::string_view text, uint32_t value) {
    if (text.empty()) throw bad_input("added token {} becomes empty when normalized", value);
    size_t node = 0;
    for (const char byte : text) {
      const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
      const auto [found, is_new] = edges_.try_emplace(edge, values_.size());
      if (is_new) values_.push_back(kNone);
      node = found->second;
    }
    if (values_[node] != kNone) throw bad_input("added token {} is given twice", quote_text(text));
    values_[node] = value;
    begins_[static_cast<unsigned char>(text[0])] = true;
  }

  bool empty() const { return values_.size() == 1; }

  // The first match at or after `from`. begin, end: bytes.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end, uint32_t& value) const {
    for (begin = from; begin < text.size(); ++begin) {
      if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
      bool found = false;
      size_t node = 0;
      for (size_t at = begin; at < text.size(); ++at) {
        const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
        if (edge == edges_.end()) break;
        node = edge->second;
        if (values_[node] == kNone) continue;
        found = true;
        end = at + 1;
        value = values_[node];
      }
      if (found) return true;
    }
    return false;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  std::unordered_map<uint64_t, size_t> edges_;  ///< node << 8 | byte -> node
  std::vector<uint32_t> values_{kNone};         ///< by node
  std::array<bool, 256> begins_{};
};

// Joins the stretches that a splitting pattern yields (matches and what lies between) to pieces, and hands
// those on.
template <class Sink>
class PieceMaker {
 public:
  PieceMaker(SplitBehavior behavior, Sink& sink) : behavior_(behavior), sink_(sink) {}

  void add(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::isolated:
        emit(begin, end);
        return;
      case SplitBehavior::removed:
        if (!is_match) emit(begin, end);
        return;
      case SplitBehavior::contiguous:
        join(begin, end, is_match, is_match == last_is_match_);
        return;
      case SplitBehavior::merged_with_previous:
        join(begin, end, is_match, is_match && !last_is_match_);
        return;
      case SplitBehavior::merged_with_next:
        join(begin, end, is_match, !is_match && last_is_match_);
        return;
    }
  }

  void finish() {
    if (waiting_) emit(begin_, end_);
  }

 private:
  // Waits with the stretch, or adds it to the one that waits.
  void join(size_t begin, size_t end, bool is_match, bool to_last) {
    if (waiting_ && !to_last) emit(begin_, end_);
    if (!waiting_ || !to_last) begin_ = begin;
    end_ = end;
    waiting_ = true;
    last_is_match_ = is_match;
  }
  void emit(size_t begin, size_t end) {
    if (begin < end) sink_(begin, end);
  }

  SplitBehavior behavior_;
  Sink& sink_;
  bool waiting_ = false, last_is_match_ = false;
  size_t begin_ = 0, end_ = 0;
};

// Stops where enough() says so.
template <class Enough, class Sink>
void split(std::string_view text, const TextPattern& pattern, SplitBehavior behavior, bool invert,
           MatchMemory& memory, const Enough& enough, Sink&& sink) {
  PieceMaker<std::remove_reference_t<Sink>> pieces(behavior, sink);
  TextPattern::Cursor cursor;
  size_t done = 0;
  while (pattern.next(text, cursor, memory)) {
    if (enough()) return;
    if (cursor.match_begin > done) pieces.add(done, cursor.match_begin, invert);
    pieces.add(cursor.match_begin, cursor.match_end, !invert);
    done = cursor.match_end;
  }
  if (done < text.size()) pieces.add(done, text.size(), invert);
  pieces.finish();
}

// A pre-tokenizer step, compiled.
struct Step {
  enum class Kind { split, byte_level, metaspace } kind = Kind::split;
  std::optional<TextPattern> pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  bool add_prefix_space = false;                 // byte_level
  std::string replacement;                       // metaspace
  PrependScheme prepend = PrependScheme::never;  // metaspace
};

struct CompiledNormalizer {
  TextNormalizer step;
  std::optional<TextPattern> pattern;  // of ReplaceNormalizer
  std::optional<CharacterMap> map;     // of PrecompiledNormalizer
};

struct CompiledDecoder {
  TokenDecoder step;
  std::optional<TextPattern> pattern;  // of ReplaceDecoder
};

Step compile(const PreTokenizer& step) {
  const auto by_pattern = [](TextPattern pattern, SplitBehavior behavior, bool invert) {
    Step out;
    out.pattern = std::move(pattern);
    out.behavior = behavior;
    out.invert = invert;
    return out;
  };
  return std::visit(
      Overloaded{
          [](const ByteLevelStep& s) {
            Step out;
            out.kind = Step::Kind::byte_level;
            if (s.use_regex) out.pattern = TextPattern::regex(kGpt2Split);
            out.add_prefix_space = s.add_prefix_space;
            return out;
          },
          [&](const SplitStep& s) { return by_pattern(compile(s.pattern), s.behavior, s.invert); },
          [&](const PunctuationStep& s) {
            return by_pattern(TextPattern::characters(is_punctuation), s.behavior, false);
          },
          [&](const DigitsStep& s) {
            return by_pattern(TextPattern::characters(is_numeric),
                              s.individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
          },
          [](const MetaspaceStep& s) {
            Step out;
            out.kind = Step::Kind::metaspace;
            if (s.split) out.pattern = TextPattern::literal(s.replacement);
            out.behavior = SplitBehavior::merged_with_next;
            out.replacement = s.replacement;
            out.prepend = s.prepend;
            return out;
          },
          [&](const WordStep&) {
            const std::string word = rust_word_characters();
            return by_pattern(
                TextPattern::pcre(fmt::format("[{0}]+|[^{0}{1}]+", word, white_space_characters())),
                SplitBehavior::removed, true);
          },
          [&](const WhiteSpaceStep&) {
            return by_pattern(TextPattern::characters(is_white_space), SplitBehavior::removed, false);
          },
      },
      step);
}

CompiledNormalizer compile(TextNormalizer step) {
  CompiledNormalizer out;
  if (const auto* replace = std::get_if<ReplaceNormalizer>(&step)) out.pattern = compile(replace->pattern);
  if (auto* precompiled = std::get_if<PrecompiledNormalizer>(&step)) {
    out.map.emplace(precompiled->map);
    precompiled->map = {};  // it is in out.map now
  }
  out.step = std::move(step);
  return out;
}

// What one encode call needs; kept for the next.
struct Workspace {
  MatchMemory matches;
  std::unique_ptr<ModelMemory> model;
  std::vector<std::string> texts;  ///< by pre-tokenizer step: what it made of its piece
  size_t most = SIZE_MAX;          ///< ids that are wanted
};

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec);

  std::vector<uint32_t> encode(std::string_view text, size_t most) const;

  void add_tokens(std::vector<AddedToken> tokens);
  void cut_added_tokens(const Section& section, const StringFinder& finder, Workspace& work,
                        std::vector<uint32_t>& ids, bool is_normalized) const;
  void encode_section(const Section& section, bool is_normalized, Workspace& work,
                      std::vector<uint32_t>& ids) const;
  std::string normalized(const Section& section, size_t& origin, MatchMemory& memory) const;
  void pre_tokenize(size_t step, const Section& piece, Workspace& work, std::vector<uint32_t>& ids) const;
  void split_piece(size_t step, const Section& piece, Workspace& work, std::vector<uint32_t>& ids) const;
  void metaspace(size_t step, const Section& piece, Workspace& work, std::vector<uint32_t>& ids) const;
  void byte_level(size_t step, const Section& piece, Workspace& work, std::vector<uint32_t>& ids) const;
  bool begins_with_word(std::string_view text, MatchMemory& memory) const;
  bool ends_with_word(std::string_view text, MatchMemory& memory) const;
  std::unique_ptr<Workspace> take_workspace() const;
  void give_back(std::unique_ptr<Workspace> workspace) const;

  std::unique_ptr<TokenModel> model;
  std::vector<CompiledNormalizer> normalizers;
  std::vector<Step> steps;
  std::optional<std::vector<CompiledDecoder>> decoders;
  std::vector<uint32_t> prefix, suffix;
  TextPattern word_character = TextPattern::pcre(fmt::format(R"(\A[{}])", rust_word_characters()));

  std::vector<AddedToken> added;
  std::vector<std::string> added_spelling;  ///< by index: what decode takes it for, the normalized form
  std::unordered_map<uint32_t, uint32_t> added_by_id;
  std::unordered_map<std::string_view, uint32_t> added_by_content;
  StringFinder raw_finder, normalized_finder;  ///< values are indices of `added`
  uint32_t size = 0;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;
};

static void check_steps(size_t count, std::string_view what) {
  constexpr size_t kMostSteps =
      100;  // pre-tokenizers call each other; tokenizers in use have up to four steps of a kind
  if (count > kMostSteps) throw bad_input("{} {}; at most {}", count, what, kMostSteps);
}

Tokenizer::Impl::Impl(TokenizerSpec spec)
    : model(make_token_model(spec)),
      prefix(std::move(spec.prefix)),
      suffix(std::move(spec.suffix)),
      size(model->tokens().size()) {
  if (prefix.size() > kMostTemplateTokens || suffix.size() > kMostTemplateTokens - prefix.size())
    throw bad_input("the template puts {} tokens around a text; at most {} are plausible",
                    prefix.size() + suffix.size(), kMostTemplateTokens);
  check_steps(spec.normalizers.size(), "normalizers");
  check_steps(spec.pre_tokenizers.size(), "pre-tokenizers");
  if (spec.decoders) check_steps(spec.decoders->size(), "decoders");
  for (TextNormalizer& step : spec.normalizers) normalizers.push_back(compile(std::move(step)));
  bool has_bytes = false;
  for (const PreTokenizer& step : spec.pre_tokenizers) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    if (metaspace && metaspace->replacement.empty()) throw bad_input("the replacement of Metaspace is empty");
    // Each would double the length of most text.
    const bool is_bytes = std::holds_alternative<ByteLevelStep>(step);
    if (is_bytes && has_bytes) throw bad_input("two ByteLevel pre-tokenizers; at most one is supported");
    has_bytes = has_bytes || is_bytes;
    steps.push_back(compile(step));
  }
  if (spec.decoders) {
    decoders.emplace();
    for (TokenDecoder& step : *spec.decoders) {
      const auto* replace = std::get_if<ReplaceDecoder>(&step);
      std::optional<TextPattern> pattern;
      if (replace) pattern = compile(replace->pattern);
      decoders->push_back({std::move(step), std::move(pattern)});
    }
  }
  add_tokens(std::move(spec.added_tokens));
  for (const auto* ids : {&prefix, &suffix}) {
    for (const uint32_t id : *ids) {
      if (!model->tokens().token_of(id) && !added_by_id.contains(id))
        throw bad_input("the template's id {} is not a token's", id);
    }
  }
}

void Tokenizer::Impl::add_tokens(std::vector<AddedToken> tokens) {
  added = std::move(tokens);
  added_spelling.resize(added.size());
  MatchMemory memory;
  for (uint32_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    if (valid_utf8_prefix(token.content) != token.content.size()) {
      throw bad_input("added token {} is not UTF-8", quote_text(token.content));
    }
    const auto known = model->tokens().id_of(token.content);
    if (known && *known != token.id) {
      throw bad_input("added token {} has id {}, but id {} in the vocabulary", quote_text(token.content),
                      token.id, *known);
    }
    if (const auto other = model->tokens().token_of(token.id); !known && other) {
      throw bad_input("added token {} has id {}, which is that of {} in the vocabulary",
                      quote_text(token.content), token.id, quote_text(*other));
    }
    constexpr uint32_t kMostIds = 1u << 24;  // as for the vocabulary
    if (token.id >= kMostIds) {
      throw bad_input("added token {} has id {}; ids must be below {}", quote_text(token.content), token.id,
                      kMostIds);
    }
    if (!added_by_content.emplace(token.content, i).second) {
      throw bad_input("added token {} is given twice", quote_text(token.content));
    }
    if (!added_by_id.emplace(token.id, i).second) throw bad_input("two added tokens have id {}", token.id);
    size = std::max(size, token.id + 1);
    added_spelling[i] = token.content;
    if (token.normalized) {
      size_t origin;
      if (!token.content.empty()) added_spelling[i] = normalized({token.content}, origin, memory);
      normalized_finder.add(added_spelling[i], i);
    } else {
      raw_finder.add(token.content, i);
    }
  }
}

bool Tokenizer::Impl::begins_with_word(std::string_view text, MatchMemory& memory) const {
  TextPattern::Cursor cursor;
  return !text.empty() && word_character.next(text, cursor, memory);
}

bool Tokenizer::Impl::ends_with_word(std::string_view text, MatchMemory& memory) const {
  if (text.empty()) return false;
  std::string last;
  append_utf8(last, last_character(text));
  return begins_with_word(last, memory);
}

// Cuts out what `finder` finds; the rest goes on. A match that takes white space along may overlap the one
// after it, which is still a match; its text is not gone through twice. This is the order of decisions of the
// reference.
void Tokenizer::Impl::cut_added_tokens(const Section& section, const StringFinder& finder, Workspace& work,
                                       std::vector<uint32_t>& ids, bool is_normalized) const {
  const std::string_view text = section.text;
  if (text.empty()) return;
  if (finder.empty()) return encode_section(section.part(0, text.size()), is_normalized, work, ids);
  size_t done = 0, begin, end;
  uint32_t index;
  for (size_t from = 0; finder.find(text, from, begin, end, index);) {
    if (ids.size() >= work.most) return;
    from = end;
    const AddedToken& token = added[index];
    if (token.single_word && (ends_with_word(text.substr(0, begin), work.matches) ||
                              begins_with_word(text.substr(end), work.matches))) {
      continue;
    }
    if (token.lstrip) begin = std::max(without_trailing_white_space(text.substr(0, begin)), done);
    if (token.rstrip) end += leading_white_space(text.substr(end));
    if (done < begin) encode_section(section.part(done, begin), is_normalized, work, ids);
    ids.push_back(token.id);
    done = end;
  }
  if (done < text.size()) encode_section(section.part(done, text.size()), is_normalized, work, ids);
}

void Tokenizer::Impl::encode_section(const Section& section, bool is_normalized, Workspace& work,
                                     std::vector<uint32_t>& ids) const {
  if (is_normalized) return pre_tokenize(0, section, work, ids);
  if (normalizers.empty()) return cut_added_tokens(section, normalized_finder, work, ids, true);
  Section result = section;
  const std::string text = normalized(section, result.origin, work.matches);
  result.text = text;
  cut_added_tokens(result, normalized_finder, work, ids, true);
}

// Replacements that follow each other could blow a text up without end; those in use write a few bytes for
// one.
constexpr size_t kMostGrowth = 64;
constexpr size_t kGrowthOfAny = size_t{1} << 20;  // and what a short text may become in any case

// Keeps account of Section::origin the way the reference's alignments come out: what is put in belongs to
// where it is put, what replaces a match to the last character of the match.
std::string Tokenizer::Impl::normalized(const Section& section, size_t& origin, MatchMemory& memory) const {
  std::string text(section.text);
  origin = section.origin;
  for (const CompiledNormalizer& normalizer : normalizers) {
    std::visit(Overloaded{
                   [&](const UnicodeNormalizer& step) {
                     text = normalize(text, step.form);
                     if (origin > 0) origin = first_character_size(text);
                   },
                   [&](const PrependNormalizer& step) {
                     if (text.empty()) return;
                     text.insert(0, step.text);
                     if (origin > 0) origin += step.text.size();
                   },
                   [&](const ReplaceNormalizer& step) {
                     if (text.empty()) return;
                     std::string out;
                     out.reserve(text.size());
                     size_t done = 0, from_origin = 0;
                     const auto keep = [&](size_t begin, size_t end) {
                       out.append(text, begin, end - begin);
                       if (begin < origin) from_origin += std::min(end, origin) - begin;
                     };
                     TextPattern::Cursor cursor;
                     while (normalizer.pattern->next(text, cursor, memory)) {
                       keep(done, cursor.match_begin);
                       out += step.content;
                       if (out.size() > kMostGrowth * section.text.size() + kGrowthOfAny) {
                         throw bad_input("the normalizers make more than {} bytes of {}", out.size(),
                                         section.text.size());
                       }
                       const bool is_at_origin =
                           cursor.match_end == 0 ? section.at_origin : cursor.match_end <= origin;
                       if (is_at_origin) from_origin += step.content.size();
                       done = cursor.match_end;
                     }
                     keep(done, text.size());
                     text = std::move(out);
                     origin = from_origin;
                   },
                   [&](const StripNormalizer& step) {
                     if (step.right) text.resize(without_trailing_white_space(text));
                     const size_t leading = step.left ? leading_white_space(text) : 0;
                     text.erase(0, leading);
                     origin = origin > leading ? origin - leading : 0;
                   },
                   [&](const PrecompiledNormalizer&) {
                     text = normalizer.map->apply(text, kMostGrowth * section.text.size() + kGrowthOfAny,
                                                  origin);
                   },
                   [&](const LowercaseNormalizer&) {
                     const size_t lowered = lowercase(std::string_view(text).substr(0, origin)).size();
                     text = lowercase(text);
                     origin = lowered;
                   },
               },
               normalizer.step);
  }
  return text;
}

void Tokenizer::Impl::pre_tokenize(size_t step, const Section& piece, Workspace& work,
                                   std::vector<uint32_t>& ids) const {
  if (piece.text.empty()) return;
  if (step == steps.size()) return model->encode(piece.text, *work.model, ids);
  switch (steps[step].kind) {
    case Step::Kind::split:
      return split_piece(step, piece, work, ids);
    case Step::Kind::byte_level:
      return byte_level(step, piece, work, ids);
    case Step::Kind::metaspace:
      return metaspace(step, piece, work, ids);
  }
}

void Tokenizer::Impl::split_piece(size_t step, const Section& piece, Workspace& work,
                                  std::vector<uint32_t>& ids) const {
  const Step& s = steps[step];
  split(
      piece.text, *s.pattern, s.behavior, s.invert, work.matches, [&] { return ids.size() >= work.most; },
      [&](size_t begin, size_t end) { pre_tokenize(step + 1, piece.part(begin, end), work, ids); });
}

void Tokenizer::Impl::metaspace(size_t step, const Section& piece, Workspace& work,
                                std::vector<uint32_t>& ids) const {
  const Step& s = steps[step];
  std::string& text = work.texts[step];
  text.clear();
  Section result = piece;
  for (size_t i = 0; i < piece.text.size(); ++i) {
    if (piece.text[i] != ' ') {
      text += piece.text[i];
      continue;
    }
    text += s.replacement;
    if (i < piece.origin) result.origin += s.replacement.size() - 1;
  }
  const bool wanted =
      s.prepend == PrependScheme::always || (s.prepend == PrependScheme::first && piece.at_origin);
  if (wanted && !text.starts_with(s.replacement)) {
    text.insert(0, s.replacement);
    if (result.origin > 0) result.origin += s.replacement.size();
  }
  result.text = text;
  if (!s.pattern) return pre_tokenize(step + 1, result, work, ids);
  split(
      result.text, *s.pattern, s.behavior, false, work.matches, [&] { return ids.size() >= work.most; },
      [&](size_t begin, size_t end) { pre_tokenize(step + 1, result.part(begin, end), work, ids); });
}

void Tokenizer::Impl::byte_level(size_t step, const Section& piece, Workspace& work,
                                 std::vector<uint32_t>& ids) const {
  const Step& s = steps[step];
  const auto& alphabet = byte_alphabet().character;
  std::string& text = work.texts[step];
  const auto to_alphabet = [&](const Section& part) {
    text.clear();
    Section result = part;
    result.origin = 0;
    for (size_t i = 0; i < part.text.size(); ++i) {
      if (i == part.origin) result.origin = text.size();
      text += alphabet[static_cast<unsigned char>(part.text[i])];
    }
    if (part.origin >= part.text.size()) result.origin = text.size();
    result.text = text;
    pre_tokenize(step + 1, result, work, ids);
  };
  Section whole = piece;
  std::string with_space;
  if (s.add_prefix_space && !piece.text.starts_with(' ')) {
    with_space = ' ';
    with_space += piece.text;
    whole.text = with_space;
    if (whole.origin > 0) ++whole.origin;
  }
  if (!s.pattern) return to_alphabet(whole);
  split(
      whole.text, *s.pattern, s.behavior, s.invert, work.matches, [&] { return ids.size() >= work.most; },
      [&](size_t begin, size_t end) { to_alphabet(whole.part(begin, end)); });
}

std::unique_ptr<Workspace> Tokenizer::Impl::take_workspace() const {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto workspace = std::move(idle.back());
      idle.pop_back();
      return workspace;
    }
  }
  auto workspace = std::make_unique<Workspace>();
  workspace->model = model->new_memory();
  workspace->texts.resize(steps.size());
  return workspace;
}

void Tokenizer::Impl::give_back(std::unique_ptr<Workspace> workspace) const {
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(workspace));
}

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<uint32_t> Tokenizer::Impl::encode(std::string_view text, size_t most) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<uint32_t> ids;
  auto work = take_workspace();
  work->most = most;
  // The first character, whatever its length, is what lies at offset 0.
  const Section whole{text, first_character_size(text), true};
  cut_added_tokens(whole, raw_finder, *work, ids, false);
  give_back(std::move(work));
  if (ids.size() > most) ids.resize(most);
  return ids;
}

std::vector<uint32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<uint32_t> ids = impl_->encode(text, SIZE_MAX);
  if (add_special) {
    ids.insert(ids.begin(), impl_->prefix.begin(), impl_->prefix.end());
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  return ids;
}

std::vector<uint32_t> Tokenizer::encode_first(std::string_view text, size_t most) const {
  return impl_->encode(text, most);
}

uint32_t Tokenizer::vocabulary_size() const { return impl_->size; }

std::optional<uint32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = impl_->added_by_content.find(token);
  return found == impl_->added_by_content.end() ? impl_->model->tokens().id_of(token)
                                                : std::optional(impl_->added[found->second].id);
}

std::optional<std::string_view> Tokenizer::token_of(uint32_t id) const {
  const auto found = impl_->added_by_id.find(id);
  return found == impl_->added_by_id.end()
             ? impl_->model->tokens().token_of(id)
             : std::optional<std::string_view>(impl_->added[found->second].content);
}

bool Tokenizer::is_special(uint32_t id) const {
  const auto found = impl_->added_by_id.find(id);
  return found != impl_->added_by_id.end() && impl_->added[found->second].special;
}

namespace {

std::string join(const std::vector<std::string>& texts, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += between;
    out += texts[i];
  }
  return out;
}

std::string from_byte_alphabet(const std::vector<std::string>& tokens) {
  const auto& bytes = byte_alphabet().byte;
  std::string out;
  for (const std::string& token : tokens) {
    std::string decoded;
    bool all = true;
    for (size_t at = 0; at < token.size() && all;) {
      unsigned size;
      const auto found = bytes.find(decode_utf8(token.data() + at, size));
      all = found != bytes.end();
      if (all) decoded += found->second;
      at += size;
    }
    out += all ? decoded : token;  // an added token, spelled as it is
  }
  return repair_utf8(out);
}

// The byte that a token such as <0x0A> stands for.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    const char lower = static_cast<char>(c | 0x20);
    if (!digit && !(lower >= 'a' && lower <= 'f')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit ? c - '0' : lower - 'a' + 10);
  }
  return static_cast<char>(value);
}

std::vector<std::string> join_fallback_bytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) append_utf8(out.emplace_back(), 0xfffd);
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes += *byte;
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

std::string replace_all(const std::string& text, const TextPattern& pattern, const std::string& content,
                        MatchMemory& memory) {
  if (text.empty()) return text;
  std::string out;
  TextPattern::Cursor cursor;
  size_t done = 0;
  while (pattern.next(text, cursor, memory)) {
    out.append(text, done, cursor.match_begin - done);
    out += content;
    done = cursor.match_end;
  }
  return out.append(text, done);
}

std::string strip_ends(std::string_view text, const StripDecoder& step) {
  for (size_t i = 0; i < step.start && !step.content.empty() && text.starts_with(step.content); ++i) {
    text.remove_prefix(step.content.size());
  }
  for (size_t i = 0; i < step.stop && !step.content.empty() && text.ends_with(step.content); ++i) {
    text.remove_suffix(step.content.size());
  }
  return std::string(text);
}

std::string from_metaspace(std::string_view text, const MetaspaceDecoder& step, bool is_first) {
  std::string out;
  const bool drop = is_first && step.prepend != PrependScheme::never;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(step.replacement)) {
      if (!drop) out += ' ';
      at += step.replacement.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::vector<std::string> apply(const CompiledDecoder& decoder, std::vector<std::string> tokens,
                               MatchMemory& memory) {
  return std::visit(Overloaded{
                        [&](const ByteLevelDecoder&) { return std::vector{from_byte_alphabet(tokens)}; },
                        [&](const ByteFallbackDecoder&) { return join_fallback_bytes(tokens); },
                        [&](const FuseDecoder&) { return std::vector{join(tokens, "")}; },
                        [&](const ReplaceDecoder& step) {
                          for (auto& token : tokens)
                            token = replace_all(token, *decoder.pattern, step.content, memory);
                          return std::move(tokens);
                        },
                        [&](const StripDecoder& step) {
                          for (auto& token : tokens) token = strip_ends(token, step);
                          return std::move(tokens);
                        },
                        [&](const MetaspaceDecoder& step) {
                          for (size_t i = 0; i < tokens.size(); ++i)
                            tokens[i] = from_metaspace(tokens[i], step, i == 0);
                          return std::move(tokens);
                        },
                    },
                    decoder.step);
}

}  // namespace

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const uint32_t id : ids) {
    if (const auto found = impl_->added_by_id.find(id); found != impl_->added_by_id.end()) {
      if (!skip_special || !impl_->added[found->second].special)
        tokens.push_back(impl_->added_spelling[found->second]);
      continue;
    }
    const auto token = impl_->model->tokens().token_of(id);
    if (!token) throw bad_input("token id {} is not in the vocabulary (ids below {})", id, impl_->size);
    tokens.emplace_back(*token);
  }
  if (!impl_->decoders) return join(tokens, " ");
  MatchMemory memory;
  for (const CompiledDecoder& decoder : *impl_->decoders) tokens = apply(decoder, std::move(tokens), memory);
  return join(tokens, "");
}

}  // namespace kvcodec
