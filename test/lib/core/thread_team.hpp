// Ranks as threads of one process: the mechanism of lib/core/team.hpp without MPI.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "lib/core/team.hpp"

namespace kvcodec {

/// The shared state of the ranks of a team.
struct TeamRoom {
  explicit TeamRoom(int size) : numbers(static_cast<size_t>(size)), spans(numbers.size()), barrier(size) {}
  std::vector<int> numbers;
  std::vector<std::span<std::byte>> spans;
  std::barrier<> barrier;
};

class ThreadTeam final : public Team {
 public:
  ThreadTeam(TeamRoom& room, int rank) : room_(room), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(room_.numbers.size()); }

 protected:
  int lowest(int number) const override {
    room_.numbers[static_cast<size_t>(rank_)] = number;
    room_.barrier.arrive_and_wait();
    const int result = *std::ranges::min_element(room_.numbers);
    room_.barrier.arrive_and_wait();
    return result;
  }
  void put_together(std::span<std::byte> all, std::span<const size_t> bounds) const override {
    const auto own = static_cast<size_t>(rank_);
    room_.spans[own] = all;
    room_.barrier.arrive_and_wait();
    for (size_t from = 0; from < room_.spans.size(); ++from)
      if (from != own && bounds[from] < bounds[from + 1])
        std::memcpy(&all[bounds[from]], &room_.spans[from][bounds[from]], bounds[from + 1] - bounds[from]);
    room_.barrier.arrive_and_wait();
  }

 private:
  TeamRoom& room_;
  const int rank_;
};

/// Calls work(team) in a thread for each rank, like main() in a process for each, and returns the errors with which they end: those
/// of all of them, or none.
inline std::vector<Error> run_ranks(int ranks, const std::function<void(const Team&)>& work) {
  TeamRoom room(ranks);
  std::vector<std::optional<Error>> ended(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  threads.reserve(ended.size());
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&room, &work, &ended, rank] {
      const ThreadTeam team(room, rank);
      try {
        work(team);
        team.wait();
      } catch (const Error& error) {
        ended[static_cast<size_t>(rank)] = team.fail(error);
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<Error> errors;
  for (const auto& error : ended)
    if (error) errors.push_back(*error);
  return errors;
}

}  // namespace kvcodec
