#include "lib/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "lib/core/error.hpp"
#include "lib/tokenizer/model.hpp"

namespace kvcodec {
namespace {

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

std::string_view last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && is_utf8_tail(text[at])) --at;
  return text.substr(at);
}

bool begins_with_white_space(std::string_view text) {
  unsigned size;
  return !text.empty() && is_white_space(decode_utf8(text.data(), size));
}

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (begins_with_white_space(text.substr(at))) at += first_character_size(text.substr(at));
  return at;
}

// Size of the text without the white space at its end.
size_t without_trailing_white_space(std::string_view text) {
  while (!text.empty() && begins_with_white_space(last_character(text)))
    text.remove_suffix(last_character(text).size());
  return text.size();
}

bool begins_with_word(std::string_view text) {
  static const TextPattern pattern = TextPattern::pcre(fmt::format(R"(\A[{}])", rust_word_characters()));
  TextPattern::Cursor cursor;
  return !text.empty() && pattern.next(text, cursor);
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

// The section with `content` for each match. Keeps account of the origin the way the reference's alignments come out: what is
// put in belongs to where it is put, what replaces a match to the last character of the match.
std::string replaced(const Section& section, const TextPattern& pattern, std::string_view content,
                     size_t& origin, size_t max_bytes = SIZE_MAX) {
  std::string out;
  size_t done = 0, from_origin = 0;
  const auto keep = [&](size_t end) {
    out.append(section.text, done, end - done);
    if (done < section.origin) from_origin += std::min(end, section.origin) - done;
  };
  TextPattern::Cursor cursor;
  while (!section.text.empty() && pattern.next(section.text, cursor)) {
    keep(cursor.match_begin);
    out += content;
    if (out.size() > max_bytes)
      throw bad_input("the normalizers make more than {} bytes of {}", max_bytes, section.text.size());
    done = cursor.match_end;
    if (done == 0 ? section.at_origin : done <= section.origin) from_origin += content.size();
  }
  keep(section.text.size());
  origin = from_origin;
  return out;
}

// Bounds what the normalizers make of a text, in all its sections: those between added tokens are normalized one by one, and what
// is put before each may be long. Normalizers in use write a few bytes for one.
class Growth {
 public:
  explicit Growth(size_t text_bytes) : left_(64 * text_bytes + (size_t{1} << 20)) {}

  size_t left() const { return left_; }
  void take(size_t bytes) { left_ -= bytes; }

 private:
  size_t left_;
};

// One encode call.
struct Encoding {
  PieceCache& cache;
  size_t limit;  ///< ids that are wanted
  Growth growth;
  std::vector<uint32_t> ids = {};

  bool is_enough() const { return ids.size() >= limit; }
};

// Hands on the pieces that matches, and what lies between, are joined to, as long as ids are wanted.
template <class Sink>
void split(std::string_view text, const SplitStep& step, const Encoding& work, const Sink& sink) {
  size_t begin = 0, end = 0;  // of the piece that waits
  bool was_match = false;
  const auto finish = [&] {
    const bool is_dropped = step.behavior == SplitBehavior::removed && was_match;
    if (begin < end && !is_dropped && !work.is_enough()) sink(begin, end);
  };
  const auto add = [&](size_t to, bool is_match) {
    const bool is_joined = step.behavior == SplitBehavior::contiguous             ? is_match == was_match
                           : step.behavior == SplitBehavior::merged_with_previous ? is_match && !was_match
                           : step.behavior == SplitBehavior::merged_with_next     ? !is_match && was_match
                                                                                  : false;
    if (!is_joined) finish(), begin = end;
    end = to;
    was_match = is_match;
  };
  TextPattern::Cursor cursor;
  while (!work.is_enough() && step.pattern.next(text, cursor)) {
    if (cursor.match_begin > end) add(cursor.match_begin, step.invert);
    add(cursor.match_end, !step.invert);
  }
  if (end < text.size()) add(text.size(), step.invert);
  finish();
}

// The longest of the strings that begin first in text at or after `from`.
struct Found {
  size_t begin, end;
  uint32_t value;
};
std::optional<Found> find_first(const StringTrie& strings, std::string_view text, size_t from) {
  std::optional<Found> found;
  for (; from < text.size() && !found; ++from) {
    uint32_t node = StringTrie::kRoot;
    for (size_t at = from; at < text.size(); ++at) {
      node = strings.next(node, text[at]);
      if (node == StringTrie::kNone) break;
      if (strings.value(node) != StringTrie::kNone) found = Found{from, at + 1, strings.value(node)};
    }
  }
  return found;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec)
      : model(make_token_model(spec)),
        normalizers(std::move(spec.normalizers)),
        steps(std::move(spec.pre_tokenizers)),
        decoders(std::move(spec.decoders)),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)),
        added(std::move(spec.added_tokens)),
        size(model->tokens().size()) {
    if (prefix.size() > kMaxTemplateTokens || suffix.size() > kMaxTemplateTokens - prefix.size())
      throw bad_input("the template puts {} tokens around a text; at most {} are plausible",
                      prefix.size() + suffix.size(), kMaxTemplateTokens);
    size_t byte_levels = 0;
    for (const PreTokenizer& step : steps) {
      const auto* metaspace = std::get_if<MetaspaceStep>(&step);
      if (metaspace && metaspace->replacement.empty())
        throw bad_input("the replacement of Metaspace is empty");
      byte_levels += std::holds_alternative<ByteLevelStep>(step);
    }
    // Each would double the length of most text.
    if (byte_levels > 1) throw bad_input("two ByteLevel pre-tokenizers; at most one is supported");
    size_t added_bytes = 0;
    for (const AddedToken& token : added) added_bytes += token.content.size();
    Growth growth(added_bytes);
    for (uint32_t i = 0; i < added.size(); ++i) add_token(i, growth);
    for (const auto* ids : {&prefix, &suffix})
      for (const uint32_t id : *ids)
        if (!model->tokens().token_of(id) && !added_by_id.contains(id))
          throw bad_input("the template's id {} is not a token's", id);
  }

  void add_token(uint32_t number, Growth& growth) {
    constexpr size_t kMaxBytes = 1024;  // how far each place in a text may look ahead
    const AddedToken& token = added[number];
    const std::string name = quote_text(token.content);
    if (valid_utf8_prefix(token.content) != token.content.size())
      throw bad_input("added token {} is not UTF-8", name);
    const auto known = model->tokens().id_of(token.content);
    if (known && *known != token.id)
      throw bad_input("added token {} has id {}, but id {} in the vocabulary", name, token.id, *known);
    if (const auto other = model->tokens().token_of(token.id); !known && other)
      throw bad_input("added token {} has id {}, which is that of {} in the vocabulary", name, token.id,
                      quote_text(*other));
    if (token.id >= kMaxTokenIds)
      throw bad_input("added token {} has id {}; ids must be below {}", name, token.id, kMaxTokenIds);
    if (!added_by_content.emplace(token.content, number).second)
      throw bad_input("added token {} is given twice", name);
    if (!added_by_id.emplace(token.id, number).second)
      throw bad_input("two added tokens have id {}", token.id);
    size = std::max(size, token.id + 1);
    size_t origin;
    const bool is_changed = token.normalized && !token.content.empty();
    added_spelling.push_back(is_changed ? normalized({token.content}, origin, growth) : token.content);
    if (added_spelling.back().empty())
      throw bad_input("added token {} becomes empty when normalized", number);
    if (added_spelling.back().size() > kMaxBytes)
      throw bad_input("added token {} has {} bytes{}; at most {} are plausible", name,
                      added_spelling.back().size(), is_changed ? " when normalized" : "", kMaxBytes);
    if (!(token.normalized ? normalized_finder : raw_finder).add(added_spelling.back(), number))
      throw bad_input("added token {} is given twice", quote_text(added_spelling.back()));
  }

  std::vector<uint32_t> encode(std::string_view text, size_t limit) const {
    std::string repaired;
    if (valid_utf8_prefix(text) != text.size()) text = repaired = repair_utf8(text);
    const std::unique_lock lock(mutex, std::try_to_lock);
    std::optional<PieceCache> own;
    if (!lock) own.emplace();
    Encoding work{lock ? cache : *own, limit, Growth(text.size())};
    // The first character, whatever its length, is what lies at offset 0.
    cut_added_tokens({text, first_character_size(text), true}, raw_finder, work);
    if (work.ids.size() > limit) work.ids.resize(limit);
    return std::move(work.ids);
  }

  // Cuts out what `finder` finds; the rest goes on. A match that takes white space along may overlap the one
  // after it, which is still a match; its text is not gone through twice. This is the order of decisions of the
  // reference.
  void cut_added_tokens(const Section& section, const StringTrie& finder, Encoding& work) const {
    const std::string_view text = section.text;
    size_t done = 0;
    const auto encode_to = [&](size_t end) {
      if (done >= end) return;
      const Section part = section.part(done, end);
      if (&finder == &normalized_finder) return pre_tokenize(0, part, work);
      Section result = part;
      const std::string own = normalized(part, result.origin, work.growth);
      result.text = own;
      cut_added_tokens(result, normalized_finder, work);
    };
    for (std::optional<Found> found; (found = find_first(finder, text, found ? found->end : 0));) {
      if (work.is_enough()) return;
      const AddedToken& token = added[found->value];
      size_t begin = found->begin, end = found->end;
      if (token.single_word && (begins_with_word(text.substr(end)) ||
                                (begin > 0 && begins_with_word(last_character(text.substr(0, begin))))))
        continue;
      // White space that was taken along before is not gone through again.
      if (token.lstrip)
        begin = begin > done ? done + without_trailing_white_space(text.substr(done, begin - done)) : done;
      if (token.rstrip) end = std::max(end, done), end += leading_white_space(text.substr(end));
      encode_to(begin);
      work.ids.push_back(token.id);
      done = end;
    }
    encode_to(text.size());
  }

  std::string normalized(const Section& section, size_t& origin, Growth& growth) const {
    const size_t max_bytes = growth.left();
    size_t most = 0;  // that a step made
    std::string text(section.text);
    origin = section.origin;
    const Overloaded apply{
        [&](UnicodeForm form) {
          text = normalize(text, form);
          if (origin > 0) origin = first_character_size(text);
        },
        [&](const PrependNormalizer& step) {
          if (text.empty()) return;
          text.insert(0, step.text);
          if (origin > 0) origin += step.text.size();
        },
        [&](const ReplaceNormalizer& step) {
          text = replaced({text, origin, section.at_origin}, step.pattern, step.content, origin, max_bytes);
        },
        [&](const StripNormalizer& step) {
          if (step.right) text.resize(without_trailing_white_space(text));
          const size_t leading = step.left ? leading_white_space(text) : 0;
          text.erase(0, leading);
          origin = origin > leading ? origin - leading : 0;
        },
        [&](const LowercaseNormalizer&) {
          origin = lowercase(std::string_view(text).substr(0, origin)).size();
          text = lowercase(text);
        },
        [&](const CharacterMap& map) { text = map.apply(text, max_bytes, origin); },
    };
    for (const TextNormalizer& normalizer : normalizers) {
      std::visit(apply, normalizer);
      most = std::max(most, text.size());
      if (most > max_bytes)
        throw bad_input("the normalizers make more than {} bytes of {}", max_bytes, section.text.size());
    }
    growth.take(most);
    return text;
  }

  void pre_tokenize(size_t number, const Section& piece, Encoding& work) const {
    if (piece.text.empty()) return;
    if (number == steps.size()) return model->encode(piece.text, work.cache, work.ids);
    const auto parts_of = [&](const Section& whole, const auto& next) {
      return [&](size_t begin, size_t end) { next(whole.part(begin, end)); };
    };
    const auto next = [&](const Section& part) { pre_tokenize(number + 1, part, work); };
    std::visit(Overloaded{
                   [&](const SplitStep& step) { split(piece.text, step, work, parts_of(piece, next)); },
                   [&](const ByteLevelStep& step) {
                     static const SplitStep words{TextPattern::regex(kGpt2Split)};
                     const auto to_alphabet = [&](const Section& part) { next_in_alphabet(part, next); };
                     Section whole = piece;
                     std::string with_space;
                     if (step.add_prefix_space && !piece.text.starts_with(' ')) {
                       whole.text = with_space.append(" ").append(piece.text);
                       if (whole.origin > 0) ++whole.origin;
                     }
                     if (!step.use_regex) return to_alphabet(whole);
                     split(whole.text, words, work, parts_of(whole, to_alphabet));
                   },
                   [&](const MetaspaceStep& step) {
                     static const TextPattern space = TextPattern::literal(" ");
                     Section whole = piece;
                     std::string text = replaced(piece, space, step.replacement, whole.origin);
                     const bool is_wanted = step.prepend == PrependScheme::always ||
                                            (step.prepend == PrependScheme::first && piece.at_origin);
                     if (is_wanted && !text.starts_with(step.replacement)) {
                       text.insert(0, step.replacement);
                       if (whole.origin > 0) whole.origin += step.replacement.size();
                     }
                     whole.text = text;
                     if (!step.split) return next(whole);
                     split(text, {TextPattern::literal(step.replacement), SplitBehavior::merged_with_next},
                           work, parts_of(whole, next));
                   },
               },
               steps[number]);
  }

  template <class Next>
  static void next_in_alphabet(const Section& part, const Next& next) {
    std::string text;
    Section result = part;
    for (size_t i = 0; i < part.text.size(); ++i) {
      if (i == part.origin) result.origin = text.size();
      text += byte_alphabet().character[static_cast<unsigned char>(part.text[i])];
    }
    if (part.origin >= part.text.size()) result.origin = text.size();
    result.text = text;
    next(result);
  }

  std::unique_ptr<TokenModel> model;
  std::vector<TextNormalizer> normalizers;
  std::vector<PreTokenizer> steps;
  std::optional<std::vector<TokenDecoder>> decoders;
  std::vector<uint32_t> prefix, suffix;

  std::vector<AddedToken> added;
  std::vector<std::string> added_spelling;  ///< by index: what decode takes it for, the normalized form
  std::unordered_map<uint32_t, uint32_t> added_by_id;
  std::unordered_map<std::string_view, uint32_t> added_by_content;
  StringTrie raw_finder, normalized_finder;  ///< values are indices of `added`
  uint32_t size = 0;

  mutable std::mutex mutex;  ///< of the cache; a call that finds it taken uses a cache of its own
  mutable PieceCache cache;
};

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<uint32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<uint32_t> ids = impl_->encode(text, SIZE_MAX);
  if (add_special) {
    ids.insert(ids.begin(), impl_->prefix.begin(), impl_->prefix.end());
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  return ids;
}

