// SPDX-License-Identifier: Apache-2.0
// One rank of a job that a launcher like torchrun starts: communicator_sockets SCENARIO [CHUNK_BYTES].
// "contract" runs the suite; the others fail on purpose and are judged from outside (expect_exit.py).
#include "communicator_scenarios.hpp"

#include "usp/base/line.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "contract";
  usp::comm::CommOptions options;
  if (argc > 2) options.chunk_bytes = std::stoll(argv[2]);
  usp::contract::set_limits(scenario, options);
  if (scenario == "launched") return usp::comm::torchrun_launched() && usp::comm::local_rank() ? 0 : 1;
  try {
    return usp::comm::run_sockets(
        usp::comm::torchrun_job(), options,
        [&](usp::comm::Communicator& communicator) { usp::contract::play(scenario, communicator); });
  } catch (const usp::Error& error) {
    usp::print_line(error.what());
    return static_cast<int>(error.code());
  }
}
