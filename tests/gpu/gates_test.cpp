// SPDX-License-Identifier: Apache-2.0
#include "../contract/block_trial.hpp"
#include "device_problem.hpp"

#include "usp/base/error.hpp"
#include "usp/device/driver.cuda.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cudaTypedefs.h>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <thread>

/// Lists whose blocks of keys arrive on a GPU during the call. There is one GPU: copies from page-locked
/// memory stand for those from peers. Skipped without a GPU.
namespace usp::test {
namespace {

using Reason = kernels::GateFault::Reason;
using Words = std::uint32_t*;

/// Flags of different blocks do not share a sector.
constexpr std::size_t flag_stride = 8;
constexpr std::int64_t limit_ns = 20'000'000'000;

/// One of the trial's tensors on the device.
class DeviceCopy {
 public:
  DeviceCopy(const kernels::View& host, kernels::Memory& memory)
      : host_(host), memory_(memory), arena_(memory.make_arena()) {
    arena_->reserve(bytes());
    memory.from_host(arena_->data(), host.data, bytes());
  }
  template <class V>
  [[nodiscard]] V of(V view) const {
    view.data = arena_->data();
    return view;
  }
  void poison() { memory_.set_bytes(arena_->data(), 0xff, bytes()); }
  /// To the host's tensor, in stream order.
  void bring_back() { memory_.to_host(host_.data, arena_->data(), bytes()); }
  [[nodiscard]] std::byte* data() const { return arena_->data(); }
  [[nodiscard]] i64 bytes() const { return host_.elements() * bytes_of(host_.type); }

 private:
  kernels::View host_;
  kernels::Memory& memory_;
  std::unique_ptr<kernels::Arena> arena_;
};

/// A trial on the device whose blocks but the first hold NaN until they arrive: a stream of each waits for a
/// word of the host, copies, and sets the flag. Words and flags hold the epoch of the last pass.
class DeviceTrial {
 public:
  DeviceTrial(const Case& c, const Inputs& in, i64 count, kernels::Memory& memory,
              std::uint32_t first_epoch = 1)
      : host(c, in, even_blocks(c.k_rows, count), true),
        memory_(memory),
        flags_(0, count * static_cast<i64>(flag_stride * sizeof(std::uint32_t))),
        words_(static_cast<i64>((static_cast<std::size_t>(count) + 2) * sizeof(std::uint32_t))),
        gates_(static_cast<std::size_t>(count)),
        call_end_(0) {
    Trial& t = host.trial;
    for (Tensor4* x : {&t.o, &t.lse, &t.delta, &t.dq}) results_.emplace_back(x->view(), memory);
    q_.emplace(in.q.view(), memory), d_o_.emplace(in.d_o.view(), memory);
    for (const kernels::AttendGradArgs& a : host.grad_args()) {
      results_.emplace_back(a.dk, memory), results_.emplace_back(a.dv, memory);
      const std::size_t block = keys_.size() / 2;
      for (const Tensor4* x : host.arriving(block)) {
        keys_.emplace_back(x->view(), memory);
        sources_.emplace_back(keys_.back().bytes());
        std::memcpy(sources_.back().data(), x->memory().data(), x->memory().size());
      }
      if (block > 0) gates_[block].flag = flag(block);
      copies_.emplace_back(0);
    }
    std::fill_n(words(), static_cast<std::size_t>(count), first_epoch - 1);
    words()[count] = words()[count + 1] = 0;
    const std::vector<std::uint32_t> flags(static_cast<std::size_t>(count) * flag_stride, first_epoch - 1);
    memory.from_host(flags_.data(), flags.data(), flags_.bytes());
    watch = {words() + count, limit_ns, words() + count + 1};
    memory.synchronize();
  }
  ~DeviceTrial() {
    release_all();
    for (const device::Stream& stream : copies_) stream.synchronize();
  }
  DeviceTrial(const DeviceTrial&) = delete;
  DeviceTrial& operator=(const DeviceTrial&) = delete;

