#include "lib/linalg/topk.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "lib/core/aligned.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/linalg/topk_kernels_body.hpp"

namespace kvcodec {
namespace topk_kernels::scalar {

const Table& table() { return kTable; }

}  // namespace topk_kernels::scalar

namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();

/// A pass first takes this many items, or twice what is wanted, as they come, and has a limit from then on:
/// few enough for their bisection to be lost in the rest, many enough for a limit that keeps most others out.
constexpr size_t kFirstItems = 1024;

/// Of k, how much more than that may reach the limit of a pass.
constexpr size_t kSparePart = 8;

/// Up to here counting the larger ones for each item beats sorting (on a Zen 4 core, 0.9 against 4.5
/// microseconds for 256).
constexpr size_t kRankedByCounting = 512;

const topk_kernels::Table& kernels() {
  using namespace topk_kernels;
  return pick(scalar::table, avx2::table)();
}

/// A limit that at least k values reach: the k-th largest of them or, which takes fewer steps, one below it
/// that no more than `most` values reach.
int32_t limit_of_k(std::span<const int32_t> values, size_t k, size_t most) {
  if (k == 0 || k > values.size())
    throw failed("the {}th largest of {} values does not exist", k, values.size());
  const topk_kernels::Table& table = kernels();
  int32_t low, high;
  table.range(values.data(), values.size(), &low, &high);
  size_t reached = values.size();
  // At least k values are >= low, fewer than k are > high.
  while (low < high && reached > most) {
    const auto middle = static_cast<int32_t>((int64_t{low} + high + 1) >> 1);
    const size_t count = table.count(values.data(), values.size(), middle);
    if (count >= k)
      low = middle, reached = count;
    else
      high = middle - 1;
  }
  return low;
}

/// Sorts pairs of 32-bit halves by the upper one, smallest first; equal ones keep their order. `spare` has
/// the same size.
void sort_by_upper_half(std::span<uint64_t> pairs, std::span<uint64_t> spare) {
  constexpr unsigned kDigit = 11, kPasses = 3;
  static_assert(kDigit * kPasses >= 32);
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    const unsigned shift = 32 + pass * kDigit;
    const auto digit = [&](uint64_t pair) { return (pair >> shift) & ((1u << kDigit) - 1); };
    size_t places[size_t{1} << kDigit] = {};
    for (const uint64_t pair : pairs) ++places[digit(pair)];
    size_t sum = 0;
    for (size_t& place : places) sum += std::exchange(place, sum);
    for (const uint64_t pair : pairs) spare[places[digit(pair)]++] = pair;
    std::swap(pairs, spare);
  }
  std::ranges::copy(pairs, spare.begin());  // an odd number of passes ends in the spare half
}

bool ids_rise(std::span<const Scored> items) {
  return std::is_sorted(items.begin(), items.end(),
                        [](const Scored& a, const Scored& b) { return a.id < b.id; });
}

/// By digits, twice: by id, then by score, which leaves equal scores in the order of their ids.
void rank_by_sorting(std::span<Scored> items) {
  std::vector<uint64_t> pairs(items.size()), spare(items.size());
  // The larger the score the smaller the key.
  const auto key_of = [](float score) { return ~(static_cast<uint32_t>(ordered_key(score)) ^ 0x80000000u); };
  const bool sorted = ids_rise(items);
  if (!sorted) {
    for (size_t i = 0; i < items.size(); ++i) pairs[i] = uint64_t{items[i].id} << 32 | i;
    sort_by_upper_half(pairs, spare);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t item = sorted ? i : static_cast<uint32_t>(pairs[i]);
    pairs[i] = uint64_t{key_of(items[item].score)} << 32 | item;
  }
  sort_by_upper_half(pairs, spare);
  const std::vector<Scored> unordered(items.begin(), items.end());
  for (size_t i = 0; i < items.size(); ++i) items[i] = unordered[static_cast<uint32_t>(pairs[i])];
}

}  // namespace

int32_t kth_largest(std::span<const int32_t> values, size_t k) { return limit_of_k(values, k, 0); }

void rank(std::span<Scored> items) {
  // Counting breaks ties by place, so the ids must rise.
  if (items.size() > kRankedByCounting || !ids_rise(items)) return rank_by_sorting(items);
  int32_t keys[kRankedByCounting];
  uint32_t ranks[kRankedByCounting];
  Scored unordered[kRankedByCounting];
  for (size_t i = 0; i < items.size(); ++i) keys[i] = ordered_key(items[i].score), unordered[i] = items[i];
  kernels().ranks(keys, items.size(), ranks);
  for (size_t i = 0; i < items.size(); ++i) items[ranks[i]] = unordered[i];
}

void keep_top(std::vector<Scored>& items, size_t k, Order order) {
  if (k == 0) items.clear();
  if (items.size() > k) {  // before ranking too: counts of all keys are cheaper than ranks of all items
    // Those above the limit, and the first of those that equal it.
    std::vector<int32_t> keys(items.size());
    for (size_t i = 0; i < items.size(); ++i) keys[i] = ordered_key(items[i].score);
    const int32_t least = limit_of_k(keys, k, k);
    const auto above = std::count_if(keys.begin(), keys.end(), [&](int32_t key) { return key > least; });
    size_t kept = 0, equal = k - static_cast<size_t>(above);
    for (size_t i = 0; i < items.size(); ++i) {
      const bool ties = keys[i] == least && equal > 0;
      items[kept] = items[i];
      kept += keys[i] > least || ties;
      equal -= ties;
    }
    items.resize(kept);
  }
  if (order == Order::by_score) rank(items);
}

std::vector<Scored> top_k(std::span<const float> scores, size_t k, Order order) {
  if (scores.size() > (uint64_t{1} << 32)) throw failed("{} scores: ids have 32 bits", scores.size());
  constexpr size_t kBlock = 256;
  const auto collect = kernels().collect;
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
  auto keys = std::make_unique_for_overwrite<int32_t[]>(capacity + topk_kernels::kSlack);
  auto ids = std::make_unique_for_overwrite<uint32_t[]>(capacity + topk_kernels::kSlack);
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
  size_ = kernels().keep(keys_.get(), ids_.get(), size_, limit);
  if (margin_ > 0) return;
  // Of those equal to the limit the first are wanted, and no later one.
  const auto above =
      std::count_if(keys_.get(), keys_.get() + size_, [&](int32_t key) { return key > least; });
  size_t kept = 0, wanted = k_ - static_cast<size_t>(above);
  for (size_t i = 0; i < size_; ++i) {
    if (keys_[i] == least) {
      if (wanted == 0) continue;
      --wanted;
    }
    keys_[kept] = keys_[i], ids_[kept] = ids_[i], ++kept;
  }
  size_ = kept;
  if (least < std::numeric_limits<int32_t>::max()) limit_ = least + 1;
}

}  // namespace kvcodec
