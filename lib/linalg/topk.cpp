#include "lib/linalg/topk.hpp"

#include <algorithm>
#include <limits>

#include "lib/core/aligned.hpp"
#include "lib/core/clones.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();

/// A pass first takes this many items, or twice what is wanted, as they come, and has a limit from then on:
/// few enough for their bisection to be lost in the rest, many enough for a limit that keeps most others out.
constexpr size_t kFirstItems = 1024;

/// collect() may write one element behind what it returns.
constexpr size_t kSlack = 1;

// Loops over integers, which compilers turn into wide instructions by themselves: compiled once more for processors that have AVX2.
KVCODEC_CLONES("avx2")
void range_of(const int32_t* values, size_t n, int32_t* low, int32_t* high) {
  int32_t least = values[0], bound = values[0];
  for (size_t i = 0; i < n; ++i) {
    least = values[i] < least ? values[i] : least;
    bound = values[i] > bound ? values[i] : bound;
  }
  *low = least;
  *high = bound;
}

KVCODEC_CLONES("avx2")
size_t count_at_least(const int32_t* values, size_t n, int32_t limit) {
  size_t total = 0;
  while (n > 0) {  // in pieces whose count fits the 32-bit lanes of the vectors
    const size_t piece = n < 0x10000 ? n : 0x10000;
    uint32_t found = 0;
    for (size_t i = 0; i < piece; ++i) found += values[i] >= limit;
    total += found;
    values += piece;
    n -= piece;
  }
  return total;
}

/// Moves the pairs whose key is at least `limit` to the front, in order; returns how many they are.
KVCODEC_CLONES("avx2")
size_t keep(int32_t* keys, uint32_t* ids, size_t n, int32_t limit) {
  size_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t key = keys[i];
    keys[kept] = key;
    ids[kept] = ids[i];
    kept += key >= limit;
  }
  return kept;
}

/// Writes ordered_key(scores[i]) and first_id + i where the key is at least `limit`; returns how many.
KVCODEC_CLONES("avx2")
size_t collect(const float* scores, size_t n, uint32_t first_id, int32_t limit, int32_t* keys,
               uint32_t* ids) {
  size_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t key = ordered_key(scores[i]);
    keys[found] = key;
    ids[found] = first_id + static_cast<uint32_t>(i);
    found += key >= limit;
  }
  return found;
}

/// A limit that at least k values reach: the k-th largest of them or, which takes fewer steps, one below it
/// that no more than `limit` values reach.
int32_t limit_of_k(std::span<const int32_t> values, size_t k, size_t bound) {
  int32_t low, high;
  range_of(values.data(), values.size(), &low, &high);
  size_t reached = values.size();
  // At least k values are >= low, fewer than k are > high.
  while (low < high && reached > bound) {
    const auto middle = static_cast<int32_t>((int64_t{low} + high + 1) >> 1);
    const size_t count = count_at_least(values.data(), values.size(), middle);
    if (count >= k)
      low = middle, reached = count;
    else
      high = middle - 1;
  }
  return low;
}

/// Calls move(to, i) for the k values that rank first, of those that equal the k-th largest, `least`, the
/// first. Returns how many there are.
template <class Move>
size_t keep_first(std::span<const int32_t> keys, int32_t least, size_t k, const Move& move) {
  auto equal =
      static_cast<ptrdiff_t>(k) - std::ranges::count_if(keys, [&](int32_t key) { return key > least; });
  size_t kept = 0;
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i] > least || (keys[i] == least && equal-- > 0)) move(kept++, i);
  return kept;
}

}  // namespace

void rank(std::span<Scored> items) {
  std::ranges::sort(items, [](const Scored& a, const Scored& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  });
}

void keep_top(std::vector<Scored>& items, size_t k, Order order) {
  if (k == 0) items.clear();
  if (items.size() > k) {
    std::vector<int32_t> keys(items.size());
    for (size_t i = 0; i < items.size(); ++i) keys[i] = ordered_key(items[i].score);
    items.resize(
        keep_first(keys, limit_of_k(keys, k, k), k, [&](size_t to, size_t i) { items[to] = items[i]; }));
  }
  if (order == Order::by_score) rank(items);
}

std::vector<Scored> top_k(std::span<const float> scores, size_t k, Order order) {
  const size_t n = scores.size();
  if (n > (uint64_t{1} << 32)) throw failed("{} scores: ids have 32 bits", n);
  k = std::min(k, n);
  if (k == 0) return {};
  constexpr size_t kBlock = 256;
  const size_t first = std::max(kFirstItems, 2 * k), room = std::min(round_up(n, kBlock), 2 * first);
  std::vector<int32_t> keys(room + kSlack);
  std::vector<uint32_t> ids(room + kSlack);
  size_t size = 0;
  int32_t limit = kLowest;
  // Drops what the candidates at hand rule out: k remain.
  const auto prune = [&] {
    if (size <= k) return;
    const int32_t least = limit_of_k(std::span(keys).first(size), k, k);
    size = keep(keys.data(), ids.data(), size, least);
    size = keep_first(std::span(keys).first(size), least, k,
                      [&](size_t to, size_t i) { keys[to] = keys[i], ids[to] = ids[i]; });
    limit = least + 1;  // of equal ones the first stay; no score has the largest key
  };
  // The limit is renewed each time the items seen have doubled: each stretch then adds about as many candidates as are wanted.
  for (size_t at = 0, renewal = first; at < n; at += kBlock) {
    if (at >= renewal || room - size < kBlock) {
      prune();
      if (at >= renewal) renewal *= 2;
    }
    const size_t count = std::min(kBlock, n - at);
    size += collect(scores.data() + at, count, static_cast<uint32_t>(at), limit, &keys[size], &ids[size]);
  }
  prune();
  std::vector<Scored> best(size);
  for (size_t i = 0; i < size; ++i) best[i] = {scores[ids[i]], ids[i]};
  if (order == Order::by_score) rank(best);
  return best;
}

}  // namespace kvcodec
