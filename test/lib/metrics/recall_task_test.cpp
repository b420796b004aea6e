#include "lib/metrics/recall_task.hpp"

#include <algorithm>
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
  std::string text_of(const RecallDocument& document, size_t first, size_t end) const {
    return tokenizer.decode(std::span(document.tokens).subspan(first, end - first));
  }
};

size_t occurrences(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("recall task: words are lower case, of 4 to 9 letters, whole") {
  const Subject subject;
  CHECK(subject.text.words == std::vector<std::string>{"alpha", "beta", "delta", "gamma", "lambda"});
}

TEST_CASE(
    "recall task: the fact stands at its depth, question and answer at the end, in the model's wording") {
  const Subject subject;
  for (const double depth : {0.0, 0.25, 0.5, 1.0})
    for (uint64_t seed = 0; seed < 5; ++seed) {
      CAPTURE(depth);
      CAPTURE(seed);
      const auto documents =
          make_recall_question(subject.tokenizer, subject.text, {.length = 500, .depths = {depth}}, seed);
      REQUIRE_EQ(documents.size(), 1);
      const RecallDocument& document = documents[0];
      CHECK_EQ(document.tokens.size(), 500);
      CHECK(document.tokens[0] == 1);
      const std::string prefix = subject.text_of(document, 2, document.prefix);
      const std::string question = subject.text_of(document, document.prefix, document.answers[0].first);
      const std::string answer = subject.text_of(document, document.answers[0].first, 500);
      const std::string start = " What is the secret number of ";
      REQUIRE(question.starts_with(start));
      const std::string word = question.substr(start.size(), question.find('?') - start.size());
      CHECK(question == start + word + "? The secret number of " + word + " is");
      CHECK_EQ(answer.size(), 8);
      const std::string fact = " The secret number of " + word + " is" + answer + ".\n";
      const size_t at = prefix.find(fact);
      REQUIRE(at != std::string::npos);
      CHECK_LE(std::abs(double(at) - depth * double(prefix.size() - fact.size())), 0.51);
      CHECK(make_recall_question(subject.tokenizer, subject.text, {.length = 500, .depths = {depth}}, seed)[0]
                .tokens == document.tokens);
    }
}

TEST_CASE("recall task: several keys are about other words, several values give several answers") {
  const Subject subject;
  const auto keys =
      make_recall_question(subject.tokenizer, subject.text, {.length = 800, .depths = {0.3}, .keys = 4}, 3);
  REQUIRE_EQ(keys.size(), 1);
  const std::string text = subject.text_of(keys[0], 2, keys[0].prefix);
  CHECK_EQ(occurrences(text, " The secret number of "), 4);
  for (const std::string& word : subject.text.words)
    CHECK_LE(occurrences(text, "number of " + word + " is"), 1);

  const auto values =
      make_recall_question(subject.tokenizer, subject.text, {.length = 800, .depths = {0.3}, .values = 3}, 3);
  REQUIRE_EQ(values.size(), 3);
  for (const RecallDocument& document : values) {
    CHECK_EQ(document.prefix, values[0].prefix);
    const std::string prefix = subject.text_of(document, 2, document.prefix);
    CHECK_EQ(occurrences(prefix, " The secret number of "), 3);
    CHECK_EQ(occurrences(prefix, " is" + subject.text_of(document, document.answers[0].first, 800) + ".\n"),
             1);
  }
  CHECK(values[0].tokens != values[1].tokens);
}

TEST_CASE("recall task: several facts are asked for in turn, each at its place, behind the right answers") {
  const Subject subject;
  const RecallOptions options{.length = 900, .depths = {1, 0, 0.5}, .keys = 4};
  const auto documents = make_recall_question(subject.tokenizer, subject.text, options, 5);
  REQUIRE_EQ(documents.size(), 1);
  const RecallDocument& document = documents[0];
  CHECK_EQ(document.tokens.size(), 900);
  REQUIRE_EQ(document.answers.size(), 3);
  CHECK_EQ(document.answers.back().end, 900);
  const std::string prefix = subject.text_of(document, 2, document.prefix);
  size_t before = document.prefix;
  std::vector<size_t> places;
  for (const auto& [first, end] : document.answers) {
    std::string question = subject.text_of(document, before, first);
    if (before > document.prefix) {
      CHECK(question.starts_with(".\n"));
      question = question.substr(2);
    }
    const std::string word =
        question.substr(question.rfind(" of ") + 4, question.size() - question.rfind(" of ") - 7);
    CHECK_EQ(question, " What is the secret number of " + word + "? The secret number of " + word + " is");
    places.push_back(
        prefix.find(" The secret number of " + word + " is" + subject.text_of(document, first, end) + ".\n"));
    CHECK_NE(places.back(), std::string::npos);
    before = end;
  }
  CHECK_LT(places[1], places[2]);
  CHECK_LT(places[2], places[0]);
  CHECK_LT(places[1], prefix.size() / 10);
  CHECK_GT(places[0], prefix.size() * 8 / 10);
}

TEST_CASE("recall task: what does not fit is refused") {
  const Subject subject;
  const auto refused = [&](const RecallOptions& options) {
    CHECK_THROWS_AS(make_recall_question(subject.tokenizer, subject.text, options, 0), Error);
  };
  refused({.length = 50});
  refused({.length = 5000});
  refused({.length = 500, .depths = {1.1}});
  refused({.length = 500, .keys = 0});
  refused({.length = 800, .keys = 6});
  refused({.length = 800, .depths = {}});
  refused({.length = 800, .depths = {0.1, 0.2}});
  refused({.length = 800, .depths = {0.1, 0.2}, .keys = 2, .values = 2});
}

TEST_CASE("recall task: depths are spread evenly, and one is in the middle") {
  CHECK_EQ(recall_depth(0, 1), 0.5);
  CHECK_EQ(recall_depth(0, 2), 0);
  CHECK_EQ(recall_depth(1, 2), 1);
  CHECK_EQ(recall_depth(1, 5), 0.25);
  CHECK_EQ(recall_depth(4, 5), 1);
}

}  // namespace recall_task_test
