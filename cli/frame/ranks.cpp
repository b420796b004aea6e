#include "cli/frame/ranks.hpp"

#include <algorithm>
#include <cstdlib>

namespace kvcodec::cli {

int launched_ranks() {
  // Open MPI's, that of launchers that speak PMI, and Slurm's, whose PMIx sets neither.
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(name)) return std::max(std::atoi(value), 1);
  return 1;
}

}  // namespace kvcodec::cli
