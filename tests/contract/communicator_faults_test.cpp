// SPDX-License-Identifier: Apache-2.0
#include "communicator_payload.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace usp {
namespace {

/// The faults that ranks threw. Runs `body` and swallows what run_threads rethrows.
class Witness {
 public:
  void run(int ranks, double watchdog_s, const std::function<void(comm::Communicator&)>& body) {
    try {
      comm::run_threads(ranks, {.watchdog_s = watchdog_s}, [&](comm::Communicator& communicator) {
        try {
          body(communicator);
        } catch (const comm::CommunicationError& error) {
          const std::lock_guard<std::mutex> lock(mutex_);
          faults.push_back(error.fault());
          throw;
        }
      });
    } catch (const std::exception& error) {
      final_text = error.what();
    }
  }
  void expect_same_error(std::size_t ranks) const {
    ASSERT_EQ(faults.size(), ranks);
    for (const comm::CommunicationFault& fault : faults) EXPECT_EQ(fault.message, faults[0].message);
  }
  std::vector<comm::CommunicationFault> faults;
  std::string final_text;

 private:
  std::mutex mutex_;
};

/// Works without waiting for anybody until the job ends.
[[noreturn]] void work_on(comm::Communicator& communicator) {
  while (true) {
    communicator.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

comm::Message one_byte(int peer, bool send, std::int32_t tick, const comm::StridedBytes& region) {
  return {.peer = peer,
          .send = send,
          .tag = 3,
          .tick = tick,
          .operation = "kv_exchange",
          .regions = &region,
          .region_count = 1};
}

TEST(ThreadFaults, ARankThatThrowsEndsAllOthers) {
  for (const int thrower : {0, 2, 4}) {
    Witness witness;
    witness.run(5, 60, [&](comm::Communicator& communicator) {
      if (communicator.rank() == thrower) throw std::runtime_error("out of paper");
      communicator.barrier();
    });
    EXPECT_EQ(witness.final_text, "out of paper");
    witness.expect_same_error(4);
    EXPECT_EQ(witness.faults[0].message, "rank " + std::to_string(thrower) + " failed: out of paper");
    EXPECT_EQ(witness.faults[0].missing, std::vector<int>{thrower});
  }
}

TEST(ThreadFaults, TheFirstErrorKeepsItsType) {
  EXPECT_THROW(comm::run_threads(3, {},
                                 [](comm::Communicator& communicator) {
                                   if (communicator.rank() == 1) throw VerificationError("wrong");
                                   communicator.barrier();
                                 }),
               VerificationError);
}

TEST(ThreadFaults, AnAbortReachesEverybodyAndTheFirstStoryWins) {
  Witness witness;
  witness.run(4, 60, [](comm::Communicator& communicator) {
    const auto group = communicator.group({0, 1, 2});
    if (communicator.rank() == 3) {
      communicator.abort({.operation = "x", .rank = 3, .message = "first"});
      communicator.abort({.operation = "x", .rank = 3, .message = "second"});
      communicator.progress();
    }
    if (communicator.rank() == 2) work_on(communicator);
    group->barrier();
  });
  witness.expect_same_error(4);
  EXPECT_EQ(witness.final_text, "first");
}

TEST(ThreadFaults, TheWatchdogNamesTheMissingRank) {
  const std::vector<std::function<void(comm::Communicator&)>> collectives{
      [](comm::Communicator& communicator) { communicator.barrier(); },
      [](comm::Communicator& communicator) {
        std::vector<double> data(100);
        communicator.all_reduce_sum(data.data(), 100);
      },
      [](comm::Communicator& communicator) {
        (void)communicator.group({0, 1, 2, 3});
      }};
  for (const auto& collective : collectives) {
    Witness witness;
    witness.run(4, 0.2, [&](comm::Communicator& communicator) {
      if (communicator.rank() == 2) work_on(communicator);
      collective(communicator);
    });
    witness.expect_same_error(4);
    EXPECT_EQ(witness.faults[0].missing, std::vector<int>{2});
    EXPECT_NE(witness.final_text.find("rank 2, which did not arrive"), std::string::npos)
        << witness.final_text;
  }
}

TEST(ThreadFaults, AnInterruptedWaitEndsTheJob) {
  std::atomic<int> asked{0};
  std::mutex mutex;
  std::vector<std::string> texts;
  const comm::CommOptions options{.interrupted = [&asked] { return ++asked > 3; }};
  try {
    comm::run_threads(3, options, [&](comm::Communicator& communicator) {
      try {
        if (communicator.rank() == 2) work_on(communicator);
        communicator.barrier();
      } catch (const comm::CommunicationError& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        texts.push_back(error.fault().message);
        throw;
      }
    });
    ADD_FAILURE() << "the job went on";
  } catch (const comm::CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("was interrupted while it waited in 'barrier'"),
              std::string::npos)
        << error.what();
  }
  ASSERT_EQ(texts.size(), 3U);
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT_GT(asked, 3);
}

TEST(ThreadFaults, TheWatchdogNamesOperationTickAndTheCauseBehind) {
  Witness witness;
  witness.run(4, 1, [](comm::Communicator& communicator) {
    if (communicator.rank() == 2) work_on(communicator);
    std::byte byte{};
    const comm::StridedBytes region{.data = &byte, .run_bytes = 1};
    const comm::Message message = one_byte((communicator.rank() + 3) % 4, false, 6, region);
    comm::Ticket ticket = 0;
    communicator.post(&message, 1, &ticket);
    communicator.wait(ticket);
  });
  witness.expect_same_error(4);
  const comm::CommunicationFault& fault = witness.faults[0];
  EXPECT_EQ(fault.operation, "kv_exchange");
  EXPECT_EQ(fault.tick, 6);
  EXPECT_EQ(fault.missing, std::vector<int>{(fault.rank + 3) % 4});
  EXPECT_NE(fault.message.find("'kv_exchange' of tick 6"), std::string::npos) << fault.message;
  EXPECT_NE(fault.message.find("not waiting: rank 2)"), std::string::npos) << fault.message;
}

TEST(ThreadFaults, GroupsNameRanksOfTheJob) {
  Witness witness;
  witness.run(4, 1, [](comm::Communicator& communicator) {
    const auto group = communicator.group({3, 1});
    if (communicator.rank() == 1) work_on(communicator);
    (group != nullptr ? *group : communicator).barrier();
  });
  ASSERT_FALSE(witness.faults.empty());
  EXPECT_EQ(witness.faults[0].missing.back(), witness.faults[0].rank == 3 ? 1 : 3);
}

TEST(ThreadFaults, SizesThatDifferAreNoticed) {
  Witness witness;
  witness.run(3, 60, [](comm::Communicator& communicator) {
    std::vector<std::byte> memory(8);
    const comm::StridedBytes region{.data = memory.data(), .run_bytes = communicator.rank() == 0 ? 8 : 7};
    const comm::Message message = one_byte(1 - communicator.rank(), communicator.rank() == 0, 1, region);
    comm::Ticket ticket = 0;
    if (communicator.rank() == 2) work_on(communicator);
    communicator.post(&message, 1, &ticket);
    communicator.wait(ticket);
  });
  witness.expect_same_error(3);
  EXPECT_NE(witness.final_text.find("8"), std::string::npos);
  EXPECT_NE(witness.final_text.find("7"), std::string::npos);
}

TEST(ThreadFaults, MessagesLeftInFlightAreNoticed) {
  Witness witness;
  witness.run(2, 60, [](comm::Communicator& communicator) {
    std::byte byte{};
    const comm::StridedBytes region{.data = &byte, .run_bytes = 1};
    const comm::Message message = one_byte(1 - communicator.rank(), false, 1, region);
    comm::Ticket ticket = 0;
    if (communicator.rank() == 0) communicator.post(&message, 1, &ticket);
    if (communicator.rank() == 1) communicator.barrier();
  });
  EXPECT_NE(witness.final_text.find("1 messages posted and not waited for"), std::string::npos)
      << witness.final_text;
}

TEST(ThreadFaults, SpentTicketsAndForeignRanksAreRefused) {
  EXPECT_THROW(comm::run_threads(2, {}, [](comm::Communicator& communicator) { communicator.wait(5); }),
               InternalError);
  for (const int peer : {-1, 0, 2})
    EXPECT_THROW(comm::run_threads(2, {},
                                   [&](comm::Communicator& communicator) {
                                     const comm::Message message{.peer = peer, .operation = "kv_exchange"};
                                     comm::Ticket ticket = 0;
                                     if (communicator.rank() == 0) communicator.post(&message, 1, &ticket);
                                   }),
                 InternalError);
}

/// A rank leaves while a peer copies from its memory: abort() and wait() return only when that is over.
TEST(ThreadFaults, NobodyReadsTheMemoryOfARankThatFailed) {
  for (int trial = 0; trial < 12; ++trial) {
    Witness witness;
    witness.run(4, 60, [&](comm::Communicator& communicator) {
      const int ranks = communicator.size();
      contract::Random mine(static_cast<std::uint64_t>(communicator.rank()));
      std::vector<contract::Planned> plan;
      for (int source = 0; source < ranks; ++source)
        for (int target = 0; target < ranks; ++target)
          if (source != target) plan.push_back({source, target, 50000, 1, 0});
      contract::Batch batch(plan, communicator.rank(), mine);
      batch.post(communicator, mine);
      if (communicator.rank() == trial % ranks)
        communicator.abort({.rank = communicator.rank(), .message = "gone"});
      batch.finish(communicator, mine);
    });
    EXPECT_EQ(witness.final_text, "gone");
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these need address space of their own

/// Leaves room for a few threads' stacks.
void limit_address_space() {
  i64 pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20U);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::perror("setrlimit");
}

TEST(ThreadFaultsDeathTest, AThreadThatCannotBeMadeEndsTheOthers) {
  const auto run = [] {
    limit_address_space();
    try {
      comm::run_threads(200, {}, work_on);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(static_cast<int>(error.code()));
    }
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(5), "refuses thread .* of 200: .*run fewer ranks");
}

#endif

}  // namespace
}  // namespace usp
