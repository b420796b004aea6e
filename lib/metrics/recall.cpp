#include "lib/metrics/recall.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace kvcodec {

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
