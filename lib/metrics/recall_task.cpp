#include "lib/metrics/recall_task.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {
namespace {

constexpr size_t kMinLetters = 4, kMaxLetters = 9;
/// How often lists of common words have these and the others, and from which length on, as in RULER's code.
constexpr size_t kLongList = 4096, kCommon[] = {6, 30}, kUncommon[] = {1, 3};

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_word_part(char c) {
  return is_letter(lower(c)) || (c >= '0' && c <= '9') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
std::string lowered(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), lower);
  return out;
}

/// `count` of the characters from `first` on, each behind `before`.
std::string drawn(Rng& rng, int count, char first, uint64_t characters, std::string_view before = {}) {
  std::string text;
  for (int i = 0; i < count; ++i) (text += before) += static_cast<char>(first + rng.below(characters));
  return text;
}

/// Draws until it is none of those taken.
template <class Draw>
std::string drawn_new(std::set<std::string>& taken, const Draw& draw) {
  while (true)
    if (const auto& [one, fresh] = taken.insert(draw()); fresh) return *one;
}

/// A key's planted sentences, and the question that asks for it.
struct Key {
  std::vector<std::string> sentences = {}, expected = {};
  std::string question = {};
};

Key needle(Rng& rng, const std::string& word, size_t values) {
  Key key;
  std::set<std::string> numbers;
  while (key.expected.size() < values) {
    key.expected.push_back(drawn_new(numbers, [&] { return drawn(rng, 4, '0', 10, " ").substr(1); }));
    key.sentences.push_back(fmt::format(" The secret number of {} is {}.\n", word, key.expected.back()));
  }
  const std::string verb = values == 1 ? "is" : "are",
                    what = values == 1 ? "secret number of " + word
                                       : fmt::format("{} secret numbers of {}", values, word);
  key.question = fmt::format(" What {0} the {1}? The {1} {0}", verb, what);
  return key;
}

/// taken: names and values of earlier chains.
Key chain(Rng& rng, std::set<std::string>& taken, size_t names) {
  Key key;
  const std::string value = drawn_new(taken, [&] { return drawn(rng, 5, '0', 10); });
  std::string source = value;
  while (key.expected.size() < names) {
    key.expected.push_back(drawn_new(taken, [&] { return drawn(rng, 5, 'A', 26); }));
    key.sentences.push_back(fmt::format(" VAR {} = {}.\n", key.expected.back(), source));
    source = "VAR " + key.expected.back();
  }
  key.question = fmt::format(
      "\nQuestion: Which variables have the value {0}, directly or by way of other variables?\nAnswer: The {1} variables "
      "with the value {0} are:",
      value, names);
  return key;
}

class Maker {
 public:
  Maker(const Tokenizer& tokenizer, const RecallText& text, const RecallOptions& options, uint64_t seed)
      : tokenizer_(tokenizer), text_(text), options_(options), rng_(seed), words_(text.words) {
    rng_.shuffle(words_);
  }

  RecallDocument planted() {
    const size_t asked = options_.depths.size();
    const bool chains = options_.family == RecallFamily::variables;
    if (!chains) need_words(options_.keys);
    std::set<std::string> taken;
    std::vector<std::pair<size_t, std::vector<uint32_t>>> sentences;  // by place
    std::vector<Key> keys;
    for (size_t i = 0; i < options_.keys; ++i) {
      keys.push_back(chains ? chain(rng_, taken, options_.values)
                            : needle(rng_, words_[i], i < asked ? options_.values : 1));
      for (const std::string& sentence : keys.back().sentences) sentences.emplace_back(0, encode(sentence));
    }
    for (size_t i = 0; i < asked; ++i) ask(keys[i].question, keys[i].expected);
    size_t facts = 0;
    for (const auto& [place, tokens] : sentences) facts += tokens.size();
    const size_t hay = room(facts);
    if (text_.tokens.size() < hay)
      throw usage_error("a document needs {} tokens of text; there are {}", hay, text_.tokens.size());
    auto next = sentences.begin();
    for (size_t i = 0; i < keys.size(); ++i) {
      std::vector<size_t> places(keys[i].sentences.size());
      for (size_t& place : places) place = rng_.below(hay + 1);
      if (chains)
        std::ranges::sort(places);
      else if (i < asked)
        places[0] = static_cast<size_t>(std::llround(options_.depths[i] * static_cast<double>(hay)));
      for (const size_t place : places) (next++)->first = place;
    }
    std::ranges::stable_sort(sentences, {}, [](const auto& each) { return each.first; });
    const auto haystack = std::span(text_.tokens).subspan(rng_.below(text_.tokens.size() - hay + 1), hay);
    size_t done = 0;
    for (const auto& [place, tokens] : sentences) {
      append_to(document_.tokens, haystack.subspan(done, place - done));
      append_to(document_.tokens, tokens);
      done = place;
    }
    append_to(document_.tokens, haystack.subspan(done));
    return std::move(document_);
  }

