#include "lib/model/prefill_engine.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

void check_offsets(std::span<const uint64_t> offsets, uint64_t tokens) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != tokens ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    throw failed("document offsets [{}] do not cover {} tokens", fmt::join(offsets, ", "), tokens);
}

std::vector<DocumentPlace> places_of(const PrefillBatch& batch) {
  const std::span<const uint64_t> offsets = batch.offsets;
  if (!batch.past.empty() && (batch.past.size() + 1 != offsets.size() || batch.cache == nullptr))
    throw failed("{} lengths of caches for {} documents", batch.past.size(), offsets.size() - 1);
  std::vector<DocumentPlace> places;
  size_t key_first = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const uint64_t past = batch.past.empty() ? 0 : batch.past[i];
    places.push_back({offsets[i], offsets[i + 1] - offsets[i], past, key_first});
    key_first += past + places.back().tokens;
  }
  return places;
}

}  // namespace

void check_batch(const ModelConfig& config, const PrefillBatch& batch) {
  check_offsets(batch.offsets, batch.tokens.size());
  for (size_t row = 0; row < batch.tokens.size(); ++row)
    if (batch.tokens[row] >= static_cast<size_t>(config.vocabulary_size))
      throw bad_input("token {} has id {}; the model's vocabulary has {}", row, batch.tokens[row],
                      config.vocabulary_size);
}

PrefillPlan plan_of(const PrefillBatch& batch, const PrefillOptions& options) {
  PrefillPlan plan;
  plan.batch = &batch, plan.options = &options;
  plan.documents = places_of(batch);
  plan.chunk = std::min(options.chunk, batch.tokens.size());
  for (const DocumentPlace& document : plan.documents) {
    const size_t tokens = document.past + document.tokens;
    plan.key_rows = document.key_first + tokens;
    plan.longest = std::max(plan.longest, tokens);
    for (size_t position = document.past; position < tokens; ++position) {
      plan.positions.push_back(position);
      plan.key_row.push_back(document.key_first + position);
    }
  }
  return plan;
}

void read_past(PrefillSteps& steps, const PrefillPlan& plan, int layer) {
  for (size_t i = 0; i < plan.documents.size(); ++i) {
    if (plan.documents[i].past == 0) continue;
    const PastRows rows = steps.past_rows(i);
    plan.batch->cache->read(layer, i, rows.keys, rows.values);
    steps.place_past(i);
  }
}

}  // namespace kvcodec
