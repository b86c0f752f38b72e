// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/call_run.hpp"
#include "usp/runtime/run_request.hpp"

#include <optional>
#include <string>
#include <vector>

/// `usp bench --gpu`: a plan on GPUs, timed by their own clocks.
namespace usp {

/// What flew along one axis of the mesh in one pass.
struct AxisTraffic {
  i64 bytes = 0;      ///< sent by all ranks
  i64 max_bytes = 0;  ///< of the rank that sends most
};

/// One tick of the rank that waits most.
struct GpuTickBench {
  double computed_s = 0;               ///< of its steps
  double exposed_s = 0;                ///< waited beyond them
  std::vector<std::string> transfers;  ///< words of the transfers due in it
  bool computes = false;               ///< some step runs beside them
};

struct GpuPassBench {
  Pass pass = Pass::forward;
  double seconds = 0;  ///< median over repetitions of the slowest rank, on its stream
  double flops = 0;    ///< of the visible pairs: 2 (Dqk + Dv) forward, 2 (3 Dqk + 2 Dv) backward
  AxisTraffic ulysses, ring;
  std::vector<GpuTickBench> ticks;  ///< of the rank that waits most
  [[nodiscard]] double exposed_s() const;

  [[nodiscard]] double tflop_s() const { return flops / seconds * 1e-12; }
  /// Of the rank that sends most, over the whole pass.
  [[nodiscard]] double gb_s(const AxisTraffic& axis) const {
    return static_cast<double>(axis.max_bytes) / seconds * 1e-9;
  }
};

struct GpuBenchReport {
  RunRequest request;
  AttentionPlan plan;
  std::string kernel, communicator;
  std::vector<std::string> devices;  ///< by rank
  std::vector<std::string> notes;    ///< RunResult::notes()
  Transport ulysses_transport = Transport::copy_engine, ring_transport = Transport::copy_engine;
  bool deterministic = false;
  int repeat = 0;
  std::vector<GpuPassBench> passes;
};

/// From runs of a plan: `timed` has the seconds and bytes, `watched` the ticks of each rank's stream.
[[nodiscard]] GpuBenchReport gpu_bench_report(const AttentionPlan& plan, const Documents& documents,
                                              const RunOptions& options, const RunResult& timed,
                                              const RunResult& watched);

/// Runs the plan repeatedly, enqueueing ahead of the GPUs, and once more with a clock on every tick. The
/// kernel of the run has to be one of GPUs (UsageError). Empty in processes without rank 0.
[[nodiscard]] std::optional<GpuBenchReport> gpu_bench_call(const AttentionPlan& plan,
                                                           const Documents& documents,
                                                           const CallTensors& tensors, RunOptions options);

[[nodiscard]] std::string gpu_bench_text(const GpuBenchReport& report);
/// One JSON object (schema: configs/schema/bench_gpu.v2.schema.json).
[[nodiscard]] std::string gpu_bench_json(const GpuBenchReport& report);

}  // namespace usp
