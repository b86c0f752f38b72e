// SPDX-License-Identifier: Apache-2.0
// AttentionPlan::gated: one call attends the own block and the remote ones as they land.
#include "runtime_trial.hpp"
#include "socket_threads.hpp"

#include "usp/comm/threads.hpp"
#include "usp/schedule/gate_phases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace usp::test {
namespace {

/// Says before each start which tick begins; hides gates where it has none. With completions it awaits what
/// leaves early, and lets a remote block arrive once the one before is complete.
struct Hooks {
  bool gates = true;
  bool completions = false;
  std::function<void(std::int32_t tick)> before_start;
};

class HookedChannels final : public comm::Channels {
 public:
  HookedChannels(std::unique_ptr<comm::Channels> inner, std::vector<comm::ChannelEnd> ends,
                 const Hooks& hooks)
      : inner_(std::move(inner)),
        ends_(std::move(ends)),
        hooks_(hooks),
        flags_(ends_.size()),
        complete_(ends_.size()) {}
  void begin() override {
    held_.clear(), announced_.clear();
    std::fill(flags_.begin(), flags_.end(), 0);
    std::fill(complete_.begin(), complete_.end(), 0);
    inner_->begin();
  }
  void start(const comm::ChannelStart* starts, i64 count) override {
    if (hooks_.before_start) hooks_.before_start(ends_[static_cast<std::size_t>(starts[0].channel)].tick);
    for (i64 i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(starts[i].channel);
      if (!hooks_.completions || !ends_[at].early) continue;
      EXPECT_EQ(complete_[at], ends_[at].send ? 1U : 0U) << "starts behind the call";
    }
    inner_->start(starts, count);
  }
  [[nodiscard]] std::optional<comm::ReceiveGate> gate(std::int32_t channel) override {
    const auto at = static_cast<std::size_t>(channel);
    EXPECT_TRUE(ends_[at].gated);
    if (!hooks_.gates) return {};
    auto gate = inner_->gate(channel);
    if (!hooks_.completions) return gate;
    held_.push_back({gate->gate, at});
    gate->gate = {&flags_[at], 1};
    return gate;
  }
  [[nodiscard]] std::optional<kernels::Completion> completion(std::int32_t channel) override {
    const auto at = static_cast<std::size_t>(channel);
    EXPECT_TRUE(ends_[at].early && ends_[at].send);
    if (!hooks_.completions) return inner_->completion(channel);
    announced_.push_back(at);
    return kernels::Completion{&complete_[at], 1};
  }
  i64 wait(std::int32_t channel) override { return inner_->wait(channel); }
  void progress() override {
    inner_->progress();
    const auto complete = std::count_if(announced_.begin(), announced_.end(),
                                        [&](std::size_t at) { return complete_[at] == 1; });
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (kernels::has_reached(*held_[i].gate.flag, held_[i].gate.value) &&
          (announced_.empty() || static_cast<std::size_t>(complete) >= i))
        flags_[held_[i].channel] = 1;
  }

 private:
  struct Held {
    kernels::Gate gate;
    std::size_t channel;
  };
  std::unique_ptr<comm::Channels> inner_;
  std::vector<comm::ChannelEnd> ends_;
  const Hooks& hooks_;
  std::vector<std::uint32_t> flags_, complete_;  ///< per channel
  std::vector<Held> held_;                       ///< gates of this pass, in the order of the list
  std::vector<std::size_t> announced_;           ///< channels of this pass
};

class HookedPlane final : public comm::DataPlane {
 public:
  HookedPlane(comm::Communicator& control, Hooks hooks)
      : inner_(comm::make_message_data_plane(control)), hooks_(std::move(hooks)) {}
  [[nodiscard]] const char* name() const override { return inner_->name(); }
  [[nodiscard]] comm::Communicator& control() override { return inner_->control(); }
  [[nodiscard]] std::unique_ptr<comm::Channels> connect(const std::vector<comm::ChannelEnd>& ends) override {
    std::vector<comm::ChannelEnd> kept = ends;
    for (comm::ChannelEnd& end : kept) end.regions = nullptr;
    return std::make_unique<HookedChannels>(inner_->connect(ends), std::move(kept), hooks_);
  }
  [[nodiscard]] std::string capture_obstacle() const override { return inner_->capture_obstacle(); }
  void check() override { inner_->check(); }

