// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/comm/mpi.hpp"

// Replaces MPI in a build without it.
namespace usp::comm {
namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError(
      "this build has no MPI, so that ranks cannot be processes; install libopenmpi-dev and openmpi-bin, "
      "configure with -DUSP_MPI=ON and build again, or run the ranks as threads");
}

}  // namespace

struct MpiSession::State {};

bool mpi_available() {
  return false;
}

MpiSession::MpiSession(const CommOptions& /*options*/) {
  refuse();
}
MpiSession::~MpiSession() = default;
Communicator& MpiSession::world() {
  refuse();
}
void MpiSession::finish() {
  refuse();
}

int run_mpi(const CommOptions& /*options*/, const std::function<void(Communicator&)>& /*body*/) {
  refuse();
}

}  // namespace usp::comm
