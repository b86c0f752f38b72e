// SPDX-License-Identifier: Apache-2.0
// One rank of an mpirun job: communicator_mpi SCENARIO [CHUNK_BYTES]. "contract" runs the suite; the others
// fail on purpose and are judged from outside (expect_exit.py).
#include "communicator_contract.hpp"

#include "usp/comm/mpi.hpp"

#include <csignal>
#include <cstdio>
#include <iostream>
#include <thread>

namespace usp {
namespace {

[[noreturn]] void work_on(Communicator& communicator) {
  while (true) {
    communicator.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// One message of `bytes` between ranks 0 and 1; other ranks go on.
void exchange_bytes(Communicator& communicator, i64 sent, i64 received) {
  if (communicator.rank() > 1) work_on(communicator);
  std::vector<std::byte> memory(static_cast<std::size_t>(std::max(sent, received)));
  const bool send = communicator.rank() == 0;
  const ByteBox box{.data = memory.data(), .run_bytes = send ? sent : received};
  const Message message{.peer = send ? 1 : 0,
                        .send = send,
                        .tag = 3,
                        .tick = 6,
                        .operation = "route",
                        .boxes = &box,
                        .box_count = 1};
  Ticket ticket = 0;
  communicator.post(&message, 1, &ticket);
  communicator.wait(ticket);
  if (send) work_on(communicator);
}

/// Two tags that this MPI cannot tell apart, received in the other order.
void colliding_tags(Communicator& communicator) {
  if (communicator.rank() > 1) work_on(communicator);
  const bool send = communicator.rank() == 0;
  std::byte memory[2]{};
  const i64 room = (i64{1} << 30);  // folded tags of Open MPI repeat after this many
  const ByteBox boxes[] = {{.data = &memory[0], .run_bytes = 1}, {.data = &memory[1], .run_bytes = 1}};
  Ticket tickets[2];
  for (int i = 0; i < 2; ++i) {
    const int which = send ? i : 1 - i;
    const Message message{.peer = send ? 1 : 0,
                          .send = send,
                          .tag = room * (3 + which),
                          .operation = "route",
                          .boxes = &boxes[which],
                          .box_count = 1};
    communicator.post(&message, 1, &tickets[i]);
  }
  for (const Ticket ticket : tickets) communicator.wait(ticket);
  work_on(communicator);
}

void contract_suite(Communicator& communicator, bool sums) {
  for (const contract::Check& check : contract::communicator_checks()) {
    if (!sums && std::string(check.name) == "collectives") continue;
    if (communicator.rank() == 0) std::cout << check.name << std::endl;
    check.run(communicator);
    communicator.barrier();
  }
}

void play(const std::string& scenario, Communicator& communicator) {
  const bool last = communicator.rank() == communicator.size() - 1;
  if (scenario == "contract") return contract_suite(communicator, true);
  if (scenario == "messages") return contract_suite(communicator, false);
  if (scenario == "throw" && last) throw std::runtime_error("out of paper");
  if (scenario == "verify" && last) throw VerificationError("off by one");
  if (scenario == "disagree") agree(communicator, {{"plan", last ? 2U : 1U}});
  if (scenario == "late" && last) work_on(communicator);
  if (scenario == "deaf" && last) std::this_thread::sleep_for(std::chrono::hours(1));
  if (scenario == "killed" && last) (void)std::raise(SIGKILL);
  if (scenario == "uneven") exchange_bytes(communicator, 100, 101);
  if (scenario == "short") exchange_bytes(communicator, 101, 100);
  if (scenario == "missing") exchange_bytes(communicator, 0, 100);
  if (scenario == "tags") colliding_tags(communicator);
  communicator.barrier();
}

/// A job without run_mpi: the end of its MpiSession must not hang.
int left_by_exception(const CommOptions& options) {
  try {
    MpiSession session(options);
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
  usp::CommOptions options;
  if (argc > 2) options.chunk_bytes = std::stoll(argv[2]);
  if (scenario != "contract" && scenario != "messages") options.watchdog_s = 1;
  if (scenario == "launched") return usp::mpi_launched() ? 0 : 1;
  if (scenario == "session") return usp::left_by_exception(options);
  try {
    return usp::run_mpi(options, [&](usp::Communicator& communicator) { usp::play(scenario, communicator); });
  } catch (const usp::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