 private:
  std::unique_ptr<comm::DataPlane> inner_;
  const Hooks hooks_;
};

[[nodiscard]] RuntimeCase small_case(int ring, int ulysses) {
  return gated_case(ring, ulysses, {1, 75, 75, 8, 2, 16, 16, DType::bf16}, {0, 30, 33, 75});
}

void expect_right(const TrialErrors& e, double tolerance) {
  EXPECT_LE(e.worst(), tolerance);
  EXPECT_EQ(e.rows, "");
  EXPECT_EQ(e.bytes, "");
}

/// Bits of both passes by rank, on threads; right by the oracle.
[[nodiscard]] std::vector<std::vector<std::byte>> bits_of(const RuntimeCase& c, bool gates) {
  std::vector<std::vector<std::byte>> bits(static_cast<std::size_t>(c.plan.mesh.size()));
  comm::run_threads(c.plan.mesh.size(), {.watchdog_s = 20}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    HookedPlane plane(comm, {.gates = gates, .completions = false, .before_start = {}});
    const TrialErrors e = run_trial(c, plane, *kernel, {.debug_nan = true});
    SCOPED_TRACE(describe(c) + " rank " + std::to_string(comm.rank()));
    expect_right(e, 1e-2);
    if (!gates) {
      EXPECT_EQ(e.gated_calls[0] + e.gated_calls[1], 0);
    }
    bits[static_cast<std::size_t>(comm.rank())] = e.bits;
  });
  return bits;
}

/// Gated, behind waits, and in any number of calls results are the same bits.
void expect_exact(RuntimeCase c) {
  const auto bits = bits_of(c, true);
  EXPECT_EQ(bits_of(c, false), bits) << describe(c);
  for (c.plan.gate_phases = 2; c.plan.gate_phases <= std::min(c.plan.mesh.ring(), schedule::max_gate_phases);
       ++c.plan.gate_phases)
    for (const bool gates : {true, false}) EXPECT_EQ(bits_of(c, gates), bits) << describe(c);
}

TEST(Gated, EqualsTheOracleAndTheListBehindWaits) {
  for (const auto& [ring, ulysses] : {std::pair(2, 1), std::pair(3, 2), std::pair(4, 1)})
    for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped})
      for (const bool prune : {false, true}) {
        RuntimeCase c = small_case(ring, ulysses);
        c.plan.layout = layout;
        c.plan.prune = prune;
        c.plan.split_own_block = prune;
        c.plan.head_chunks = ulysses;
        c.plan.band = {0, prune ? 9 : unbounded};
        c.plan.sink = ring == 3;
        c.plan.return_lse = ring == 2;
        expect_exact(c);
        if (HasFailure()) return;
      }
}

/// A call begins with what is there on every rank that sees a remote block.
TEST(Gated, CallsBeginBeforeTheirBlocksArrive) {
  RuntimeCase c = small_case(3, 1);
  c.documents = Documents::single(75, 75);
  c.plan.band = {};
  for (const int chunks : {1, 2}) {
    c.plan.head_chunks = chunks;
    comm::run_threads(3, {.watchdog_s = 20}, [&](comm::Communicator& comm) {
      const auto kernel = kernels::make_cpu_kernel();
      const TrialErrors e = run_trial(c, comm, *kernel);
      EXPECT_EQ(e.gated_calls[0], chunks);
      EXPECT_EQ(e.gated_calls[1], chunks);
    });
  }
}

/// Of the calls of a pass all await something but the first of several, which attends the own block alone.
TEST(Gated, PhasesAwaitBlocksOfTheirOwn) {
  RuntimeCase c = small_case(5, 1);
  c.documents = Documents::single(75, 75);
  c.plan.band = {};
  for (c.plan.gate_phases = 1; c.plan.gate_phases <= schedule::max_gate_phases; ++c.plan.gate_phases)
    comm::run_threads(5, {.watchdog_s = 20}, [&](comm::Communicator& comm) {
      const auto kernel = kernels::make_cpu_kernel();
      const TrialErrors e = run_trial(c, comm, *kernel);
      EXPECT_EQ(e.gated_calls[0], std::max(1, c.plan.gate_phases - 1));
      EXPECT_EQ(e.gated_calls[1], 1);
    });
}

/// Each rank sends dK and dV of two remote blocks home. The second one arrives once the first is complete.
TEST(Gated, ABlockIsCompleteBeforeTheNextOneArrives) {
  RuntimeCase c = small_case(3, 1);
  c.documents = Documents::single(75, 75);
  c.plan.band = {};
  comm::run_threads(3, {.watchdog_s = 20}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    HookedPlane plane(comm, {.gates = true, .completions = true, .before_start = {}});
    const TrialErrors e = run_trial(c, plane, *kernel);
    expect_right(e, 1e-2);
    EXPECT_EQ(e.gated_calls[1], 1);
  });
}

/// The tick of the exchange that a gated call of the first chunk awaits.
constexpr std::int32_t gated_tick = 1;

void expect_right_on_a_new_mesh(const RuntimeCase& c) {
  comm::run_threads(c.plan.mesh.size(), {.watchdog_s = 20}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    expect_right(run_trial(c, comm, *kernel), 1e-2);
  });
}

