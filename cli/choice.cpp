#include "cli/choice.hpp"

#include <cmath>

#include "cli/command.hpp"

namespace kvcodec::cli {
namespace {

/// Less is better.
double cost_of(const Attempt& attempt, Judge judge) {
  switch (judge) {
    case Judge::bits:
      return attempt.bits.value_or(INFINITY);
    case Judge::loss:
      return attempt.loss ? attempt.loss->worst() : INFINITY;
    case Judge::snr:
      break;
  }
  return attempt.snr_db ? -*attempt.snr_db : INFINITY;
}

void add_option(std::string& command, const char* name, const std::string& value) {
  if (!value.empty()) command += fmt::format(" --{} {}", name, shell_quoted(value));
}

}  // namespace

std::optional<size_t> best_of(std::span<const Attempt> attempts, Judge judge) {
  std::optional<size_t> best;
  for (size_t i = 0; i < attempts.size(); ++i)
    if (attempts[i].reached && (!best || cost_of(attempts[i], judge) < cost_of(attempts[*best], judge)))
      best = i;
  return best;
}

std::optional<size_t> nearest_of(std::span<const Attempt> attempts) {
  std::optional<size_t> nearest;
  for (size_t i = 0; i < attempts.size(); ++i)
    if (attempts[i].nearest && (!nearest || *attempts[i].nearest < *attempts[*nearest].nearest)) nearest = i;
  return nearest;
}

std::vector<std::string> untried(std::span<const Attempt> attempts) {
  std::vector<std::string> codecs;
  for (const Attempt& attempt : attempts)
    if (attempt.reason == kNoTimeLeft) codecs.push_back(attempt.codec);
  return codecs;
}

std::string encode_command(const Attempt& attempt, const EncodedPart& part) {
  std::string command = fmt::format("kvcodec encode {} --codec {}", shell_quoted(part.input), attempt.codec);
  add_option(command, "book", attempt.book);
  if (!attempt.options.empty()) command += " " + attempt.options;
  add_option(command, "weights", attempt.weights);
  add_option(command, "documents", part.documents);
  add_option(command, "layers", part.layers);
  return command + " -o codes.h5";
}

LearningSplit split_for_learning(const std::vector<size_t>& documents) {
  if (documents.size() < 2) return {documents, documents};
  LearningSplit split;
  for (size_t i = 0; i < documents.size(); ++i)
    (i % 2 == 0 ? split.learned : split.tried).push_back(documents[i]);
  return split;
}

}  // namespace kvcodec::cli
