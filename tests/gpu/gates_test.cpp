// SPDX-License-Identifier: Apache-2.0
#include "../contract/attention_cases.hpp"
#include "gated_trial.hpp"
#include "trial_differences.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>

/// Gates on a GPU. Skipped without one.
namespace usp::test {
namespace {

using Reason = kernels::GateFault::Reason;

/// Causal; tiles are more than multiprocessors, with as many KV heads several times as many.
Case causal_blocks(i64 head_dim, int group) {
  Case c = one_slice("gates", banded(512, 1536, 0, unbounded), head_dim);
  c.slices.front().q_pos = 1024;
  c.query_heads = {0, 40}, c.group = group;
  return c;
}

/// Few tiles, so that a thousand runs take seconds.
Case few_tiles() {
  Case c = one_slice("few tiles", banded(192, 640, 0, unbounded), 64);
  c.slices.front().q_pos = 448;
  c.query_heads = {0, 24}, c.group = 4;
  return c;
}

/// What all blocks at once give: forward by its bits.
struct Truth {
  std::vector<std::byte> o, lse;
  Results results;
};

class Gates : public testing::TestWithParam<const BackendTraits*> {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
    on_.emplace(0);
    stream_.emplace(0);
    memory_ = kernels::make_cuda_memory(*stream_);
    try {
      kernel_ = kernels::factory_of(Backend(*GetParam())).make(*memory_, false);
    } catch (const EnvironmentError& e) {
      GTEST_SKIP() << e.what();
    }
  }
  [[nodiscard]] Truth ungated(const Case& c, const Inputs& in, i64 count) {
    GatedTrial run(c, in, count, *memory_);
    run.poison_results();
    run.attend(*kernel_, false);
    run.delta(*kernel_);
    run.grad(*kernel_, false);
    run.bring_back();
    return {run.host.trial.o.memory(), run.host.trial.lse.memory(), run.host.results()};
  }
  static void expect_equal_forward(const GatedTrial& run, const Truth& truth) {
    EXPECT_EQ(run.fault().reason, Reason::none);
    EXPECT_TRUE(run.host.trial.o.memory() == truth.o);
    EXPECT_TRUE(run.host.trial.lse.memory() == truth.lse);
  }
  void expect_equal(const GatedTrial& run, const Truth& of_all) {
    expect_equal_forward(run, of_all);
    const Results r = run.host.results();
    const Results& truth = of_all.results;
    // Sums by atomic additions differ in their last bits, and rounded ones in those of the input type.
    EXPECT_LT(error(r.dq, truth.dq), 5e-3);
    EXPECT_LT(error(r.dk, truth.dk), 5e-3);
    EXPECT_LT(error(r.dv, truth.dv), 5e-3);
    if (!kernel_->waits_inside(Pass::backward)) return;
    EXPECT_LT(error(r.dq, truth.dq), 1e-5);
    EXPECT_TRUE(r.dk == truth.dk);
    EXPECT_TRUE(r.dv == truth.dv);
  }

  std::optional<device::DeviceScope> on_;
  std::optional<device::CallStream> stream_;
  std::unique_ptr<kernels::Memory> memory_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
};

TEST_P(Gates, BlocksArriveInAnyOrder) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  constexpr i64 count = 4;
  GatedTrial gated(c, in, count, *memory_);
  std::mt19937 random(1);
  std::optional<Truth> truth;  // after a gated call, which thus comes first in the process
  std::uint32_t epoch = 0;
  std::vector<std::size_t> order{1, 2, 3};
  do {
    gated.poison_results();
    gated.begin_pass(++epoch);
    std::thread releases = release_in_order(gated, order, random);
    gated.attend(*kernel_, true);
    gated.delta(*kernel_);
    releases.join();
    gated.begin_pass(++epoch);
    releases = release_in_order(gated, order, random);
    gated.grad(*kernel_, true);
    releases.join();
    gated.bring_back();
    if (!truth) truth = ungated(c, in, count);
    expect_equal(gated, *truth);
  } while (std::next_permutation(order.begin(), order.end()));
}

