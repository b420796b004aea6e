// Questions that test if a model can still find something in its cache: facts planted in real text, one of
// them asked for at the end (a needle in a haystack; Hsieh et al., "RULER", 2024, for its variants with
// several keys or values). The wording is that of the demo model's training (its README).
//
//   fact       " The secret number of WORD is 4 8 2 1.\n"
//   question   " What is the secret number of WORD? The secret number of WORD is"
//   answer     " 4 8 2 1"
//
// One fact: single. Several words with a number each, one of them asked for: several keys. One word with
// several numbers: several values, each of which is a right answer. Several facts asked for, one after the other: several
// queries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/metrics/next_token.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

struct RecallText {
  std::vector<uint32_t> tokens;    ///< the haystack: text that documents are cut from
  std::vector<std::string> words;  ///< that can be asked for: distinct, lower case, 4 to 9 letters
  std::vector<uint32_t> before;    ///< the begin of every document
};

/// The words of a text that suit, in alphabetical order.
std::vector<std::string> recall_words(std::string_view text);

/// Depth `index` of `count` that are spread evenly from 0 to 1; the middle for a single one.
double recall_depth(size_t index, size_t count);

struct RecallOptions {
  size_t length = 1000;  ///< tokens of a document, question and answer included
  /// Places of the facts asked for, in the order of their questions: 0 = at the start, 1 = right before the first question.
  std::vector<double> depths = {0.5};
  size_t keys = 1;    ///< words with a fact; those that are not asked for are planted anywhere
  size_t values = 1;  ///< likewise further numbers for the word asked for, if there is one
};

/// A document that ends in questions and their answers. With several values there is one for each, which differ
/// only in the answer.
struct RecallDocument {
  struct Answer {
    size_t first = 0, end = 0;  ///< tokens
  };

  std::vector<uint32_t> tokens;
  size_t prefix = 0;  ///< tokens before the first question
  std::vector<Answer> answers = {};
};

/// The documents of one question, or of several that are asked in turn. The same for the same seed. Throws Error(usage) if facts, question and
/// answer do not fit the length, or text or words do not suffice.
std::vector<RecallDocument> make_recall_question(const Tokenizer& tokenizer, const RecallText& text,
                                                 const RecallOptions& options, uint64_t seed);

// Accuracy of questions about facts planted in a text, answered by the likeliest tokens.

/// True if an answer came out: all its tokens were the likeliest. right: one for each judged token; answer: of these. Throws
/// Error(failed) for an answer of no tokens, or beyond them.
bool answered(std::span<const uint8_t> right, RecallDocument::Answer answer);

/// The answers to a question, each of which is right: it is answered if any of them came out.
struct AskedBy {
  size_t first = 0, count = 0;
};

/// The share of questions answered, and its interval as if questions were independent. answered: of each
/// answer. Throws Error(failed) for questions with answers beyond these.
ShareEstimate recall_accuracy(std::span<const AskedBy> questions, std::span<const uint8_t> answered);

}  // namespace kvcodec
