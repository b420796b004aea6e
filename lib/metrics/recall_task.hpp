// Tasks with answers, which show what a model can still do with its cache: a document, questions about it, and for each the strings that a
// right answer holds. The families are those of RULER (Hsieh et al., "RULER", 2024), made from a text:
//
//   needles    facts planted in the text, some of them asked for: single, or with several keys, values or queries
//   variables  chains of assignments planted in the text; asked for are all names of one value (variable tracking)
//   common     words of the text in a list, of which some appear more often than others (common words extraction)
//   frequent   words of the text, the k-th of them 1/k^2 as often as the first (frequent words extraction)
//
// The wording of a needle is that of the demo model's training (its README):
//
//   fact       " The secret number of WORD is 4 8 2 1.\n"
//   question   " What is the secret number of WORD? The secret number of WORD is"
//   answer     " 4 8 2 1"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

enum class RecallFamily : uint8_t { needles, variables, common, frequent };

struct RecallOptions {
  RecallFamily family = RecallFamily::needles;
  size_t length =
      1000;  ///< tokens of a document, question and answer included; a list may end a word before that
  /// One for each question: the place of the needle asked for, 0 = at the start, 1 = at the end. Assignments stand anywhere, lists have one
  /// question.
  std::vector<double> depths = {0.5};
  size_t keys = 1;     ///< words with a fact, or chains; those that are not asked for stand anywhere
  size_t values = 1;   ///< that a right answer has: numbers of a word, names of a chain, words of a list
  size_t written = 0;  ///< tokens of an answer; 0: twice those of a right one
};

struct RecallQuestion {
  std::vector<uint32_t> tokens;
  std::vector<std::string> expected;
  size_t written = 0;  ///< tokens of an answer, at most
};

struct RecallDocument {
  std::vector<uint32_t> tokens;
  std::vector<RecallQuestion> questions;  ///< each is asked by itself, behind the document
};

/// A document of the family. The same for the same seed. Throws Error(usage) if what is planted, question and answer do not fit the length, or
/// text or words do not suffice.
RecallDocument make_recall_document(const Tokenizer& tokenizer, const RecallText& text,
                                    const RecallOptions& options, uint64_t seed);

/// The share of the strings that an answer holds, whatever the case of letters; RULER's measure.
double recall_of(std::string_view answer, std::span<const std::string> expected);

/// The F1 of words with the string that fits best, without case, punctuation and articles (Rajpurkar et al., "SQuAD", 2016).
double word_f1(std::string_view answer, std::span<const std::string> expected);

}  // namespace kvcodec
