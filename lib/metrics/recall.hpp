// Accuracy of questions about facts planted in a text, answered by the likeliest tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/metrics/interval.hpp"

namespace kvcodec {

/// Whether a document's answer came out: all tokens from `answer` on were the likeliest. right: of each
/// judged token; answer: judged tokens before it. Throws Error(failed) for an answer of no tokens.
bool answered(std::span<const uint8_t> right, size_t answer);

/// The documents that ask a question, one for each of its right answers: it is answered if any of them is.
struct AskedBy {
  size_t first = 0, count = 0;
};

/// The share of questions answered, and its interval as if questions were independent. answered: of each
/// document. Throws Error(failed) for questions asked by documents beyond these.
ShareEstimate recall_accuracy(std::span<const AskedBy> questions, std::span<const uint8_t> answered);

}  // namespace kvcodec
