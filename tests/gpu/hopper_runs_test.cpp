// SPDX-License-Identifier: Apache-2.0
#include "cuda_graph.hpp"
#include "hopper_fixture.hpp"
#include "random_cases.hpp"
#include "trial_differences.hpp"

#include "usp/kernels/backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

/// Many launches of the hopper kernels: none hangs, and none leaves a counter that another one trips over.
namespace usp::test {
namespace {

/// A launch that has not ended by then never will. Nothing could be cleaned up behind it: the program ends.
constexpr std::chrono::seconds launch_limit{30};
void await_launch(const device::Event& end, const std::string& name) {
  const auto begin = std::chrono::steady_clock::now();
  while (!end.reached()) {
    if (std::chrono::steady_clock::now() - begin < launch_limit) continue;
    std::fprintf(stderr, "%s did not end within %d s\n", name.c_str(),
                 static_cast<int>(launch_limit.count()));
    std::_Exit(1);
  }
}

/// Memory of a GPU that calls share, one after the other.
class Slab {
 public:
  Slab(kernels::Memory& memory, i64 bytes) : memory_(memory), buffer_(0, bytes) {}
  /// 16-bit numbers around zero, the same for both types of 16 bits as far as it matters.
  void randomize() {
    const Tensor4 noise = [] {
      Tensor4 t(DType::bf16, 1, 1, {0, 1}, i64{1} << 20);
      std::mt19937 random(1);
      std::normal_distribution<double> normal;
      std::vector<double> values(static_cast<std::size_t>(t.view().width));
      for (double& x : values) x = normal(random);
      t.set(values);
      return t;
    }();
    const i64 bytes = static_cast<i64>(noise.memory().size());
    for (i64 at = 0; at + bytes <= buffer_.bytes(); at += bytes)
      memory_.from_host(buffer_.data() + at, noise.memory().data(), bytes);
    memory_.synchronize();
  }
  void clear() { used_ = 0; }
  [[nodiscard]] kernels::View view(DType type, i64 batch, i64 rows, Range heads, i64 width) {
    kernels::View v(buffer_.data() + used_, type, batch, rows, heads, width);
    used_ += (v.elements() * bytes_of(type) + 255) / 256 * 256;
    if (used_ > buffer_.bytes()) throw InternalError("the slab is too small");
    return v;
  }
  /// What is in use becomes NaN.
  void poison() { memory_.set_bytes(buffer_.data(), 0xff, used_); }

 private:
  kernels::Memory& memory_;
  device::DeviceBuffer buffer_;
  i64 used_ = 0;
};

/// A drawn case without what hopper leaves to another backend.
Draw hopper_draw(std::uint64_t seed) {
  Draw d = random_draw(seed);
  Case& c = d.problem;
  c.dropout = 0;
  c.alibi = c.sink = false;
  c.blocks = {};
  for (i64* width : {&c.dqk, &c.dv}) *width = (*width + 7) / 8 * 8;
  d.d_o = d.io;
  return d;
}

/// A case, its keys in one list of blocks, in memory of two slabs.
class DrawnCall {
 public:
  DrawnCall(const Draw& draw, i64 blocks, Slab& inputs, Slab& results)
      : draw_(draw), terms_(draw.problem), results_(results) {
    const Case& c = draw.problem;
    inputs.clear(), results.clear();
    const kernels::View q = inputs.view(draw.io, c.batch, c.q_rows, c.query_heads, c.dqk);
    const kernels::View d_o = inputs.view(draw.io, c.batch, c.q_rows, c.query_heads, c.dv);
    o_ = results.view(DType::fp32, c.batch, c.q_rows, c.query_heads, c.dv);
    lse_ = results.view(DType::fp32, c.batch, c.q_rows, c.query_heads, 1);
    delta_ = results.view(DType::fp32, c.batch, c.q_rows, c.query_heads, 1);
    const kernels::View dq = results.view(DType::fp32, c.batch, c.q_rows, c.query_heads, c.dqk);
    slices_.reserve(static_cast<std::size_t>(blocks));
    for (const Range& rows : even_blocks(c.k_rows, blocks)) {
      std::vector<schedule::Slice>& slices = slices_.emplace_back();
      for (const schedule::Slice& s : c.slices)
        if (const schedule::Slice part = part_of_slice(s, rows); part.k_count > 0) slices.push_back(part);
      kernels::AttendArgs a;
      a.q = q, a.o = o_, a.lse = lse_;
      a.k = inputs.view(draw.io, c.batch, rows.size(), c.kv_heads(), c.dqk);
      a.v = inputs.view(draw.io, c.batch, rows.size(), c.kv_heads(), c.dv);
      a.scope = {c.query_heads, c.group, slices.data(),  static_cast<i64>(slices.size()),
                 &terms_.terms, {},      Backend::hopper};
      a.overwrite = attend_.empty();
      attend_.push_back(a);
      kernels::AttendGradArgs g;
      g.q = q, g.k = a.k, g.v = a.v, g.d_o = d_o, g.lse = lse_, g.delta = delta_, g.dq = dq, g.o = o_;
      g.dk = results.view(DType::fp32, c.batch, c.grad_rows(), c.kv_heads(), c.dqk);
      g.dv = results.view(DType::fp32, c.batch, c.grad_rows(), c.kv_heads(), c.dv);
      g.scope = a.scope, g.overwrite = a.overwrite, g.overwrite_dkv = true;
      grads_.push_back(g);
    }
  }
  [[nodiscard]] kernels::AttendBlocks attend(const kernels::Gate* gates) const {
    return {attend_.data(), static_cast<i64>(attend_.size()), gates, {}};
  }
  [[nodiscard]] kernels::AttendGradBlocks grad(const kernels::Gate* gates) const {
    return {grads_.data(), static_cast<i64>(grads_.size()), gates, {}};
  }
  [[nodiscard]] kernels::DeltaArgs delta() const {
    return {grads_.front().d_o, o_, lse_, delta_, draw_.problem.query_heads, nullptr, nullptr};
  }
  void poison() { results_.poison(); }
  [[nodiscard]] std::string text() const {
    return draw_.text() + ", " + std::to_string(attend_.size()) + " blocks";
  }

