// SPDX-License-Identifier: Apache-2.0
// Where peers reach an arena only, as processes on GPUs do, every message has one end in it, results are bit
// for bit the same, and the arena grows on all ranks at once.
#include "counting_allocator.hpp"
#include "runtime_trial.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"
#include "usp/kernels/memory.hpp"
#include "usp/runtime/batch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace usp::test {
namespace {

/// Host memory as an arena of peers; a collective call that one rank leaves out fails by the watchdog.
class HostPeerArena final : public kernels::Arena {
 public:
  explicit HostPeerArena(comm::Communicator& ranks)
      : ranks_(ranks), memory_(kernels::host_memory().make_arena()) {}
  void reserve(i64 bytes) override {
    std::vector<i64> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(&bytes, all.data(), sizeof bytes);
    memory_->reserve(bytes);
    ++calls;
  }
  [[nodiscard]] std::byte* data() const override { return memory_->data(); }
  [[nodiscard]] i64 bytes() const override { return memory_->bytes(); }
  int calls = 0;

 private:
  comm::Communicator& ranks_;
  std::unique_ptr<kernels::Arena> memory_;
};

/// Counts what offers memory outside of an arena.
struct Seen {
  i64 pushes = 0, pulls = 0, outside = 0;
};

class WatchedChannels final : public comm::Channels {
 public:
  WatchedChannels(std::unique_ptr<comm::Channels> inner, std::vector<comm::ChannelEnd> ends,
                  const kernels::Arena& arena, Seen& seen)
      : inner_(std::move(inner)), ends_(std::move(ends)), arena_(arena), seen_(seen) {}
  void begin() override { inner_->begin(); }
  void start(const comm::ChannelStart* starts, i64 count) override {
    for (i64 i = 0; i < count; ++i) {
      const comm::ChannelEnd& end = ends_[static_cast<std::size_t>(starts[i].channel)];
      seen_.pushes += end.push ? 1 : 0, seen_.pulls += end.push ? 0 : 1;
      if (end.send == end.push) continue;  // the peer reaches nothing of this end
      for (i64 n = 0; n < starts[i].region_count; ++n)
        if (starts[i].regions[n].bytes() > 0 && !inside(starts[i].regions[n])) ++seen_.outside;
    }
    inner_->start(starts, count);
  }
  [[nodiscard]] std::optional<comm::ReceiveGate> gate(std::int32_t channel) override {
    return inner_->gate(channel);
  }
  i64 wait(std::int32_t channel) override { return inner_->wait(channel); }
  void progress() override { inner_->progress(); }

 private:
  [[nodiscard]] bool inside(const comm::StridedBytes& region) const {
    i64 span = region.run_bytes;
    for (int axis = 0; axis < 3; ++axis) span += (region.count[axis] - 1) * region.stride[axis];
    return region.data >= arena_.data() && region.data + span <= arena_.data() + arena_.bytes();
  }
  std::unique_ptr<comm::Channels> inner_;
  std::vector<comm::ChannelEnd> ends_;
  const kernels::Arena& arena_;
  Seen& seen_;
};

/// Threads whose peers reach nothing but the arena.
class ArenaRanks final : public comm::DataPlane {
 public:
  explicit ArenaRanks(comm::Communicator& inner)
      : arena(inner), control_(inner), messages_(comm::make_message_data_plane(inner)) {}
  [[nodiscard]] const char* name() const override { return messages_->name(); }
  [[nodiscard]] comm::Communicator& control() override { return control_; }
  /// An end that peers reach names its regions when it connects, where they are in every pass.
  [[nodiscard]] std::unique_ptr<comm::Channels> connect(const std::vector<comm::ChannelEnd>& ends) override {
    ++connected;
    for (const comm::ChannelEnd& end : ends)
      if ((end.regions != nullptr) != (end.send != end.push)) ++seen.outside;
    return std::make_unique<WatchedChannels>(messages_->connect(ends), ends, arena, seen);
  }
  [[nodiscard]] kernels::Arena* peer_arena(kernels::Memory& /*memory*/) override { return &arena; }
  [[nodiscard]] schedule::PeerReach reach() const override { return schedule::PeerReach::workspace; }
  [[nodiscard]] std::string capture_obstacle() const override { return "host memory"; }
  void check() override {}
  HostPeerArena arena;
  Seen seen;
  int connected = 0;

