// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/export_plan.hpp"

#include <exception>
#include <string>

/// The records, and what their `write` functions share.
namespace usp {

extern const FrameworkTraits megatron_traits, deepspeed_traits, accelerate_traits, torchtitan_traits,
    xdit_traits, yunchang_traits, usp_attention_traits;

inline void set(ExportedPlan& result, std::string name, std::string value = "") {
  result.arguments.push_back({std::move(name), std::move(value), ""});
}
inline void set(ExportedPlan& result, std::string name, i64 value) {
  set(result, std::move(name), std::to_string(value));
}
inline void differs(ExportedPlan& result, std::string plan, std::string framework) {
  result.differences.push_back({std::move(plan), std::move(framework)});
}

/// A message without its remedies.
[[nodiscard]] inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Passes of the forward schedule in a step.
[[nodiscard]] inline double forward_runs(bool training, Recompute recompute) {
  return training && attention_again(recompute) ? 2 : 1;
}

/// Differences of tiles that the plan's memory counts on, where the framework has them under another name.
void add_tile_differences(const ExportInput& input, ExportedPlan& result, const std::string& loss,
                          const std::string& mlp);
/// Of recompute modes that run parts of a layer again, where the framework checkpoints whole layers or none.
void add_partial_recompute(const ExportInput& input, ExportedPlan& result);
/// Of checkpoints in host memory.
void add_offload_difference(const ExportInput& input, ExportedPlan& result, const std::string& instead);

/// "torchrun --nnodes 4 --nproc-per-node 8 --node-rank RANK ...", without the script.
[[nodiscard]] std::string torchrun_start(const ExportInput& input, const std::string& node_rank);
/// The number, or the shell variable where it is not known.
[[nodiscard]] std::string hosts_word(const ExportInput& input);
[[nodiscard]] std::string devices_word(const ExportInput& input);

}  // namespace usp