/// All blocks of a list may be on their way where it goes on with the results of another.
TEST_P(Gates, AListGoesOnWithTheResultsOfAnother) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const auto attend = [&](GatedTrial& run, bool gated) {
    const std::vector<kernels::AttendArgs> blocks = run.attend_args();
    run_once(*kernel_, kernels::AttendBlocks{blocks.data(), 1});
    kernels::AttendBlocks others = run.list_of(blocks, gated);
    ++others.blocks, --others.count;
    if (gated) ++others.gates;
    run_once(*kernel_, others);
    run.bring_back();
  };
  GatedTrial there(c, in, 4, *memory_), arriving(c, in, 4, *memory_);
  attend(there, false);
  std::mt19937 random(3);
  for (std::uint32_t epoch = 1; epoch <= 10; ++epoch) {
    arriving.poison_results();
    arriving.begin_pass(epoch);
    std::thread releases = release_in_order(arriving, {3, 1, 2}, random);
    attend(arriving, true);
    releases.join();
    expect_equal_forward(arriving, {there.host.trial.o.memory(), there.host.trial.lse.memory(), {}});
  }
}

TEST_P(Gates, ResultsDoNotDependOnTheTimeOfArrival) {
  const Case c = causal_blocks(64, 1);
  const Inputs in(c, DType::fp16, DType::fp16);
  constexpr i64 count = 8;
  const Truth truth = ungated(c, in, count);
  constexpr std::uint32_t first = 0xffffffffU - 5;
  GatedTrial gated(c, in, count, *memory_, first);
  std::mt19937 random(2);
  std::vector<std::size_t> order{1, 2, 3, 4, 5, 6, 7};
  const std::vector<kernels::AttendArgs> blocks = gated.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = gated.grad_args();
  const auto forward = kernel_->prepare_blocks(gated.list_of(blocks, true));
  const auto backward = kernel_->prepare_blocks(gated.list_of(grads, true));
  const auto run = [&](std::uint32_t epoch, const auto& call) {
    std::shuffle(order.begin(), order.end(), random);
    gated.begin_pass(epoch);
    std::thread releases = release_in_order(gated, order, random);
    call();
    releases.join();
  };
  // Epochs wrap, and the flags are those of the pass before.
  for (std::uint32_t pass = 0; pass < 20; ++pass) {
    gated.poison_results();
    run(first + 2 * pass, [&] { forward->run(gated.list_of(blocks, true)); });
    gated.delta(*kernel_);
    run(first + 2 * pass + 1, [&] { backward->run(gated.list_of(grads, true)); });
    gated.bring_back();
    pass % 4 == 0 ? expect_equal(gated, truth) : expect_equal_forward(gated, truth);
  }
}

TEST_P(Gates, AThousandOrdersOfArrivalGiveTheSameBits) {
  if (!kernel_->waits_inside(Pass::forward)) GTEST_SKIP() << "it waits on its stream";
  const bool backward_too = kernel_->waits_inside(Pass::backward);
  const Case c = few_tiles();
  const Inputs in(c, DType::bf16, DType::bf16);
  constexpr i64 count = 5;
  GatedTrial truth(c, in, count, *memory_);
  truth.attend(*kernel_, false);
  truth.delta(*kernel_);
  truth.grad(*kernel_, false);
  constexpr std::uint32_t runs = 1000, first = 0xffffffffU - runs;  // epochs wrap on the way
  GatedTrial gated(c, in, count, *memory_, first);
  const std::vector<kernels::AttendArgs> blocks = gated.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = gated.grad_args();
  const auto forward = kernel_->prepare_blocks(gated.list_of(blocks, true));
  const auto backward = kernel_->prepare_blocks(gated.list_of(grads, true));
  TrialDifferences differences(truth, *memory_);
  std::mt19937 random(3);
  std::vector<std::size_t> order{1, 2, 3, 4};
  std::uint32_t epoch = first;
  const auto run = [&](const auto& call) {
    gated.begin_pass(epoch++);
    std::thread releases = release_in_order(gated, order, random);
    call();
    releases.join();
    memory_->synchronize();  // the next pass begins before its blocks are released
  };
  for (std::uint32_t i = 0; i < runs; ++i) {
    std::next_permutation(order.begin(), order.end());
    gated.poison_results();
    run([&] { forward->run(gated.list_of(blocks, true)); });
    gated.delta(*kernel_);
    if (backward_too) run([&] { backward->run(gated.list_of(grads, true)); });
    differences.add(gated, backward_too ? truth.results().size() : GatedTrial::forward_results);
  }
  EXPECT_EQ(gated.fault().reason, Reason::none);
  const std::vector<Difference> found = differences.read();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i != GatedTrial::dq_result)
      EXPECT_EQ(found[i].words, 0U) << "tensor " << i;
    else
      EXPECT_LT(found[i].greatest, 1e-5F);
  }
}

