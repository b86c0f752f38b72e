// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/step_backends.hpp"

#include "choose_backend.hpp"

#include "usp/base/text.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace usp::schedule {
namespace {

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

std::string pass_text(Backend backend, Pass pass, const StepBackends& steps) {
  const Backend own = backend.of(pass);
  std::string text = fmt::format("{} of {}", steps.of(own), counted(steps.steps(), "step"));
  if (steps.mixed > 0) text += fmt::format(" ({} in part)", steps.mixed);
  for (const StepBackends::Count& count : steps.counts)
    if (count.backend != own) text += fmt::format(", {} {}", count.steps, word_of(count.backend));
  return text;
}

/// The reasons of one pass, in words.
std::vector<std::string> words(Backend backend, const std::vector<UnsupportedReason>& why) {
  std::vector<std::string> texts;
  for (const UnsupportedReason each : why) texts.push_back(text_of(each, backend));
  return texts;
}

/// Of both passes, each once.
std::string words(Backend backend, const std::vector<UnsupportedReason>& forward,
                  const std::vector<UnsupportedReason>& backward) {
  std::vector<std::string> texts = words(backend.of(Pass::forward), forward);
  for (std::string& text : words(backend.of(Pass::backward), backward))
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
  return join(texts, "; ");
}

Range one_group(const AttentionPlan& plan) {
  return {0, plan.shape.query_heads / plan.shape.kv_heads};
}

/// Why the plan's backend computes nothing of a pass; empty where it computes something.
std::vector<UnsupportedReason> nothing_because(const AttentionPlan& plan, Pass pass,
                                               const std::optional<StepBackends>& steps) {
  const Backend backend = plan.backend.of(pass);
  if (steps) return steps->of(backend) == 0 ? steps->why : std::vector<UnsupportedReason>{};
  const UnsupportedReason why = unsupported_reason(plan, pass);
  return why == UnsupportedReason::none ? std::vector<UnsupportedReason>{}
                                        : std::vector<UnsupportedReason>{why};
}

void add_reason(std::vector<UnsupportedReason>& reasons, UnsupportedReason why) {
  const auto at = std::lower_bound(reasons.begin(), reasons.end(), why);
  if (at == reasons.end() || *at != why) reasons.insert(at, why);
}

}  // namespace

void StepBackends::add(Backend backend, i64 more) {
  if (more == 0) return;
  for (Count& count : counts)
    if (count.backend == backend) {
      count.steps += more;
      return;
    }
  counts.push_back({backend, more});
}

void StepBackends::add(const StepBackends& other) {
  for (const Count& count : other.counts) add(count.backend, count.steps);
  mixed += other.mixed;
  for (const UnsupportedReason reason : other.why) add_reason(why, reason);
}

i64 StepBackends::of(Backend backend) const {
  for (const Count& count : counts)
    if (count.backend == backend) return count.steps;
  return 0;
}

i64 StepBackends::steps() const {
  return std::accumulate(counts.begin(), counts.end(), i64{0},
                         [](i64 sum, const Count& count) { return sum + count.steps; });
}

bool operator==(const StepBackends& a, const StepBackends& b) {
  return a.counts.size() == b.counts.size() && a.mixed == b.mixed && a.why == b.why &&
         std::all_of(a.counts.begin(), a.counts.end(),
                     [&](const StepBackends::Count& count) { return b.of(count.backend) == count.steps; });
}

void add_steps(StepBackends& sum, const RankSchedule& schedule) {
  for (const Step& any : schedule.steps) {
    if (!any.operation->has_pairs) continue;
    const StepBackend* step = &any.backend;
    sum.add(step->use, 1);
    if (step->use == schedule.backend.of(schedule.pass) && step->left > 0) ++sum.mixed;
    if (step->why == UnsupportedReason::none) continue;
    add_reason(sum.why, step->why);
  }
}

std::string reason_of(Backend planned, const StepBackend& step, Pass pass, const Slice* slices, i64 count) {
  const Backend own = planned.of(pass);
  if (step.use != own || own->takes.any_slices) return text_of(step.why, own);
  if (step.blocks == 1 && step.left == 0)
    return shape_text(
        split_into_blocks(kernel_traits(step.use), slices, count, pass == Pass::backward).blocks.front());
  std::string text = counted(step.blocks, "block");
  if (step.left == 0) return text;
  return fmt::format("{}; {} to {}: {}", text, counted(step.left, "slice"),
                     word_of(fallback_of(planned, pass)), text_of(step.why, own));
}

std::string backends_text(Backend backend, const std::optional<StepBackends>& forward,
                          const std::optional<StepBackends>& backward) {
  std::string text(word_of(backend));
  if (backend->fallback == nullptr) return text;
  if (!forward && !backward) return text + ": steps are not counted on so many ranks or documents";
  text += ":";
  if (forward) text += " forward " + pass_text(backend, Pass::forward, *forward);
  if (backward)
    text +=
        std::string(forward ? "; backward " : " backward ") + pass_text(backend, Pass::backward, *backward);
  using Reasons = std::vector<UnsupportedReason>;
  const std::string why =
      words(backend, forward ? forward->why : Reasons{}, backward ? backward->why : Reasons{});
  return text + (why.empty() ? "" : ": " + why);
}

std::string all_left_note(const AttentionPlan& plan, bool training,
                          const std::optional<StepBackends>& forward,
                          const std::optional<StepBackends>& backward) {
  if (plan.backend->fallback == nullptr) return "";
  const std::vector<UnsupportedReason> first = nothing_because(plan, Pass::forward, forward);
  const std::vector<UnsupportedReason> second =
      training ? nothing_because(plan, Pass::backward, backward) : std::vector<UnsupportedReason>{};
  if (first.empty() && second.empty()) return "";
  const bool whole = !first.empty() && (!training || !second.empty());
  const char* which = whole ? "every step" : second.empty() ? "every forward step" : "every backward step";
  const Pass left = first.empty() ? Pass::backward : Pass::forward;
  const std::string_view fallback = word_of(fallback_that_takes(plan, left, one_group(plan)));
  return fmt::format("backend {}: {} goes to the {} kernel: {}{}", word_of(plan.backend), which, fallback,
                     join(words(plan.backend.of(left), first.empty() ? second : first), "; "),
                     whole ? fmt::format("; plan with --backend {}", fallback) : "");
}

}  // namespace usp::schedule
