// Ranks: processes that train one book together, each with a share of the data.
//
// All ranks run the same program over the same data, but each computes only its share of the expensive work. Then they exchange results, so
// that every rank has all of them and continues alike. Only whole results (ids, rows, sums of slices) are exchanged, and a sum over several
// of them is formed in an order that depends on the data alone (sum_slices below). So any number of ranks gives the same bytes, on machines
// of one kind: each rank repeats some steps by itself.
//
// alone() is the only rank of a program that was started alone, and costs nothing. cli/frame/mpi_team.cpp implements this interface by MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Items [begin, end) of a list.
struct TeamShare {
  size_t begin = 0, end = 0;
  size_t count() const { return end - begin; }
};

/// All ranks call the members that communicate in the same order, each from one thread.
class Team {
 public:
  virtual ~Team() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }

  /// The share of `count` items for this rank, or another: consecutive items, about as many for each rank.
  TeamShare share(size_t count) const { return share_of(rank(), count); }
  TeamShare share_of(int rank, size_t count) const {
    const auto ranks = static_cast<size_t>(size()), at = static_cast<size_t>(rank);
    // The first count % ranks of them take one more.
    const size_t each = count / ranks, more = count % ranks;
    const size_t begin = at * each + std::min(at, more);
    return {begin, begin + each + (at < more ? 1 : 0)};
  }

  /// all: room for the elements of all ranks; rank r has written elements [bounds[r], bounds[r + 1]) of it. Afterwards
  /// every rank has all of them. Throws the Error with which another rank ended (fail()).
  template <class T>
  void exchange(std::span<T> all, std::span<const size_t> bounds) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (size() > 1) exchange_bytes(std::as_writable_bytes(all), bounds, sizeof(T));
  }
  /// Bounds for exchange() of items that begin at starts[0], starts[1] … and end at the last of these, where each rank
  /// writes its share of them.
  std::vector<size_t> bounds(std::span<const size_t> starts) const {
    std::vector<size_t> bounds{starts.front()};
    bounds.reserve(static_cast<size_t>(size()) + 1);
    for (int of = 0; of < size(); ++of) bounds.push_back(starts[share_of(of, starts.size() - 1).end]);
    return bounds;
  }
  /// The same where `all` has `items` items of equally many elements, and every rank has written its share of them.
  template <class T>
  void gather(std::span<T> all, size_t items) const {
    if (size() > 1 && items > 0) exchange(all, bounds_of_shares(items, all.size() / items));
  }
  /// All ranks get the data of `from`, of any size.
  template <class T>
  void broadcast(int from, std::vector<T>& values) const {
    if (size() == 1) return;
    uint64_t count = values.size();
    broadcast_one(from, count);
    values.resize(count);
    exchange(std::span(values), bounds_of(from, values.size()));
  }
  template <class T>
  void broadcast(int from, Matrix<T>& matrix) const {
    if (size() == 1) return;
    uint64_t rows = matrix.rows(), cols = matrix.cols();
    broadcast_one(from, rows), broadcast_one(from, cols);
    if (rows != matrix.rows() || cols != matrix.cols()) matrix = Matrix<T>(rows, cols);
    exchange(std::span(matrix.data(), matrix.size()), bounds_of(from, matrix.size()));
  }
  template <class T>
  void broadcast_one(int from, T& value) const {
    if (size() > 1) exchange(std::span(&value, 1), bounds_of(from, 1));
  }

  /// Returns once all ranks have called it. Throws the Error with which another rank ended.
  void wait() const {
    if (ended_) throw *ended_;
    if (size() == 1) return;
    const int failed = lowest(size());
    if (failed < size()) throw end_with(failed, nullptr);
  }
  /// For a rank whose work ended with an error, its own or that of another rank: the next call of every other rank throws
  /// an Error too. Returns the Error with which all ranks end: that of the lowest rank that called this.
  Error fail(const Error& own) const {
    if (ended_) return *ended_;
    if (size() == 1) return own;
    const int failed = lowest(rank());
    return end_with(failed, failed == rank() ? &own : nullptr);
  }

 protected:
  /// The lowest of all ranks' numbers.
  virtual int lowest(int number) const { return number; }
  /// exchange(), in bytes: rank r gives [bounds[r], bounds[r + 1]).
  virtual void put_together(std::span<std::byte> /*all*/, std::span<const size_t> /*bounds*/) const {}

 private:
  void exchange_bytes(std::span<std::byte> all, std::span<const size_t> bounds, size_t unit) const {
    std::vector<size_t> in_bytes(bounds.begin(), bounds.end());
    for (size_t& bound : in_bytes) bound *= unit;
    wait();  // behind it nothing may fail on one rank alone
    put_together(all, in_bytes);
  }
  std::vector<size_t> bounds_of_shares(size_t items, size_t unit) const {
    std::vector<size_t> bounds{0};
    bounds.reserve(static_cast<size_t>(size()) + 1);
    for (int of = 0; of < size(); ++of) bounds.push_back(share_of(of, items).end * unit);
    return bounds;
  }
  std::vector<size_t> bounds_of(int from, size_t count) const {
    std::vector<size_t> bounds(static_cast<size_t>(size()) + 1);
    for (size_t i = static_cast<size_t>(from) + 1; i < bounds.size(); ++i) bounds[i] = count;
    return bounds;
  }
  const Error& end_with(int from, const Error* own) const;

  mutable std::optional<Error> ended_;  // with which all ranks ended: then nothing more is communicated
};

/// The team of a program that was started alone.
const Team& alone();

/// Sums of `width` doubles over `items` items, the same bits for any number of ranks: items are cut into at most 64 slices, which depend on
/// their number alone; each rank calls sums_of(first, end) for its slices one after the other, and the slices' sums are added up in a
/// binary tree over the slices. Memory: sums of at most 7 slices, and 64 KiB for each slice. Every rank gets the total.
std::vector<double> sum_slices(const Team& team, size_t items, size_t width,
                               const std::function<std::vector<double>(size_t first, size_t end)>& sums_of);

}  // namespace kvcodec
