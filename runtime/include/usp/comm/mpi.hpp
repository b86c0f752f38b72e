// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <functional>

namespace usp::comm {

/// Whether this build has MPI.
[[nodiscard]] bool mpi_available();
/// Whether this process was started by mpirun, or by srun as one of several tasks (by their variables); not
/// when these started a torchrun that started it.
[[nodiscard]] bool mpi_launched();

/// MPI for the life of this object: MPI_Init_thread and MPI_Finalize unless the application did the former.
/// One per process; made and used by the thread that initialized MPI. Collective; all ranks give the same
/// options. Throws EnvironmentError when the build has no MPI, naming what to install. A call of MPI that
/// waits for all ranks (MPI_Init, MPI_Comm_dup, MPI_Finalize: options.start_s) and does not return in time
/// ends this process with one line on stderr and exit code 5, unless the application initialized MPI. When
/// its making fails between ranks, and in its destructor after a fault or while an exception leaves it, it
/// ends the whole job as run_mpi() does, unless the application initialized MPI.
class MpiSession {
  friend int run_mpi(const CommOptions& options, const std::function<void(Communicator&)>& body);

 public:
  explicit MpiSession(const CommOptions& options);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  /// All processes, on a communicator of its own (a duplicate of MPI_COMM_WORLD).
  [[nodiscard]] Communicator& world();
  /// Collective: returns once all ranks are here, however long that takes, so that none leaves while another
  /// may still fail. Throws the failure of the job.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// For main programs: runs `body` as this rank of the job. Returns 0 when it returned. When it threw on any
/// rank, prints one line per rank to stderr (its own error, or that of the rank that failed first) and
/// ends all processes without returning; mpirun's exit code is that of the first error: 5 for faults between
/// ranks, else its ExitCode. Collective.
int run_mpi(const CommOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace usp::comm
