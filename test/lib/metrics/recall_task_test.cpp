#include "lib/metrics/recall_task.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace recall_task_test {

using namespace kvcodec;

namespace {

/// Every byte is a token, so that texts can be read back.
Tokenizer byte_tokenizer() {
  TokenizerSpec spec;
  for (uint32_t c = 1; c < 128; ++c) spec.vocabulary.emplace_back(std::string(1, static_cast<char>(c)), c);
  spec.decoders.emplace({TokenDecoder(FuseDecoder{})});
  return Tokenizer(std::move(spec));
}

struct Subject {
  Tokenizer tokenizer = byte_tokenizer();
  RecallText text;
  Subject() {
    std::string hay;
    for (int i = 0; i < 900; ++i) hay += i % 9 == 8 ? '.' : static_cast<char>('k' + i % 9);
    text.tokens = tokenizer.encode(hay, false);
    text.words = recall_words("alpha beta gamma delta Epsilon zeta9 it's seventeenth über lambda lambda");
    text.before = {1, 2};
  }
  /// A text with as many words as lists need.
  void many_words() {
    for (char a = 'a'; a <= 'z'; ++a)
      for (char b = 'a'; b <= 'z'; ++b) text.words.push_back(std::string("word") + a + b);
  }
  RecallDocument make(const RecallOptions& options, uint64_t seed = 3) const {
    return make_recall_document(tokenizer, text, options, seed);
  }
  std::string text_of(std::span<const uint32_t> tokens) const { return tokenizer.decode(tokens); }
  /// The document behind what begins it.
  std::string text_of(const RecallDocument& document) const {
    CHECK(document.tokens[0] == 1);
    return text_of(std::span(document.tokens).subspan(2));
  }
};

/// Tokens with the longest question and its answer.
size_t length_of(const RecallDocument& document) {
  size_t longest = 0;
  for (const RecallQuestion& question : document.questions)
    longest = std::max(longest, question.tokens.size() + question.written);
  return document.tokens.size() + longest;
}

/// The parts of a text between `begin` and `end`.
std::vector<std::string> between(const std::string& text, const std::string& begin, const std::string& end) {
  std::vector<std::string> found;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t first = at + begin.size();
    found.push_back(text.substr(first, text.find(end, first) - first));
  }
  return found;
}

}  // namespace

TEST_CASE("recall task: words are lower case, of 4 to 9 letters, whole") {
  const Subject subject;
  CHECK(subject.text.words == std::vector<std::string>{"alpha", "beta", "delta", "gamma", "lambda"});
}

TEST_CASE("recall task: the fact stands at its depth, in the model's wording") {
  const Subject subject;
  for (const double depth : {0.0, 0.25, 0.5, 1.0})
    for (uint64_t seed = 0; seed < 5; ++seed) {
      CAPTURE(depth);
      CAPTURE(seed);
      const RecallDocument document = subject.make({.length = 500, .depths = {depth}}, seed);
      REQUIRE_EQ(document.questions.size(), 1);
      CHECK_EQ(length_of(document), 500);
      const std::string text = subject.text_of(document), start = " What is the secret number of ";
      const std::string question = subject.text_of(document.questions[0].tokens);
      REQUIRE(question.starts_with(start));
      const std::string word = question.substr(start.size(), question.find('?') - start.size());
      CHECK(question == start + word + "? The secret number of " + word + " is");
      REQUIRE_EQ(document.questions[0].expected.size(), 1);
      const std::string answer = document.questions[0].expected[0];
      CHECK_EQ(answer.size(), 7);
      CHECK_EQ(document.questions[0].written, 16);  // twice a space and the answer
      const std::string fact = " The secret number of " + word + " is " + answer + ".\n";
      const size_t at = text.find(fact);
      REQUIRE(at != std::string::npos);
      CHECK_LE(std::abs(double(at) - depth * double(text.size() - fact.size())), 0.51);
      CHECK(subject.make({.length = 500, .depths = {depth}}, seed).tokens == document.tokens);
      CHECK(subject.make({.length = 500, .depths = {depth}}, seed + 1).tokens != document.tokens);
    }
}