 private:
  const Draw& draw_;
  Terms terms_;
  Slab& results_;
  kernels::View o_, lse_, delta_;
  std::vector<std::vector<schedule::Slice>> slices_;
  std::vector<kernels::AttendArgs> attend_;
  std::vector<kernels::AttendGradArgs> grads_;
};

/// Flags that a stream of their own sets, in any order, while the call they belong to is on its way.
class RacingGates {
 public:
  explicit RacingGates(kernels::Memory& memory) : flags_(0, most * stride), setter_(0) {
    memory.set_bytes(flags_.data(), 0, flags_.bytes());
    memory.synchronize();
    for (std::size_t i = 0; i < most; ++i)
      gates_[i].flag = reinterpret_cast<const std::uint32_t*>(flags_.data() + stride * static_cast<i64>(i));
  }
  ~RacingGates() { setter_.synchronize(); }
  RacingGates(const RacingGates&) = delete;
  RacingGates& operator=(const RacingGates&) = delete;
  /// Gates of the next call; they open soon.
  [[nodiscard]] const kernels::Gate* begin(std::size_t count, std::mt19937& random) {
    ++epoch_;
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i, gates_[i].value = epoch_;
    std::shuffle(order.begin(), order.end(), random);
    const auto write = device::driver_call<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
    for (const std::size_t i : order)
      device::check_driver(write(setter_.get(), reinterpret_cast<CUdeviceptr>(gates_[i].flag), epoch_,
                                 CU_STREAM_WRITE_VALUE_DEFAULT),
                           "cuStreamWriteValue32");
    return gates_.data();
  }

