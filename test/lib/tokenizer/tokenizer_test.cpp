#include "lib/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/tokenizer/regex.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace tokenizer_test {

using namespace kvcodec;

namespace {

// The tokens of a text.
std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> out;
  for (const uint32_t id : tokenizer.encode(text, false)) out.emplace_back(*tokenizer.token_of(id));
  return out;
}
using Pieces = std::vector<std::string>;

TokenizerSpec with_tokens(const std::vector<std::string>& tokens) {
  TokenizerSpec spec;
  for (const auto& token : tokens)
    spec.vocabulary.emplace_back(token, static_cast<uint32_t>(spec.vocabulary.size()));
  return spec;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.what();
  }
  return "nothing thrown";
}
std::string refusal(TokenizerSpec spec) {
  return message_of([&] { Tokenizer tokenizer(std::move(spec)); });
}

// Byte-pair encoding by its definition: repeatedly the best pair, leftmost first.
std::vector<uint32_t> merged_naively(
    std::vector<uint32_t> symbols,
    const std::map<std::pair<uint32_t, uint32_t>, std::pair<size_t, uint32_t>>& merges) {
  for (;;) {
    size_t best = symbols.size(), best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto merge = merges.find({symbols[i], symbols[i + 1]});
      if (merge == merges.end() || merge->second.first >= best_rank) continue;
      best = i;
      best_rank = merge->second.first;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = merges.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// The best split of a text into tokens, by trying all of them from the left: strictly better sums only, so that among equal ones
// the first token that begins furthest left stays.
std::vector<uint32_t> most_likely_naively(const TokenizerSpec& spec, const std::string& text) {
  const std::vector<double>& scores = spec.unigram->scores;
  const double unknown_score = *std::min_element(scores.begin(), scores.end()) - 10;
  struct Way {
    bool known = false;
    double score = 0;
    size_t begin = 0;
    uint32_t id = 0;
  };
  std::vector<Way> ways(text.size() + 1);
  ways[0].known = true;
  const auto offer = [&](size_t begin, size_t end, double score, uint32_t id) {
    if (ways[end].known && ways[end].score >= score) return;
    ways[end] = {true, score, begin, id};
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (!ways[at].known) continue;  // in the middle of a character
    unsigned size;
    decode_utf8(text.data() + at, size);
    bool is_token = false;
    for (size_t i = 0; i < spec.vocabulary.size(); ++i) {
      const std::string& token = spec.vocabulary[i].first;
      if (token.empty() || text.compare(at, token.size(), token) != 0) continue;
      offer(at, at + token.size(), scores[i] + ways[at].score, spec.vocabulary[i].second);
      is_token = is_token || token.size() == size;
    }
    if (!is_token) offer(at, at + size, unknown_score + ways[at].score, *spec.unigram->unknown_id);
  }
  std::vector<uint32_t> ids;
  for (size_t at = text.size(); at > 0; at = ways[at].begin) {
    const bool joins = !ids.empty() && ids.back() == spec.unigram->unknown_id && ways[at].id == ids.back();
    if (!joins) ids.push_back(ways[at].id);
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

}  // namespace

TEST_CASE("tokenizer: random unigram models give what the definition gives, for texts of any length") {
  constexpr uint64_t kSeed = 20241;
  Rng rng(kSeed);
  INFO("seed ", kSeed);
  const std::vector<std::string> alphabet = {"a", "b", "c", "▁", "é", "è", "日", "😀"};
  const auto text_of = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += alphabet[rng.below(alphabet.size())];
    return text;
  };
  for (int round = 0; round < 150; ++round) {
    std::set<std::string> tokens = {"<unk>"};
    for (uint64_t n = 1 + rng.below(40); n > 0; --n) tokens.insert(text_of(1 + rng.below(round % 3 ? 3 : 9)));
    TokenizerSpec spec = with_tokens({tokens.begin(), tokens.end()});
    spec.unigram.emplace();
    // Half of the models have few different scores, so that many sums are equal or differ only by rounding.
    for (size_t i = 0; i < tokens.size(); ++i)
      spec.unigram->scores.push_back(-static_cast<double>(round % 2 ? rng.below(3) : rng.below(100000)) *
                                     0.1);
    spec.unigram->unknown_id = static_cast<uint32_t>(std::distance(tokens.begin(), tokens.find("<unk>")));
    const Tokenizer tokenizer(spec);
    for (const size_t length : {1, 2, 3, 5, 8, 13, 30, 30, 100, 1000}) {
      const std::string text = text_of(length);
      INFO("round ", round, ": ", text);
      const auto expected = most_likely_naively(spec, text);
      CHECK_EQ(tokenizer.encode(text, false), expected);
      CHECK_EQ(tokenizer.encode(text, false), expected);  // from the cache
    }
  }
}

TEST_CASE("tokenizer: unknown characters of a unigram model") {
  TokenizerSpec spec = with_tokens({"<unk>", "a", "<0xC3>", "<0xA9>", "<0x78>", "xy"});
  spec.unigram = UnigramSpec{{0, -1, 0, 0, 0, 12}, 0};
  CHECK_EQ(pieces(Tokenizer(spec), "aéxa"), Pieces{"a", "<unk>", "a"});
  spec.byte_fallback = true;
  CHECK_EQ(pieces(Tokenizer(spec), "aéxa"), Pieces{"a", "<0xC3>", "<0xA9>", "<0x78>", "a"});
  CHECK_EQ(pieces(Tokenizer(spec), "aéxza"), Pieces{"a", "<unk>", "a"});  // all bytes of them, or none
  CHECK_EQ(pieces(Tokenizer(spec), "xy"), Pieces{"xy"});
  spec.unigram->scores = {50, 50, 50,
                          50, 50, 50};  // unknown characters are cheaper: two of them are that token
  CHECK_EQ(pieces(Tokenizer(spec), "xy"), Pieces{"xy"});
  CHECK_EQ(pieces(Tokenizer(spec), "yx"), Pieces{"<unk>"});
  spec.unigram->unknown_id.reset();
  CHECK_EQ(pieces(Tokenizer(spec), "aa"), Pieces{"a", "a"});
  CHECK_EQ(message_of([&] { Tokenizer(spec).encode("aéa", false); }),
           "character \"é\" has no token, and the unigram model has no unknown token (\"unk_id\")");
}

TEST_CASE("tokenizer: a unigram model that contradicts itself is refused") {
  TokenizerSpec good = with_tokens({"<unk>", "a", ""});
  good.unigram = UnigramSpec{{0, -1, -2}, 0};
  CHECK_EQ(pieces(Tokenizer(good), "aa"), Pieces{"a", "a"});  // the empty token is never found
  const auto changed = [&](const std::function<void(TokenizerSpec&)>& edit) {
    TokenizerSpec spec = good;
    edit(spec);
    return refusal(std::move(spec));
  };
  CHECK_EQ(changed([](TokenizerSpec& s) { s.unigram->scores[1] = std::nan(""); }),
           "the score of \"a\" is nan; expected a finite number");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.unigram->scores[0] = -HUGE_VAL; }),
           "the score of \"<unk>\" is -inf; expected a finite number");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.unigram->scores.pop_back(); }), "2 scores for 3 tokens");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.unigram->unknown_id = 3; }),
           "the unknown token has id 3, which is not a token's (ids below 3)");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.vocabulary.clear(), s.unigram->scores.clear(); }),
           "a unigram model without tokens");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.vocabulary[2].first = "a"; }), "token \"a\" is given twice");
  CHECK_EQ(changed([](TokenizerSpec& s) { s.vocabulary[1].first.assign(1025, 'a'); }),
           "token \"" + std::string(60, 'a') + "\"... has 1025 bytes; at most 1024 in a unigram model");
}

