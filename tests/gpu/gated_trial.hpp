// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../contract/block_trial.hpp"

#include "usp/device/device.hpp"
#include "usp/device/driver.cuda.hpp"
#include "usp/kernels/memory.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <cudaTypedefs.h>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

/// Lists whose blocks of keys arrive on a GPU during the call. There is one GPU: copies from page-locked
/// memory stand for those from peers.
namespace usp::test {

inline constexpr std::int64_t gate_limit_ns = 20'000'000'000;

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
class GatedTrial {
 public:
  GatedTrial(const Case& c, const Inputs& in, i64 count, kernels::Memory& memory,
             std::uint32_t first_epoch = 1)
      : host(c, in, even_blocks(c.k_rows, count), true),
        memory_(memory),
        flags_(0, count * static_cast<i64>(flag_stride * sizeof(std::uint32_t))),
        words_(static_cast<i64>((2 * static_cast<std::size_t>(count) + 2) * sizeof(std::uint32_t))),
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
    for (i64 i = 0; i < count; ++i) completions_.push_back({words() + count + 2 + i, 0});
    const std::vector<std::uint32_t> flags(static_cast<std::size_t>(count) * flag_stride, first_epoch - 1);
    memory.from_host(flags_.data(), flags.data(), flags_.bytes());
    watch = {words() + count, gate_limit_ns, words() + count + 1};
    memory.synchronize();
  }
  ~GatedTrial() {
    release_all();
    for (const device::Stream& stream : copies_) stream.synchronize();
  }
  GatedTrial(const GatedTrial&) = delete;
  GatedTrial& operator=(const GatedTrial&) = delete;

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
  /// The next backward passes say which blocks are complete.
  void await_completions() {
    for (kernels::Completion& c : completions_) *c.flag = 0, c.value = 1;
    awaits_completions_ = true;
  }
  [[nodiscard]] bool is_complete(std::size_t block) {
    return std::atomic_ref(*completions_[block].flag).load(std::memory_order_acquire) == 1;
  }
  /// Lets a block go on its way.
  void release(std::size_t block) { release(block, gates_[block].value); }
  /// The same of a pass that is not the last one that has begun.
  void release(std::size_t block, std::uint32_t epoch) {
    std::atomic_ref(words()[block]).store(epoch, std::memory_order_release);
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
    const bool completes = awaits_completions_ && std::is_same_v<Args, kernels::AttendGradArgs>;
    return {blocks.data(), static_cast<i64>(blocks.size()), gated ? gates_.data() : nullptr, watch,
            completes ? completions_.data() : nullptr};
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
  /// o, lse, delta, dq, then dk and dv by block.
  [[nodiscard]] const std::deque<DeviceCopy>& results() const { return results_; }
  static constexpr std::size_t forward_results = 2, dq_result = 3;
  /// dk of a block, before its dv.
  [[nodiscard]] static constexpr std::size_t dk_result(std::size_t block) { return 4 + 2 * block; }
  void poison_results(std::size_t first = 0) {
    for (std::size_t i = first; i < results_.size(); ++i) results_[i].poison();
  }
  /// After all calls; the trial on the host then holds the results.
  void bring_back() {
    for (DeviceCopy& x : results_) x.bring_back();
    memory_.synchronize();
  }
  [[nodiscard]] kernels::GateFault fault() const {
    return kernels::GateFault::of(std::atomic_ref(*watch.fault).load());
  }
  void set_stop(std::uint32_t value) {
    std::atomic_ref(*const_cast<std::uint32_t*>(watch.stop)).store(value);
  }
  void clear_fault() { std::atomic_ref(*watch.fault).store(0); }

  BlockTrial host;
  kernels::GateWatch watch;

 private:
  using Words = std::uint32_t*;
  static constexpr std::size_t flag_stride = 8;  ///< flags of different blocks do not share a sector
  [[nodiscard]] Words words() const { return reinterpret_cast<Words>(words_.data()); }
  [[nodiscard]] Words flag(std::size_t block) const {
    return reinterpret_cast<Words>(flags_.data()) + flag_stride * block;
  }
  [[nodiscard]] static CUdeviceptr address_of(const std::uint32_t* word) {
    return reinterpret_cast<CUdeviceptr>(word);
  }

  kernels::Memory& memory_;
  device::DeviceBuffer flags_;
  device::PinnedBuffer words_;  ///< by block: it may go; stop and fault; by block: complete
  std::vector<kernels::Gate> gates_;
  std::vector<kernels::Completion> completions_;
  bool awaits_completions_ = false;
  std::deque<DeviceCopy> results_, keys_;  ///< results(); k and v by block
  std::optional<DeviceCopy> q_, d_o_;
  std::deque<device::PinnedBuffer> sources_;  ///< as keys_
  std::deque<device::Stream> copies_;         ///< by block
  device::Event call_end_;
};

/// Releases blocks in an order, after a time each.
inline std::thread release_in_order(GatedTrial& run, std::vector<std::size_t> order, std::mt19937& random) {
  std::vector<int> delays;
  for (std::size_t i = 0; i < order.size(); ++i) delays.push_back(static_cast<int>(random() % 300));
  return std::thread([&run, order = std::move(order), delays = std::move(delays)] {
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(delays[i]));
      run.release(order[i]);
    }
  });
}

}  // namespace usp::test