 private:
  comm::Communicator& control_;
  std::unique_ptr<comm::DataPlane> messages_;
};

TEST(PeerArena, HoldsOneEndOfEveryMessageAndChangesNoBit) {
  const auto rows = pairwise(Factors::levels(), 7);
  std::mutex mutex;
  i64 pushes = 0, pulls = 0;
  for (std::size_t i = 0; i < rows.size() && !HasFailure(); ++i)
    for (const auto& [ring, ulysses] : {std::pair(2, 2), std::pair(1, 3), std::pair(3, 1)}) {
      const RuntimeCase c =
          make_case(rows[i], ring, ulysses, i % 2 == 0 ? DType::bf16 : DType::fp32, 400 + i);
      comm::run_threads(ring * ulysses, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
        const auto kernel = kernels::make_cpu_kernel();
        ArenaRanks ranks(comm);
        const TrialErrors within = run_trial(c, ranks, *kernel, {.debug_nan = true}, false);
        const TrialErrors plain = run_trial(c, comm, *kernel, {.debug_nan = true}, false);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(ranks.seen.outside, 0) << describe(c);
        EXPECT_EQ(within.bits, plain.bits) << describe(c);
        EXPECT_EQ(within.bytes, "") << describe(c);
        pushes += ranks.seen.pushes, pulls += ranks.seen.pulls;
      });
    }
  EXPECT_GT(pushes, 0);
  EXPECT_GT(pulls, 0);
}

[[nodiscard]] RuntimeCase small() {
  RuntimeCase c;
  c.plan.mesh = {1, 2, 2};
  c.plan.shape = {1, 24, 24, 4, 2, 8, 8, DType::fp32};
  c.plan.band = {0, unbounded};
  c.documents = Documents::single(24, 24);
  return c;
}

/// A rank that makes a call anew which others still hold grows nothing alone.
TEST(PeerArena, GrowsWhereAllRanksFindACallNew) {
  comm::run_threads(4, comm::CommOptions{5, i64{1} << 30}, [](comm::Communicator& comm) {
    const RuntimeCase c = small();
    ArenaRanks ranks(comm);
    const auto kernel = kernels::make_cpu_kernel();
    Executor executor(ranks, *kernel);
    SavedState saved(executor.memory());
    auto prepared = std::make_shared<const Prepared>(c.plan, c.documents, comm.rank(), ranks.reach());
    TrialTensors tensors(c, comm, executor.memory(), prepared->q_tokens(), prepared->kv_tokens());
    for (int step = 0; step < 3; ++step) {
      executor.forward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.lse_view(), saved);
      executor.backward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.d_out_on.view(),
                        tensors.gradients(), saved);
      if (step % 2 == comm.rank() % 2)
        prepared = std::make_shared<const Prepared>(c.plan, c.documents, comm.rank(), ranks.reach());
    }
    EXPECT_EQ(ranks.arena.calls, 1);
    EXPECT_EQ(ranks.connected, 2) << "both passes, once";
    EXPECT_EQ(executor.workspace_bytes(), prepared->workspace_bytes() + prepared->sums_bytes());
  });
}

/// What no peer copies from or into is not in their arena: of a ring the gradients of queries and of the own
/// keys, of which a rank keeps fp32 sums while blocks pass by.
TEST(PeerArena, HoldsWhatPeersReachAlone) {
  comm::run_threads(2, comm::CommOptions{5, i64{1} << 30}, [](comm::Communicator& comm) {
    RuntimeCase c = small();
    c.plan.mesh = {1, 2, 1};
    c.plan.shape = {1, 64, 64, 4, 4, 64, 64, DType::bf16};
    c.documents = Documents::single(64, 64);
    ArenaRanks ranks(comm);
    const auto kernel = kernels::make_cpu_kernel();
    Executor executor(ranks, *kernel);
    const auto prepared =
        std::make_shared<const Prepared>(c.plan, c.documents, comm.rank(), schedule::PeerReach::workspace);
    executor.reserve(prepared);
    const i64 rows = 32, kv_bytes = rows * 4 * 64 * 2 * 2;  // bf16 k and v of one rank
    EXPECT_EQ(ranks.arena.bytes(), kv_bytes + 2 * kv_bytes) << "a block that arrives, and its fp32 dK and dV";
    EXPECT_GE(prepared->own_bytes(Pass::backward), rows * 4 * 64 * 4) << "fp32 dQ";
    EXPECT_EQ(executor.workspace_bytes() - ranks.arena.bytes(), prepared->own_bytes(Pass::backward));
  });
}