TEST_CASE("tokenizer: a character map that leads outside of itself, or makes too much of a text") {
  // Units of a trie: of the root, of its child by "a" (label 0x61, a value at place 0), then replacements.
  const auto apply = [](uint32_t root, uint32_t child, uint32_t leaf, const std::string& replacements) {
    std::vector<uint32_t> units(0x63);
    units[0] = root, units[0x61] = child, units[1] = leaf;
    const auto size = static_cast<uint32_t>(units.size() * 4);
    std::string bytes(reinterpret_cast<const char*>(&size), 4);
    bytes.append(reinterpret_cast<const char*>(units.data()), size);
    size_t origin = 1;
    return message_of([&] {
      const CharacterMap map(bytes + replacements);
      const std::string result = map.apply("ba", 4, origin);
      CHECK_EQ(result, "bxyz");
    });
  };
  const uint32_t child = 0x60u << 10 | 0x100 | 0x61;  // 0x61 ^ 0x60 is 1
  CHECK_EQ(apply(0, child, 0x80000001u, std::string("wxyz\0", 5)), "nothing thrown");
  CHECK_EQ(apply(0, child, 0x80000000u, "wxyz"), "the normalizers make more than 4 bytes of 2");
  CHECK_EQ(apply(0, child, 0x80000005u, "wxyz"), "a replacement of the character map begins at byte 5");
  CHECK_EQ(apply(0, child, 0x80000001u, "é"), "a replacement of the character map begins at byte 1");
  CHECK_EQ(apply(0x100u << 10, child, 0, ""), "the character map leads to unit 354 of 99");
  CHECK_EQ(apply(0, child | 0x200u << 10, 0, ""), "the character map leads to unit 513 of 99");
}

