#include "lib/metrics/recall_task.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

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
  const size_t asked = options.depths.size();
  if (asked < 1 || options.values < 1 ||
      !std::ranges::all_of(options.depths, [](double depth) { return depth >= 0 && depth <= 1; }))
    throw usage_error("{} values, depths {}; at least one of both, and depths of 0 to 1 are needed",
                      options.values, fmt::join(options.depths, ", "));
  if (options.keys < asked || (asked > 1 && options.values > 1))
    throw usage_error(
        "{} questions about {} keys with {} values; one or more keys for each question are needed, and one value for several",
        asked, options.keys, options.values);
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
  std::vector<std::string> others;  // of the words behind the first
  for (size_t i = 1; i < options.keys; ++i)
    planted.push_back({0, fact(words[i], others.emplace_back(random_number(rng)))});
  const auto question = [&](size_t i) {
    return encode((i > 0 ? ".\n" : "") +
                  (" What is the secret number of " + words[i] + "? The secret number of ") + words[i] +
                  " is");
  };
  size_t asking = 0, answer = 0, facts = 0;
  for (const std::string& number : numbers) answer = std::max(answer, encode(number).size());
  for (size_t i = 1; i < asked; ++i) answer += encode(others[i - 1]).size();
  for (size_t i = 0; i < asked; ++i) asking += question(i).size();
  for (const Planted& each : planted) facts += each.tokens.size();
  const size_t taken = text.before.size() + facts + asking + answer;
  if (taken > options.length)
    throw usage_error("facts, question and answer take {} tokens; the document is to have {}", taken,
                      options.length);
  const size_t hay = options.length - taken;
  if (text.tokens.size() < hay)
    throw usage_error("a document needs {} tokens of text; there are {}", hay, text.tokens.size());
  for (size_t i = 0; i < planted.size(); ++i)
    planted[i].place = i < asked
                           ? static_cast<size_t>(std::llround(options.depths[i] * static_cast<double>(hay)))
                           : rng.below(hay + 1);
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
    RecallDocument document{prefix, prefix.size()};
    for (size_t i = 0; i < asked; ++i) {
      append_to(document.tokens, question(i));
      const size_t first = document.tokens.size();
      append_to(document.tokens, encode(i == 0 ? number : others[i - 1]));
      document.answers.push_back({first, document.tokens.size()});
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

bool answered(std::span<const uint8_t> right, RecallDocument::Answer answer) {
  if (answer.first >= answer.end || answer.end > right.size())
    throw failed("an answer of tokens {} to {} of {}", answer.first, answer.end, right.size());
  return std::ranges::all_of(right.subspan(answer.first, answer.end - answer.first),
                             [](uint8_t each) { return each != 0; });
}

ShareEstimate recall_accuracy(std::span<const AskedBy> questions, std::span<const uint8_t> answered) {
  uint64_t right = 0;
  for (const AskedBy& question : questions) {
    if (question.first > answered.size() || question.count > answered.size() - question.first)
      throw failed("a question of answers {} to {} of {}", question.first, question.first + question.count,
                   answered.size());
    right += std::ranges::any_of(answered.subspan(question.first, question.count),
                                 [](uint8_t each) { return each != 0; });
  }
  return share_of(right, questions.size());
}

}  // namespace kvcodec
