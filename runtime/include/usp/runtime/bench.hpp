// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/call_run.hpp"
#include "usp/runtime/run_request.hpp"

#include <optional>
#include <string>

namespace usp {

/// One pass of a plan beside one rank that does the whole problem with the same kernel on one thread.
struct PassBench {
  Pass pass = Pass::forward;
  double seconds = 0;         ///< median of the slowest rank
  double single_seconds = 0;  ///< median of the one rank
  i64 bytes = 0;              ///< sent by all ranks
  double flops = 0;           ///< of the visible pairs: 2 (Dqk + Dv) forward, 2 (3 Dqk + 2 Dv) backward

  [[nodiscard]] double gflop_s() const { return flops / seconds * 1e-9; }
};

struct BenchReport {
  RunRequest request;
  AttentionPlan plan;
  std::string kernel, communicator;
  int repeat = 0;
  int cores = 1;  ///< of the process
  std::vector<PassBench> passes;

  /// Cores at work: ranks that share a core cannot be faster than it.
  [[nodiscard]] int workers() const;
  /// single_seconds / (workers * seconds): 1 is as fast as the kernel alone on as many cores.
  [[nodiscard]] double share_of_single(const PassBench& pass) const;
};

/// Runs the plan and the same call on one rank in turns. Empty in processes without rank 0.
[[nodiscard]] std::optional<BenchReport> bench_call(const AttentionPlan& plan, const Documents& documents,
                                                    const CallTensors& tensors, RunOptions options);

[[nodiscard]] std::string bench_text(const BenchReport& report);
/// One JSON object (schema: configs/schema/bench.v2.schema.json).
[[nodiscard]] std::string bench_json(const BenchReport& report);

}  // namespace usp