TEST_CASE("tokenizer: random merges give what the definition gives, for texts of any length") {
  constexpr uint64_t kSeed = 20240;
  Rng rng(kSeed);
  INFO("seed ", kSeed);
  const std::vector<std::string> alphabet = {"a", "b", "c", "▁", "é", "日", "😀"};
  for (int round = 0; round < 120; ++round) {
    TokenizerSpec spec = with_tokens({"<unk>"});
    spec.unknown_token = "<unk>";
    spec.fuse_unknown = rng.below(2) != 0;
    std::vector<std::string> tokens;
    const size_t known = 2 + rng.below(alphabet.size() - 1);
    std::map<std::string, uint32_t> ids;
    const auto add = [&](const std::string& token) {
      const auto [found, is_new] = ids.emplace(token, static_cast<uint32_t>(ids.size() + 1));
      if (is_new) spec.vocabulary.emplace_back(token, found->second), tokens.push_back(token);
      return found->second;
    };
    for (size_t i = 0; i < known; ++i) add(alphabet[i]);
    // Merges in random order of rank, so that a pair may arise whose merge ranks before the one that created it.
    std::vector<std::pair<std::string, std::string>> pairs;
    for (size_t i = rng.below(40); i > 0; --i) {
      const std::string left = tokens[rng.below(tokens.size())], right = tokens[rng.below(tokens.size())];
      if (left.size() + right.size() > 40) continue;
      add(left + right);
      if (std::find(pairs.begin(), pairs.end(), std::pair(left, right)) == pairs.end())
        pairs.emplace_back(left, right);
    }
    for (size_t i = pairs.size(); i > 1; --i) std::swap(pairs[i - 1], pairs[rng.below(i)]);
    spec.merges = pairs;
    std::map<std::pair<uint32_t, uint32_t>, std::pair<size_t, uint32_t>> merges;
    for (size_t i = 0; i < pairs.size(); ++i) {
      merges[{ids[pairs[i].first], ids[pairs[i].second]}] = {i, ids[pairs[i].first + pairs[i].second]};
    }
    const Tokenizer tokenizer(spec);
    for (const size_t length : {0, 1, 2, 3, 7, 20, 31, 32, 33, 60, 64, 65, 100, 300}) {
      std::string text;
      std::vector<uint32_t> symbols;
      for (size_t i = 0; i < length; ++i) {
        const size_t letter = rng.below(rng.below(8) == 0 ? alphabet.size() : known);
        text += alphabet[letter];
        if (letter < known) {
          symbols.push_back(ids[alphabet[letter]]);
        } else if (!spec.fuse_unknown || symbols.empty() || symbols.back() != 0) {
          symbols.push_back(0);
        }
      }
      INFO("round ", round, ", text ", text);
      const auto expected = merged_naively(symbols, merges);
      CHECK_EQ(tokenizer.encode(text, false), expected);
      CHECK_EQ(tokenizer.encode(text, false), expected);  // from the cache
    }
  }
}

