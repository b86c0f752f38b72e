// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cstdlib>

namespace usp {

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> known{
      {"OMPI_COMM_WORLD_SIZE", "ranks of the job; set by Open MPI's mpirun"},
      {"PMI_SIZE", "ranks of the job; set by MPICH's mpiexec and by srun --mpi=pmi2"},
      {"PMIX_RANK", "rank of this process; set by srun --mpi=pmix and by prterun"},
      {"SLURM_STEP_NUM_TASKS", "ranks of the job step; set by srun, not in a batch script itself"},
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
