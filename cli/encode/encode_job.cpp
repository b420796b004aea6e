#include "cli/encode/encode_job.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// The documents that codes hold, by name.
class StoredDocuments {
 public:
  explicit StoredDocuments(const CodesReader* codes) : codes_(codes) {
    if (!codes || !codes->has_tokens()) return;
    const Documents& documents = codes->info().documents;
    for (size_t i = 0; i < documents.count(); ++i) numbers_[documents.names[i]].push_back(i);
  }

  /// Whether a document of that name has these ids at these positions, alone or among others.
  bool has(std::string_view name, std::span<const uint32_t> ids, std::span<const uint64_t> positions) const {
    const auto place = numbers_.find(name);
    if (place == numbers_.end()) return false;
    const Digest128 digest = token_digest(ids);
    return std::ranges::any_of(place->second, [&](size_t document) {
      return !is_another(document, ids.size(), digest) && holds(document, ids, positions);
    });
  }

 private:
  /// Whether it is as long and has other ids, as its digest says, without a look at it.
  bool is_another(size_t document, uint64_t length, const Digest128& digest) const {
    const Documents& documents = codes_->info().documents;
    const auto stored = documents.facts_of(document).digest;
    return documents.length(document) == length && stored && *stored != digest;
  }

  bool holds(size_t document, std::span<const uint32_t> ids, std::span<const uint64_t> positions) const {
    const uint64_t first = codes_->info().documents.offsets[document],
                   length = codes_->info().documents.length(document);
    if (ids.empty() || length < ids.size()) return ids.empty() && length == 0;
    const auto there = codes_->positions(first, length);
    const auto at = static_cast<uint64_t>(std::ranges::lower_bound(there, positions.front()) - there.begin());
    return length - at >= ids.size() &&
           std::ranges::equal(std::span(there).subspan(at, ids.size()), positions) &&
           std::ranges::equal(codes_->tokens(first + at, ids.size()), ids);
  }

  const CodesReader* codes_;
  std::map<std::string_view, std::vector<size_t>> numbers_;
};

/// The facts of the codes' last document after a document of the kv file, with these ids, has continued it.
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
  const StoredDocuments stored(base);
  for (const size_t index : chosen) {
    const uint64_t first = kv.documents().offsets[index], count = kv.documents().length(index);
    const std::string_view name = kv.documents().names[index];
    const auto positions = kv.positions(first, count);
    bool continues =
        base && job.pieces.empty() && documents.count() > 0 && documents.names.back() == name && count > 0;
    if (continues && documents.length(documents.count() - 1) > 0)
      continues = positions.front() == base->positions(documents.tokens() - 1, 1).front() + 1;
    const auto tokens = kv.has_tokens() ? kv.tokens(first, count) : std::vector<uint32_t>();
    if (!continues && kv.has_tokens() && stored.has(name, tokens, positions)) {
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

std::vector<Job::Piece> whole_pieces(const KvReader& kv, const std::vector<size_t>& chosen) {
  std::vector<Job::Piece> pieces;
  pieces.reserve(chosen.size());
  for (const size_t index : chosen)
    pieces.push_back({kv.documents().offsets[index], kv.documents().length(index), pieces.size(), index});
  return pieces;
}

}  // namespace kvcodec::cli