TEST_CASE("tokenizer: characters without a token fall back to bytes, become unknown, or vanish") {
  TokenizerSpec spec = with_tokens({"<unk>", "a", "<0xC3>", "<0xA9>", "ab", "b"});
  spec.merges = {{"a", "b"}};
  const std::string text = "aébxxb";
  CHECK_EQ(pieces(Tokenizer(spec), text), Pieces{"ab", "b"});  // é and x leave a and b side by side
  spec.byte_fallback = true;
  CHECK_EQ(pieces(Tokenizer(spec), text), Pieces{"a", "<0xC3>", "<0xA9>", "b", "b"});
  spec.unknown_token = "<unk>";
  CHECK_EQ(pieces(Tokenizer(spec), text), Pieces{"a", "<0xC3>", "<0xA9>", "b", "<unk>", "<unk>", "b"});
  spec.fuse_unknown = true;
  CHECK_EQ(pieces(Tokenizer(spec), text), Pieces{"a", "<0xC3>", "<0xA9>", "b", "<unk>", "b"});
  spec.unknown_token = "[UNK]";
  const Tokenizer no_unknown(spec);
  CHECK_EQ(pieces(no_unknown, "ab"), Pieces{"ab"});
  CHECK_EQ(message_of([&] { no_unknown.encode("abx", false); }),
           "character \"x\" has no token, and the unknown token \"[UNK]\" is not in the vocabulary");
}

TEST_CASE("tokenizer: ignore_merges takes a piece that is a token as it is") {
  TokenizerSpec spec = with_tokens(
      {"a", "b", "c", "ab", "abc", "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc"});
  spec.merges = {{"a", "b"}};
  CHECK_EQ(pieces(Tokenizer(spec), "abc"), Pieces{"ab", "c"});
  spec.ignore_merges = true;
  CHECK_EQ(pieces(Tokenizer(spec), "abc"), Pieces{"abc"});
  CHECK_EQ(pieces(Tokenizer(spec), spec.vocabulary.back().first), Pieces{spec.vocabulary.back().first});
  CHECK_EQ(pieces(Tokenizer(spec), spec.vocabulary.back().first + "a").size(), 47);  // not in parts
}

TEST_CASE("tokenizer: added tokens, the template, names and ids") {
  TokenizerSpec spec = with_tokens({"a", "b", " ", "ab"});
  spec.merges = {{"a", "b"}};
  spec.added_tokens = {{.content = "<s>", .id = 10, .special = true},
                       {.content = "<s>x", .id = 11},
                       {.content = "ab", .id = 3, .single_word = true},
                       {.content = "|", .id = 12, .lstrip = true, .rstrip = true}};
  spec.prefix = {10};
  spec.suffix = {12, 10};
  spec.decoders.emplace();
  const Tokenizer tokenizer(std::move(spec));
  CHECK_EQ(tokenizer.encode("", true), std::vector<uint32_t>{10, 12, 10});
  CHECK(tokenizer.encode("", false).empty());
  CHECK_EQ(tokenizer.encode("a<s>b<s>xa", false), std::vector<uint32_t>{0, 10, 1, 11, 0});
  CHECK_EQ(tokenizer.encode("a \t| \nb", false), std::vector<uint32_t>{0, 12, 1});
  CHECK_EQ(tokenizer.encode("ab bab", false), std::vector<uint32_t>{3, 2, 1, 3});
  CHECK_EQ(tokenizer.vocabulary_size(), 13);
  CHECK_EQ(tokenizer.id_of("<s>"), 10);
  CHECK_EQ(tokenizer.id_of("b"), 1);
  CHECK_EQ(tokenizer.id_of("c"), std::nullopt);
  CHECK_EQ(tokenizer.token_of(11), "<s>x");
  CHECK_EQ(tokenizer.token_of(5), std::nullopt);
  const std::vector<uint32_t> ids = {10, 3, 12, 11};
  CHECK_EQ(tokenizer.decode(ids), "<s>ab|<s>x");
  CHECK_EQ(tokenizer.decode(ids, true), "ab|<s>x");
  const std::vector<uint32_t> hole = {7};
  CHECK_EQ(message_of([&] { tokenizer.decode(hole); }), "token id 7 is not in the vocabulary (ids below 13)");
}

