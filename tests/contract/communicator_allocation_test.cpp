// SPDX-License-Identifier: Apache-2.0
// Once room is reserved, messages allocate nothing. This binary counts operator new.
#include "communicator_payload.hpp"
#include "socket_threads.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

namespace {

thread_local long allocations = 0;

void* allocate(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace usp {
namespace {

using Body = std::function<void(comm::Communicator&)>;

/// Allocations of the exchange that follows `reserved` messages of room, the most of any of four ranks.
long allocations_of_exchange(i64 reserved, const std::function<void(const Body&)>& run) {
  std::vector<long> counts(4);
  run([&](comm::Communicator& communicator) {
    contract::Random mine(static_cast<std::uint64_t>(communicator.rank()));
    std::vector<contract::Planned> plan;
    for (int source = 0; source < 4; ++source)
      for (int target = 0; target < 4; ++target)
        for (i64 tag = 0; tag < 10; ++tag)
          if (source != target)
            plan.push_back({source, target, 500, tag, static_cast<std::int32_t>(tag % 3)});
    contract::Batch batch(plan, communicator.rank(), mine);
    batch.tickets.resize(batch.messages.size());
    communicator.barrier();
    communicator.reserve(reserved, 1000);
    const long before = allocations;
    for (int round = 0; round < 3; ++round) {
      communicator.post(batch.messages.data(), static_cast<i64>(batch.messages.size()), batch.tickets.data());
      communicator.progress();
      for (const comm::Ticket ticket : batch.tickets)
        if (!communicator.test(ticket)) communicator.wait(ticket);
    }
    counts[static_cast<std::size_t>(communicator.rank())] = allocations - before;
  });
  return *std::max_element(counts.begin(), counts.end());
}

TEST(ThreadCommunicator, AllocatesNothingOnceReserved) {
  const auto run = [](const Body& body) { comm::run_threads(4, {}, body); };
  EXPECT_EQ(allocations_of_exchange(60, run), 0);
  EXPECT_GT(allocations_of_exchange(0, run), 0) << "the counter counts nothing";
}

TEST(SocketCommunicator, AllocatesNothingOnceReserved) {
  const auto run = [](const Body& body) {
    for (const auto& error : test::run_socket_threads(4, {}, body)) EXPECT_EQ(error, nullptr);
  };
  EXPECT_EQ(allocations_of_exchange(60, run), 0);
  EXPECT_GT(allocations_of_exchange(0, run), 0) << "the counter counts nothing";
}

}  // namespace
}  // namespace usp
