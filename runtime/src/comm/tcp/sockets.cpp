// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/sockets.hpp"

#include "../bootstrap/rendezvous.hpp"
#include "../failure/faults.hpp"
#include "socket_communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <limits>

namespace usp {
namespace {

[[nodiscard]] std::shared_ptr<comm::SocketMesh> make_mesh(const SocketJob& job, const CommOptions& options) {
  return std::make_shared<comm::SocketMesh>(comm::connect_all(job, options), job.rank, options);
}

/// How long a rank that has failed already waits for the others to come: launchers start all within seconds,
/// and its own report is out.
constexpr double come_s = 10;

/// Broadcasts an error of this rank and waits for the errors of the others.
[[nodiscard]] ExitCode broadcast_and_leave(comm::SocketMesh& mesh, const std::exception_ptr& error) {
  mesh.broadcast_failure(comm::fault_of(error, mesh.rank()), comm::exit_code_of(error));
  (void)mesh.leave(comm::grace_s);
  return mesh.exit_code();
}

/// Within a catch.
[[noreturn]] void fail_job(comm::SocketMesh& mesh, const std::exception& error) {
  comm::report_failure(mesh.rank(), error.what());
  std::_Exit(static_cast<int>(broadcast_and_leave(mesh, std::current_exception())));
}

}  // namespace

std::string trust_note(const SocketJob& job) {
  if (!job.secret.empty()) return "--trust-network is not needed: the ranks of this job prove a secret";
  if (job.size == 1 || comm::on_loopback(job))
    return "--trust-network is not needed: the ranks of this job meet on the loopback of one host";
  return "--trust-network: the ranks of this job meet over a network without a secret; any process "
         "that reaches their ports can join as a rank";
}

std::unique_ptr<Communicator> make_socket_communicator(const SocketJob& job, const CommOptions& options) {
  return comm::make_world(make_mesh(job, options));
}

int run_sockets(const SocketJob& job, const CommOptions& options,
                const std::function<void(Communicator&)>& body) {
  const std::shared_ptr<comm::SocketMesh> mesh = make_mesh(job, options);
  const auto world = comm::make_world(mesh);
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
  comm::report_failure(job.rank, error.what());
  try {
    CommOptions soon = options;
    soon.start_s = std::min(options.start_s.value_or(options.watchdog_s), come_s);
    std::_Exit(static_cast<int>(broadcast_and_leave(*make_mesh(job, soon), mine)));
  } catch (const std::exception&) {  // no rank connected
    std::_Exit(static_cast<int>(comm::exit_code_of(mine)));
  }
}

}  // namespace usp
