// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/runtime/call_run.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Execution of a call on other hardware than the backend of its plan.
namespace usp {

/// Hardware that executes a call.
enum class RunOn : std::uint8_t { host, gpu };

template <>
struct WordTable<RunOn> {
  static constexpr Word<RunOn> words[] = {{"cpu", RunOn::host}, {"cuda", RunOn::gpu}};
};

/// A plan for the hardware that it shall run on. The backend shapes its schedule, so that it is another plan
/// than the one it came from, with a digest of its own.
struct PlacedPlan {
  AttentionPlan plan;
  std::string note;  ///< what became of the backend, and why; empty: nothing
};

/// Changes the backend of a plan; without `on` it stays. On GPUs: that of `kernel` where it names one, else
/// the plan's own, else the first of preferred_gpu_backends() for which `objection_to` is empty, else the
/// last fallback. Objections are asked for last, and only where they matter. Throws UsageError where `kernel`
/// is of other hardware, and where no backend there takes the plan.
[[nodiscard]] PlacedPlan place_plan(const AttentionPlan& plan, std::optional<RunOn> on,
                                    const std::string& kernel,
                                    const std::function<std::string(Backend)>& objection_to);

/// Why rank 0's GPU of `devices` (RunOptions) cannot run a backend of GPUs, in words; empty: it can. Throws
/// EnvironmentError where there is no GPU.
[[nodiscard]] std::string why_not_available(Backend backend, const std::vector<int>& devices);

/// Whether the kernel of a run is one of GPUs.
[[nodiscard]] bool runs_on_gpu(const AttentionPlan& plan, const RunOptions& options);

}  // namespace usp
