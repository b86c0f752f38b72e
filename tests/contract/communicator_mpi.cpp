// SPDX-License-Identifier: Apache-2.0
// One rank of an mpirun job: communicator_mpi SCENARIO [CHUNK_BYTES]. "contract" runs the suite; the others
// fail on purpose and are judged from outside (expect_exit.py).
#include "communicator_scenarios.hpp"

#include "usp/base/line.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"

namespace usp {
namespace {

using contract::work_on;

/// Two tags that this MPI cannot tell apart, received in the other order.
void colliding_tags(comm::Communicator& communicator) {
  if (communicator.rank() > 1) work_on(communicator);
  const bool send = communicator.rank() == 0;
  std::byte memory[2]{};
  const i64 room = (i64{1} << 30);  // folded tags of Open MPI repeat after this many
  const comm::StridedBytes regions[] = {{.data = &memory[0], .run_bytes = 1},
                                        {.data = &memory[1], .run_bytes = 1}};
  comm::Ticket tickets[2];
  for (int i = 0; i < 2; ++i) {
    const int which = send ? i : 1 - i;
    const comm::Message message{.peer = send ? 1 : 0,
                                .send = send,
                                .tag = room * (3 + which),
                                .operation = "kv_exchange",
                                .regions = &regions[which],
                                .region_count = 1};
    communicator.post(&message, 1, &tickets[i]);
  }
  for (const comm::Ticket ticket : tickets) communicator.wait(ticket);
  work_on(communicator);
}

/// A job without run_mpi: the end of its MpiSession must not hang.
int left_by_exception(const comm::CommOptions& options) {
  try {
    comm::MpiSession session(options);
    if (session.world().rank() == 0) throw std::runtime_error("lost");
    session.world().barrier();
  } catch (const std::exception&) {
  }
  return 0;
}

}  // namespace
}  // namespace usp

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "contract";
  usp::comm::CommOptions options;
  if (argc > 2) options.chunk_bytes = std::stoll(argv[2]);
  usp::contract::set_limits(scenario, options);
  if (scenario == "launched") return usp::comm::mpi_launched() ? 0 : 1;
  if (scenario == "uninitialized" && usp::comm::local_rank() == 2) usp::contract::sleep_long();
  if (scenario == "session") return usp::left_by_exception(options);
  try {
    return usp::comm::run_mpi(options, [&](usp::comm::Communicator& communicator) {
      if (scenario == "tags") usp::colliding_tags(communicator);
      usp::contract::play(scenario, communicator);
    });
  } catch (const usp::Error& error) {
    usp::print_line(error.what());
    return static_cast<int>(error.code());
  }
}