TEST_CASE("recall task: several keys are about other words, and all values of a word are asked for") {
  const Subject subject;
  const std::string text = subject.text_of(subject.make({.length = 800, .depths = {0.3}, .keys = 4}));
  const auto words = between(text, " The secret number of ", " is");
  CHECK_EQ(words.size(), 4);
  CHECK_EQ(std::set(words.begin(), words.end()).size(), 4);

  const RecallDocument values =
      subject.make({.length = 900, .depths = {0.3, 0.6}, .keys = 3, .values = 3, .written = 40});
  CHECK_EQ(length_of(values), 900);
  REQUIRE_EQ(values.questions.size(), 2);
  for (const RecallQuestion& question : values.questions) {
    const std::string word = between(subject.text_of(question.tokens), "numbers of ", "?").at(0);
    auto found = between(subject.text_of(values), " The secret number of " + word + " is ", ".");
    CHECK_EQ(std::set(found.begin(), found.end()),
             std::set(question.expected.begin(), question.expected.end()));
    CHECK_EQ(found.size(), 3);
    CHECK_EQ(question.written, 40);
  }
}

TEST_CASE("recall task: of several questions each is about a fact at its place") {
  const Subject subject;
  const RecallDocument document = subject.make({.length = 900, .depths = {1, 0, 0.5}, .keys = 4});
  REQUIRE_EQ(document.questions.size(), 3);
  const std::string text = subject.text_of(document);
  std::vector<size_t> places;
  for (const RecallQuestion& question : document.questions) {
    const std::string word = between(subject.text_of(question.tokens), "number of ", "?").at(0);
    places.push_back(text.find(" The secret number of " + word + " is " + question.expected[0] + ".\n"));
    CHECK_NE(places.back(), std::string::npos);
  }
  CHECK_LT(places[1], places[2]);
  CHECK_LT(places[2], places[0]);
  CHECK_LT(places[1], text.size() / 10);
  CHECK_GT(places[0], text.size() * 8 / 10);
}

TEST_CASE("recall task: who follows the assignments finds the variables") {
  const Subject subject;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RecallDocument document = subject.make(
        {.family = RecallFamily::variables, .length = 1000, .depths = {0.5, 0.5}, .keys = 3, .values = 4},
        seed);
    CHECK_EQ(length_of(document), 1000);
    REQUIRE_EQ(document.questions.size(), 2);
    std::map<std::string, std::string> values;
    std::istringstream lines(subject.text_of(document));
    for (std::string line; std::getline(lines, line);)
      for (const std::string& assignment : between(line, " VAR ", ".")) {
        const size_t equals = assignment.find(" = ");
        if (equals == std::string::npos) continue;  // the VAR behind the =
        std::string value = assignment.substr(equals + 3);
        if (value.starts_with("VAR ")) value = values.at(value.substr(4));  // assigned before
        CHECK(values.emplace(assignment.substr(0, equals), value).second);
      }
    CHECK_EQ(values.size(), 12);
    for (const RecallQuestion& question : document.questions) {
      const std::string value = between(subject.text_of(question.tokens), "the value ", ",").at(0);
      std::set<std::string> names;
      for (const auto& [name, own] : values)
        if (own == value) names.insert(name);
      CHECK_EQ(names, std::set(question.expected.begin(), question.expected.end()));
      CHECK_EQ(names.size(), 4);
    }
  }
}

