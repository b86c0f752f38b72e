// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/sockets.hpp"

#include "faults.hpp"
#include "rendezvous.hpp"
#include "socket_communicator.hpp"

#include <cstdlib>
#include <exception>
#include <limits>

namespace usp {
namespace {

[[nodiscard]] std::shared_ptr<comm::SocketMesh> make_mesh(const SocketJob& job, const CommOptions& options) {
  return std::make_shared<comm::SocketMesh>(comm::meet(job, options), job.rank, options);
}

/// Within a catch: tells all of the error that this rank caught, gives them time to tell theirs, and ends.
[[noreturn]] void fail_job(comm::SocketMesh& mesh, const std::exception& error) {
  mesh.announce(comm::fault_of(std::current_exception(), mesh.rank()),
                comm::exit_code_of(std::current_exception()));
  comm::print_story(mesh.rank(), error.what());
  (void)mesh.leave(comm::grace_s);
  std::_Exit(static_cast<int>(mesh.exit_code()));
}

}  // namespace

std::string trust_note(const SocketJob& job) {
  if (!job.secret.empty()) return "--trust-network is not needed: the ranks of this job prove a secret";
  if (job.size == 1 || comm::on_loopback(job))
    return "--trust-network is not needed: the ranks of this job meet on the loopback of one host";
  return "--trust-network: the ranks of this job meet over a network without a secret; anybody who reaches "
         "their "
         "ports can pose as one";
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
    (void)mesh->leave(std::numeric_limits<double>::max());  // nobody goes while another may still fail
  } catch (const std::exception& error) {
    fail_job(*mesh, error);
  }
  return 0;
}

}  // namespace usp