/// With release_scratch a rank holds between calls what peers reach, and nothing else.
TEST(PeerArena, CallsLeaveNothingElseBehind) {
  comm::run_threads(4, comm::CommOptions{5, i64{1} << 30}, [](comm::Communicator& comm) {
    const RuntimeCase c = small();
    std::vector<std::vector<std::byte>> bits;
    for (const bool release : {false, true}) {
      ArenaRanks ranks(comm);
      CountingAllocator heap, saved_heap;
      const auto memory = kernels::make_host_memory(heap),
                 saved_memory = kernels::make_host_memory(saved_heap);
      const auto kernel = kernels::make_cpu_kernel(*memory);
      Executor executor(ranks, *kernel, {.release_scratch = release});
      SavedState saved(*saved_memory);
      const auto prepared = std::make_shared<const Prepared>(c.plan, c.documents, comm.rank(), ranks.reach());
      TrialTensors tensors(c, comm, kernels::host_memory(), prepared->q_tokens(), prepared->kv_tokens());
      const auto expect_held = [&](const char* after) {
        if (release)
          EXPECT_EQ(heap.held_bytes, 0) << after;
        else
          EXPECT_GT(heap.held_bytes, 0) << after;
      };
      for (int step = 0; step < 2; ++step) {
        executor.forward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.lse_view(), saved);
        expect_held("forward");
        executor.backward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.d_out_on.view(),
                          tensors.gradients(), saved);
        expect_held("backward");
      }
      tensors.fetch();
      bits.push_back(tensors.bits());
    }
    EXPECT_EQ(bits.front(), bits.back());
  });
}

/// The caller's allocator gives back what it holds for reuse before the arena takes more.
TEST(PeerArena, AsksForMemoryBeforeItGrows) {
  struct Pool final : kernels::Allocator {
    std::byte* allocate(i64 bytes, int, CUstream_st*) override {
      return static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(buffer_alignment),
                                                        static_cast<std::size_t>(align_buffer(bytes))));
    }
    void release(std::byte* memory, i64, int, CUstream_st*) noexcept override { std::free(memory); }
    void release_unused() noexcept override { ++asked; }
    int asked = 0;
  };
  comm::run_threads(4, comm::CommOptions{5, i64{1} << 30}, [](comm::Communicator& comm) {
    RuntimeCase c = small();
    ArenaRanks ranks(comm);
    Pool pool;
    const auto memory = kernels::make_host_memory(pool);
    const auto kernel = kernels::make_cpu_kernel(*memory);
    Executor executor(ranks, *kernel);
    const auto reserve = [&](i64 tokens) {
      c.plan.shape.q_tokens = c.plan.shape.kv_tokens = tokens;
      executor.reserve(std::make_shared<const Prepared>(c.plan, Documents::single(tokens, tokens),
                                                        comm.rank(), ranks.reach()));
    };
    reserve(24);
    reserve(48);
    reserve(16);
    EXPECT_EQ(pool.asked, 2);
  });
}

TEST(PeerArena, RefusesACallThatWasPreparedForAnotherReach) {
  comm::run_threads(4, comm::CommOptions{5, i64{1} << 30}, [](comm::Communicator& comm) {
    const RuntimeCase c = small();
    const auto kernel = kernels::make_cpu_kernel();
    Executor executor(comm, *kernel);
    SavedState saved(executor.memory());
    const auto prepared =
        std::make_shared<const Prepared>(c.plan, c.documents, comm.rank(), schedule::PeerReach::workspace);
    TrialTensors tensors(c, comm, executor.memory(), prepared->q_tokens(), prepared->kv_tokens());
    EXPECT_THROW(
        executor.forward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.lse_view(), saved),
        UsageError);
  });
}

}  // namespace
}  // namespace usp::test
