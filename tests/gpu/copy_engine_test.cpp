// SPDX-License-Identifier: Apache-2.0
#include "communicator_contract.hpp"
#include "forwarding_communicator.hpp"
#include "gpu_rank.hpp"

#include "usp/comm/threads.hpp"
#include "usp/device/check.cuda.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace usp::test {
namespace {

/// The copy engines under the contract of all communicators: a completed message is complete for the host
/// too.
class Completed final : public ForwardingCommunicator {
 public:
  template <class Inner>
  Completed(Inner&& inner, const device::CallStream& stream, bool push)
      : ForwardingCommunicator(std::forward<Inner>(inner)), stream_(stream), push_(push) {}

  void post(const comm::Message* messages, i64 count, comm::Ticket* tickets) override {
    std::vector<comm::Message> posted(messages, messages + count);
    for (comm::Message& m : posted) m.push = push_;
    inner().post(posted.data(), count, tickets);
  }
  void wait(comm::Ticket ticket) override {
    inner().wait(ticket);
    stream_.synchronize();
  }
  bool test(comm::Ticket ticket) override {
    if (!inner().test(ticket)) return false;
    stream_.synchronize();
    return true;
  }
  std::unique_ptr<comm::Communicator> group(const std::vector<int>& ranks) override {
    auto group = inner().group(ranks);
    if (group == nullptr) return nullptr;
    return std::make_unique<Completed>(std::move(group), stream_, push_);
  }

 private:
  const device::CallStream& stream_;
  const bool push_;  ///< the sender of a message copies
};

/// Ranks, and whether senders copy.
class CopyEngine : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(CopyEngine, KeepsTheContract) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto [ranks, push] = GetParam();
  EXPECT_NO_THROW(comm::run_threads(ranks, {}, [push = push](comm::Communicator& control) {
    GpuRank rank(control);
    Completed communicator(*rank.communicator, rank.stream, push);
    contract::run_checks(communicator);
  }));
}

/// Holds up a stream until it is let go, at the end of its life at the latest.
class Stall {
 public:
  explicit Stall(const device::CallStream& stream) : stream_(stream) {
    device::check_cuda(cudaLaunchHostFunc(stream.get(), &Stall::block, &go_), "cudaLaunchHostFunc");
  }
  ~Stall() {
    go_ = true;
    stream_.synchronize();
  }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;
  void let_go() { go_ = true; }

 private:
  static void block(void* go) {
    while (!*static_cast<std::atomic<bool>*>(go)) std::this_thread::yield();
  }
  std::atomic<bool> go_{false};
  const device::CallStream& stream_;
};

[[nodiscard]] comm::Message message_of(const comm::StridedBytes& region, int peer, bool send, i64 tag) {
  comm::Message m;
  m.peer = peer, m.send = send, m.tag = tag, m.tick = -1, m.operation = "test";
  m.regions = &region, m.region_count = 1;
  return m;
}

[[nodiscard]] comm::StridedBytes region_of(const device::DeviceBuffer& buffer) {
  comm::StridedBytes region;
  region.data = buffer.data();
  region.run_bytes = buffer.bytes();
  return region;
}

void until(const std::atomic<bool>& flag, comm::Communicator& communicator) {
  while (!flag) communicator.progress();
}

/// The receiver waits for a message of a slow sender after one of a fast sender has arrived, which was posted
/// when the slow sender had its receipt already: what comes after the wait sees the slow message, not the
/// fast one only.
TEST(CopyEngines, AWaitIsForItsOwnMessage) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  constexpr i64 bytes = 4096;
  std::atomic<bool> slow_has_receipt{false}, fast_is_here{false};
  comm::run_threads(3, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& control) {
    GpuRank rank(control);
    comm::Communicator& c = *rank.communicator;
    const int device = rank.stream.device();
    const device::DeviceScope scope(device);
    const device::DeviceBuffer slow(device, bytes), fast(device, bytes);
    const comm::StridedBytes slow_region = region_of(slow), fast_region = region_of(fast);
    device::set_device_bytes(slow.data(), 0, bytes, rank.stream.get());
    rank.stream.synchronize();
    control.barrier();
    comm::Ticket ticket = -1;
    if (control.rank() == 0) {
      const comm::Message first = message_of(slow_region, 1, false, 0),
                          second = message_of(fast_region, 2, false, 0);
      c.post(&first, 1, &ticket);
      until(slow_has_receipt, c);
      comm::Ticket later = -1;
      c.post(&second, 1, &later);
      c.wait(later);
      rank.stream.synchronize();
      c.wait(ticket);
      const device::PinnedBuffer copy(1);  // a copy to pageable memory would hold up this thread
      device::copy_to_host(copy.data(), slow.data(), 1, rank.stream.get());
      const device::Event after(device);
      after.record(rank.stream.get());
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      while (!after.reached() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_FALSE(after.reached()) << "the stream went on before the message had been sent";
      fast_is_here = true;
      rank.stream.synchronize();
      EXPECT_EQ(static_cast<int>(*copy.data()), 7);
    } else if (control.rank() == 1) {
      Stall stall(rank.stream);
      device::set_device_bytes(slow.data(), 7, bytes, rank.stream.get());
      const comm::Message m = message_of(slow_region, 0, true, 0);
      c.post(&m, 1, &ticket);
      c.wait(ticket);
      slow_has_receipt = true;
      until(fast_is_here, c);
      stall.let_go();
      rank.stream.synchronize();
    } else {
      const comm::Message m = message_of(fast_region, 0, true, 0);
      c.post(&m, 1, &ticket);
      c.wait(ticket);
      rank.stream.synchronize();
    }
    control.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CopyEngine,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::Bool()));

}  // namespace
}  // namespace usp::test
