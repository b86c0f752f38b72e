// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <exception>
#include <functional>
#include <memory>
#include <optional>

namespace usp::comm {

class MpiSession;

/// Runs `body` once per rank: as this process's rank when mpirun, srun or torchrun started it (the job must
/// have that many; a failure ends all processes, see run_mpi and run_sockets); else on threads of this
/// process, or alone when there is one rank, and errors of a rank end the others and are rethrown. Where both
/// are there, mpirun and srun win over variables like torchrun's, and torchrun over what started it. Returns
/// whether rank 0 ran in this process, which is the one to report. Throws EnvironmentError when MPI started a
/// build without it.
bool run_ranks(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body);

/// The same on as many ranks as mpirun, srun or torchrun started; without them on `ranks` threads, two where
/// it is empty. Throws UsageError where `ranks` are given and another number was started.
bool run_started_ranks(std::optional<int> ranks, const CommOptions& options,
                       const std::function<void(Communicator&)>& body);

/// The rank of this process in the job that mpirun, srun or torchrun started, chosen as run_ranks does; a
/// serial communicator without a launcher. For programs that keep their communicator instead of passing a
/// body. Collective; made and used by one thread, which under MPI is that of MpiSession.
class LaunchedJob {
 public:
  /// Throws as run_ranks, MpiSession and make_socket_communicator do.
  explicit LaunchedJob(const CommOptions& options);
  /// Collective: waits for the other ranks, under MPI as MpiSession::finish() (unless an exception leaves the
  /// job) and ~MpiSession, else as the socket communicator.
  ~LaunchedJob();
  LaunchedJob(const LaunchedJob&) = delete;
  LaunchedJob& operator=(const LaunchedJob&) = delete;
  [[nodiscard]] Communicator& world();

 private:
  int exceptions_;                       ///< that were in flight when the job began
  std::unique_ptr<MpiSession> session_;  ///< null: not under MPI
  std::unique_ptr<Communicator> own_;
};

/// Throws the UsageError of run_ranks where torchrun started another number of processes: what a rank may ask
/// while it can still report to the others.
void check_torchrun_ranks(int ranks);

/// Within a catch of `error`, by which this rank fails before run_ranks. Under torchrun the failure is
/// reported to the others, and this process ends (fail_before_rendezvous); otherwise returns: no rank waits,
/// or mpirun and srun notice.
void notify_other_ranks(const CommOptions& options, const std::exception& error);

/// Whether this process is the first that a launcher started, by its variables; true without a launcher. For
/// work that a job does once, before its ranks meet.
[[nodiscard]] bool first_of_launch();

/// Which of the ranks of its host this process is, from 0, where the launcher says so: its share of the
/// host's GPUs. None when there is no launcher.
[[nodiscard]] std::optional<int> local_rank();

}  // namespace usp::comm
