// Ranks of MPI (-DKVCODEC_MPI=ON, and the program kvcodec_ranks of the tests). Only this file uses MPI.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include <mpi.h>

#include "cli/frame/common.hpp"

namespace kvcodec::cli {
namespace {

/// MPI counts in int, so larger data are exchanged in pieces.
constexpr size_t kMaxBytes = size_t{1} << 30;

class MpiTeam final : public Team {
 public:
  MpiTeam() {
    int granted = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiTeam() override { MPI_Finalize(); }
  MpiTeam(const MpiTeam&) = delete;
  MpiTeam& operator=(const MpiTeam&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 protected:
  // Errors of MPI end the program, which is MPI's default.
  int lowest(int number) const override {
    int result = number;
    MPI_Allreduce(&number, &result, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return result;
  }

  void put_together(std::span<std::byte> all, std::span<const size_t> bounds) const override {
    std::vector<int> counts(bounds.size() - 1), places(counts.size());
    for (size_t first = 0; first < bounds.back(); first += kMaxBytes) {
      const size_t end = std::min(first + kMaxBytes, bounds.back());
      const auto place = [&](size_t bound) {
        return static_cast<int>(std::clamp(bound, first, end) - first);
      };
      for (size_t of = 0; of < counts.size(); ++of) {
        places[of] = place(bounds[of]);
        counts[of] = place(bounds[of + 1]) - places[of];
      }
      MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, &all[first], counts.data(), places.data(), MPI_BYTE,
                     MPI_COMM_WORLD);
    }
  }

 private:
  int rank_ = 0, size_ = 1;
};

/// Open MPI's mpirun, and launchers that use PMIx or PMI (srun), set one of these variables. Without any, MPI would start its own helpers.
bool launched() {
  constexpr std::array kNames{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  return std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

std::unique_ptr<Team> join_team() {
  if (launched()) return std::make_unique<MpiTeam>();
  return std::make_unique<Team>();
}

}  // namespace kvcodec::cli
