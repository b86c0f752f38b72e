// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/comm/nccl.hpp"

namespace usp::comm {

bool nccl_available() {
  return false;
}

std::string nccl_version() {
  return "";
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, const device::CallStream&) {
  throw EnvironmentError("this build has no NCCL; configure where nvcc and nccl.h are found (NCCL_ROOT)");
}

}  // namespace usp::comm
