// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <functional>

namespace usp {

/// Runs `body` once per rank: as this process's rank when mpirun or srun started it (the job must have that
/// many; a failure ends all processes, see run_mpi); else on threads of this process, or alone when there is
/// one rank, and errors of a rank end the others and are rethrown. Returns whether rank 0 ran in this
/// process, which is the one to report. Throws EnvironmentError when MPI started a build without it.
bool run_ranks(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace usp
