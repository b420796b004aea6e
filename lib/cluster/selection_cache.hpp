// Keeping what the last steps fetched (ClusterKV, section IV-D): successive queries look at much the same
// tokens, so only those that are not at hand any more must be fetched from where the whole cache lies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// The keys and values of the tokens that one head selected in its last steps.
///
/// Counted by tokens. The paper counts by clusters; that is the same where clusters are taken whole, and
/// where the last one is trimmed it is what has really been fetched.
class SelectionCache {
 public:
  /// steps: for how many steps tokens stay, R; 0: none does.
  explicit SelectionCache(uint64_t steps) : steps_(steps) {}

  struct Use {
    uint64_t selected = 0, fetched = 0;
    void add(const Use& other) {
      selected += other.selected;
      fetched += other.fetched;
    }
    double hit_rate() const {
      return selected > 0 ? 1 - static_cast<double>(fetched) / static_cast<double>(selected) : 0;
    }
  };
  /// The next step selects these tokens, none twice.
  Use step(std::span<const uint32_t> tokens);

 private:
  uint64_t steps_, now_ = 0;
  std::vector<uint64_t> last_;  // of each token: the step that selected it last, from 1 on; 0 = none
};

}  // namespace kvcodec