/// The second list, of the next epoch, is enqueued while the first one waits.
TEST_P(Gates, TwoListsInARowShareTheirFlags) {
  const Case c = causal_blocks(64, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = ungated(c, in, 4);
  GatedTrial gated(c, in, 4, *memory_);
  const std::vector<kernels::AttendArgs> blocks = gated.attend_args();
  const auto forward = kernel_->prepare_blocks(gated.list_of(blocks, true));
  gated.begin_pass(1);
  gated.release_all();
  forward->run(gated.list_of(blocks, true));  // nothing is allocated later
  memory_->synchronize();
  gated.poison_results();
  for (const std::uint32_t epoch : {2U, 3U}) {
    gated.begin_pass(epoch);
    forward->run(gated.list_of(blocks, true));
  }
  for (const std::uint32_t epoch : {2U, 3U})
    for (const std::size_t block : {3U, 1U, 2U}) gated.release(block, epoch);
  gated.bring_back();
  expect_equal_forward(gated, truth);
}

TEST_P(Gates, FlagsThatAreSetLetCallsPass) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = ungated(c, in, 4);
  GatedTrial gated(c, in, 4, *memory_);
  gated.begin_pass(1);
  gated.arrive();
  gated.poison_results();
  gated.attend(*kernel_, true);
  gated.delta(*kernel_);
  gated.grad(*kernel_, true);
  gated.bring_back();
  expect_equal(gated, truth);
}

/// dk and dv of a block, as they are when it has been seen complete. Allocates nothing while calls run.
class Snapshot {
 public:
  Snapshot(const GatedTrial& run, std::size_t block) {
    for (const std::size_t i : {GatedTrial::dk_result(block), GatedTrial::dk_result(block) + 1}) {
      sources_.push_back(&run.results()[i]);
      kept_.emplace_back(sources_.back()->bytes()), now_.emplace_back(sources_.back()->bytes());
    }
  }
  void take() { copy_to(kept_); }
  /// Whether they are that still.
  [[nodiscard]] bool is_final() {
    copy_to(now_);
    const auto same = [](const device::PinnedBuffer& a, const device::PinnedBuffer& b) {
      return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
    };
    return std::equal(kept_.begin(), kept_.end(), now_.begin(), same);
  }

 private:
  void copy_to(const std::deque<device::PinnedBuffer>& buffers) {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      device::copy_to_host(buffers[i].data(), sources_[i]->data(), buffers[i].bytes(), stream_.get());
    stream_.synchronize();
  }

  device::Stream stream_{0};
  std::vector<const DeviceCopy*> sources_;
  std::deque<device::PinnedBuffer> kept_, now_;
};

[[nodiscard]] bool comes_true(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return holds();
}

/// Each block but the first goes on its way once the one before has been seen complete. So many claims that a
/// launch works on one block after the other.
TEST_P(Gates, BlocksAreCompleteBeforeLaterOnesArrive) {
  constexpr std::size_t count = 4;
  for (const i64 head_dim : {64, 128}) {
    Case c = causal_blocks(head_dim, 1);
    c.query_heads = {0, 48};
    const Inputs in(c, DType::bf16, DType::bf16);
    GatedTrial gated(c, in, count, *memory_);
    gated.attend(*kernel_, false);
    gated.delta(*kernel_);
    memory_->synchronize();
    const std::vector<kernels::AttendGradArgs> grads = gated.grad_args();
    const auto backward = kernel_->prepare_blocks(gated.list_of(grads, true));
    std::deque<Snapshot> seen;
    for (std::size_t block = 1; block < count; ++block) seen.emplace_back(gated, block);
    gated.await_completions();
    gated.begin_pass(1);
    gated.arrive();
    backward->run(gated.list_of(grads, true));  // every kernel has been launched
    memory_->synchronize();
    for (std::uint32_t epoch = 2; epoch <= 6; ++epoch) {
      gated.poison_results(GatedTrial::dq_result);
      gated.begin_pass(epoch);
      memory_->synchronize();
      gated.await_completions();
      gated.release(1);
      backward->run(gated.list_of(grads, true));
      for (std::size_t block = 1; block < count; ++block) {
        ASSERT_TRUE(comes_true([&] { return gated.is_complete(block); })) << "block " << block;
        seen[block - 1].take();
        if (block + 1 == count) break;
        EXPECT_FALSE(gated.is_complete(block + 1)) << "it has not arrived";
        gated.release(block + 1);
      }
      memory_->synchronize();
      EXPECT_TRUE(gated.is_complete(0));
      EXPECT_EQ(gated.fault().reason, Reason::none);
      for (Snapshot& block : seen) EXPECT_TRUE(block.is_final()) << head_dim << " " << epoch;
    }
  }
}

