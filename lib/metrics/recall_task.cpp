#include "lib/metrics/recall_task.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {
namespace {

constexpr size_t kMinLetters = 4, kMaxLetters = 9;

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
bool is_word_part(char c) {
  return is_letter(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Four digits, apart.
std::string random_number(Rng& rng) {
  std::string number;
  for (int i = 0; i < 4; ++i) number += {' ', static_cast<char>('0' + rng.below(10))};
  return number;
}

/// Facts to be planted before token `place` of the haystack.
struct Planted {
  size_t place;
  std::vector<uint32_t> tokens;
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

std::vector<RecallDocument> make_recall_question(const Tokenizer& tokenizer, const RecallText& text,
                                                 const RecallOptions& options, uint64_t seed) {
  if (options.keys < 1 || options.values < 1 || !(options.depth >= 0 && options.depth <= 1))
    throw usage_error("{} keys, {} values, depth {}; at least one of both, and a depth of 0 to 1 are needed",
                      options.keys, options.values, options.depth);
  if (text.words.size() < options.keys)
    throw usage_error("the text has {} words of {} to {} letters; {} wanted, one for each key",
                      text.words.size(), kMinLetters, kMaxLetters,
                      options.keys == 1 ? "1 is" : fmt::format("{} are", options.keys));
  Rng rng(seed);
  const auto encode = [&](const std::string& piece) { return tokenizer.encode(piece, false); };
  std::vector<std::string> words;
  while (words.size() < options.keys)
    if (const std::string& word = text.words[rng.below(text.words.size())];
        std::ranges::find(words, word) == words.end())
      words.push_back(word);
  std::vector<std::string> numbers;
  while (numbers.size() < options.values)
    if (std::string number = random_number(rng); std::ranges::find(numbers, number) == numbers.end())
      numbers.push_back(std::move(number));

  const auto fact = [&](const std::string& word, const std::string& number) {
    return encode(" The secret number of " + word + " is" + number + ".\n");
  };
  std::vector<Planted> planted = {{0, fact(words[0], numbers[0])}};
  for (size_t i = 1; i < options.values; ++i) planted.push_back({0, fact(words[0], numbers[i])});
  for (size_t i = 1; i < options.keys; ++i) planted.push_back({0, fact(words[i], random_number(rng))});
  const auto question =
      encode(" What is the secret number of " + words[0] + "? The secret number of " + words[0] + " is");
  size_t answer = 0, facts = 0;
  for (const std::string& number : numbers) answer = std::max(answer, encode(number).size());
  for (const Planted& each : planted) facts += each.tokens.size();
  const size_t taken = text.before.size() + facts + question.size() + answer;
  if (taken > options.length)
    throw usage_error("facts, question and answer take {} tokens; the document is to have {}", taken,
                      options.length);
  const size_t hay = options.length - taken;
  if (text.tokens.size() < hay)
    throw usage_error("a document needs {} tokens of text; there are {}", hay, text.tokens.size());
  planted[0].place = static_cast<size_t>(std::llround(options.depth * static_cast<double>(hay)));
  for (size_t i = 1; i < planted.size(); ++i) planted[i].place = rng.below(hay + 1);
  std::ranges::stable_sort(planted, {}, &Planted::place);

  const auto haystack = std::span(text.tokens).subspan(rng.below(text.tokens.size() - hay + 1), hay);
  std::vector<uint32_t> prefix = text.before;
  size_t done = 0;
  for (const Planted& each : planted) {
    append_to(prefix, haystack.subspan(done, each.place - done));
    append_to(prefix, each.tokens);
    done = each.place;
  }
  append_to(prefix, haystack.subspan(done));

  std::vector<RecallDocument> documents;
  for (const std::string& number : numbers) {
    RecallDocument document{prefix, prefix.size(), 0};
    append_to(document.tokens, question);
    document.answer = document.tokens.size();
    append_to(document.tokens, encode(number));
    documents.push_back(std::move(document));
  }
  return documents;
}

bool answered(std::span<const uint8_t> right, size_t answer) {
  if (answer >= right.size()) throw failed("an answer from token {} of {}", answer, right.size());
  return std::ranges::all_of(right.subspan(answer), [](uint8_t each) { return each != 0; });
}

ShareEstimate recall_accuracy(std::span<const AskedBy> questions, std::span<const uint8_t> answered) {
  uint64_t right = 0;
  for (const AskedBy& question : questions) {
    if (question.first > answered.size() || question.count > answered.size() - question.first)
      throw failed("a question of documents {} to {} of {}", question.first, question.first + question.count,
                   answered.size());
    right += std::ranges::any_of(answered.subspan(question.first, question.count),
                                 [](uint8_t each) { return each != 0; });
  }
  return share_of(right, questions.size());
}

}  // namespace kvcodec
