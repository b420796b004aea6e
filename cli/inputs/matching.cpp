#include "cli/inputs/matching.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "cli/frame/text.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

template <class Reader>
TokenAxis axis_of(const Reader& file, const Documents& documents) {
  return {.name = file.name(),
          .documents = documents,
          .has_tokens = file.has_tokens(),
          .positions = [&file](uint64_t first, uint64_t count) { return file.positions(first, count); },
          .tokens = [&file](uint64_t first, uint64_t count) { return file.tokens(first, count); }};
}

/// The original's row of the first of the tokens at these positions, which must all be in that document; or nothing.
std::optional<uint64_t> find_tokens(const TokenAxis& original, size_t document,
                                    const std::vector<uint64_t>& wanted) {
  const uint64_t first = original.documents.offsets[document];
  const auto positions = original.positions(first, original.documents.length(document));
  const auto found = std::lower_bound(positions.begin(), positions.end(), wanted.front());
  const auto left = static_cast<size_t>(positions.end() - found);
  if (left < wanted.size() || !std::equal(wanted.begin(), wanted.end(), found)) return {};
  return first + static_cast<uint64_t>(found - positions.begin());
}

}  // namespace

TokenAxis token_axis(const KvReader& file) { return axis_of(file, file.documents()); }
TokenAxis token_axis(const CodesReader& file) { return axis_of(file, file.info().documents); }
TokenAxis token_axis(const IndexReader& file) { return axis_of(file, file.info().documents); }

std::vector<Match> match_documents(const TokenAxis& original, const TokenAxis& other,
                                   const std::vector<size_t>& wanted) {
  std::vector<Match> matches;
  // Documents of a name, in the file's order, less those that have been matched: found without a look at all others.
  std::unordered_map<std::string_view, std::deque<size_t>> unmatched;
  for (size_t i = 0; i < original.documents.count(); ++i) unmatched[original.documents.names[i]].push_back(i);
  const size_t end = wanted.empty() ? 0 : wanted.back() + 1;
  for (size_t i = 0; i < end; ++i) {
    const uint64_t first = other.documents.offsets[i], count = other.documents.length(i);
    if (count == 0) continue;
    const bool needed = std::binary_search(wanted.begin(), wanted.end(), i);
    const std::string_view name = other.documents.names[i];
    const auto positions = other.positions(first, count);
    std::deque<size_t>& named = unmatched[name];
    std::optional<uint64_t> place;
    const auto found = std::ranges::find_if(named, [&](size_t candidate) {
      return (place = find_tokens(original, candidate, positions)).has_value();
    });
    if (!place && !needed) continue;
    if (!place)
      throw bad_input("{}: {} has no document '{}' with positions {} to {}", other.name, original.name, name,
                      positions.front(), positions.back());
    const size_t document = *found;
    named.erase(found);
    if (!needed) continue;
    if (original.has_tokens && other.has_tokens &&
        original.tokens(*place, count) != other.tokens(first, count))
      throw bad_input("{}: document '{}' has other tokens than in {}", other.name, name, original.name);
    matches.push_back({document, i, *place, first, count});
  }
  return matches;
}

std::vector<Match> match_documents(const TokenAxis& original, const TokenAxis& other) {
  std::vector<size_t> all(other.documents.count());
  std::iota(all.begin(), all.end(), size_t{0});
  return match_documents(original, other, all);
}

void check_same_model(const KvReader& kv, const CodesReader& codes) {
  check_same_model(kv.name(), kv.model(), codes.name(), codes.info().model);
}

void check_scores(const std::string& name, const ModelInfo& model) {
  if (model.key_state != "post-rope")
    throw bad_input(
        "{}: its keys are {}, so that products with queries are not scores; use a cache that was dumped "
        "without "
        "--pre-rope",
        name, model.key_state);
}

void check_queries(const KvReader& kv, const CodesReader& codes, const std::vector<int>& layers) {
  check_scores(codes.name(), codes.info().model);
  check_same_model(kv, codes);
  if (kv.query_tokens() == 0)
    throw bad_input("{}: it holds no queries; kvcodec dump-kv --queries last:32 stores some", kv.name());
  for (const int layer : layers)
    if (const auto& there = kv.query_layers(); std::find(there.begin(), there.end(), layer) == there.end())
      throw bad_input("{}: there are no queries of layer {}, which {} has; it has those of layers {}",
                      kv.name(), layer, codes.name(), ranges_text(there));
}

}  // namespace kvcodec::cli