/// In the end all blocks are complete, few claims, small blocks and those that nothing sees too.
TEST_P(Gates, CallsCompleteAllBlocks) {
  for (const int group : {1, 4})
    for (const i64 head_dim : {64, 128, 192}) {
      Case c = one_slice("few queries", banded(200, 640, 0, unbounded), head_dim);
      c.slices.front().q_pos = 100;
      c.query_heads = {0, 4}, c.group = group;
      const Inputs in(c, DType::bf16, DType::bf16);
      const Truth truth = ungated(c, in, 5);
      GatedTrial gated(c, in, 5, *memory_);
      gated.await_completions();
      gated.poison_results();
      gated.attend(*kernel_, false);
      gated.delta(*kernel_);
      gated.begin_pass(1);
      gated.release_all();
      gated.grad(*kernel_, true);
      gated.bring_back();
      expect_equal(gated, truth);
      for (std::size_t block = 0; block < 5; ++block)
        EXPECT_TRUE(gated.is_complete(block)) << head_dim << " " << group << " " << block;
    }
}

TEST_P(Gates, BlocksThatNeverArriveEndTheCall) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = ungated(c, in, 4);
  GatedTrial gated(c, in, 4, *memory_);
  const std::vector<kernels::AttendArgs> blocks = gated.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = gated.grad_args();
  gated.await_completions();
  const auto forward = kernel_->prepare_blocks(gated.list_of(blocks, true));
  const auto backward = kernel_->prepare_blocks(gated.list_of(grads, true));
  std::uint32_t epoch = 0;
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Reason reason : {Reason::late, Reason::stopped}) {
      gated.begin_pass(++epoch, 2);
      gated.release(1), gated.release(3);
      gated.watch.limit_ns = reason == Reason::late ? 5'000'000 : gate_limit_ns;
      std::thread stops([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        if (reason == Reason::stopped) gated.set_stop(1);
      });
      const auto begin = std::chrono::steady_clock::now();
      pass == Pass::forward ? forward->run(gated.list_of(blocks, true))
                            : backward->run(gated.list_of(grads, true));
      memory_->synchronize();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      stops.join();
      RecordProperty((pass == Pass::forward ? "forward_" : "backward_") +
                         std::string(reason == Reason::late ? "late_ms" : "stopped_ms"),
                     std::to_string(took.count()));
      EXPECT_EQ(gated.fault().reason, reason);
      EXPECT_EQ(gated.fault().block, 2);
      EXPECT_FALSE(gated.is_complete(2)) << "it never arrived";
      gated.set_stop(0), gated.clear_fault();
    }
  gated.watch.limit_ns = gate_limit_ns;
  gated.poison_results();
  gated.begin_pass(++epoch);
  gated.release_all();
  forward->run(gated.list_of(blocks, true));
  gated.delta(*kernel_);
  backward->run(gated.list_of(grads, true));
  gated.bring_back();
  expect_equal(gated, truth);
}

TEST_P(Gates, KernelsWaitInsideAsTheirRecordSays) {
  for (const Pass pass : {Pass::forward, Pass::backward})
    EXPECT_EQ(kernel_->waits_inside(pass), Backend(*GetParam()).of(pass)->waits_inside);
}

std::string name_of(const testing::TestParamInfo<const BackendTraits*>& info) {
  return std::string(info.param->word);
}
INSTANTIATE_TEST_SUITE_P(Backends, Gates,
                         testing::Values(&hopper_traits, &mma_traits, &cudnn_traits, &hopper_cudnn_traits),
                         name_of);

}  // namespace
}  // namespace usp::test
