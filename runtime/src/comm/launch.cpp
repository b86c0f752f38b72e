// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"
#include "usp/comm/mpi.hpp"

namespace usp {

bool mpi_launched() {
  if (environment("OMPI_COMM_WORLD_SIZE")) return true;
  // A step of one task is what an interactive shell of Slurm is: its ranks are threads.
  if (const auto tasks = environment("SLURM_STEP_NUM_TASKS")) return *tasks != "1";
  return environment("PMI_SIZE") || environment("PMIX_RANK");
}

}  // namespace usp
