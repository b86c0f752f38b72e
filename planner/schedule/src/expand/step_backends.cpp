// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/step_backends.hpp"

#include "usp/base/text.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::schedule {
namespace {

std::string counted(i64 count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string shape_text(const BandBlock& b) {
  const bool right = b.bounds_right(), left = b.bounds_left();
  const bool corner = (right && b.right_bound() == 0) || (left && b.left_bound() == 1);
  const bool square = b.q_rows.size() == b.k_rows.size();
  const char* shape = !right && !left                     ? "rectangle"
                      : right != left && corner && square ? "triangle"
                      : right != left                     ? "rectangle cut by a diagonal"
                                                          : "band";
  return fmt::format("one {} of {} x {}", shape, b.q_rows.size(), b.k_rows.size());
}

std::string pass_text(const StepBackends& pass) {
  std::string text = fmt::format("{} of {}", pass.cudnn, counted(pass.steps(), "step"));
  if (pass.mixed > 0) text += fmt::format(" ({} in part)", pass.mixed);
  if (pass.mma > 0) text += fmt::format(", {} mma", pass.mma);
  return text;
}

std::string words(const std::vector<UnsupportedReason>& why) {
  std::vector<std::string> texts;
  for (const UnsupportedReason each : why) texts.emplace_back(text_of(each));
  return join(texts, "; ");
}

/// Of both passes, each once.
std::vector<UnsupportedReason> reasons(const std::optional<StepBackends>& forward,
                                       const std::optional<StepBackends>& backward) {
  std::vector<UnsupportedReason> why;
  for (const auto* pass : {&forward, &backward})
    if (*pass) why.insert(why.end(), (*pass)->why.begin(), (*pass)->why.end());
  std::sort(why.begin(), why.end());
  why.erase(std::unique(why.begin(), why.end()), why.end());
  return why;
}

/// Why cuDNN computes nothing of a pass; empty where it computes something.
std::vector<UnsupportedReason> nothing_because(const AttentionPlan& plan, Pass pass,
                                               const std::optional<StepBackends>& steps) {
  if (steps) return steps->cudnn == 0 ? steps->why : std::vector<UnsupportedReason>{};
  const Range one_group{0, plan.shape.query_heads / plan.shape.kv_heads};
  const UnsupportedReason why =
      unsupported_reason(kernel_traits(plan.backend), call_traits(plan, pass, one_group));
  return why == UnsupportedReason::none ? std::vector<UnsupportedReason>{}
                                        : std::vector<UnsupportedReason>{why};
}

}  // namespace

void add_steps(StepBackends& sum, const RankSchedule& schedule) {
  for (const Step& any : schedule.steps) {
    if (!any.operation->has_pairs) continue;
    const StepBackend* step = &any.backend;
    ++(step->use == Backend::cpu ? sum.cpu : step->use == Backend::mma ? sum.mma : sum.cudnn);
    if (step->use == Backend::cudnn && step->left > 0) ++sum.mixed;
    if (step->why == UnsupportedReason::none) continue;
    const auto at = std::lower_bound(sum.why.begin(), sum.why.end(), step->why);
    if (at == sum.why.end() || *at != step->why) sum.why.insert(at, step->why);
  }
}

std::string reason_of(const StepBackend& step, Pass pass, const Slice* slices, i64 count) {
  if (step.use != Backend::cudnn) return text_of(step.why);
  if (step.blocks == 1 && step.left == 0)
    return shape_text(
        split_into_blocks(kernel_traits(step.use), slices, count, pass == Pass::backward).blocks.front());
  std::string text = counted(step.blocks, "block");
  if (step.left == 0) return text;
  return fmt::format("{}; {} to mma: {}", text, counted(step.left, "slice"), text_of(step.why));
}

std::string backends_text(Backend backend, const std::optional<StepBackends>& forward,
                          const std::optional<StepBackends>& backward) {
  std::string text(word_of(backend));
  if (backend != Backend::cudnn) return text;
  if (!forward && !backward) return text + ": steps are not counted on so many ranks or documents";
  text += ":";
  if (forward) text += " forward " + pass_text(*forward);
  if (backward) text += std::string(forward ? "; backward " : " backward ") + pass_text(*backward);
  const std::string why = words(reasons(forward, backward));
  return text + (why.empty() ? "" : ": " + why);
}

std::string nothing_for_cudnn_note(const AttentionPlan& plan, bool training,
                                   const std::optional<StepBackends>& forward,
                                   const std::optional<StepBackends>& backward) {
  if (plan.backend != Backend::cudnn) return "";
  const std::vector<UnsupportedReason> first = nothing_because(plan, Pass::forward, forward);
  const std::vector<UnsupportedReason> second =
      training ? nothing_because(plan, Pass::backward, backward) : std::vector<UnsupportedReason>{};
  if (first.empty() && second.empty()) return "";
  const bool whole = !first.empty() && (!training || !second.empty());
  const char* which = whole ? "every step" : second.empty() ? "every forward step" : "every backward step";
  return fmt::format("backend cudnn: {} goes to the mma kernel: {}{}", which,
                     words(first.empty() ? second : first), whole ? "; plan with --backend mma" : "");
}

}  // namespace usp::schedule
