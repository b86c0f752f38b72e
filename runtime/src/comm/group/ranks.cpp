// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/ranks.hpp"

#include "usp/comm/mpi.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/comm/threads.hpp"

#include <fmt/format.h>

#include <string>

namespace usp::comm {
namespace {

void check_mpi_build() {
  if (!mpi_available())
    throw EnvironmentError(
        "this process was started by mpirun or srun, but this build has no MPI: every process would run "
        "alone; start it without, with torchrun, or build with libopenmpi-dev");
}

[[nodiscard]] bool run_processes(int ranks, const CommOptions& options,
                                 const std::function<void(Communicator&)>& body) {
  check_mpi_build();
  bool first = false;
  run_mpi(options, [&](Communicator& world) {
    if (world.size() != ranks)
      throw UsageError(fmt::format("the plan is for {} ranks, mpirun started {}; start {} with -n", ranks,
                                   world.size(), ranks));
    first = world.rank() == 0;
    body(world);
  });
  return first;
}

[[nodiscard]] bool run_torchrun(int ranks, const CommOptions& options,
                                const std::function<void(Communicator&)>& body) {
  check_torchrun_ranks(ranks);
  const SocketJob job = torchrun_job();
  run_sockets(job, options, body);
  return job.rank == 0;
}

}  // namespace

bool run_ranks(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body) {
  if (mpi_launched()) return run_processes(ranks, options, body);
  if (torchrun_launched()) return run_torchrun(ranks, options, body);
  check_rendezvous_variables();
  if (ranks == 1)
    body(*make_serial_communicator());
  else
    run_threads(ranks, options, body);
  return true;
}

bool run_started_ranks(std::optional<int> ranks, const CommOptions& options,
                       const std::function<void(Communicator&)>& body) {
  bool first = false;
  const auto checked = [&](Communicator& world) {
    if (ranks && world.size() != *ranks)
      throw UsageError(fmt::format("--ranks {}: the launcher started {} processes; leave --ranks out", *ranks,
                                   world.size()));
    first = world.rank() == 0;
    body(world);
  };
  if (mpi_launched()) {
    check_mpi_build();
    run_mpi(options, checked);
    return first;
  }
  if (torchrun_launched()) {
    run_sockets(torchrun_job(), options, checked);
    return first;
  }
  return run_ranks(ranks.value_or(2), options, body);
}

LaunchedJob::LaunchedJob(const CommOptions& options) : exceptions_(std::uncaught_exceptions()) {
  if (mpi_launched()) {
    check_mpi_build();
    session_ = std::make_unique<MpiSession>(options);
    return;
  }
  if (torchrun_launched()) {
    own_ = make_socket_communicator(torchrun_job(), options);
    return;
  }
  check_rendezvous_variables();
  own_ = make_serial_communicator();
}

LaunchedJob::~LaunchedJob() {
  if (session_ == nullptr || std::uncaught_exceptions() > exceptions_) return;
  try {
    session_->finish();
  } catch (const std::exception&) {  // the job has failed: the session ends it
  }
}

Communicator& LaunchedJob::world() {
  return session_ == nullptr ? *own_ : session_->world();
}

void check_torchrun_ranks(int ranks) {
  if (mpi_launched() || !torchrun_launched()) return;
  if (const int size = torchrun_job().size; size != ranks)
    throw UsageError(fmt::format(
        "the plan is for {} ranks, torchrun started {} (WORLD_SIZE); start {} with --nproc-per-node", ranks,
        size, ranks));
}

void notify_other_ranks(const CommOptions& options, const std::exception& error) {
  if (mpi_launched() || !torchrun_launched()) return;
  std::optional<SocketJob> job;
  try {
    job = torchrun_job();
  } catch (const Error&) {  // the address of the others is unknown
    return;
  }
  fail_before_rendezvous(*job, options, error);
}

}  // namespace usp::comm
