// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/ranks.hpp"

#include "usp/comm/threads.hpp"

namespace usp {

bool run_ranks(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body) {
  if (ranks == 1)
    body(*make_serial_communicator());
  else
    run_threads(ranks, options, body);
  return true;
}

}  // namespace usp