TEST(Gated, APeerThatDiesUnderAGateEndsTheCall) {
  const RuntimeCase c = small_case(3, 1);
  std::atomic<int> ended{0};
  EXPECT_THROW(comm::run_threads(3, {.watchdog_s = 20},
                                 [&](comm::Communicator& comm) {
                                   const auto kernel = kernels::make_cpu_kernel();
                                   Hooks hooks;
                                   if (comm.rank() == 1)
                                     hooks.before_start = [](std::int32_t tick) {
                                       if (tick == gated_tick) throw std::runtime_error("rank 1 dies");
                                     };
                                   HookedPlane plane(comm, hooks);
                                   try {
                                     (void)run_trial(c, plane, *kernel, {}, false);
                                   } catch (const comm::CommunicationError&) {
                                     ++ended;
                                     throw;
                                   }
                                 }),
               std::runtime_error);
  EXPECT_EQ(ended, 2);
  expect_right_on_a_new_mesh(c);
}

TEST(Gated, APeerThatStaysSilentUnderAGateIsNamedByTheDeadline) {
  const RuntimeCase c = small_case(2, 1);
  std::atomic<bool> ended{false};
  comm::CommunicationFault fault;
  EXPECT_THROW(comm::run_threads(2, {.watchdog_s = 0.3},
                                 [&](comm::Communicator& comm) {
                                   const auto kernel = kernels::make_cpu_kernel();
                                   Hooks hooks;
                                   if (comm.rank() == 1)
                                     hooks.before_start = [&](std::int32_t tick) {
                                       while (tick == gated_tick && !ended)
                                         std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                     };
                                   HookedPlane plane(comm, hooks);
                                   try {
                                     (void)run_trial(c, plane, *kernel, {}, false);
                                   } catch (const comm::CommunicationError& error) {
                                     if (comm.rank() == 0) fault = error.fault();
                                     ended = true;
                                     throw;
                                   }
                                 }),
               comm::CommunicationError);
  EXPECT_EQ(fault.operation, "a forward exchange");
  EXPECT_EQ(fault.tick, gated_tick);
  EXPECT_EQ(fault.missing, std::vector<int>{1});
  expect_right_on_a_new_mesh(c);
}

/// Ranks as processes have them: messages of a call that waits advance by its own progress.
TEST(Gated, OverSockets) {
  const RuntimeCase c = small_case(3, 1);
  const auto errors = run_socket_threads(3, {.watchdog_s = 20}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    const TrialErrors e = run_trial(c, comm, *kernel);
    expect_right(e, 1e-2);
    EXPECT_EQ(e.gated_calls[0], 1);
  });
  for (const std::exception_ptr& error : errors) EXPECT_EQ(error, nullptr);
}

TEST(Gated, APeerThatLeavesUnderAGateEndsTheCallOverSockets) {
  const RuntimeCase c = small_case(3, 1);
  const auto errors = run_socket_threads(3, {.watchdog_s = 20}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    Hooks hooks;
    if (comm.rank() == 2)
      hooks.before_start = [&](std::int32_t tick) {
        if (tick != gated_tick) return;
        comm::CommunicationFault fault;
        fault.rank = 2;
        fault.message = "rank 2 leaves";
        comm.abort(fault);
        throw comm::CommunicationError(fault);
      };
    HookedPlane plane(comm, hooks);
    (void)run_trial(c, plane, *kernel, {}, false);
  });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    ASSERT_NE(errors[rank], nullptr);
    EXPECT_THROW(std::rethrow_exception(errors[rank]), comm::CommunicationError);
  }
}

TEST(Gated, AnInterruptEndsAWaitAtAGate) {
  const RuntimeCase c = small_case(2, 1);
  std::atomic<bool> interrupted{false}, ended{false};
  comm::CommOptions options{.watchdog_s = 20};
  options.interrupted = [&] { return interrupted.load(); };
  EXPECT_THROW(comm::run_threads(2, options,
                                 [&](comm::Communicator& comm) {
                                   const auto kernel = kernels::make_cpu_kernel();
                                   Hooks hooks;
                                   if (comm.rank() == 1)
                                     hooks.before_start = [&](std::int32_t tick) {
                                       interrupted = tick == gated_tick;
                                       while (interrupted && !ended)
                                         std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                     };
                                   HookedPlane plane(comm, hooks);
                                   try {
                                     (void)run_trial(c, plane, *kernel, {}, false);
                                   } catch (const comm::CommunicationError&) {
                                     ended = true;
                                     throw;
                                   }
                                 }),
               comm::CommunicationError);
}

}  // namespace
}  // namespace usp::test
