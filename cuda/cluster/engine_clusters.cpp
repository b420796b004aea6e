#include <algorithm>
#include <limits>
#include <vector>

#include "cuda/cluster/cluster.hpp"
#include "cuda/engine_parts.hpp"

namespace kvcodec::cuda {
namespace {

/// Selections at a time, of as many bits each as there are tokens, twice.
constexpr size_t kAtOnce = 4096;

/// What ClusterSelector::scores adds up to for tokens that are taken whatever they score.
float score_of(uint64_t token, const kvcodec::ClusterIndex& index, uint64_t tokens, size_t queries,
               bool largest) {
  if (token < index.sink()) return std::numeric_limits<float>::infinity();
  const float one = waiting_score(tokens, token);
  float score = one;
  for (size_t q = 1; q < queries && !largest; ++q) score += one;
  return score;
}

}  // namespace

/// Copies the index there, once, and queries; tokens and their scores come back.
TokenChooser cluster_chooser(const DeviceWork& device, const kvcodec::ClusterIndex& index, uint64_t tokens) {
  auto made = device.made("selection by clusters", [&] { return ClusterIndex(index); });
  if (!made) return {};
  return [&device, &index, tokens, on_device = device.kept(std::move(*made))](
             std::span<const TokenChoice> choices, bool largest, std::span<std::vector<Scored>> chosen) {
    return device.run([&] {
      std::vector<std::vector<Scored>> all;
      for (size_t first = 0; first < choices.size(); first += kAtOnce) {
        std::vector<ClusterQuery> queries;
        for (const TokenChoice& choice : choices.subspan(first, std::min(kAtOnce, choices.size() - first)))
          queries.push_back({.index = on_device.get(),
                             .tokens = choice.visible,
                             .queries = choice.queries,
                             .by = largest ? SharedBy::max : SharedBy::mean,
                             .divided = false,
                             .budget = std::min(choice.budget, choice.visible),
                             .newest = choice.newest});
        for (std::vector<Scored>& some : ClusterSelection(queries).tokens(Order::by_id))
          all.push_back(std::move(some));
      }
      const uint64_t clustered = std::max(index.sink(), index.end());
      for (size_t i = 0; i < all.size(); ++i) {
        for (Scored& token : all[i])
          if (token.id < index.sink() || token.id >= clustered)
            token.score = score_of(token.id, index, tokens, choices[i].queries.rows(), largest);
        rank(all[i]);
        chosen[i] = std::move(all[i]);
      }
    });
  };
}

}  // namespace kvcodec::cuda
