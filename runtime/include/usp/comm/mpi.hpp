// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

namespace usp {

/// Whether this build has MPI.
[[nodiscard]] bool mpi_available();
/// Whether this process was started by mpirun or srun (one of their variables is set).
[[nodiscard]] bool mpi_launched();

/// MPI for the life of this object: MPI_Init_thread and MPI_Finalize unless the application did the former.
/// One per process. Throws EnvironmentError when the build has no MPI, naming what to install.
class MpiSession {
 public:
  explicit MpiSession(const CommOptions& options);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  /// All processes, on a communicator of its own (a duplicate of MPI_COMM_WORLD).
  [[nodiscard]] Communicator& world();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace usp
