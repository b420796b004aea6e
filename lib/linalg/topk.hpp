// The k largest of many scores, exactly: equal scores rank by id, the lower first. One pass keeps candidates for the k largest so far,
// above a limit that only rises. Bisection finds the limit: it counts candidates, without a branch that depends on the data. The result
// is unique, so it is the same for any cut of the work, number of threads and SIMD level.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// The order of a selection: the best first (of equal ones the lower id), or by rising id, which costs no sorting.
enum class Order { by_score, by_id };

/// The k largest of scores; fewer if there are fewer. No score is a NaN; up to 2^32 of them. Runs on the calling thread.
std::vector<Scored> top_k(std::span<const float> scores, size_t k, Order order = Order::by_score);

/// Puts items in order: larger scores first, of equal ones the lower id.
void rank(std::span<Scored> items);

/// Keeps the k items that rank first. items: by rising id.
void keep_top(std::vector<Scored>& items, size_t k, Order order = Order::by_score);

}  // namespace kvcodec
