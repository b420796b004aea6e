#include "cli/search/choice.hpp"

#include <algorithm>
#include <cmath>

#include "cli/frame/command.hpp"

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

namespace {

/// What errors of a side would cost with no bits.
double cost_without_bits(const SideTrial& side) { return side.cost * std::exp2(2 * side.bits); }

/// What bits that are divided best make of two sides is in proportion to this.
double promise_of(const SideTrial& keys, const SideTrial& values) {
  return cost_without_bits(keys) * cost_without_bits(values);
}

/// The same of what a codec reached, however it divided its bits.
double reached_by(const std::array<SideTrial, 2>& sides) {
  const double half = (sides[0].cost + sides[1].cost) / 2;
  return half * half * std::exp2(2 * (sides[0].bits + sides[1].bits));
}

bool may_pair(const Attempt& keys, const Attempt& values) {
  return keys.codec != values.codec && keys.layer_group == values.layer_group &&
         (keys.book.empty() || values.book.empty() || keys.book == values.book);
}

}  // namespace

std::vector<PairPromise> promising_pairs(std::span<const Attempt> attempts, size_t most) {
  double best = INFINITY;
  for (const Attempt& attempt : attempts)
    if (attempt.sides) best = std::min(best, reached_by(*attempt.sides));
  std::vector<std::pair<double, PairPromise>> found;
  for (size_t k = 0; k < attempts.size(); ++k)
    for (size_t v = 0; v < attempts.size(); ++v) {
      const Attempt &keys = attempts[k], &values = attempts[v];
      if (!keys.sides || !values.sides || !may_pair(keys, values)) continue;
      const double promise = promise_of((*keys.sides)[0], (*values.sides)[1]);
      if (promise < best) found.push_back({promise, {k, v}});
    }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  std::vector<PairPromise> pairs;
  for (const auto& one : std::span(found).first(std::min(most, found.size()))) pairs.push_back(one.second);
  return pairs;
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
