// SPDX-License-Identifier: Apache-2.0
#include "../failure/call_watch.hpp"
#include "../failure/faults.hpp"
#include "mpi_communicator.hpp"

#include "usp/comm/agreement.hpp"
#include "usp/comm/mpi.hpp"

#include <cstdlib>
#include <exception>
#include <limits>
#include <numeric>

namespace usp::comm {
namespace {

void initialize_mpi() {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS ||
      level < MPI_THREAD_FUNNELED)
    throw EnvironmentError("MPI does not start with MPI_THREAD_FUNNELED; use an MPI built with threads");
}

/// Gives the others time to report their error, then ends all processes. MPI_Finalize would wait for ranks
/// that may never come.
[[noreturn]] void end_job(MpiControl& control) {
  const int code = static_cast<int>(control.exit_code());
  (void)control.wait_for_all(grace_s);
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

/// Within a catch: broadcasts the error that this rank caught, and ends the job.
[[noreturn]] void fail_job(MpiControl& control, int rank, const std::exception& error) {
  control.broadcast_failure(fault_of(std::current_exception(), rank), exit_code_of(std::current_exception()));
  report_failure(rank, error.what());
  end_job(control);
}

}  // namespace

struct MpiSession::State {
  bool owns_mpi = false;
  double start_s = 0;
  int exceptions = 0;  ///< that were in flight when the session began
  std::shared_ptr<MpiControl> control;
  std::unique_ptr<MpiCommunicator> world;
  std::unique_ptr<MpiCommunicator> closing;  ///< for waiting until all are done, as long as it takes
  /// How long a call of MPI may last that waits for all ranks.
  [[nodiscard]] double limit_of_call() const {
    return owns_mpi ? start_s : std::numeric_limits<double>::max();
  }
  void open(const CommOptions& options);
};

namespace {

std::unique_ptr<MpiCommunicator> duplicate_world(const std::shared_ptr<MpiControl>& control,
                                                 const CommOptions& options) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  int size = 1;
  MPI_Comm_size(copy, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<MpiCommunicator>(copy, std::move(ranks), control, options);
}

}  // namespace

void MpiSession::State::open(const CommOptions& options) {
  const CallWatch watch(limit_of_call(), "MPI_Comm_dup");
  control = std::make_shared<MpiControl>(MPI_COMM_WORLD, owns_mpi);
  world = duplicate_world(control, options);
  closing = duplicate_world(
      control, {.watchdog_s = std::numeric_limits<double>::max(), .chunk_bytes = options.chunk_bytes});
}

bool mpi_available() {
  return true;
}

MpiSession::MpiSession(const CommOptions& options) : state_(std::make_unique<State>()) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0)
    throw EnvironmentError("MPI has ended in this process and cannot start again; keep one session for all");
  int initialized = 0;
  MPI_Initialized(&initialized);
  state_->owns_mpi = initialized == 0;
  state_->start_s = options.start_s.value_or(options.watchdog_s);
  if (state_->owns_mpi) {
    const CallWatch watch(state_->start_s, "MPI_Init");
    initialize_mpi();
  }
  state_->exceptions = std::uncaught_exceptions();
  state_->open(options);
  try {
    // Ranks may still be starting.
    state_->world->set_watchdog(state_->start_s);
    agree(*state_->world, {{"chunk_bytes", static_cast<std::uint64_t>(options.chunk_bytes)}});
    state_->world->set_watchdog(options.watchdog_s);
  } catch (const std::exception& error) {
    if (!state_->owns_mpi) throw;
    fail_job(*state_->control, state_->world->rank(), error);
  }
}

MpiSession::~MpiSession() {
  const int rank = state_->world->rank();
  if (state_->owns_mpi && std::uncaught_exceptions() > state_->exceptions && !state_->control->aborted()) {
    const auto fault = failure_fault(rank, "an exception left its MPI session");
    state_->control->broadcast_failure(fault, ExitCode::environment);
    report_failure(rank, state_->control->fault().message);
  }
  state_->closing.reset();
  state_->world.reset();
  if (!state_->owns_mpi) return;
  if (state_->control->aborted()) end_job(*state_->control);
  state_->control.reset();
  const CallWatch watch(state_->limit_of_call(), "MPI_Finalize");
  MPI_Finalize();
}

Communicator& MpiSession::world() {
  return *state_->world;
}

void MpiSession::finish() {
  state_->closing->barrier();
}

int run_mpi(const CommOptions& options, const std::function<void(Communicator&)>& body) {
  MpiSession session(options);
  MpiSession::State& state = *session.state_;
  try {
    body(*state.world);
    session.finish();
  } catch (const std::exception& error) {
    fail_job(*state.control, state.world->rank(), error);
  }
  return 0;
}

}  // namespace usp::comm
