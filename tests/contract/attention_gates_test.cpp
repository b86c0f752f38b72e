// SPDX-License-Identifier: Apache-2.0
// Lists whose blocks of keys arrive during the call, on every attention backend of the host.
#include "attention_contract.hpp"
#include "block_trial.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

namespace usp::test {
namespace {

using Reason = kernels::GateFault::Reason;

constexpr std::size_t block_count = 4;

Case causal_blocks() {
  Case c = one_slice("gates", banded(24, 48, 0, unbounded), 16);
  c.slices.front().q_pos = 24;
  return c;
}

/// With what a kernel makes of it when all blocks are there.
struct Problem {
  Problem(kernels::AttentionKernel& kernel, DType type) : in(c, type, type) { ungated.all(kernel); }
  const Case c = causal_blocks();
  const Inputs in;
  BlockTrial ungated{c, in, even_blocks(c.k_rows, block_count), true};
};

/// A trial whose blocks but the first hold NaN until they are delivered, each behind a gate.
class GatedTrial {
 public:
  GatedTrial(const Problem& problem, std::uint32_t epoch)
      : run(problem.c, problem.in, even_blocks(problem.c.k_rows, block_count), true),
        flags_(block_count, epoch - 1),
        gates_(block_count),
        complete_(block_count, epoch - 1) {
    for (std::uint32_t& word : complete_) completions_.push_back({&word, epoch});
    for (std::size_t block = 1; block < block_count; ++block) {
      for (const Tensor4* tensor : run.arriving(block)) payloads_.push_back(tensor->memory());
      gates_[block].flag = &flags_[block];
    }
    begin_pass(epoch);
  }
  /// All blocks but the first are yet to arrive.
  void begin_pass(std::uint32_t epoch) {
    for (std::size_t block = 1; block < block_count; ++block) {
      for (Tensor4* tensor : run.arriving(block)) tensor->set(std::numeric_limits<double>::quiet_NaN());
      gates_[block].value = epoch;
    }
  }
  void deliver(std::size_t block) {
    const std::vector<std::byte>* payload = &payloads_[2 * (block - 1)];
    for (const Tensor4* tensor : run.arriving(block)) {
      std::memcpy(tensor->view().data, payload->data(), payload->size());
      ++payload;
    }
    std::atomic_ref(flags_[block]).store(gates_[block].value, std::memory_order_release);
  }
  void deliver_all() {
    for (std::size_t block = 1; block < block_count; ++block) deliver(block);
  }
  /// Forward and backward; `arrive` runs once before each, after the blocks have gone.
  void all(kernels::AttentionKernel& kernel, std::uint32_t epoch, const std::function<void()>& arrive) {
    begin_pass(epoch);
    arrive();
    attend(kernel);
    run.delta(kernel);
    begin_pass(epoch + 1);
    arrive();
    grad(kernel);
  }
  void attend(kernels::AttentionKernel& kernel, const kernels::Progress& progress = {}) {
    std::vector<kernels::AttendArgs> blocks = run.attend_args();
    for (kernels::AttendArgs& a : blocks) a.scope.progress = progress;
    run_once(kernel, list_of(blocks));
  }
  void grad(kernels::AttentionKernel& kernel, const kernels::Progress& progress = {}) {
    std::vector<kernels::AttendGradArgs> blocks = run.grad_args();
    for (kernels::AttendGradArgs& a : blocks) a.scope.progress = progress;
    kernels::AttendGradBlocks list = list_of(blocks);
    if (awaits_completions) list.completions = completions_.data();
    run_once(kernel, list);
  }
  /// Whether the call has said that a block is complete.
  [[nodiscard]] bool is_complete(std::size_t block) {
    return std::atomic_ref(complete_[block]).load(std::memory_order_acquire) == completions_[block].value;
  }
  template <class Args>
  [[nodiscard]] kernels::BlockList<Args> list_of(const std::vector<Args>& blocks) const {
    return {blocks.data(), static_cast<i64>(blocks.size()), gates_.data(), watch};
  }

  BlockTrial run;
  kernels::GateWatch watch;
  bool awaits_completions = false;