  /// The blocks go, and are on their way once more, behind the calls before. What opens the gates is enqueued
  /// before the call, all but the stores of release(). Nothing is enqueued for the block that is `lost`.
  void begin_pass(std::uint32_t epoch, std::size_t lost = 0) {
    for (std::size_t i = 2; i < keys_.size(); ++i) keys_[i].poison();
    call_end_.record(memory_.stream());
    const auto wait = device::driver_call<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
    const auto write = device::driver_call<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
    for (std::size_t block = 1; block < gates_.size(); ++block) {
      gates_[block].value = epoch;
      if (block == lost) continue;
      const device::StreamHandle stream = copies_[block].get();
      device::wait_for(stream, call_end_.get());
      device::check_driver(wait(stream, address_of(words() + block), epoch, CU_STREAM_WAIT_VALUE_GEQ),
                           "cuStreamWaitValue32");
      for (const std::size_t i : {2 * block, 2 * block + 1})
        device::copy_to_device(keys_[i].data(), sources_[i].data(), keys_[i].bytes(), stream);
      device::check_driver(write(stream, address_of(flag(block)), epoch, CU_STREAM_WRITE_VALUE_DEFAULT),
                           "cuStreamWriteValue32");
    }
  }
  /// Lets a block go on its way.
  void release(std::size_t block) {
    std::atomic_ref(words()[block]).store(gates_[block].value, std::memory_order_release);
  }
  void release_all() {
    for (std::size_t block = 1; block < gates_.size(); ++block) release(block);
  }
  /// Blocks until the blocks of this pass have arrived.
  void arrive() {
    release_all();
    for (const device::Stream& stream : copies_) stream.synchronize();
  }

  [[nodiscard]] std::vector<kernels::AttendArgs> attend_args() const {
    std::vector<kernels::AttendArgs> list = host.attend_args();
    for (std::size_t i = 0; i < list.size(); ++i) {
      kernels::AttendArgs& a = list[i];
      a.q = q_->of(a.q), a.k = keys_[2 * i].of(a.k), a.v = keys_[2 * i + 1].of(a.v);
      a.o = results_[0].of(a.o), a.lse = results_[1].of(a.lse);
    }
    return list;
  }
  [[nodiscard]] std::vector<kernels::AttendGradArgs> grad_args() const {
    std::vector<kernels::AttendGradArgs> list = host.grad_args();
    for (std::size_t i = 0; i < list.size(); ++i) {
      kernels::AttendGradArgs& a = list[i];
      a.q = q_->of(a.q), a.k = keys_[2 * i].of(a.k), a.v = keys_[2 * i + 1].of(a.v);
      a.d_o = d_o_->of(a.d_o), a.o = results_[0].of(a.o), a.lse = results_[1].of(a.lse);
      a.delta = results_[2].of(a.delta), a.dq = results_[3].of(a.dq);
      a.dk = results_[4 + 2 * i].of(a.dk), a.dv = results_[5 + 2 * i].of(a.dv);
    }
    return list;
  }
  template <class Args>
  [[nodiscard]] kernels::BlockList<Args> list_of(const std::vector<Args>& blocks, bool gated) const {
    return {blocks.data(), static_cast<i64>(blocks.size()), gated ? gates_.data() : nullptr, watch};
  }
  void attend(kernels::AttentionKernel& kernel, bool gated) {
    const std::vector<kernels::AttendArgs> blocks = attend_args();
    run_once(kernel, list_of(blocks, gated));
  }
  void delta(kernels::AttentionKernel& kernel) {
    const kernels::AttendGradArgs a = grad_args().front();
    kernel.delta({a.d_o, a.o, a.lse, results_[2].of(host.trial.delta.view()), host.trial.c.query_heads,
                  nullptr, nullptr});
  }
  void grad(kernels::AttentionKernel& kernel, bool gated) {
    const std::vector<kernels::AttendGradArgs> blocks = grad_args();
    run_once(kernel, list_of(blocks, gated));
  }
  void poison_results() {
    for (DeviceCopy& x : results_) x.poison();
  }
  /// After all calls; the trial on the host then holds the results.
  void bring_back() {
    for (DeviceCopy& x : results_) x.bring_back();
    memory_.synchronize();
  }
  [[nodiscard]] kernels::GateFault fault() const {
    return kernels::GateFault::of(std::atomic_ref(*watch.fault).load());
  }
  void set_stop(std::uint32_t value) { std::atomic_ref(*const_cast<Words>(watch.stop)).store(value); }
  void clear_fault() { std::atomic_ref(*watch.fault).store(0); }

  BlockTrial host;
  kernels::GateWatch watch;

