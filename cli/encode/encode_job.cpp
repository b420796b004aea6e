#include "cli/encode/encode_job.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// True if document i of the codes has these ids at these positions, alone or among others.
bool holds(const CodesReader& codes, size_t i, std::span<const uint32_t> ids,
           std::span<const uint64_t> positions) {
  const Documents& documents = codes.info().documents;
  const uint64_t first = documents.offsets[i], length = documents.length(i);
  if (ids.empty() || length < ids.size()) return ids.empty() && length == 0;
  // A document of the same length with another digest needs no comparison.
  if (const auto stored = documents.facts_of(i).digest;
      length == ids.size() && stored && *stored != token_digest(ids))
    return false;
  const auto there = codes.positions(first, length);
  const auto at = static_cast<uint64_t>(std::ranges::lower_bound(there, positions.front()) - there.begin());
  return length - at >= ids.size() &&
         std::ranges::equal(std::span(there).subspan(at, ids.size()), positions) &&
         std::ranges::equal(codes.tokens(first + at, ids.size()), ids);
}

/// The facts of the codes' last document after a document of the kv file with these ids has continued it.
DocumentFacts continued(const CodesReader& base, const DocumentFacts& more, std::span<const uint32_t> ids) {
  const Documents& documents = base.info().documents;
  const size_t last = documents.count() - 1;
  DocumentFacts facts = documents.facts_of(last);
  facts.time = std::max(facts.time, more.time);
  if (!more.metadata.empty()) facts.metadata = more.metadata;
  if (!facts.digest && !more.digest) return facts;
  auto all = base.tokens(documents.offsets[last], documents.length(last));
  all.insert(all.end(), ids.begin(), ids.end());
  facts.digest = token_digest(all);
  return facts;
}

}  // namespace

Job make_job(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader* base,
             Documents& documents) {
  Job job;
  std::multimap<std::string_view, size_t> stored;  // documents of the codes, by name
  for (size_t i = 0; base && base->has_tokens() && i < base->info().documents.count(); ++i)
    stored.emplace(base->info().documents.names[i], i);
  for (const size_t index : chosen) {
    const uint64_t first = kv.documents().offsets[index], count = kv.documents().length(index);
    const std::string_view name = kv.documents().names[index];
    const auto positions = kv.positions(first, count);
    bool continues =
        base && job.pieces.empty() && documents.count() > 0 && documents.names.back() == name && count > 0;
    if (continues && documents.length(documents.count() - 1) > 0)
      continues = positions.front() == base->positions(documents.tokens() - 1, 1).front() + 1;
    const auto tokens = kv.has_tokens() ? kv.tokens(first, count) : std::vector<uint32_t>();
    const auto [from, to] = stored.equal_range(name);
    if (!continues && kv.has_tokens() &&
        std::any_of(from, to, [&](const auto& one) { return holds(*base, one.second, tokens, positions); })) {
      job.stored_before.emplace_back(name);
      continue;
    }
    std::vector<uint64_t> left_out;
    if (!kv.documents().whole()) left_out = kv.documents().left_out[index];
    if (continues &&
        std::ranges::any_of(left_out, [](uint64_t count_left_out) { return count_left_out > 0; }))
      throw bad_input(
          "{}: document '{}' goes on with that of {}, and some layers leave out tokens in between; dump it without "
          "--window-layers trim",
          kv.name(), name, base->name());
    const DocumentFacts facts = kv.documents().facts_of(index);
    if (continues)
      documents.extend_last(count, continued(*base, facts, tokens));
    else
      documents.add(name, count, left_out, facts);
    job.pieces.push_back({first, count, documents.count() - 1, index});
    job.positions.insert(job.positions.end(), positions.begin(), positions.end());
    job.tokens.insert(job.tokens.end(), tokens.begin(), tokens.end());
  }
  job.surveyed = job.pieces;
  return job;
}

}  // namespace kvcodec::cli
