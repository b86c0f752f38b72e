// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/threads.hpp"

#include "../failure/faults.hpp"
#include "threads_world.hpp"

#include <fmt/format.h>

#include <numeric>
#include <thread>

namespace usp::comm {
namespace {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

struct Job {
  Job(int ranks, const CommOptions& options)
      : world(ranks, options),
        group_state(std::make_shared<GroupState>(first_ranks(ranks))),
        errors(static_cast<std::size_t>(ranks)) {}
  World world;
  std::shared_ptr<GroupState> group_state;
  std::vector<std::exception_ptr> errors;
};

void run_rank(Job& job, int rank, const std::function<void(Communicator&)>& body) {
  const auto give_up = [&] {
    job.errors[static_cast<std::size_t>(rank)] = std::current_exception();
    job.world.abort(fault_of(std::current_exception(), rank), rank);
  };
  try {
    const auto communicator = make_thread_communicator(job.world, job.group_state, rank);
    try {
      body(*communicator);
    } catch (...) {
      give_up();  // before the communicator ends and misses its messages
    }
  } catch (...) {
    give_up();
  }
}

}  // namespace

void run_threads(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body) {
  if (ranks < 1) throw UsageError(fmt::format("a job of {} ranks; it needs at least one", ranks));
  Job job(ranks, options);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  try {
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&job, &body, rank] { run_rank(job, rank, body); });
  } catch (const std::exception& error) {  // no thread or no memory left; those that run are ended and joined
    const auto rank = static_cast<int>(threads.size());
    const std::string text =
        fmt::format("the system refuses thread {} of {}: {}; run fewer ranks", rank + 1, ranks, error.what());
    job.errors[threads.size()] = std::make_exception_ptr(EnvironmentError(text));
    job.world.abort(failure_fault(rank, text), rank);
  }
  for (std::thread& thread : threads) thread.join();
  if (!job.world.aborted()) return;
  const std::exception_ptr first = job.errors[static_cast<std::size_t>(job.world.origin())];
  if (first) std::rethrow_exception(first);
  throw CommunicationError(job.world.fault());
}

}  // namespace usp::comm
