// SPDX-License-Identifier: Apache-2.0
#include "device_payloads.hpp"
#include "forwarding_communicator.hpp"
#include "gpu_rank.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"
#include "usp/device/check.cuda.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

/// Copy engines between ranks that are threads, on as many GPUs as there are. Skipped without a GPU.
namespace usp::test {
namespace {

class CopyEngine : public testing::TestWithParam<int> {};

TEST_P(CopyEngine, KeepsTheContract) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_NO_THROW(comm::run_threads(GetParam(), {}, [](comm::Communicator& control) {
    GpuRank rank(control);
    DevicePayloads payloads(*rank.data_plane, *rank.memory);
    contract::check_data_plane(*rank.data_plane, payloads);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CopyEngine, testing::Values(1, 2, 3, 4, 8));

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

/// One transfer of 4 KiB from each of the other ranks to rank 0, pulled or pushed.
struct Arrivals {
  static constexpr i64 bytes = 4096;
  Arrivals(comm::DataPlane& plane, kernels::Memory& memory, bool push) {
    comm::Communicator& control = plane.control();
    kernels::Arena& arena = *plane.peer_arena(memory);
    arena.reserve(bytes * control.size());
    for (int peer = 1; peer < control.size(); ++peer) {
      if (control.rank() != 0 && control.rank() != peer) continue;
      regions.push_back({.data = arena.data() + peer * bytes, .run_bytes = bytes});
    }
    std::vector<comm::ChannelEnd> ends;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      comm::ChannelEnd end;
      end.send = control.rank() != 0;
      end.peer = end.send ? 0 : static_cast<int>(i) + 1;
      end.push = push, end.operation = "test", end.bytes = bytes, end.region_count = 1;
      if (end.send != end.push) end.regions = &regions[i];
      ends.push_back(end);
    }
    channels = plane.connect(ends);
  }
  void start() {
    channels->begin();
    std::vector<comm::ChannelStart> starts;
    for (std::size_t i = 0; i < regions.size(); ++i)
      starts.push_back({static_cast<std::int32_t>(i), &regions[i], 1});
    channels->start(starts.data(), static_cast<i64>(starts.size()));
  }
  void wait(std::size_t channel) { channels->wait(static_cast<std::int32_t>(channel)); }
  std::vector<comm::StridedBytes> regions;
  std::unique_ptr<comm::Channels> channels;
};

class CopyEngineOrder : public testing::TestWithParam<bool> {};

/// A fast sender's transfer is complete while a slow one's is not; what comes after the wait for the slow one
/// sees its bytes.
TEST_P(CopyEngineOrder, AWaitIsForItsOwnTransfer) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  std::atomic<bool> looked{false};
  comm::run_threads(3, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& control) {
    GpuRank rank(control);
    const device::DeviceScope scope(rank.stream.device());
    Arrivals arrivals(*rank.data_plane, *rank.memory, GetParam());
    for (const comm::StridedBytes& region : arrivals.regions)
      device::set_device_bytes(region.data, 0, Arrivals::bytes, rank.stream.get());
    rank.stream.synchronize();
    control.barrier();
    if (control.rank() == 0) {
      arrivals.start();
      arrivals.wait(1);
      const device::PinnedBuffer copies(2);  // a copy to pageable memory would hold up this thread
      device::copy_to_host(copies.data(), arrivals.regions[1].data, 1, rank.stream.get());
      const device::Event fast(rank.stream.device()), slow(rank.stream.device());
      fast.record(rank.stream.get());
      fast.synchronize();
      EXPECT_EQ(static_cast<int>(copies.data()[0]), 9);
      arrivals.wait(0);
      device::copy_to_host(copies.data() + 1, arrivals.regions[0].data, 1, rank.stream.get());
      slow.record(rank.stream.get());
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (!slow.reached() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_FALSE(slow.reached()) << "the stream went on before the transfer had begun";
      looked = true;
      rank.stream.synchronize();
      EXPECT_EQ(static_cast<int>(copies.data()[1]), 7);
    } else if (control.rank() == 1) {
      Stall stall(rank.stream);
      device::set_device_bytes(arrivals.regions[0].data, 7, Arrivals::bytes, rank.stream.get());
      arrivals.start();
      arrivals.wait(0);
      while (!looked) control.progress();
      stall.let_go();
    } else {
      device::set_device_bytes(arrivals.regions[0].data, 9, Arrivals::bytes, rank.stream.get());
      arrivals.start();
      arrivals.wait(0);
    }
    rank.stream.synchronize();
    rank.data_plane->check();
    control.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(PullAndPush, CopyEngineOrder, testing::Bool());

/// A peer that never comes: the wait ends by the watchdog, with the operation and the peer.
TEST(CopyEngines, AnAbsentPeerIsNamed) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  std::string text;
  std::atomic<bool> ended{false};
  try {
    comm::run_threads(2, comm::CommOptions{1, i64{1} << 30}, [&](comm::Communicator& control) {
      GpuRank rank(control);
      Arrivals arrivals(*rank.data_plane, *rank.memory, false);
      if (control.rank() == 1) {
        while (!ended) control.progress();
        return;
      }
      try {
        arrivals.start();
        arrivals.wait(0);
        rank.stream.synchronize();
        rank.data_plane->check();
        ADD_FAILURE() << "a transfer without a sender was complete";
      } catch (...) {
        ended = true;
        throw;
      }
    });
  } catch (const comm::CommunicationError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("'test' of tick 0"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

/// Counts what goes through a control communicator.
class CountedControl final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void post(const comm::Message* messages, i64 count, comm::Ticket* tickets) override {
    calls += count;
    ForwardingCommunicator::post(messages, count, tickets);
  }
  void barrier() override { ++calls, ForwardingCommunicator::barrier(); }
  void all_gather(const void* mine, void* all, i64 bytes) override {
    ++calls;
    ForwardingCommunicator::all_gather(mine, all, bytes);
  }
  void broadcast(void* data, i64 bytes, int root) override {
    ++calls;
    ForwardingCommunicator::broadcast(data, bytes, root);
  }
  i64 calls = 0;
};

/// One handshake when channels connect, then payload alone.
TEST(CopyEngines, PassesSendNoControlMessages) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  comm::run_threads(3, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& threads) {
    CountedControl control(threads);
    GpuRank rank(control);
    Arrivals arrivals(*rank.data_plane, *rank.memory, false);
    EXPECT_GT(control.calls, 0) << "the counter counts nothing";
    control.calls = 0;
    for (int pass = 0; pass < 10; ++pass) {
      arrivals.start();
      for (std::size_t i = 0; i < arrivals.regions.size(); ++i) arrivals.wait(i);
    }
    EXPECT_EQ(control.calls, 0);
    rank.stream.synchronize();
    threads.barrier();
  });
}

/// Ends that differ are refused when they connect.
TEST(CopyEngines, EndsOfOtherSizesAreRefused) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_THROW(comm::run_threads(2, comm::CommOptions{5, i64{1} << 30},
                                 [&](comm::Communicator& control) {
                                   GpuRank rank(control);
                                   kernels::Arena& arena = *rank.data_plane->peer_arena(*rank.memory);
                                   arena.reserve(64);
                                   const comm::StridedBytes region{
                                       .data = arena.data(), .run_bytes = control.rank() == 0 ? 32 : 16};
                                   comm::ChannelEnd end;
                                   end.peer = 1 - control.rank(), end.send = control.rank() == 0;
                                   end.operation = "test", end.bytes = region.run_bytes, end.region_count = 1;
                                   if (end.send) end.regions = &region;
                                   (void)rank.data_plane->connect({end});
                                 }),
               comm::CommunicationError);
}

}  // namespace
}  // namespace usp::test