TEST_CASE("tokenizer: the first ids of a text, whatever stands behind them") {
  TokenizerSpec spec = with_tokens({"a", "b", "ab"});
  spec.merges = {{"a", "b"}};
  spec.pre_tokenizers = {SplitStep{TextPattern::characters(is_white_space), SplitBehavior::removed}};
  spec.added_tokens = {{.content = "|", .id = 3}};
  spec.unknown_token = "?";  // is none: to look at a character that has no token is an error
  const Tokenizer tokenizer(std::move(spec));
  const std::string text = "ab a|ba b c";
  CHECK_THROWS_AS(tokenizer.encode(text, false), Error);
  const std::vector<uint32_t> ids = {2, 0, 3, 1, 0, 1};
  for (size_t limit = 0; limit < ids.size(); ++limit)
    CHECK_EQ(tokenizer.encode_first(text, limit),
             std::vector<uint32_t>(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(limit)));
  CHECK_THROWS_AS(tokenizer.encode_first(text, ids.size() + 1), Error);
  CHECK_EQ(tokenizer.encode_first("ab a", SIZE_MAX), std::vector<uint32_t>{2, 0});
}

TEST_CASE("tokenizer: a specification that contradicts itself is refused") {
  TokenizerSpec good = with_tokens({"a", "b", "ab"});
  good.merges = {{"a", "b"}};
  CHECK_EQ(refusal(good), "nothing thrown");
  const auto changed = [&](auto change) {
    TokenizerSpec spec = good;
    change(spec);
    return refusal(std::move(spec));
  };
  CHECK_EQ(changed([](auto& s) { s.vocabulary.emplace_back("c", 1); }),
           "tokens \"b\" and \"c\" both have id 1");
  CHECK_EQ(changed([](auto& s) { s.vocabulary.emplace_back("b", 3); }), "token \"b\" is given twice");
  CHECK_EQ(changed([](auto& s) { s.vocabulary.emplace_back("c", 4000000000); }),
           "token \"c\" has id 4000000000; ids must be below 16777216");
  CHECK_EQ(changed([](auto& s) { s.vocabulary.emplace_back("\xff", 3); }), "token \"\\xff\" is not UTF-8");
  CHECK_EQ(changed([](auto& s) { s.merges.emplace_back("a", "c"); }),
           "merge 1 of \"a\" and \"c\": the part \"c\" is not in the vocabulary");
  CHECK_EQ(changed([](auto& s) { s.merges.emplace_back("b", "a"); }),
           "merge 1 of \"b\" and \"a\": what they make, \"ba\" is not in the vocabulary");
  CHECK_EQ(changed([](auto& s) { s.added_tokens = {{.content = "a", .id = 1}}; }),
           "added token \"a\" has id 1, but id 0 in the vocabulary");
  CHECK_EQ(changed([](auto& s) { s.added_tokens = {{.content = "x", .id = 1}}; }),
           "added token \"x\" has id 1, which is that of \"b\" in the vocabulary");
  CHECK_EQ(changed([](auto& s) {
             s.added_tokens = {{.content = "x", .id = 3}, {.content = "x", .id = 4}};
           }),
           "added token \"x\" is given twice");
  CHECK_EQ(changed([](auto& s) {
             s.added_tokens = {{.content = "x", .id = 3}, {.content = "y", .id = 3}};
           }),
           "two added tokens have id 3");
  CHECK_EQ(changed([](auto& s) { s.added_tokens = {{.content = "x", .id = 1u << 24}}; }),
           "added token \"x\" has id 16777216; ids must be below 16777216");
  CHECK_EQ(changed([](auto& s) { s.added_tokens = {{.content = "\xc3", .id = 5}}; }),
           "added token \"\\xc3\" is not UTF-8");
  CHECK_EQ(changed([](auto& s) {
             s.normalizers = {LowercaseNormalizer{}};
             s.added_tokens = {{.content = "x", .id = 3, .normalized = true},
                               {.content = "X", .id = 4, .normalized = true}};
           }),
           "added token \"x\" is given twice");
  CHECK_EQ(changed([](auto& s) {
             s.normalizers = {StripNormalizer{}};
             s.added_tokens = {{.content = "  ", .id = 3, .normalized = true}};
           }),
           "added token 0 becomes empty when normalized");
  CHECK_EQ(changed([](auto& s) { s.prefix = {9}; }), "the template's id 9 is not a token's");
  CHECK_EQ(changed([](auto& s) { s.pre_tokenizers = {MetaspaceStep{}}; }),
           "the replacement of Metaspace is empty");
  CHECK_EQ(changed([](auto& s) {
             s.pre_tokenizers = {ByteLevelStep{}, ByteLevelStep{}};
           }),
           "two ByteLevel pre-tokenizers; at most one is supported");
  CHECK_EQ(refusal({}), "nothing thrown");  // no tokens at all
  CHECK_EQ(changed([](auto& s) { s.vocabulary.emplace_back("c", 1000); }),
           "nothing thrown");  // ids may have holes
}

