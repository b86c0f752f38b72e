// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "communicator_contract.hpp"

#include <atomic>
#include <csignal>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

/// What a rank of a job of processes plays: the contract, or a fault that is judged from outside
/// (expect_exit.py).
namespace usp::contract {

[[noreturn]] inline void work_on(comm::Communicator& communicator) {
  while (true) {
    communicator.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

[[noreturn]] inline void sleep_long() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Whether the ranks of this process have met: the meeting asks whether it is interrupted too.
[[nodiscard]] inline std::atomic<bool>& met() {
  static std::atomic<bool> flag = false;
  return flag;
}

/// Only what a scenario is about runs out of time: whatever the load, processes may take theirs to start and
/// to answer.
inline void set_limits(const std::string& scenario, comm::CommOptions& options) {
  options.start_s = 120;
  for (const char* late : {"late", "deaf", "missing"})
    if (scenario == late) options.watchdog_s = 1;
  if (scenario == "interrupted") options.interrupted = [] { return met().load(); };
  for (const char* absent : {"absent", "uninitialized"})
    if (scenario == absent) options.start_s = 4;
}

/// One message of `bytes` between ranks 0 and 1; other ranks go on.
inline void exchange_bytes(comm::Communicator& communicator, i64 sent, i64 received) {
  if (communicator.rank() > 1) work_on(communicator);
  std::vector<std::byte> memory(static_cast<std::size_t>(std::max(sent, received)));
  const bool send = communicator.rank() == 0;
  const comm::StridedBytes region{.data = memory.data(), .run_bytes = send ? sent : received};
  const comm::Message message{.peer = send ? 1 : 0,
                              .send = send,
                              .tag = 3,
                              .tick = 6,
                              .operation = "kv_exchange",
                              .regions = &region,
                              .region_count = 1};
  comm::Ticket ticket = 0;
  communicator.post(&message, 1, &ticket);
  communicator.wait(ticket);
  if (send) work_on(communicator);
}

/// The last rank dies while it sends to all others.
inline void die_sending(comm::Communicator& communicator) {
  const int last = communicator.size() - 1;
  std::vector<std::byte> memory(std::size_t{1} << 26U);
  const comm::StridedBytes region{.data = memory.data(), .run_bytes = static_cast<i64>(memory.size())};
  const bool sender = communicator.rank() == last;
  std::vector<comm::Ticket> tickets;
  for (int peer = 0; peer <= last; ++peer) {
    if (sender ? peer == last : peer != last) continue;
    const comm::Message message{
        .peer = peer, .send = sender, .operation = "kv_exchange", .regions = &region, .region_count = 1};
    communicator.post(&message, 1, &tickets.emplace_back());
  }
  for (int call = 0; sender && call < 100; ++call) communicator.progress();
  if (sender) (void)std::raise(SIGKILL);
  for (const comm::Ticket ticket : tickets) communicator.wait(ticket);
}

inline void contract_suite(comm::Communicator& communicator, bool sums) {
  for (const Check& check : communicator_checks()) {
    if (!sums && std::string(check.name) == "collectives") continue;
    if (communicator.rank() == 0) std::cout << check.name << std::endl;
    check.run(communicator);
    communicator.barrier();
  }
}

/// Ends with a barrier where the scenario does not end before.
inline void play(const std::string& scenario, comm::Communicator& communicator) {
  const bool last = communicator.rank() == communicator.size() - 1;
  met() = true;
  if (scenario == "contract") return contract_suite(communicator, true);
  if (scenario == "messages") return contract_suite(communicator, false);
  if (scenario == "throw" && last) throw std::runtime_error("out of paper");
  if (scenario == "verify" && last) throw VerificationError("off by one");
  if (scenario == "disagree") comm::agree(communicator, {{"plan", last ? 2U : 1U}});
  if ((scenario == "late" || scenario == "interrupted") && last) work_on(communicator);
  if (scenario == "deaf" && last) sleep_long();
  if (scenario == "killed" && last) (void)std::raise(SIGKILL);
  if (scenario == "killed_sending") die_sending(communicator);
  if (scenario == "uneven") exchange_bytes(communicator, 100, 101);
  if (scenario == "short") exchange_bytes(communicator, 101, 100);
  if (scenario == "missing") exchange_bytes(communicator, 0, 100);
  communicator.barrier();
}

}  // namespace usp::contract