  RecallDocument listed() {
    const size_t best = options_.values, longer = options_.length >= kLongList ? 1 : 0;
    const bool common = options_.family == RecallFamily::common;
    need_words(best + 1);
    ask(fmt::format(
            "\nQuestion: Which {0} words appear most often in the {1} above?\nAnswer: The {0} words that appear most "
            "often in the {1} are:",
            best, common ? "list" : "text"),
        {words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(best)});
    const auto number = [&](size_t place) {
      return common ? encode(fmt::format(" {}.", place + 1)) : std::vector<uint32_t>();
    };
    std::vector<size_t> list;    // numbers of words
    std::vector<size_t> counts;  // of them, by word
    for (size_t left = room(0);;) {
      size_t word = 0;
      if (common) {
        const size_t commons = best * kCommon[longer], at = list.size();
        word = at < commons ? at % best : best + (at - commons) / kUncommon[longer];
      } else {  // that which lags most behind its share
        const auto lag = [&](size_t k) {
          const auto rank = static_cast<double>(k + 1);
          return 1 / (rank * rank * static_cast<double>(k < counts.size() ? counts[k] + 1 : 1));
        };
        for (size_t k = 1; k <= counts.size(); ++k)
          if (lag(k) > lag(word)) word = k;
      }
      need_words(word + 1);
      const size_t taken = number(list.size()).size() + encode(" " + words_[word]).size();
      if (taken > left) break;
      left -= taken;
      list.push_back(word);
      counts.resize(std::max(counts.size(), word + 1));
      ++counts[word];
    }
    if (counts.size() <= best || counts[best - 1] <= counts[best])
      throw usage_error(
          "a document of {} tokens is too short for {} words that appear more often than others",
          options_.length, best);
    rng_.shuffle(list);
    for (size_t i = 0; i < list.size(); ++i) {
      append_to(document_.tokens, number(i));
      append_to(document_.tokens, encode(" " + words_[list[i]]));
    }
    return std::move(document_);
  }

 private:
  std::vector<uint32_t> encode(const std::string& piece) const { return tokenizer_.encode(piece, false); }

  void need_words(size_t count) const {
    if (words_.size() < count)
      throw usage_error("the text has {} words of {} to {} letters; {} wanted", words_.size(), kMinLetters,
                        kMaxLetters, count == 1 ? "1 is" : fmt::format("{} are", count));
  }

  void ask(const std::string& question, std::vector<std::string> expected) {
    const size_t right = encode(fmt::format(" {}", fmt::join(expected, ", "))).size();
    document_.questions.push_back(
        {encode(question), std::move(expected), options_.written > 0 ? options_.written : 2 * right});
  }

  /// Starts the document; the tokens that it has left beside those planted, questions and answers.
  size_t room(size_t facts) {
    document_.tokens = text_.before;
    size_t asking = 0;
    for (const RecallQuestion& question : document_.questions)
      asking = std::max(asking, question.tokens.size() + question.written);
    const size_t taken = text_.before.size() + facts + asking;
    if (taken > options_.length)
      throw usage_error("facts, question and answer take {} tokens; the document is to have {}", taken,
                        options_.length);
    return options_.length - taken;
  }

  const Tokenizer& tokenizer_;
  const RecallText& text_;
  const RecallOptions& options_;
  Rng rng_;
  std::vector<std::string> words_;
  RecallDocument document_;
};

}  // namespace

std::vector<std::string> recall_words(std::string_view text) {
  std::set<std::string, std::less<>> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && is_word_part(text[end])) ++end;
    const std::string_view word = text.substr(begin, end - begin);
    if (word.size() >= kMinLetters && word.size() <= kMaxLetters && std::ranges::all_of(word, is_letter))
      words.emplace(word);
    begin = end + 1;
  }
  return {words.begin(), words.end()};
}

double recall_depth(size_t index, size_t count) {
  return count <= 1 ? 0.5 : static_cast<double>(index) / static_cast<double>(count - 1);
}

RecallDocument make_recall_document(const Tokenizer& tokenizer, const RecallText& text,
                                    const RecallOptions& options, uint64_t seed) {
  const size_t asked = options.depths.size();
  if (asked < 1 || options.values < 1 ||
      !std::ranges::all_of(options.depths, [](double depth) { return depth >= 0 && depth <= 1; }))
    throw usage_error("{} values, depths {}; at least one of both, and depths of 0 to 1 are needed",
                      options.values, fmt::join(options.depths, ", "));
  if (options.keys < asked)
    throw usage_error("{} questions about {} keys; one or more keys for each question are needed", asked,
                      options.keys);
  Maker maker(tokenizer, text, options, seed);
  const bool lists = options.family == RecallFamily::common || options.family == RecallFamily::frequent;
  return lists ? maker.listed() : maker.planted();
}

double recall_of(std::string_view answer, std::span<const std::string> expected) {
  const std::string text = lowered(answer);
  const auto found = std::ranges::count_if(
      expected, [&](const std::string& each) { return text.find(lowered(each)) != std::string::npos; });
  return static_cast<double>(found) / static_cast<double>(expected.size());
}

double word_f1(std::string_view answer, std::span<const std::string> expected) {
  const auto words_of = [](std::string_view text) {
    std::multiset<std::string> words;
    std::string word;
    for (const char c : lowered(text) + ' ')
      if (c != ' ' && c != '\n' && c != '\t') {
        if (is_word_part(c) && c != '_') word += c;
      } else if (const std::string whole = std::exchange(word, {});
                 !whole.empty() && whole != "a" && whole != "an" && whole != "the") {
        words.insert(whole);
      }
    return words;
  };
  const auto said = words_of(answer);
  double best = 0;
  for (const std::string& each : expected) {
    const auto right = words_of(each);
    std::vector<std::string> same;
    std::ranges::set_intersection(said, right, std::back_inserter(same));
    if (!same.empty())
      best = std::max(best,
                      2 * static_cast<double>(same.size()) / static_cast<double>(said.size() + right.size()));
  }
  return best;
}

}  // namespace kvcodec
