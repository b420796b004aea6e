// Several processes that train one book: started by mpirun or srun, in a build with MPI.
#pragma once

#include <memory>
#include <string>

#include "cli/frame/product.hpp"
#include "lib/core/team.hpp"

namespace kvcodec::cli {

/// The team that this process is a rank of; alone where nothing like mpirun started it, or in a program without MPI
/// (no_mpi.cpp instead of mpi_team.cpp). Once, before any other threads begin. Communication ends with the object.
std::unique_ptr<Team> join_team();

/// How many processes mpirun (or another launcher that says so in the environment) started; 1 if none did.
int launched_ranks();

/// For a training by a team: rank 0 opens the output, then all ranks call train(), and rank 0 calls write(file, result)
/// and returns what report(result) says; the others return nothing.
template <class Train, class Write, class Report>
std::string train_to_file(const Team& team, const OutputOptions& options, const Train& train,
                          const Write& write, const Report& report) {
  if (team.rank() > 0) {
    train();
    return {};
  }
  return run_to_file(
      options,
      [&](OutputFile& file) {
        auto result = train();
        write(file, result);
        return result;
      },
      report);
}

}  // namespace kvcodec::cli
