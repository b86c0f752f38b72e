// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cstdlib>

namespace usp {

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> known{
      {"OMPI_COMM_WORLD_SIZE", "ranks of the job; set by Open MPI's mpirun"},
      {"OMPI_COMM_WORLD_RANK", "rank of this process; set by Open MPI's mpirun"},
      {"PMI_SIZE", "ranks of the job; set by MPICH's mpiexec and by srun --mpi=pmi2"},
      {"PMI_RANK", "rank of this process; set by both"},
      {"PMIX_RANK", "rank of this process; set by srun --mpi=pmix and by prterun"},
      {"SLURM_STEP_NUM_TASKS", "ranks of the job step; set by srun, not in a batch script itself"},
      {"SLURM_PROCID", "rank of this process in its job step; set by srun"},
      {"RANK", "rank of this process; set by torchrun"},
      {"WORLD_SIZE", "ranks of the job; set by torchrun"},
      {"LOCAL_WORLD_SIZE", "ranks of the job on this host; set by torchrun"},
      {"MASTER_ADDR", "host of rank 0; set by torchrun"},
      {"MASTER_PORT", "where torchrun's own store listens on that host; set by torchrun"},
      {"TORCHELASTIC_RUN_ID", "name of the job; set by torchrun alone, not by launchers that imitate it"},
      {"TORCHELASTIC_RESTART_COUNT", "how often the job was started again; set by torchrun"},
      {"USP_MASTER_PORT",
       "where rank 0 listens for the others, the same on all ranks; MASTER_PORT + 1000 unless given"},
      {"USP_JOB_TOKEN",
       "secret of the job, the same on all ranks: they prove to one another that they know it, without "
       "sending "
       "it; needed where ranks of torchrun meet beyond one host"},
      {"COLUMNS", "columns that lines of text are wrapped to; else those of the terminal"},
      {"NO_COLOR", "no escape sequences on terminals, where it is set and not empty (no-color.org)"},
      {"LOCAL_RANK", "which of its host's ranks this process is; set by torchrun"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "the same; set by Open MPI's mpirun"},
      {"SLURM_LOCALID", "the same; set by srun"},
      {"CUDA_VISIBLE_DEVICES",
       "devices that CUDA shows to processes started here; a plan for a described host names it and does not "
       "apply it"},
  };
  return known;
}

std::optional<std::string> environment(std::string_view name) {
  const auto& known = environment_variables();
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& variable) { return variable.name == name; });
  expects(found != known.end(), "an environment variable that is not listed");
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace usp
