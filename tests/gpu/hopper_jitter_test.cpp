// SPDX-License-Identifier: Apache-2.0
#include "../contract/attention_cases.hpp"
#include "hopper_fixture.hpp"
#include "tile_rows.hpp"
#include "trial_differences.hpp"

#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

/// The hopper kernels of this program sleep before every operation on a barrier (jitter() of ptx.cuh), so
/// that their warps meet in another order at every run: an order that is not enforced shows as other bits.
namespace usp::test {
namespace {

constexpr int runs = 200;
constexpr i64 blocks_of_keys = 3;

/// Padded head dims: each has kernels of its own.
struct HeadDims {
  i64 qk, v;
};

class HopperJitter : public OnHopper<testing::TestWithParam<HeadDims>> {
 protected:
  /// Forward, delta and backward, once.
  static void run_all(kernels::AttentionKernel& kernel, GatedTrial& trial) {
    trial.poison_results();
    trial.attend(kernel, false);
    trial.delta(kernel);
    trial.grad(kernel, false);
  }
  void expect_repeats(const Case& c, const Inputs& in);
  void repeat(kernels::AttentionKernel& kernel, GatedTrial& trial, TrialDifferences& differences);
  void repeat_gated(kernels::AttentionKernel& kernel, GatedTrial& trial, TrialDifferences& differences);

 private:
  std::uint32_t epoch_ = 0;  ///< of the trial's last pass behind gates
};

void expect_close(const Results& a, const Results& b) {
  constexpr double limit = 1e-2;
  EXPECT_LT(error(a.o, b.o), limit) << "o";
  EXPECT_LT(error(a.lse, b.lse), limit) << "lse";
  EXPECT_LT(error(a.dq, b.dq), limit) << "dq";
  EXPECT_LT(error(a.dk, b.dk), limit) << "dk";
  EXPECT_LT(error(a.dv, b.dv), limit) << "dv";
}

void HopperJitter::repeat(kernels::AttentionKernel& kernel, GatedTrial& trial,
                          TrialDifferences& differences) {
  const std::vector<kernels::AttendArgs> blocks = trial.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = trial.grad_args();
  const auto forward = kernel.prepare_blocks(trial.list_of(blocks, false));
  const auto backward = kernel.prepare_blocks(trial.list_of(grads, false));
  for (int run = 0; run < runs; ++run) {
    trial.poison_results();
    forward->run(trial.list_of(blocks, false));
    trial.delta(kernel);
    backward->run(trial.list_of(grads, false));
    differences.add(trial);
  }
}

/// Blocks are released in another order, after other times, in every run.
void HopperJitter::repeat_gated(kernels::AttentionKernel& kernel, GatedTrial& trial,
                                TrialDifferences& differences) {
  const std::vector<kernels::AttendArgs> blocks = trial.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = trial.grad_args();
  const auto forward = kernel.prepare_blocks(trial.list_of(blocks, true));
  const auto backward = kernel.prepare_blocks(trial.list_of(grads, true));
  std::mt19937 random(1);
  std::vector<std::size_t> order(blocks.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{1});
  const auto run_gated = [&](const auto& call) {
    std::shuffle(order.begin(), order.end(), random);
    trial.begin_pass(++epoch_);
    std::thread releases = release_in_order(trial, order, random);
    call();
    releases.join();
    memory_->synchronize();
  };
  for (int run = 0; run < runs; ++run) {
    trial.poison_results();
    run_gated([&] { forward->run(trial.list_of(blocks, true)); });
    trial.delta(kernel);
    run_gated([&] { backward->run(trial.list_of(grads, true)); });
    differences.add(trial);
  }
  EXPECT_EQ(trial.fault().reason, kernels::GateFault::Reason::none);
}

[[nodiscard]] double greatest(const std::vector<double>& values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::abs(x));
  return most;
}

void HopperJitter::expect_repeats(const Case& c, const Inputs& in) {
  SCOPED_TRACE(c.name);
  GatedTrial truth(c, in, blocks_of_keys, *memory_), trial(c, in, blocks_of_keys, *memory_);
  run_all(*make(Backend::mma, false), trial);
  trial.bring_back();
  const Results mma = trial.host.results();
  truth.host.trial.use = trial.host.trial.use = Backend::hopper;
  for (const bool deterministic : {true, false}) {
    const bool adds_dq = !deterministic && kernels::hopper::grad_tile(c.dqk, c.dv, c.softcap != 0).adds_dq();
    if (!deterministic && !adds_dq) continue;  // the same launches
    SCOPED_TRACE(deterministic ? "deterministic" : "dQ by atomics");
    const auto kernel = make(Backend::hopper, deterministic);
    run_all(*kernel, truth);
    truth.bring_back();
    const Results first = truth.host.results();
    expect_close(first, mma);
    TrialDifferences differences(truth, *memory_);
    repeat(*kernel, trial, differences);
    repeat_gated(*kernel, trial, differences);
    EXPECT_TRUE(kernel->fallbacks().empty());
    const std::vector<Difference> found = differences.read();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i != GatedTrial::dq_result || !adds_dq)
        EXPECT_EQ(found[i].words, 0U) << "tensor " << i;
      else
        EXPECT_LT(static_cast<double>(found[i].greatest), 1e-5 * greatest(first.dq));
    }
  }
}

/// Several tiles of each claim, several claims of each block of threads, tails of every kind.
Case causal(const HeadDims& dims) {
  Case c = one_slice("causal", banded(200, 800, 0, unbounded), dims.qk);
  c.dv = dims.v;
  c.slices.front().q_pos = 600;
  c.query_heads = {0, 80}, c.group = 4;
  return c;
}

TEST_P(HopperJitter, CausalBlocksRepeat) {
  const Case c = causal(GetParam());
  expect_repeats(c, Inputs(c, DType::bf16, DType::bf16));
}

/// Packed documents, some of them shorter than a tile, and windows.
TEST_P(HopperJitter, DocumentsRepeat) {
  Case c = one_slice("documents", rectangle(640, 640), GetParam().qk);
  c.dv = GetParam().v;
  c.query_heads = {0, 48}, c.group = 2;
  c.slices.clear();
  for (i64 at = 0, n = 5; at < c.q_rows; at += n, n = n * 7 % 211 + 3) {
    n = std::min(n, c.q_rows - at);
    schedule::Slice s = banded(n, n, 0, n % 2 == 0 ? 40 : unbounded);
    s.q_row = s.q_pos = s.k_row = s.k_pos = s.dk_row = at;
    c.slices.push_back(s);
  }
  expect_repeats(c, Inputs(c, DType::fp16, DType::fp16));
}

TEST_P(HopperJitter, CappedBlocksRepeat) {
  Case c = causal(GetParam());
  c.softcap = 3;
  expect_repeats(c, Inputs(c, DType::bf16, DType::bf16));
}

std::string name_of(const testing::TestParamInfo<HeadDims>& info) {
  return std::to_string(info.param.qk) + "_" + std::to_string(info.param.v);
}
INSTANTIATE_TEST_SUITE_P(HeadDims, HopperJitter,
                         testing::Values(HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{192, 128},
                                         HeadDims{256, 256}),
                         name_of);

}  // namespace
}  // namespace usp::test