std::vector<uint32_t> Tokenizer::encode_first(std::string_view text, size_t limit) const {
  return impl_->encode(text, limit);
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

using Texts = std::vector<std::string>;

static std::string from_byte_alphabet(const Texts& tokens) {
  const auto& bytes = byte_alphabet().byte;
  std::string out;
  for (const std::string& token : tokens) {
    std::string decoded;
    bool all = true;
    unsigned size;
    for (size_t at = 0; at < token.size() && all; at += size) {
      const auto found = bytes.find(decode_utf8(token.data() + at, size));
      all = found != bytes.end();
      if (all) decoded += found->second;
    }
    out += all ? decoded : token;  // an added token, spelled as it is
  }
  return repair_utf8(out);
}

// The byte that a token such as <0x0A> stands for.
static std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
  const size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<char>(high % 16 * 16 + low % 16);
}

static Texts join_fallback_bytes(const Texts& tokens) {
  Texts out;
  std::string bytes;
  const auto flush = [&] {
    if (valid_utf8_prefix(bytes) != bytes.size())
      out.insert(out.end(), bytes.size(), "\uFFFD");
    else if (!bytes.empty())
      out.push_back(bytes);
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

static std::string strip_ends(std::string_view text, const StripDecoder& step) {
  for (size_t i = 0; i < step.start && text.starts_with(step.content); ++i)
    text.remove_prefix(step.content.size());
  for (size_t i = 0; i < step.stop && text.ends_with(step.content); ++i)
    text.remove_suffix(step.content.size());
  return std::string(text);
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  Texts tokens;
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
  if (!impl_->decoders) return fmt::format("{}", fmt::join(tokens, " "));
  const auto replace = [&](size_t first, size_t end, const TextPattern& pattern, std::string_view content) {
    size_t origin;
    for (size_t i = first; i < end; ++i) tokens[i] = replaced({tokens[i]}, pattern, content, origin);
  };
  const Overloaded apply{
      [&](const ByteLevelDecoder&) { tokens = {from_byte_alphabet(tokens)}; },
      [&](const ByteFallbackDecoder&) { tokens = join_fallback_bytes(tokens); },
      [&](const FuseDecoder&) { tokens = {fmt::format("{}", fmt::join(tokens, ""))}; },
      [&](const ReplaceDecoder& step) { replace(0, tokens.size(), step.pattern, step.content); },
      [&](const StripDecoder& step) {
        for (auto& token : tokens) token = strip_ends(token, step);
      },
      [&](const MetaspaceDecoder& step) {
        const TextPattern pattern = TextPattern::literal(step.replacement);
        const size_t first = std::min<size_t>(tokens.size(), 1);
        replace(0, first, pattern, step.prepend == PrependScheme::never ? " " : "");
        replace(first, tokens.size(), pattern, " ");
      },
  };
  for (const TokenDecoder& decoder : *impl_->decoders) std::visit(apply, decoder);
  return fmt::format("{}", fmt::join(tokens, ""));
}

}  // namespace kvcodec