 private:
  [[nodiscard]] Words words() const { return reinterpret_cast<Words>(words_.data()); }
  [[nodiscard]] Words flag(std::size_t block) const {
    return reinterpret_cast<Words>(flags_.data()) + flag_stride * block;
  }
  [[nodiscard]] static CUdeviceptr address_of(const std::uint32_t* word) {
    return reinterpret_cast<CUdeviceptr>(word);
  }

  kernels::Memory& memory_;
  device::DeviceBuffer flags_;
  device::PinnedBuffer words_;  ///< by block: it may go; then stop and fault
  std::vector<kernels::Gate> gates_;
  std::deque<DeviceCopy> results_, keys_;  ///< o, lse, delta, dq, then dk and dv; k and v by block
  std::optional<DeviceCopy> q_, d_o_;
  std::deque<device::PinnedBuffer> sources_;  ///< as keys_
  std::deque<device::Stream> copies_;         ///< by block
  device::Event call_end_;
};

/// Causal; tiles are more than multiprocessors, with as many KV heads several times as many.
Case causal_blocks(i64 head_dim, int group) {
  Case c = one_slice("gates", banded(512, 1536, 0, unbounded), head_dim);
  c.slices.front().q_pos = 1024;
  c.query_heads = {0, 40}, c.group = group;
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
    DeviceTrial run(c, in, count, *memory_);
    run.poison_results();
    run.attend(*kernel_, false);
    run.delta(*kernel_);
    run.grad(*kernel_, false);
    run.bring_back();
    return {run.host.trial.o.memory(), run.host.trial.lse.memory(), run.host.results()};
  }
  static void expect_equal_forward(const DeviceTrial& run, const Truth& truth) {
    EXPECT_EQ(run.fault().reason, Reason::none);
    EXPECT_TRUE(run.host.trial.o.memory() == truth.o);
    EXPECT_TRUE(run.host.trial.lse.memory() == truth.lse);
  }
  void expect_equal(const DeviceTrial& run, const Truth& of_all) {
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

/// Releases blocks in an order, after a time each.
std::thread release_in_order(DeviceTrial& run, std::vector<std::size_t> order, std::mt19937& random) {
  std::vector<int> delays;
  for (std::size_t i = 0; i < order.size(); ++i) delays.push_back(static_cast<int>(random() % 300));
  return std::thread([&run, order = std::move(order), delays = std::move(delays)] {
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(delays[i]));
      run.release(order[i]);
    }
  });
}

TEST_P(Gates, BlocksArriveInAnyOrder) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  constexpr i64 count = 4;
  DeviceTrial gated(c, in, count, *memory_);
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

TEST_P(Gates, ResultsDoNotDependOnTheTimeOfArrival) {
  const Case c = causal_blocks(64, 1);
  const Inputs in(c, DType::fp16, DType::fp16);
  constexpr i64 count = 8;
  const Truth truth = ungated(c, in, count);
  constexpr std::uint32_t first = 0xffffffffU - 5;
  DeviceTrial gated(c, in, count, *memory_, first);
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

TEST_P(Gates, FlagsThatAreSetLetCallsPass) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = ungated(c, in, 4);
  DeviceTrial gated(c, in, 4, *memory_);
  gated.begin_pass(1);
  gated.arrive();
  gated.poison_results();
  gated.attend(*kernel_, true);
  gated.delta(*kernel_);
  gated.grad(*kernel_, true);
  gated.bring_back();
  expect_equal(gated, truth);
}

TEST_P(Gates, BlocksThatNeverArriveEndTheCall) {
  const Case c = causal_blocks(128, 4);
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = ungated(c, in, 4);
  DeviceTrial gated(c, in, 4, *memory_);
  const std::vector<kernels::AttendArgs> blocks = gated.attend_args();
  const std::vector<kernels::AttendGradArgs> grads = gated.grad_args();
  const auto forward = kernel_->prepare_blocks(gated.list_of(blocks, true));
  const auto backward = kernel_->prepare_blocks(gated.list_of(grads, true));
  std::uint32_t epoch = 0;
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Reason reason : {Reason::late, Reason::stopped}) {
      gated.begin_pass(++epoch, 2);
      gated.release(1), gated.release(3);
      gated.watch.limit_ns = reason == Reason::late ? 5'000'000 : limit_ns;
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
      gated.set_stop(0), gated.clear_fault();
    }
  gated.watch.limit_ns = limit_ns;
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
