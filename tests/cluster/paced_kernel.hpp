// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_times.hpp"

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/geometry.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <sys/prctl.h>

/// Kernels that compute nothing and take the time that a calibration gives them: hosts are emulated on fewer
/// cores than they have ranks.
namespace usp::test {

/// Sleeps, and lets transfers advance between tiles as a kernel on the host does. Its wakings are spent well
/// above those of a real tile (some 20 to 40 us), so that the ranks of all emulated hosts can wake in time.
class Pace {
 public:
  Pace() { (void)::prctl(PR_SET_TIMERSLACK, 1UL); }

  static void work(double seconds, const kernels::Progress& progress) {
    constexpr double tile_s = 100e-6;
    const double begin = now(), tiles = std::max(1.0, std::ceil(seconds / tile_s));
    for (double tile = 1; tile <= tiles; ++tile) {
      sleep_until(begin + seconds * tile / tiles);
      progress();
    }
  }

 private:
  [[nodiscard]] static double now() {
    timespec t{};
    (void)::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  static void sleep_until(double at) {
    timespec t{};
    t.tv_sec = static_cast<time_t>(at);
    t.tv_nsec = static_cast<long>((at - std::floor(at)) * 1e9);
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {
    }
  }
};

class PacedKernel final : public kernels::AttentionKernel {
 public:
  /// All of them outlive the kernel.
  PacedKernel(const Calibration& calibration, const AttentionPlan& plan, const ExecutionOptions& options)
      : forward_(calibration, plan, plan.backend.of(Pass::forward), options),
        backward_(calibration, plan, plan.backend.of(Pass::backward), options) {}

  [[nodiscard]] const char* name() const override { return "paced"; }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttend> prepare(const kernels::AttendArgs& a) override {
    return std::make_unique<PacedStep<kernels::AttendArgs>>(
        a, seconds_of(forward_, schedule::operations::attend, a));
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendGrad> prepare(
      const kernels::AttendGradArgs& a) override {
    return std::make_unique<PacedStep<kernels::AttendGradArgs>>(
        a, seconds_of(backward_, schedule::operations::attend_grad, a));
  }
  void delta(const kernels::DeltaArgs& a) override {
    Pace::work(backward_.on_rows(schedule::operations::delta, a.query_heads.size(), a.o.rows).seconds, {});
  }

 private:
  template <class Args>
  class PacedStep final : public kernels::PreparedStep<Args> {
   public:
    PacedStep(const Args& args, double seconds) : kernels::PreparedStep<Args>(args), seconds_(seconds) {}

   private:
    void enqueue(const Args& args) override { Pace::work(seconds_, args.scope.progress); }
    double seconds_;
  };

  [[nodiscard]] static ResultsBefore results_of(const kernels::AttendArgs& a) { return {a.overwrite, false}; }
  [[nodiscard]] static ResultsBefore results_of(const kernels::AttendGradArgs& a) {
    return {a.overwrite, a.overwrites_dkv()};
  }
  template <class Args>
  [[nodiscard]] static double seconds_of(const KernelTimes& times, const schedule::Operation& operation,
                                         const Args& args) {
    BlockShape block;
    schedule::Intervals rows, keys;
    for (i64 i = 0; i < args.scope.slice_count; ++i) {
      const schedule::Slice& slice = args.scope.slices[i];
      block.area += static_cast<double>(schedule::area(slice));
      rows.push_back({slice.q_row, slice.q_row + slice.q_count});
      keys.push_back({slice.k_row, slice.k_row + slice.k_count});
    }
    schedule::normalize(rows);
    schedule::normalize(keys);
    block.rows = static_cast<double>(schedule::total(rows));
    block.keys = static_cast<double>(schedule::total(keys));
    const HeadCount heads{args.scope.query_heads.size(), args.scope.kv_heads().size()};
    return times.on_pairs(operation, heads, block, results_of(args)).seconds;
  }

  Pace pace_;
  KernelTimes forward_, backward_;
};

}  // namespace usp::test
