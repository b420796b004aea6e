#include "lib/cluster/selection_cache.hpp"

#include <algorithm>

namespace kvcodec {

SelectionCache::Use SelectionCache::step(std::span<const uint32_t> tokens) {
  ++now_;
  Use use{.selected = tokens.size(), .fetched = 0};
  if (!tokens.empty())
    if (const uint64_t needed = uint64_t{std::ranges::max(tokens)} + 1; last_.size() < needed)
      last_.resize(needed);
  for (const uint32_t token : tokens) {
    use.fetched += last_[token] == 0 || last_[token] + steps_ < now_;
    last_[token] = now_;
  }
  return use;
}

}  // namespace kvcodec
