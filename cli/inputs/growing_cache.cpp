#include "cli/inputs/growing_cache.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace kvcodec::cli {

GrowingCache::GrowingCache(const OutputOptions& output, const CommonOptions& common)
    : held_(output.hold(output.path, common)) {
  kv_.emplace(output.path);
  if (!held_ || !held_->changeable())
    throw bad_input(
        "{}: cannot be changed in place; dump the documents to a file of their own, and join both by kvcodec cat",
        kv().name());
  if (!kv().model().imported.empty())
    throw bad_input(
        "{}: was imported, and an export restores what was imported; dump the documents to a file of their own, and "
        "join both by kvcodec cat",
        kv().name());
  if (!kv().has_tokens()) throw bad_input("{}: it has no token ids; nothing can be added to it", kv().name());
  const Documents& documents = kv().documents();
  for (size_t i = 0; i < documents.count(); ++i) {
    const auto known = documents.facts_of(i).digest;
    names_.emplace(known ? *known : token_digest(kv().tokens(documents.offsets[i], documents.length(i))),
                   documents.names[i]);
  }
}

std::vector<std::string> GrowingCache::take_out(std::vector<Document>& documents, bool whatever_name) const {
  std::vector<std::string> names;
  std::erase_if(documents, [&](const Document& document) {
    const auto [first, last] = names_.equal_range(token_digest(document.tokens));
    const bool stored = std::any_of(
        first, last, [&](const auto& entry) { return whatever_name || entry.second == document.name; });
    if (stored) names.push_back(document.name);
    return stored;
  });
  return names;
}

}  // namespace kvcodec::cli
