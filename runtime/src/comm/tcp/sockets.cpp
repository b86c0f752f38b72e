// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/sockets.hpp"

#include "../bootstrap/rendezvous.hpp"
#include "../failure/faults.hpp"
#include "socket_communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <limits>

namespace usp::comm {
namespace {

[[nodiscard]] std::shared_ptr<SocketMesh> make_mesh(const SocketJob& job, const CommOptions& options) {
  return std::make_shared<SocketMesh>(connect_all(job, options), job.rank, options);
}

/// How long a rank that has failed already waits for the others to come: launchers start all within seconds,
/// and its own report is out.
constexpr double come_s = 10;

/// Broadcasts an error of this rank and waits for the errors of the others.
[[nodiscard]] ExitCode broadcast_and_leave(SocketMesh& mesh, const std::exception_ptr& error) {
  mesh.broadcast_failure(fault_of(error, mesh.rank()), exit_code_of(error));
  (void)mesh.leave(grace_s);
  return mesh.exit_code();
}

/// Within a catch.
[[noreturn]] void fail_job(SocketMesh& mesh, const std::exception& error) {
  report_failure(mesh.rank(), error.what());
  std::_Exit(static_cast<int>(broadcast_and_leave(mesh, std::current_exception())));
}

}  // namespace

std::string trust_note(const SocketJob& job) {
  if (!job.secret.empty()) return "--trust-network is not needed: the ranks of this job prove a secret";
  if (job.size == 1 || on_loopback(job))
    return "--trust-network is not needed: the ranks of this job meet on the loopback of one host";
  return "--trust-network: the ranks of this job meet over a network without a secret; any process "
         "that reaches their ports can join as a rank";
}

std::unique_ptr<Communicator> make_socket_communicator(const SocketJob& job, const CommOptions& options) {
  return make_world(make_mesh(job, options));
}

int run_sockets(const SocketJob& job, const CommOptions& options,
                const std::function<void(Communicator&)>& body) {
  const std::shared_ptr<SocketMesh> mesh = make_mesh(job, options);
  const auto world = make_world(mesh);
  try {
    body(*world);
    mesh->check();
    (void)mesh->leave(std::numeric_limits<double>::max());  // no rank leaves while another may still fail
  } catch (const std::exception& error) {
    fail_job(*mesh, error);
  }
  return 0;
}

void fail_before_rendezvous(const SocketJob& job, const CommOptions& options, const std::exception& error) {
  const std::exception_ptr mine = std::current_exception();
  report_failure(job.rank, error.what());
  try {
    CommOptions soon = options;
    soon.start_s = std::min(options.start_s.value_or(options.watchdog_s), come_s);
    std::_Exit(static_cast<int>(broadcast_and_leave(*make_mesh(job, soon), mine)));
  } catch (const std::exception&) {  // no rank connected
    std::_Exit(static_cast<int>(exit_code_of(mine)));
  }
}

}  // namespace usp::comm
