// SPDX-License-Identifier: Apache-2.0
// What sockets promise beyond the contract that sockets.* play between processes.
#include "communicator_contract.hpp"
#include "large_message.hpp"
#include "socket_threads.hpp"

#include <gtest/gtest.h>

#include <future>
#include <set>

namespace usp {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
  return "";
}

void expect_no_errors(const std::vector<std::exception_ptr>& errors) {
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(Sockets, KeepTheContract) {
  for (const int ranks : {1, 2, 5})
    expect_no_errors(test::run_socket_threads(ranks, {}, contract::run_checks));
}

/// More than the system buffers.
TEST(Sockets, BothSendFirstWhateverTheSize) {
  for (const i64 bytes : {i64{1}, i64{1} << 20, i64{1} << 30}) {
    expect_no_errors(test::run_socket_threads(2, {}, [&](comm::Communicator& communicator) {
      contract::swap_large_messages(communicator, bytes);
    }));
  }
}

/// The job ends while payloads are half sent: all report the same error, and no rank reads or writes
/// the memory of a message after it.
TEST(Sockets, AnAbortReachesAllInTheMiddleOfPayloads) {
  const auto errors = test::run_socket_threads(4, {}, [](comm::Communicator& communicator) {
    const int ranks = communicator.size();
    contract::Random mine(static_cast<std::uint64_t>(communicator.rank()));
    std::vector<contract::Planned> plan;
    for (int source = 0; source < ranks; ++source)
      for (int target = 0; target < ranks; ++target)
        if (source != target) plan.push_back({source, target, 2'000'000, 1, 0});
    contract::Batch batch(plan, communicator.rank(), mine);
    batch.post(communicator, mine);
    if (communicator.rank() == 2) {
      for (int call = 0; call < 8; ++call) {  // the requests of the others arrive, some bytes leave
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        communicator.progress();
      }
      communicator.abort({.rank = 2, .message = "gone"});
    }
    batch.finish(communicator, mine);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "gone");
}

/// Ranks of a group are named as those of the job.
TEST(Sockets, TheWatchdogNamesRanksOfTheJob) {
  // A busy machine may take its time to start the ranks and to make the group.
  const comm::CommOptions limits{.watchdog_s = 2, .start_s = 60};
  const auto errors = test::run_socket_threads(4, limits, [](comm::Communicator& communicator) {
    const auto group = communicator.group({3, 1});
    while (communicator.rank() != 3) communicator.progress();
    group->barrier();
  });
  std::set<std::string> stories;
  for (const auto& error : errors) stories.insert(text_of(error));
  EXPECT_EQ(stories.size(), 1U);
  EXPECT_NE(stories.begin()->find("rank 3 waited 2 s in 'barrier' for rank 1"), std::string::npos)
      << *stories.begin();
}

/// Which a rank that left cannot do any more.
TEST(Sockets, ARankThatLeftIsNotWaitedFor) {
  const auto errors = test::run_socket_threads(2, {}, [](comm::Communicator& communicator) {
    if (communicator.rank() == 0) communicator.barrier();
  });
  EXPECT_NE(text_of(errors[0]).find("rank 1 left the job, but rank 0 waits for it in 'barrier'"),
            std::string::npos)
      << text_of(errors[0]);
}

TEST(Sockets, MessagesLeftInFlightAreNoticed) {
  const auto errors = test::run_socket_threads(2, {}, [](comm::Communicator& communicator) {
    std::byte byte{};
    const comm::StridedBytes region{.data = &byte, .run_bytes = 1};
    const comm::Message message{
        .peer = 1, .send = false, .operation = "kv_exchange", .regions = &region, .region_count = 1};
    comm::Ticket ticket = 0;
    if (communicator.rank() == 0) communicator.post(&message, 1, &ticket);
    if (communicator.rank() == 1) communicator.barrier();
  });
  EXPECT_NE(text_of(errors[1]).find("1 messages posted and not waited for"), std::string::npos)
      << text_of(errors[1]);
}

TEST(Sockets, RefuseJobsWithoutSense) {
  EXPECT_THROW((void)comm::make_socket_communicator({.rank = 2, .size = 2}, {}), UsageError);
  EXPECT_THROW((void)comm::make_socket_communicator({.rank = 0, .size = 0}, {}), UsageError);
  EXPECT_THROW(
      (void)comm::make_socket_communicator({1, 2, "no.such.host.invalid", 1, 0}, {.watchdog_s = 0.1}),
      EnvironmentError);
  const auto refused = [](int rank, int port) {
    EXPECT_THROW((void)comm::make_socket_communicator({rank, 2, "127.0.0.1", port}, {.watchdog_s = 0.1}),
                 UsageError)
        << "rank " << rank << ", port " << port;
  };
  refused(0, 0);  // without on_listening
  refused(1, 0);
  refused(0, -1);
  refused(1, 65536);
}

TEST(Sockets, Rank0ReportsTheFreePortItListensAt) {
  std::promise<int> port;
  int calls = 0;
  std::thread first([&] {
    const comm::SocketJob job{.rank = 0, .size = 2, .host = "127.0.0.1", .on_listening = [&](int number) {
                                ++calls;
                                port.set_value(number);
                              }};
    comm::make_socket_communicator(job, {})->barrier();
  });
  comm::make_socket_communicator({1, 2, "127.0.0.1", port.get_future().get()}, {})->barrier();
  first.join();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace usp