 private:
  static constexpr std::size_t most = 16;
  static constexpr i64 stride = 32;
  device::DeviceBuffer flags_;
  device::Stream setter_;
  std::array<kernels::Gate, most> gates_{};
  std::uint32_t epoch_ = 0;
};

class HopperRuns : public OnHopper<testing::Test> {
 protected:
  /// What is enqueued ends within the limit.
  void await(const std::string& name) const {
    const device::Event end(0);
    end.record(memory_->stream());
    await_launch(end, name);
  }
};

/// Bands, windows, stripes, packed documents; lists of one block and more, gated or not; both backwards.
TEST_F(HopperRuns, TenThousandLaunchesEnd) {
  constexpr int launches = 10000;
  Slab inputs(*memory_, i64{64} << 20), results(*memory_, i64{256} << 20);
  inputs.randomize();
  RacingGates racing(*memory_);
  const auto atomic = make(Backend::hopper, false), fixed = make(Backend::hopper, true);
  std::mt19937 random(1);
  int done = 0;
  for (std::uint64_t seed = 1; done < launches; ++seed) {
    const Draw draw = hopper_draw(seed);
    const std::size_t blocks = random() % 3 == 0 ? 1 : 1 + random() % 8;
    DrawnCall call(draw, static_cast<i64>(blocks), inputs, results);
    kernels::AttentionKernel& kernel = draw.deterministic ? *fixed : *atomic;
    const bool gated = random() % 2 == 0;
    const kernels::Gate* gates = gated ? racing.begin(blocks, random) : nullptr;
    const auto forward = kernel.prepare_blocks(call.attend(gates));
    const auto backward = kernel.prepare_blocks(call.grad(gates));
    call.poison();
    for (int again = 0; again < 2; ++again, done += 2) {
      if (gated) gates = racing.begin(blocks, random);
      forward->run(call.attend(gates));
      await("forward of " + call.text() + (gated ? ", gated" : ""));
      kernel.delta(call.delta());
      if (gated) gates = racing.begin(blocks, random);
      backward->run(call.grad(gates));
      await("backward of " + call.text() + (gated ? ", gated" : ""));
    }
  }
  EXPECT_TRUE(atomic->fallbacks().empty());
  EXPECT_TRUE(fixed->fallbacks().empty());
}

Case causal(int heads) {
  Case c = one_slice("causal", banded(300, 900, 0, unbounded), 128);
  c.slices.front().q_pos = 600;
  c.query_heads = {0, heads}, c.group = 4;
  return c;
}

/// The counter of claims is part of the graph.
TEST_F(HopperRuns, GraphsReplay) {
  constexpr int replays = 1000;
  const Case c = causal(64);
  const Inputs in(c, DType::bf16, DType::bf16);
  GatedTrial truth(c, in, 3, *memory_), run(c, in, 3, *memory_);
  const auto kernel = make(Backend::hopper, true);
  const std::vector<kernels::AttendArgs> blocks = run.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = run.grad_args();
  const auto forward = kernel->prepare_blocks(run.list_of(blocks, false));
  const auto backward = kernel->prepare_blocks(run.list_of(grads, false));
  const auto all = [&] {
    forward->run(run.list_of(blocks, false));
    run.delta(*kernel);
    backward->run(run.list_of(grads, false));
  };
  all();
  truth.attend(*kernel, false);
  truth.delta(*kernel);
  truth.grad(*kernel, false);
  const Graph graph(*stream_, all);
  TrialDifferences differences(truth, *memory_);
  for (int replay = 0; replay < replays; ++replay) {
    run.poison_results();
    graph.replay(*stream_);
    if (replay % 100 == 50) all();  // an eager call between replays
    differences.add(run);
    if (replay % 10 == 0) await("replay " + std::to_string(replay));
  }
  await("the last replay");
  for (const Difference& d : differences.read()) EXPECT_EQ(d.words, 0U);
}

/// Each kernel claims by a counter of its own.
TEST_F(HopperRuns, KernelsOfTwoStreamsDoNotMeet) {
  constexpr int rounds = 300;
  struct Side {
    explicit Side(int heads)
        : stream(0),
          memory(kernels::make_cuda_memory(stream)),
          kernel(kernels::factory_of(Backend::hopper).make(*memory, true)),
          c(causal(heads)),
          in(c, DType::bf16, DType::bf16),
          truth(c, in, 2, *memory),
          run(c, in, 2, *memory),
          differences(truth, *memory),
          blocks(run.attend_args()),
          grads(run.grad_args()),
          forward(kernel->prepare_blocks(run.list_of(blocks, false))),
          backward(kernel->prepare_blocks(run.list_of(grads, false))) {
      truth.attend(*kernel, false);
      truth.delta(*kernel);
      truth.grad(*kernel, false);
      memory->synchronize();
    }
    void enqueue() {
      run.poison_results();
      forward->run(run.list_of(blocks, false));
      run.delta(*kernel);
      backward->run(run.list_of(grads, false));
      differences.add(run);
    }
    device::CallStream stream;
    std::unique_ptr<kernels::Memory> memory;
    std::unique_ptr<kernels::AttentionKernel> kernel;
    Case c;
    Inputs in;
    GatedTrial truth, run;
    TrialDifferences differences;
    std::vector<kernels::AttendArgs> blocks;
    std::vector<kernels::AttendGradArgs> grads;
    std::unique_ptr<kernels::PreparedAttendBlocks> forward;
    std::unique_ptr<kernels::PreparedAttendGradBlocks> backward;
  };
  Side one(16), other(40);
  const device::Event end(0);
  for (int round = 0; round < rounds; ++round) {
    one.enqueue();
    other.enqueue();
    if (round % 10 != 0) continue;
    for (Side* side : {&one, &other}) {
      end.record(side->memory->stream());
      await_launch(end, "round " + std::to_string(round));
    }
  }
  for (Side* side : {&one, &other})
    for (const Difference& d : side->differences.read()) EXPECT_EQ(d.words, 0U);
}

}  // namespace
}  // namespace usp::test