 private:
  std::vector<std::uint32_t> flags_;
  std::vector<kernels::Gate> gates_;
  std::vector<std::uint32_t> complete_;
  std::vector<kernels::Completion> completions_;
  std::vector<std::vector<std::byte>> payloads_;
};

/// All bits of what forward has written.
[[nodiscard]] std::vector<std::vector<std::byte>> forward_bits(const BlockTrial& run) {
  return {run.trial.o.memory(), run.trial.lse.memory()};
}

TEST_P(AttentionContract, GatedBlocksArriveInAnyOrder) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  std::vector<std::size_t> order{1, 2, 3};
  do {
    GatedTrial gated(problem, 7);
    std::thread deliveries;
    gated.all(*kernel, 7, [&] {
      if (deliveries.joinable()) deliveries.join();
      deliveries = std::thread([&] {
        for (const std::size_t block : order) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          gated.deliver(block);
        }
      });
    });
    deliveries.join();
    EXPECT_EQ(forward_bits(gated.run), forward_bits(problem.ungated));
    const Results a = gated.run.results(), b = problem.ungated.results();
    EXPECT_EQ(a.dq, b.dq);
    EXPECT_EQ(a.dk, b.dk);
    EXPECT_EQ(a.dv, b.dv);
  } while (std::next_permutation(order.begin(), order.end()));
}

/// All blocks of a list may be on their way where it goes on with the results of another.
TEST_P(AttentionContract, GatedListsGoOnWithTheResultsOfAnother) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  GatedTrial gated(problem, 1);
  const std::vector<kernels::AttendArgs> blocks = gated.run.attend_args();
  run_once(*kernel, kernels::AttendBlocks{blocks.data(), 1});
  kernels::AttendBlocks others = gated.list_of(blocks);
  ++others.blocks, ++others.gates, --others.count;
  std::thread deliveries([&] { gated.deliver_all(); });
  run_once(*kernel, others);
  deliveries.join();
  EXPECT_EQ(forward_bits(gated.run), forward_bits(problem.ungated));
}

TEST_P(AttentionContract, GatesServeOnePassAfterTheOther) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  constexpr std::uint32_t last = 0xffffffffU;
  GatedTrial gated(problem, last);
  const std::vector<kernels::AttendArgs> blocks = gated.run.attend_args();
  const auto step = kernel->prepare_blocks(gated.list_of(blocks));
  // The epoch wraps, and the flags are those of the pass before.
  for (const std::uint32_t epoch : {last, 0U, 1U}) {
    gated.begin_pass(epoch);
    std::thread deliveries([&] { gated.deliver_all(); });
    step->run(gated.list_of(blocks));
    deliveries.join();
    EXPECT_EQ(forward_bits(gated.run), forward_bits(problem.ungated)) << epoch;
  }
  // A flag may be ahead of the epoch.
  gated.begin_pass(5);
  gated.deliver_all();
  GatedTrial other(problem, 5);
  other.begin_pass(5);
  other.deliver_all();
  EXPECT_TRUE(step->fits(other.list_of(blocks))) << "addresses and values of gates are free";
  kernels::AttendBlocks plain = gated.list_of(blocks);
  plain.gates = nullptr;
  EXPECT_FALSE(step->fits(plain));
  EXPECT_THROW(step->run(plain), InternalError);
}

TEST_P(AttentionContract, WaitsAtGatesMakeProgress) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  struct Transfers {
    GatedTrial& gated;
    std::size_t calls = 0;
  };
  GatedTrial gated(problem, 1);
  Transfers transfers{gated};
  // Every twentieth call completes a transfer, the last block's first.
  const kernels::Progress progress{[](void* context) {
                                     auto& all = *static_cast<Transfers*>(context);
                                     if (++all.calls % 20 == 0 && all.calls <= 20 * (block_count - 1))
                                       all.gated.deliver(block_count - all.calls / 20);
                                   },
                                   &transfers};
  gated.attend(*kernel, progress);
  EXPECT_GE(transfers.calls, 20 * (block_count - 1));
  EXPECT_EQ(forward_bits(gated.run), forward_bits(problem.ungated));
}

