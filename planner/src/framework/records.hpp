// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/export_plan.hpp"

#include <exception>
#include <optional>
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

/// The type that a framework is told for a plan's; none for fp64.
[[nodiscard]] std::optional<Precision> precision_of(DType dtype);

/// Layers of a pipeline's first and last stage, and of each between.
struct EndStages {
  i64 first = 0, last = 0, between = 0;
};
/// Where the stages between hold as many layers as the fullest has to; empty: an end would hold none.
[[nodiscard]] std::optional<EndStages> stages_with_fewer_at_ends(i64 layers, i64 stages);

/// A message without its remedies.
[[nodiscard]] inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// Passes of the forward schedule in a step. @param share of the layers that compute again
[[nodiscard]] inline double forward_runs(bool training, Recompute recompute, double share = 1) {
  return training && attention_again(recompute) ? 1 + share : 1;
}
/// Layers of a model; 0: a plan of attention layers that leave others between them does not say.
[[nodiscard]] i64 model_layers(const PlanFile& plan);
/// Share of the layers that compute again what `recompute` says.
[[nodiscard]] double recomputed_share(const PlanFile& plan);

/// Differences of tiles that the plan's memory counts on, where the framework has them under another name.
void add_tile_differences(const ExportInput& input, ExportedPlan& result, const std::string& loss,
                          const std::string& mlp);
/// Of recompute modes that run parts of a layer again, where the framework checkpoints whole layers or none.
void add_partial_recompute(const ExportInput& input, ExportedPlan& result);
/// Of checkpoints in host memory.
void add_offload_difference(const ExportInput& input, ExportedPlan& result, const std::string& instead);

/// Where the plan hides the exchange of experts behind another microbatch.
void add_expert_overlap_difference(const ExportInput& input, ExportedPlan& result);
/// Where the plan offloads kinds of tensors that no framework's setting names.
void add_kinds_offload_difference(const ExportInput& input, ExportedPlan& result);
/// Of layers that keep everything beside others that run again, where the framework treats all alike.
void add_some_layers_difference(const ExportInput& input, ExportedPlan& result);
/// Of what tensor ranks split besides attention and the MLP, where the framework has no setting for it.
/// @param tokens, experts what happens to norms and residuals, and to experts
void add_tensor_differences(const ExportInput& input, ExportedPlan& result, const std::string& tokens,
                            const std::string& experts);
/// Of gradients in another type than the framework holds them in.
void add_gradient_difference(const ExportInput& input, ExportedPlan& result, bool fp32,
                             const std::string& instead);
/// Names what a plan decides and a framework for attention alone leaves to the training script.
void note_script_settings(const ExportInput& input, ExportedPlan& result);
[[nodiscard]] std::string_view gradient_word(const StepWorkload& step);

/// "torchrun --nnodes 4 --nproc-per-node 8 --node-rank RANK ...", without the script.
[[nodiscard]] std::string torchrun_start(const ExportInput& input, const std::string& node_rank);
/// The number, or the shell variable where it is not known.
[[nodiscard]] std::string hosts_word(const ExportInput& input);
[[nodiscard]] std::string devices_word(const ExportInput& input);

}  // namespace usp
