#include "cli/encode/encode_job.hpp"

#include <algorithm>
#include <span>
#include <string_view>

#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// True if the document goes on where the last one of the codes ends, under its name.
bool goes_on(const CodesReader& codes, const KvReader& kv, size_t index) {
  const Documents& documents = codes.documents();
  if (documents.count() == 0 || kv.documents().length(index) == 0) return false;
  const size_t last = documents.count() - 1;
  if (documents.names[last] != kv.documents().names[index]) return false;
  return documents.length(last) == 0 || codes.positions(documents.tokens() - 1, 1).front() + 1 ==
                                            kv.positions(kv.documents().offsets[index], 1).front();
}

/// True if document i of the codes has these ids at these positions behind its first token: it was continued by them before.
bool was_continued_by(const CodesReader& codes, size_t i, const KvReader& kv, size_t index) {
  const Documents& documents = codes.documents();
  const uint64_t first = documents.offsets[i], length = documents.length(i),
                 begin = kv.documents().offsets[index], count = kv.documents().length(index);
  if (!codes.has_tokens() || !kv.has_tokens() || count == 0 || count >= length) return false;
  const auto there = codes.positions(first, length), positions = kv.positions(begin, count);
  const auto at = static_cast<uint64_t>(std::ranges::lower_bound(there, positions.front()) - there.begin());
  return at > 0 && length - at >= count &&
         std::ranges::equal(std::span(there).subspan(at, count), positions) &&
         codes.tokens(first + at, count) == kv.tokens(begin, count);
}

/// The facts of the codes' last document after a document of the kv file with these ids has continued it.
DocumentFacts continued(const CodesReader& base, const DocumentFacts& more, std::span<const uint32_t> ids) {
  const Documents& documents = base.info().documents;
  const size_t last = documents.count() - 1;
  DocumentFacts facts = documents.facts_of(last);
  facts.time = std::max(facts.time, more.time);
  if (!more.metadata.empty()) facts.metadata = more.metadata;
  facts.state = more.state;
  if (!facts.digest && !more.digest) return facts;
  auto all = base.tokens_of(last);
  all.insert(all.end(), ids.begin(), ids.end());
  facts.digest = token_digest(all);
  return facts;
}

/// The chosen documents that are encoded, of a kv file.
struct Taken {
  std::vector<size_t> documents;
  bool continues = false;  ///< the first of them goes on where the codes end
};

/// Leaves out documents that the codes have, or that give way to later ones.
Taken take(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader& base,
           const Additions& how, NameRule& names) {
  const size_t before = base.documents().count();
  for (size_t i = 0; i < before; ++i) names.add(base.documents().names[i], i);
  Taken taken{chosen};
  bool any = false;
  names.keep(taken.documents, before, [&](size_t document, size_t number) {
    if (how.continues && !any && goes_on(base, kv, document)) return any = taken.continues = true;
    const auto same = [&](size_t earlier) {
      if (earlier >= before) return same_tokens(kv, chosen[earlier - before], kv, document);
      return same_tokens(base, earlier, kv, document) ||
             (how.continues && was_continued_by(base, earlier, kv, document));
    };
    const bool takes = names.takes(kv.documents().names[document], number, same);
    any |= takes;
    return takes;
  });
  return taken;
}

/// Adds a document of the kv file to the job and to the codes' documents. continues: the codes whose
/// last document it continues, or null.
void add_piece(const KvReader& kv, size_t source, const CodesReader* continues, Documents& documents,
               Job& job) {
  const uint64_t first = kv.documents().offsets[source], count = kv.documents().length(source);
  const std::string_view name = kv.documents().names[source];
  const auto positions = kv.positions(first, count);
  const auto tokens = kv.has_tokens() ? kv.tokens(first, count) : std::vector<uint32_t>();
  std::vector<uint64_t> left_out;
  if (!kv.documents().whole()) left_out = kv.documents().left_out[source];
  const DocumentFacts facts = kv.documents().facts_of(source);
  if (continues) {
    if (std::ranges::any_of(left_out, [](uint64_t of_layer) { return of_layer > 0; }))
      throw bad_input(
          "{}: document '{}' goes on with that of {}, and some layers leave out tokens in between; dump it without "
          "--window-layers trim",
          kv.name(), name, continues->name());
    documents.extend_last(count, continued(*continues, facts, tokens));
  } else {
    documents.add(name, count, left_out, facts);
  }
  job.pieces.push_back({first, count, documents.count() - 1, source});
  job.positions.insert(job.positions.end(), positions.begin(), positions.end());
  job.tokens.insert(job.tokens.end(), tokens.begin(), tokens.end());
}

}  // namespace

Job make_job(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader* base,
             const Additions& how, Documents& documents) {
  Job job;
  Taken taken{chosen};
  if (base) {
    job.names = NameRule(how.replace, base->name(),
                         "; --continue adds to the last document what goes on where it ends");
    taken = take(kv, chosen, *base, how, job.names);
    if (job.names.replaces()) documents = {};
  }
  for (const size_t source : taken.documents)
    add_piece(kv, source, taken.continues && job.pieces.empty() ? base : nullptr, documents, job);
  job.surveyed = job.pieces;
  return job;
}

}  // namespace kvcodec::cli
