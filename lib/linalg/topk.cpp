#include "lib/linalg/topk.hpp"

#include <limits>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();

/// A pass first takes this many items, or twice what is wanted, as they come, and has a limit from then on:
/// few enough for their bisection to be lost in the rest, many enough for a limit that keeps most others out.
constexpr size_t kFirstItems = 1024;

/// One in so many of k, beyond k, may reach the limit of a pass.
constexpr size_t kSparePart = 8;

/// collect() and keep() may write so many elements behind what they return.
constexpr size_t kSlack = 1;

// Loops over integers, which compilers turn into wide instructions by themselves: compiled once more for
// processors that have AVX2.
#ifdef __x86_64__
#define KVCODEC_WIDER [[gnu::target_clones("default", "avx2")]]
#else
#define KVCODEC_WIDER
#endif

KVCODEC_WIDER void range_of(const int32_t* values, size_t n, int32_t* low, int32_t* high) {
  int32_t least = values[0], most = values[0];
  for (size_t i = 0; i < n; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  *low = least;
  *high = most;
}

KVCODEC_WIDER size_t count_at_least(const int32_t* values, size_t n, int32_t limit) {
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
KVCODEC_WIDER size_t keep(int32_t* keys, uint32_t* ids, size_t n, int32_t limit) {
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
KVCODEC_WIDER size_t collect(const float* scores, size_t n, uint32_t first_id, int32_t limit, int32_t* keys,
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
/// that no more than `most` values reach.
int32_t limit_of_k(std::span<const int32_t> values, size_t k, size_t most) {
  int32_t low, high;
  range_of(values.data(), values.size(), &low, &high);
  size_t reached = values.size();
  // At least k values are >= low, fewer than k are > high.
  while (low < high && reached > most) {
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
  if (scores.size() > (uint64_t{1} << 32)) throw failed("{} scores: ids have 32 bits", scores.size());
  constexpr size_t kBlock = 256;
  TopCandidates candidates(k);
  candidates.collect(0, scores.size(), kBlock, kBlock,
                     [&](size_t begin, size_t end, const TopCandidates::Room& room) {
                       size_t written = 0;
                       while (begin < end && room.count - written >= kBlock) {
                         const size_t count = std::min(kBlock, end - begin);
                         written += collect(scores.data() + begin, count, static_cast<uint32_t>(begin),
                                            room.limit, room.keys + written, room.ids + written);
                         begin += count;
                       }
                       return TopCandidates::Progress{begin, written};
                     });
  candidates.prune();
  std::vector<Scored> best(candidates.ids().size());
  for (size_t i = 0; i < best.size(); ++i) {
    const uint32_t id = candidates.ids()[i];
    best[i] = {scores[id], id};
  }
  if (order == Order::by_score) rank(best);
  return best;
}

TopCandidates::TopCandidates(size_t k, uint32_t margin) : k_(k), margin_(margin), limit_(kLowest) {}

void TopCandidates::grow(size_t capacity) {
  auto keys = std::make_unique_for_overwrite<int32_t[]>(capacity + kSlack);
  auto ids = std::make_unique_for_overwrite<uint32_t[]>(capacity + kSlack);
  std::copy_n(keys_.get(), size_, keys.get());
  std::copy_n(ids_.get(), size_, ids.get());
  keys_ = std::move(keys), ids_ = std::move(ids);
  capacity_ = capacity;
}

TopCandidates::Room TopCandidates::room(size_t least) {
  if (capacity_ - size_ < least) {
    prune();
    // Ties, or a margin that rules out little, may leave it full.
    if (size_ > capacity_ / 2 || capacity_ - size_ < least) grow(std::max(2 * capacity_, size_ + 2 * least));
  }
  return {limit_, keys_.get() + size_, ids_.get() + size_, capacity_ - size_};
}

void TopCandidates::collect(size_t begin, size_t end, size_t least_room, size_t block, const Scan& scan) {
  if (k_ == 0 || begin >= end) return;
  const size_t first = round_up(std::max(kFirstItems, 2 * std::min(k_, end - begin)), block);
  if (capacity_ - size_ < first + least_room) grow(size_ + 2 * first + least_room);
  size_t at = begin;
  // The limit is renewed each time the items seen have doubled: each stretch then adds about as many
  // candidates as are wanted.
  for (size_t stretch = first; at < end; stretch *= 2) {
    const size_t stop = end - begin <= stretch ? end : begin + stretch;
    while (at < stop) {
      const Room where = room(least_room);
      const Progress progress = scan(at, stop, where);
      at = progress.next;
      size_ += progress.written;
    }
    prune();
  }
}

void TopCandidates::merge(const TopCandidates& later) {
  if (capacity_ - size_ < later.size_) grow(size_ + later.size_);
  std::copy_n(later.keys_.get(), later.size_, keys_.get() + size_);
  std::copy_n(later.ids_.get(), later.size_, ids_.get() + size_);
  size_ += later.size_;
  limit_ = std::max(limit_, later.limit_);
}

void TopCandidates::prune() {
  if (size_ <= k_ || k_ == 0) return;
  // With a margin more than k stay in any case; a few more cost less than the last steps to the k-th largest.
  const int32_t least = limit_of_k(keys(), k_, margin_ > 0 ? k_ + k_ / kSparePart : k_);
  const auto limit = static_cast<int32_t>(std::max<int64_t>(int64_t{least} - margin_, kLowest));
  limit_ = std::max(limit_, limit);  // which may be above ties that are kept
  size_ = keep(keys_.get(), ids_.get(), size_, limit);
  if (margin_ > 0) return;
  size_ =
      keep_first(keys(), least, k_, [&](size_t to, size_t i) { keys_[to] = keys_[i], ids_[to] = ids_[i]; });
  if (least < std::numeric_limits<int32_t>::max()) limit_ = least + 1;
}

}  // namespace kvcodec
