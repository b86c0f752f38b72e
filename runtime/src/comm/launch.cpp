// SPDX-License-Identifier: Apache-2.0
#include "usp/base/env.hpp"
#include "usp/comm/mpi.hpp"

#include <algorithm>

namespace usp {

bool mpi_launched() {
  const auto marks = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"};
  return std::any_of(marks.begin(), marks.end(),
                     [](const char* name) { return environment(name).has_value(); });
}

}  // namespace usp
