// The k largest of many scores, exactly: equal scores rank by id, the lower first. One pass keeps what may be
// among the k largest seen so far, above a limit that only rises; the limit comes from bisecting counts,
// which has no branch that depends on the data. Every result is unique, so it is the same for any cut of the
// work, thread count and SIMD level.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/linalg/ordered_key.hpp"

namespace kvcodec {

/// An item and its score.
struct Scored {
  float score;
  uint32_t id;
  bool operator==(const Scored&) const = default;
};

/// The order of a selection: the best first (of equal ones the lower id), or by rising id, which costs
/// no sorting.
enum class Order { by_score, by_id };

/// The k largest of scores; fewer if there are fewer. No score is a NaN; up to 2^32 of them. Runs on the
/// calling thread.
std::vector<Scored> top_k(std::span<const float> scores, size_t k, Order order = Order::by_score);

/// Puts items in order: larger scores first, of equal ones the lower id.
void rank(std::span<Scored> items);

/// Keeps the k that rank first. items: by rising id.
void keep_top(std::vector<Scored>& items, size_t k, Order order = Order::by_score);

/// The candidates that a pass over many keyed items must remember to know its k largest.
class TopCandidates {
 public:
  /// k: how many are wanted. margin: keys are known to within so much that a smaller key may rank before one
  /// that is larger by up to `margin`; candidates that near to the k-th largest are kept, and perhaps a few
  /// that are not.
  explicit TopCandidates(size_t k, uint32_t margin = 0);

  /// The place for items of a scan whose key is at least `limit`: room for `count` of them.
  struct Room {
    int32_t limit;
    int32_t* keys;
    uint32_t* ids;
    size_t count;
  };

  /// The result of a scan: the first item that it did not look at, and how many items it wrote.
  struct Progress {
    size_t next, written;
  };
  /// Scans items [begin, end) from begin on, in rising order of ids, at least one block of them, and writes
  /// those whose key is at least room.limit. It may stop early once room is left for fewer than `least_room`
  /// items.
  using Scan = std::function<Progress(size_t begin, size_t end, const Room& room)>;

  /// Passes over items [begin, end) by calls of `scan`; each begins at a multiple of `block` from `begin` on
  /// and finds room for at least `least_room` items.
  void collect(size_t begin, size_t end, size_t least_room, size_t block, const Scan& scan);

  /// Takes the candidates of a pass over later items.
  void merge(const TopCandidates& later);

  /// Drops candidates that the ones at hand rule out. Without a margin, of those that equal the k-th largest
  /// only the first are kept: at most k remain.
  void prune();

  std::span<const int32_t> keys() const { return {keys_.get(), size_}; }
  std::span<const uint32_t> ids() const { return {ids_.get(), size_}; }

 private:
  void grow(size_t capacity);
  Room room(size_t least);

  size_t k_, size_ = 0, capacity_ = 0;
  uint32_t margin_;
  int32_t limit_;
  std::unique_ptr<int32_t[]> keys_;
  std::unique_ptr<uint32_t[]> ids_;
};

}  // namespace kvcodec
