#include "lib/core/team.hpp"

#include <algorithm>
#include <string>

namespace kvcodec {
namespace {

constexpr size_t kMaxSlices = 64;
/// Doubles of each partial sum that are exchanged at a time.
constexpr size_t kAtATime = 8192;

/// A sum over slices [index << level, (index + 1) << level).
struct Partial {
  unsigned level = 0;
  size_t index = 0;
  std::vector<double> values;
};

void add_to(std::vector<double>& values, const std::vector<double>& others) {
  for (size_t i = 0; i < values.size(); ++i) values[i] += others[i];
}

/// Puts the sum behind those of the slices before it, and adds up what are two halves of one.
void push(std::vector<Partial>& partials, Partial next) {
  partials.push_back(std::move(next));
  while (partials.size() > 1) {
    Partial& left = partials[partials.size() - 2];
    const Partial& right = partials.back();
    if (left.level != right.level || left.index % 2 != 0) return;
    add_to(left.values, right.values);
    ++left.level, left.index /= 2;
    partials.pop_back();
  }
}

/// Adds up, from left to right, the partial sums in which no two are halves of one.
std::vector<double> total_of(std::vector<Partial> partials) {
  std::vector<double> total = std::move(partials.front().values);
  for (size_t i = 1; i < partials.size(); ++i) add_to(total, partials[i].values);
  return total;
}

/// The partial sums that a rank with these slices has, without their values.
std::vector<Partial> partials_of(TeamShare slices) {
  std::vector<Partial> partials;
  for (size_t slice = slices.begin; slice < slices.end; ++slice) push(partials, {0, slice, {}});
  return partials;
}

std::vector<double> total_of_team(const Team& team, const std::vector<Partial>& own, size_t slices,
                                  size_t width) {
  std::vector<Partial> all;
  std::vector<size_t> counts{0};
  counts.reserve(static_cast<size_t>(team.size()) + 1);
  for (int rank = 0; rank < team.size(); ++rank) {
    for (Partial& partial : partials_of(team.share_of(rank, slices))) all.push_back(std::move(partial));
    counts.push_back(all.size());
  }
  std::vector<double> total(width), buffer(all.size() * std::min(width, kAtATime));
  std::vector<size_t> bounds(counts.size());
  for (size_t first = 0; first < width; first += kAtATime) {
    const size_t count = std::min(kAtATime, width - first);
    for (size_t i = 0; i < counts.size(); ++i) bounds[i] = counts[i] * count;
    size_t at = bounds[static_cast<size_t>(team.rank())];
    for (const Partial& partial : own) {
      std::copy_n(&partial.values[first], count, &buffer[at]);
      at += count;
    }
    team.exchange(std::span(buffer).first(all.size() * count), bounds);
    std::vector<Partial> pieces;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto begin = buffer.begin() + static_cast<ptrdiff_t>(i * count);
      push(pieces, {all[i].level, all[i].index, {begin, begin + static_cast<ptrdiff_t>(count)}});
    }
    std::ranges::copy(total_of(std::move(pieces)), &total[first]);
  }
  return total;
}

}  // namespace

/// own: what this rank ended with, if it is the one to tell.
const Error& Team::end_with(int from, const Error* own) const {
  struct Head {
    int kind = 0;
    size_t length = 0;
  } head;
  std::string text;
  if (own) text = own->what(), head = {static_cast<int>(own->kind()), text.size()};
  put_together(std::as_writable_bytes(std::span(&head, 1)), bounds_of(from, sizeof head));
  text.resize(head.length);
  put_together(std::as_writable_bytes(std::span(text)), bounds_of(from, text.size()));
  return ended_.emplace(static_cast<ErrorKind>(head.kind), text);
}

const Team& alone() {
  static const Team team;
  return team;
}

std::vector<double> sum_slices(const Team& team, size_t items, size_t width,
                               const std::function<std::vector<double>(size_t first, size_t end)>& sums_of) {
  const size_t slices = std::min(items, kMaxSlices);
  if (slices == 0) return std::vector<double>(width);
  // As share_of() cuts them for as many ranks.
  const auto bound = [&](size_t slice) { return slice * (items / slices) + std::min(slice, items % slices); };
  std::vector<Partial> partials;
  const TeamShare own = team.share(slices);
  for (size_t slice = own.begin; slice < own.end; ++slice)
    push(partials, {0, slice, sums_of(bound(slice), bound(slice + 1))});
  if (team.size() == 1) return total_of(std::move(partials));
  return total_of_team(team, partials, slices, width);
}

}  // namespace kvcodec
