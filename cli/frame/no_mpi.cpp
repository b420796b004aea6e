// Replaces mpi_team.cpp in a program without MPI.
#include "cli/frame/common.hpp"

namespace kvcodec::cli {

std::unique_ptr<Team> join_team() { return std::make_unique<Team>(); }

}  // namespace kvcodec::cli
