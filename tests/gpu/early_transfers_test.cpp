// SPDX-License-Identifier: Apache-2.0
#include "gpu_rank.hpp"

#include "usp/comm/threads.hpp"
#include "usp/device/check.cuda.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

/// Transfers that leave before the call that computes them ends (Channels::completion): a stalled stream
/// stands for the rest of the call. Skipped without a GPU.
namespace usp::test {
namespace {

/// The rest of a call: a kernel that goes on until it is let go, at the end of its life at the latest.
class RestOfCall {
 public:
  explicit RestOfCall(kernels::Memory& memory) : word_(sizeof(std::uint32_t)), memory_(memory) {
    value().store(0);
    (void)memory.await({reinterpret_cast<const std::uint32_t*>(word_.data()), 1}, 0, {}, {});
  }
  ~RestOfCall() {
    let_go();
    memory_.synchronize();
  }
  RestOfCall(const RestOfCall&) = delete;
  RestOfCall& operator=(const RestOfCall&) = delete;
  void let_go() { value().store(1); }

 private:
  [[nodiscard]] std::atomic_ref<std::uint32_t> value() {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word_.data()));
  }

  device::PinnedBuffer word_;
  kernels::Memory& memory_;
};

/// Each of two ranks sends the other one a block, which its call awaits at a gate, and then what the call
/// makes of it.
class EarlyPass {
 public:
  static constexpr i64 bytes = 4096;
  enum Part : std::size_t { block, arrived, result, landed, parts };

  EarlyPass(comm::Communicator& control)
      : rank_(control, {.gates_on_shared_gpus = true}), control_(control), on_(rank_.stream.device()) {
    kernels::Arena& arena = *rank_.data_plane->peer_arena(*rank_.memory);
    arena.reserve(parts * bytes);
    std::vector<comm::ChannelEnd> ends;
    for (std::size_t part = 0; part < parts; ++part) {
      regions_[part] = {.data = arena.data() + static_cast<i64>(part) * bytes, .run_bytes = bytes};
      comm::ChannelEnd& end = ends.emplace_back();
      end.peer = 1 - control.rank();
      end.send = part == block || part == result;
      end.tag = end.tick = end.due = part < result ? 0 : 1;
      end.gated = part < result, end.early = !end.gated;
      end.operation = "test", end.bytes = bytes, end.region_count = 1;
      if (end.send) end.regions = &regions_[part];
    }
    channels_ = rank_.data_plane->connect(ends);
  }
  EarlyPass(const EarlyPass&) = delete;
  EarlyPass& operator=(const EarlyPass&) = delete;

  /// Enqueues a call that awaits its block and computes a result.
  void call(int value, bool announces, bool completes) {
    for (const comm::StridedBytes& region : regions_) set(region, 0);
    set(regions_[block], value);
    channels_->begin();
    start(block, arrived);
    const auto gate = channels_->gate(arrived);
    ASSERT_TRUE(gate.has_value());
    const auto completion = announces ? channels_->completion(result) : std::nullopt;
    ASSERT_EQ(completion.has_value(), announces);
    rank_.memory->await(gate->gate, 0, gate->watch, {});
    set(regions_[result], value);
    if (completes) rank_.memory->complete(*completion, gate->watch);
  }
  /// What follows the call.
  void go_on() {
    channels_->wait(arrived), channels_->wait(block);
    start(result, landed);
  }
  void end() {
    channels_->wait(landed), channels_->wait(result);
    rank_.stream.synchronize();
    rank_.data_plane->check();
    control_.barrier();
  }
  /// The first byte of a part now, whatever the stream of the calls does.
  [[nodiscard]] int now(Part part) {
    device::copy_to_host(byte_.data(), regions_[part].data, 1, aside_.get());
    aside_.synchronize();
    return static_cast<int>(byte_.data()[0]);
  }
  [[nodiscard]] bool lands(int value) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (now(landed) != value && std::chrono::steady_clock::now() < end) control_.progress();
    return now(landed) == value;
  }
  [[nodiscard]] kernels::Memory& memory() { return *rank_.memory; }

 private:
  void start(Part a, Part b) {
    const std::array starts{comm::ChannelStart{static_cast<std::int32_t>(a), &regions_[a], 1},
                            comm::ChannelStart{static_cast<std::int32_t>(b), &regions_[b], 1}};
    channels_->start(starts.data(), starts.size());
  }
  void set(const comm::StridedBytes& region, int value) {
    device::set_device_bytes(region.data, value, bytes, rank_.stream.get());
  }

  GpuRank rank_;
  comm::Communicator& control_;
  const device::DeviceScope on_;
  std::array<comm::StridedBytes, parts> regions_;
  std::unique_ptr<comm::Channels> channels_;
  const device::Stream aside_{0};
  const device::PinnedBuffer byte_{1};
};

TEST(EarlyTransfers, LandWhileTheCallsOfBothEndsGoOn) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  comm::run_threads(2, {.watchdog_s = 30}, [](comm::Communicator& control) {
    EarlyPass pass(control);
    for (int value = 1; value <= 20; ++value) {
      pass.call(value, true, true);
      RestOfCall rest(pass.memory());
      pass.go_on();
      EXPECT_TRUE(pass.lands(value)) << value;
      control.barrier();
      rest.let_go();
      pass.end();
    }
  });
}

/// By turns with calls that announce nothing, whose results leave behind them.
TEST(EarlyTransfers, CallsThatAnnounceNothingSendBehindThem) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  comm::run_threads(2, {.watchdog_s = 30}, [](comm::Communicator& control) {
    EarlyPass pass(control);
    for (int value = 1; value <= 6; ++value) {
      const bool announces = (value + control.rank()) % 3 == 0;
      pass.call(value, announces, announces);
      {
        const RestOfCall rest(pass.memory());
        pass.go_on();
        const bool peer_announces = (value + 1 - control.rank()) % 3 == 0;
        EXPECT_EQ(peer_announces ? pass.lands(value) : pass.now(EarlyPass::landed) == 0, true) << value;
        control.barrier();
      }
      pass.end();
      EXPECT_EQ(pass.now(EarlyPass::landed), value);
    }
  });
}

/// A call that never completes its block, as one that has given up: the peer's wait ends by the deadline.
TEST(EarlyTransfers, AResultThatNeverComesIsNamed) {
  if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  std::string text;
  try {
    comm::run_threads(2, {.watchdog_s = 1}, [](comm::Communicator& control) {
      EarlyPass pass(control);
      pass.call(1, true, control.rank() == 0);
      pass.go_on();
      pass.end();
    });
  } catch (const comm::CommunicationError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("'test' of tick 1"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace usp::test