TEST_CASE("recall task: who counts the words of a list finds those asked for, of any length") {
  Subject subject;
  subject.many_words();
  for (const RecallFamily family : {RecallFamily::common, RecallFamily::frequent})
    for (const size_t length : {size_t{900}, size_t{2500}, size_t{6000}}) {
      CAPTURE(length);
      const RecallDocument document = subject.make({.family = family, .length = length, .values = 3});
      CHECK_LE(length_of(document), length);
      CHECK_GE(length_of(document), length - 20);  // a word with its number
      std::map<std::string, int> counts;
      std::istringstream words(subject.text_of(document));
      int place = 0;
      for (std::string word; words >> word;)
        if (family == RecallFamily::frequent || word.back() != '.')
          ++counts[word];
        else
          CHECK_EQ(word, std::to_string(++place) + ".");
      std::vector<std::pair<int, std::string>> order;
      for (const auto& [word, count] : counts) order.emplace_back(-count, word);
      std::ranges::sort(order);
      REQUIRE_EQ(document.questions.size(), 1);
      const auto& expected = document.questions[0].expected;
      CHECK_EQ(std::set(expected.begin(), expected.end()),
               std::set{order[0].second, order[1].second, order[2].second});
      CHECK_LT(order[2].first, order[3].first);
      if (family == RecallFamily::common) {
        CHECK_EQ(order[0].first, length < 4096 ? -6 : -30);
        CHECK_EQ(order[3].first, length < 4096 ? -1 : -3);
      } else {  // 1, 1/4, 1/9
        CHECK(order[1].first * 4 == doctest::Approx(order[0].first).epsilon(0.1));
        CHECK(order[2].first * 9 == doctest::Approx(order[0].first).epsilon(0.2));
      }
    }
}

TEST_CASE("recall task: what does not fit is refused") {
  Subject subject;
  const auto refused = [&](const RecallOptions& options) { CHECK_THROWS_AS(subject.make(options), Error); };
  refused({.length = 50});
  refused({.length = 5000});
  refused({.length = 500, .depths = {1.1}});
  refused({.length = 500, .keys = 0});
  refused({.length = 500, .values = 0});
  refused({.length = 800, .keys = 6});
  refused({.length = 800, .depths = {}});
  refused({.length = 800, .depths = {0.1, 0.2}});
  refused({.family = RecallFamily::variables, .length = 200, .values = 10});
  refused({.family = RecallFamily::common, .length = 800, .values = 5});   // as many words as there are
  refused({.family = RecallFamily::common, .length = 2000, .values = 3});  // all of them, and more
  subject.many_words();
  refused({.family = RecallFamily::common, .length = 400, .values = 10});
  refused({.family = RecallFamily::frequent, .length = 300, .values = 3});
}

TEST_CASE("recall task: depths are spread evenly, and one is in the middle") {
  CHECK_EQ(recall_depth(0, 1), 0.5);
  CHECK_EQ(recall_depth(0, 2), 0);
  CHECK_EQ(recall_depth(1, 2), 1);
  CHECK_EQ(recall_depth(1, 5), 0.25);
  CHECK_EQ(recall_depth(4, 5), 1);
}

TEST_CASE("recall task: the share of strings that an answer holds, and F1 of words as SQuAD counts them") {
  const std::vector<std::string> two = {"4 8 2 1", "Ahab"};
  CHECK_EQ(recall_of("it is 4 8 2 1, AHAB.", two), 1);
  CHECK_EQ(recall_of(" 4 8 2 2 ahab", two), 0.5);
  CHECK_EQ(recall_of("", two), 0);
  const auto f1 = [](const char* answer, std::vector<std::string> expected) {
    return word_f1(answer, expected);
  };
  CHECK_EQ(f1("The 512 bytes.", {"512 Bytes"}), 1);
  CHECK_EQ(f1("512", {"512 bytes"}), doctest::Approx(2.0 / 3));
  CHECK_EQ(f1("512", {"many", "512 bytes", "512 bytes or more"}), doctest::Approx(2.0 / 3));
  CHECK_EQ(f1("bytes bytes 512-byte", {"bytes"}), 0.5);
  CHECK_EQ(f1("a", {"the"}), 0);
  CHECK_EQ(f1("version 3.5.0\n", {"3.5.0"}), doctest::Approx(2.0 / 3));
}

}  // namespace recall_task_test