/// A block arrives once the one before it is complete, and has its final gradients then.
TEST_P(AttentionContract, BlocksAreCompleteBeforeLaterOnesArrive) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  GatedTrial gated(problem, 1);
  gated.deliver_all();
  gated.attend(*kernel);
  gated.run.delta(*kernel);
  struct Blocks {
    GatedTrial& gated;
    std::size_t complete = 0;
    std::vector<std::vector<std::byte>> gradients;  ///< as they were when their block was complete
    void keep() {
      for (const Tensor4* x : gated.run.gradients(complete)) gradients.push_back(x->memory());
      ++complete;
    }
  };
  std::uint32_t fault = 0;
  gated.watch = {nullptr, 60'000'000'000, &fault};
  gated.awaits_completions = true;
  gated.begin_pass(2);
  for (std::size_t block = 0; block < block_count; ++block) EXPECT_FALSE(gated.is_complete(block));
  Blocks blocks{gated};
  gated.grad(*kernel, {[](void* context) {
                         auto& all = *static_cast<Blocks*>(context);
                         if (all.complete + 1 == block_count || !all.gated.is_complete(all.complete)) return;
                         all.keep();
                         EXPECT_FALSE(all.gated.is_complete(all.complete)) << "it has not arrived";
                         all.gated.deliver(all.complete);
                       },
                       &blocks});
  ASSERT_EQ(blocks.complete + 1, block_count);
  EXPECT_TRUE(gated.is_complete(blocks.complete));
  blocks.keep();
  EXPECT_EQ(fault, 0U);
  for (std::size_t block = 0; block < block_count; ++block)
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(blocks.gradients[2 * block + i] == gated.run.gradients(block)[i]->memory()) << block;
  const Results a = gated.run.results(), b = problem.ungated.results();
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

TEST_P(AttentionContract, AWaitThatIsGivenUpCompletesNothingMore) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  GatedTrial gated(problem, 1);
  std::uint32_t fault = 0;
  gated.watch = {nullptr, 2'000'000, &fault};
  gated.awaits_completions = true;
  gated.deliver(1), gated.deliver(3);
  gated.grad(*kernel);
  EXPECT_EQ(kernels::GateFault::of(fault).block, 2);
  EXPECT_TRUE(gated.is_complete(1));
  EXPECT_FALSE(gated.is_complete(2));
  EXPECT_FALSE(gated.is_complete(3));
}

TEST_P(AttentionContract, CompletionsThatNobodyCouldTrustAreRefused) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  GatedTrial gated(problem, 1);
  const std::vector<kernels::AttendGradArgs> grads = gated.run.grad_args();
  const std::vector<kernels::AttendArgs> blocks = gated.run.attend_args();
  const std::vector<kernels::Completion> completions(block_count);
  kernels::AttendGradBlocks unwatched = gated.list_of(grads);
  unwatched.completions = completions.data();
  EXPECT_THROW((void)kernel->prepare_blocks(unwatched), InternalError);
  kernels::AttendBlocks forward = gated.list_of(blocks);
  forward.completions = completions.data();
  EXPECT_THROW((void)kernel->prepare_blocks(forward), InternalError);
}

TEST_P(AttentionContract, GatesThatNeverOpenEndTheCall) {
  const auto kernel = make();
  const Problem problem(*kernel, type());
  GatedTrial gated(problem, 1);
  std::uint32_t stop = 0, fault = 0;
  gated.watch = {&stop, 0, &fault};
  const auto expect_fault = [&](Reason reason) {
    const auto found = kernels::GateFault::of(fault);
    EXPECT_EQ(found.reason, reason);
    EXPECT_EQ(found.block, 2);
  };
  gated.deliver(1);
  gated.watch.limit_ns = 2'000'000;
  gated.attend(*kernel);
  expect_fault(Reason::late);
  gated.watch.limit_ns = 0;
  gated.grad(*kernel);  // a fault that is there ends every wait
  expect_fault(Reason::late);
  fault = 0;
  std::thread stops([&] { std::atomic_ref(stop).store(1); });
  gated.grad(*kernel);
  stops.join();
  expect_fault(Reason::stopped);
  stop = fault = 0;
  gated.watch.limit_ns = 60'000'000'000;
  GatedTrial next(problem, 1);
  next.watch = gated.watch;
  next.all(*kernel, 1, [&] { next.deliver_all(); });
  EXPECT_EQ(fault, 0U);
  EXPECT_EQ(forward_bits(next.run), forward_bits(problem.ungated));
  EXPECT_EQ(next.run.results().dk, problem.ungated.results().dk);
}

}  // namespace
}  // namespace usp::test