TEST_CASE("tokenizer: replacements that blow the text up end with an error") {
  TokenizerSpec spec = with_tokens({"a"});
  for (int i = 0; i < 30; ++i)
    spec.normalizers.emplace_back(ReplaceNormalizer{TextPattern::literal("a"), "aaaa"});
  const Tokenizer tokenizer(std::move(spec));
  CHECK(message_of([&] { tokenizer.encode("aa", false); }).starts_with("the normalizers make more than "));
}

TEST_CASE(
    "tokenizer: what is put before, or into, each text between added tokens is bounded in all of them together") {
  const std::string much(100'000, 'a');
  const auto message = [](const TextNormalizer& step) {
    TokenizerSpec spec = with_tokens({"a", "b"});
    spec.added_tokens = {{.content = "<s>", .id = 9}};
    spec.normalizers = {step};
    const Tokenizer tokenizer(std::move(spec));
    std::string text;
    for (int i = 0; i < 100; ++i) text += "<s>b";
    return message_of([&] { tokenizer.encode(text, false); });
  };
  for (const TextNormalizer& step : {TextNormalizer(PrependNormalizer{much}),
                                     TextNormalizer(ReplaceNormalizer{TextPattern::literal(""), much})})
    CHECK(message(step).starts_with("the normalizers make more than "));
  CHECK_EQ(message(PrependNormalizer{"aaaa"}), "nothing thrown");
}

TEST_CASE("tokenizer: an added token that is too long, as it is or normalized, is refused") {
  const auto message = [](size_t bytes, const std::vector<TextNormalizer>& steps) {
    TokenizerSpec spec = with_tokens({"a"});
    spec.added_tokens = {{.content = std::string(bytes, 'b'), .id = 9, .normalized = !steps.empty()}};
    spec.normalizers = steps;
    return refusal(std::move(spec));
  };
  CHECK_EQ(message(1024, {}), "nothing thrown");
  CHECK(message(1025, {}).ends_with(" has 1025 bytes; at most 1024 are plausible"));
  const std::vector<TextNormalizer> prepend{PrependNormalizer{std::string(1020, 'a')}};
  CHECK_EQ(message(4, prepend), "nothing thrown");
  CHECK(message(5, prepend).ends_with(" has 1025 bytes when normalized; at most 1024 are plausible"));
}

TEST_CASE("tokenizer: white space that many added tokens take along is gone through once") {
  TokenizerSpec spec = with_tokens({"a"});
  spec.added_tokens = {{.content = " ", .id = 9, .lstrip = true, .rstrip = true}};
  const Tokenizer tokenizer(std::move(spec));
  const size_t spaces = 200'000;
  const std::vector<uint32_t> ids = tokenizer.encode("a" + std::string(spaces, ' ') + "a", false);
  CHECK_EQ(ids.size(), spaces + 2);
  CHECK_EQ(ids.front(), 0);
  CHECK_EQ(ids.back(), 0);
}

TEST_CASE("tokenizer: patterns that may not mean the same are refused") {
  for (const char* pattern : {"(?<n>a)",      "(?'n'a)",
                              "(a)\\1",       "\\k<n>",
                              "\\g<1>",       "(?(1)a)",
                              "(?~a)",        "a\\Kb",
                              "\\G",          "\\X",
                              "\\y",          "\\o{101}",
                              "\\101",        "\\cA",
                              "\\C-a",        "\\Q.\\E",
                              "(?x)a b",      "(?s).",
                              "(?#c)a",       "\\xe9",
                              "\\x{110000}",  "\\ud800",
                              "\\u12",        "\\x{41",
                              "\\pL",         "\\p{",
                              "\\p{Nope}",    "\\p{Script=Han}",
                              "(?i:\\p{Lu})", "(?i:[[:upper:]])",
                              "[z-a]",        "[]",
                              "[^]",          "[a",
                              "[a-\\d]",      "[\\d-z]",
                              "[a&&]",        "[&&a]",
                              "[a-[b]]",      "[[:nope:]]",
                              "[[:alpha:]",   "*a",
                              "a|*",          "(+)",
                              "{2}",          "a{3,2}",
                              "a{70000}",     "^*",
                              "(?=a)+",       "\\b?",
                              "(a",           "a)",
                              "a\\",          "\xff"}) {
    INFO(pattern);
    const std::string message = message_of([&] { TextPattern::regex(pattern); });
    CHECK_MESSAGE(message.starts_with("regular expression \""), message);
    CHECK_EQ(message.find('\n'), std::string::npos);
  }
  std::string deep = "a";
  for (int i = 0; i < 3000; ++i) deep = "(" + deep + ")";
  CHECK(message_of([&] { TextPattern::regex(deep); }).find("nesting this deep") != std::string::npos);
  for (int i = 0; i < 3000; ++i) deep = "[" + deep + "]";
  CHECK(message_of([&] { TextPattern::regex(deep); }).find("nesting this deep") != std::string::npos);
}

TEST_CASE("tokenizer: a pattern of any length is refused before it is translated") {
  const auto with_length = [](const std::string& part, size_t bytes) {
    std::string pattern;
    while (pattern.size() + part.size() <= bytes) pattern += part;
    pattern.resize(bytes, 'a');
    return message_of([&] { translate_pattern(pattern); });
  };
  for (const char* part : {"a", "\\b", "a***", "(?i)a"})
    CHECK_EQ(with_length(part, part[0] == '(' ? 400 : 16384), "nothing thrown");
  const std::string start(60, 'a');
  CHECK_EQ(with_length("a", 16385),
           "regular expression \"" + start + "\"...: has 16385 bytes; at most 16384 are supported");
  CHECK(with_length("\\b", 10'000'000).ends_with("has 10000000 bytes; at most 16384 are supported"));
}

TEST_CASE("tokenizer: a pattern that backtracks exponentially ends with an error") {
  // There are 2^40 ways to split the letters; the limit on backtracks stops it.
  TokenizerSpec spec = with_tokens({"a"});
  spec.pre_tokenizers = {SplitStep{TextPattern::regex("(?:a|aa|a.)+!|(?:a?){40}b")}};
  const Tokenizer tokenizer(std::move(spec));
  const std::string message = message_of([&] { tokenizer.encode(std::string(60, 'a'), false); });
  CHECK(message.starts_with("a regular expression of the tokenizer cannot be matched at byte 0"));
}

TEST_CASE("tokenizer: matching needs no stack of its own for long runs") {
  const TextPattern pattern = TextPattern::regex(R"((?:a|b)+c|\s+(?!\S)|\s+)");
  std::string text(400'000, 'a');  // too many for the stack of the machine code: the interpreter
  text += 'c';
  text.append(1'000'000, ' ');
  TextPattern::Cursor cursor;
  REQUIRE(pattern.next(text, cursor));
  CHECK_EQ(cursor.match_end, 400'001);
  REQUIRE(pattern.next(text, cursor));
  CHECK_EQ(cursor.match_end, text.size());
  CHECK_FALSE(pattern.next(text, cursor));
}

TEST_CASE("tokenizer: ill-formed UTF-8 becomes one U+FFFD for each maximal ill-formed part") {
  CHECK_EQ(repair_utf8("a\xffz"), "a\uFFFDz");
  CHECK_EQ(repair_utf8("\xe2\x82"), "\uFFFD");
  CHECK_EQ(repair_utf8("\xe2\x82 \xf0\x9f\x98x"), "\uFFFD \uFFFDx");
  CHECK_EQ(repair_utf8("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  CHECK_EQ(repair_utf8("\xc0\xaf\xf5\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK_EQ(repair_utf8("gut é 日 😀"), "gut é 日 😀");
  CHECK_EQ(valid_utf8_prefix("ab\x80"), 2);
  // Every character is reproduced, and no part of one is well-formed.
  test::Mismatch wrong;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(text, c);
    unsigned size;
    const uint32_t number = c;
    wrong.compare(uint32_t{decode_utf8(text.data(), size)}, number, number);
    wrong.compare(size, text.size(), number);
    wrong.compare(valid_utf8_prefix(text), text.size(), number);
    for (size_t cut = 1; cut < text.size(); ++cut)
      wrong.compare(valid_utf8_prefix(text.substr(0, cut)), 0u, number, cut);
  }
  CHECK_EQ(wrong.report(), "");
}

TEST_CASE("tokenizer: normalization joins and orders marks, and knows Hangul") {
  CHECK_EQ(normalize("e\u0301", UnicodeForm::nfc), "é");
  CHECK_EQ(normalize("é", UnicodeForm::nfd), "e\u0301");
  CHECK_EQ(normalize("a\u0316\u0301b", UnicodeForm::nfc), "á\u0316b");
  CHECK_EQ(normalize("a\u0301\u0316b", UnicodeForm::nfc), "á\u0316b");
  CHECK_EQ(normalize("\u1100\u1161\u11a8", UnicodeForm::nfc), "\uac01");
  CHECK_EQ(normalize("ﬁ²", UnicodeForm::nfkc), "fi2");
  CHECK_EQ(normalize("ﬁ²", UnicodeForm::nfc), "ﬁ²");
  CHECK_EQ(normalize("\u0958", UnicodeForm::nfc), "\u0915\u093c");  // composition exclusion
  CHECK_EQ(normalize("", UnicodeForm::nfc), "");
  CHECK_EQ(normalize(std::string_view("a\0b\u0301", 5), UnicodeForm::nfd), std::string("a\0b\u0301", 5));
  std::string marks = "a";  // a long run of marks out of order
  for (int i = 0; i < 100000; ++i) marks += "\u0301\u0316";
  CHECK_EQ(normalize(marks, UnicodeForm::nfc).size(), 2 + 2 * 199999);
  CHECK_EQ(lowercase("ÀB\u0130Σ"), "àbi\u0307σ");
}

}  // namespace tokenizer_test
