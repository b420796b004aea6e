#include "cli/resume.hpp"

#include "test/test.hpp"

using namespace kvcodec::cli;

namespace {

std::vector<std::pair<size_t, size_t>> cut(std::vector<uint64_t> bytes, uint64_t piece) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const WorkRange& range : cut_work(bytes, piece)) ranges.emplace_back(range.first, range.end);
  return ranges;
}

}  // namespace

TEST_CASE("resume: work is cut where a piece is full, and no piece is empty") {
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  CHECK(cut({}, 10) == Ranges{});
  CHECK(cut({3, 3, 3}, 10) == Ranges{{0, 3}});
  CHECK(cut({5, 5, 1}, 10) == Ranges{{0, 2}, {2, 3}});  // full to the byte
  CHECK(cut({100, 1, 100}, 10) == Ranges{{0, 1}, {1, 3}});
  CHECK(cut({0, 0, 0}, 10) == Ranges{{0, 3}});
  CHECK(cut({1, 2}, 0) == Ranges{{0, 1}, {1, 2}});
}
