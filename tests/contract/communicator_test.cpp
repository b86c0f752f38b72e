// SPDX-License-Identifier: Apache-2.0
#include "communicator_contract.hpp"
#include "forwarding_communicator.hpp"
#include "large_message.hpp"

#include "usp/comm/dry_run.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <numeric>

namespace usp {
namespace {

TEST(SerialCommunicator, KeepsTheContract) {
  const auto communicator = comm::make_serial_communicator();
  EXPECT_NO_THROW(contract::run_checks(*communicator));
}

TEST(SerialCommunicator, ThrowsOnceAborted) {
  const auto communicator = comm::make_serial_communicator();
  communicator->abort({.message = "first"});
  communicator->abort({.message = "second"});
  try {
    communicator->progress();
    FAIL();
  } catch (const comm::CommunicationError& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

/// Counts the rounds between ranks.
class CountingRounds final : public test::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void all_gather(const void* mine, void* all, i64 bytes) override {
    ++rounds;
    inner().all_gather(mine, all, bytes);
  }
  int rounds = 0;
};

TEST(Agreement, TakesOneRoundUnlessAFieldDiffers) {
  comm::run_threads(3, {}, [](comm::Communicator& control) {
    CountingRounds communicator(control);
    comm::agree(communicator, {{"plan", 1}, {"shape", 2}, {"layout", 3}});
    EXPECT_EQ(communicator.rounds, 1);
    const auto odd = static_cast<std::uint64_t>(control.rank() == 2);
    EXPECT_THROW(comm::agree(communicator, {{"plan", 1}, {"shape", 2 + odd}, {"layout", 3}}),
                 comm::DisagreementError);
    EXPECT_EQ(communicator.rounds, 3);
    try {
      comm::agree(communicator, {{odd == 1 ? "dtype" : "plan", 1}});
      ADD_FAILURE() << "lists of fields differ";
    } catch (const comm::DisagreementError& error) {
      EXPECT_EQ(error.field(), "list of agreed fields");
      EXPECT_EQ(error.ranks(), std::vector<int>{2});
    }
    EXPECT_EQ(communicator.rounds, 4);
  });
}

class Threads : public testing::TestWithParam<int> {};

/// All checks on one set of ranks, so that what one leaves behind meets the next.
TEST_P(Threads, KeepTheContract) {
  EXPECT_NO_THROW(comm::run_threads(GetParam(), {}, contract::run_checks));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 16));

TEST(Threads, RefuseNoRanks) {
  EXPECT_THROW(comm::run_threads(0, {}, [](comm::Communicator&) {}), UsageError);
}

/// One message of `bytes` from rank 0, which sleeps once both ends are posted until rank 1 has done
/// `receive`. Then both ends have to be complete at the first look.
void receive_alone(i64 bytes, const std::function<void(comm::Communicator&, contract::Payload&)>& receive) {
  std::barrier<> together(2);  // not of the communicator: its calls would move the payload
  comm::run_threads(2, {}, [&](comm::Communicator& communicator) {
    contract::Random random(static_cast<std::uint64_t>(communicator.rank()));
    contract::Payload payload(bytes, random);
    const bool sender = communicator.rank() == 0;
    if (sender) payload.fill(0, 5);
    const comm::Message message{.peer = 1 - communicator.rank(),
                                .send = sender,
                                .tag = 5,
                                .tick = 0,
                                .operation = "kv_exchange",
                                .regions = payload.regions.data(),
                                .region_count = static_cast<i64>(payload.regions.size())};
    comm::Ticket ticket = 0;
    communicator.post(&message, 1, &ticket);
    together.arrive_and_wait();
    if (!sender) receive(communicator, payload);
    together.arrive_and_wait();
    EXPECT_EQ(communicator.test(ticket), bytes);
  });
}

TEST(Threads, ProgressOfTheReceiverMovesAPayload) {
  receive_alone(1'000'003, [](comm::Communicator& communicator, contract::Payload& payload) {
    for (int call = 0; call < 1000; ++call) communicator.progress();
    EXPECT_NO_THROW(payload.check(0, 5));
  });
}

/// A kernel calls progress() between tiles, which a long copy would hold up.
TEST(Threads, OneCallOfProgressMovesAPart) {
  constexpr i64 bytes = 4'000'000;
  receive_alone(bytes, [](comm::Communicator& communicator, contract::Payload& payload) {
    communicator.progress();
    i64 moved = 0;
    payload.each(
        [&](const std::byte& byte, i64 at) { moved += byte == contract::value_at(0, 5, at) ? 1 : 0; });
    EXPECT_GT(moved, 60'000);  // one of 256 bytes is right by chance
    EXPECT_LT(moved, bytes / 8);
    for (int call = 0; call < 1000; ++call) communicator.progress();
  });
}

/// NVIDIA/nccl #479.
TEST(Threads, BothSendFirstWhateverTheSize) {
  for (const i64 bytes : {i64{1}, i64{1} << 30}) {
    comm::run_threads(
        2, {}, [&](comm::Communicator& communicator) { contract::swap_large_messages(communicator, bytes); });
  }
}

/// Plays a plan on a dry run; `skip` leaves out one rank's part of one message.
i64 play(comm::DryRun& dry, const std::vector<contract::Planned>& plan, int ranks, int skip = -1,
         i64 extra = 0) {
  i64 sent = 0;
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const contract::Planned& planned = plan[i];
      if (planned.source != rank && planned.target != rank) continue;
      const bool send = planned.source == rank;
      if (static_cast<int>(i) == skip && !send && extra == 0) continue;
      const comm::StridedBytes region{.run_bytes =
                                          planned.bytes + (static_cast<int>(i) == skip && !send ? extra : 0)};
      const comm::Message message{.peer = send ? planned.target : planned.source,
                                  .send = send,
                                  .tag = planned.tag,
                                  .tick = planned.tick,
                                  .operation = "kv_exchange",
                                  .regions = &region,
                                  .region_count = 1};
      comm::Ticket ticket = 0;
      dry.rank(rank).post(&message, 1, &ticket);
      const i64 bytes = dry.rank(rank).wait(ticket);
      if (rank == 2 && send) sent += bytes;
    }
  return sent;
}

std::string complaint(const comm::DryRun& dry) {
  try {
    dry.check();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(DryRun, CountsAndMatches) {
  contract::Random random(1);
  const auto plan = contract::random_plan(5, 50, 100, random);
  comm::DryRun dry(5);
  const i64 counted = play(dry, plan, 5);
  EXPECT_EQ(complaint(dry), "");
  i64 sent = 0;
  for (const contract::Planned& planned : plan) sent += planned.source == 2 ? planned.bytes : 0;
  EXPECT_GT(sent, 0);
  EXPECT_EQ(counted, sent);
}

TEST(DryRun, NamesWhatDoesNotMatch) {
  const std::vector<contract::Planned> plan{{0, 1, 10, 7, 2}, {1, 2, 20, 8, 3}};
  comm::DryRun lonely(3);
  play(lonely, plan, 3, 1);
  EXPECT_NE(complaint(lonely).find("rank 1 sends 20 bytes to rank 2 in 'kv_exchange' of tick 3 (tag 8)"),
            std::string::npos)
      << complaint(lonely);
  comm::DryRun uneven(3);
  play(uneven, plan, 3, 0, 5);
  EXPECT_NE(complaint(uneven).find("rank 1 expects 15 bytes in 'kv_exchange' of tick 2, but rank 0 sends 10"),
            std::string::npos)
      << complaint(uneven);
  EXPECT_THROW(uneven.rank(0).barrier(), InternalError);
  EXPECT_THROW((void)uneven.rank(0).group({0, 1}), InternalError);
}

}  // namespace
}  // namespace usp
