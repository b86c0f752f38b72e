// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/plan_within.hpp"

#include "../search/memory_choices.hpp"
#include "../search/search_size.hpp"
#include "../search/step_pricer.hpp"
#include "records.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

namespace usp {
namespace {

constexpr std::size_t all_candidates = 100000;
constexpr std::size_t max_reasons = 4;

/// A request that keeps to one mode of a framework, over a ring or without one.
struct ModeSearch {
  const ExchangeMode* mode;
  PlanRequest request;
  bool with_ring;
};

/// Of a degree that is fixed to 1: whether the user fixed it otherwise.
bool conflicts(std::optional<int>& fixed) {
  if (fixed.value_or(1) != 1) return true;
  fixed = 1;
  return false;
}

/// Empty where the user's constraints exclude the mode.
std::optional<ModeSearch> search_of(const PlanRequest& asked, const ExchangeMode& mode, bool with_ring) {
  ModeSearch search{&mode, asked, with_ring};
  Constraints& fixed = search.request.fixed;
  if (!mode.ulysses && conflicts(fixed.ulysses)) return std::nullopt;
  if (!with_ring && conflicts(fixed.ring)) return std::nullopt;
  if (with_ring) {
    if (fixed.ring == 1 || (fixed.method && *fixed.method != mode.method)) return std::nullopt;
    const LayoutKind layout = asked.workload.causal ? mode.layout : LayoutKind::contiguous;
    if (fixed.layout.value_or(layout) != layout) return std::nullopt;
    fixed.method = mode.method;
    fixed.layout = layout;
    if (mode.order && fixed.order.value_or(*mode.order) != *mode.order) return std::nullopt;
    if (mode.order && mode.ulysses) fixed.order = mode.order;
  }
  const DkvReturn way = with_ring ? mode.dkv_return : DkvReturn::circulate;
  if (fixed.head_chunks.value_or(1) != 1 || fixed.dkv_return.value_or(way) != way) return std::nullopt;
  fixed.head_chunks = 1;
  fixed.dkv_return = way;
  search.request.execution = mode_execution(mode);
  search.request.max_candidates = all_candidates;
  return search;
}

class Within {
 public:
  Within(const PlanRequest& asked, const FrameworkTraits& framework) : asked_(asked), framework_(framework) {}

  FrameworkPlan run() {
    if (const std::string reason = unsupported_job(framework_, framework_case(asked_, 1)); !reason.empty())
      throw Infeasible(reason, {"another --framework"});
    if (asked_.fixed.gated && !framework_.any_plan)
      throw Infeasible(fmt::format("{} has no attention that awaits blocks as they land", framework_.name),
                       {"no --gated", "another --framework"});
    PlanRequest base = asked_;
    if (!framework_.tensor && conflicts(base.fixed.tensor))
      throw Infeasible(fmt::format("{} has no tensor parallelism beside the sequence's", framework_.name),
                       {"--tensor 1", "another --framework"});
    check_offload();
    if (offloads(base)) {
      base.search_pipeline = false;
      base.workload.pipeline = 1;
    }
    check_memory_choices();
    check_stages();
    base.search_offload = false;
    base.equal_stages = framework_.equal_stages && !has_fewer_at_ends();
    base.library_kernels = !framework_.any_plan;
    for (const ExchangeMode& mode : framework_.modes)
      for (const bool with_ring : {false, true})
        if (with_ring ? mode.ring : !mode.both) search(base, mode, with_ring);
    return finish();
  }

 private:
  /// Refuses what the flags fix and the framework does not have.
  void check_memory_choices() {
    const bool training = asked_.workload.training;
    if (stages().empty())
      throw Infeasible(fmt::format("{} has no ZeRO stage {}", framework_.name, *asked_.fixed.zero_stage),
                       {fmt::format("--zero {}", fmt::join(framework_.zero_stages, " or --zero "))});
    if (training && recomputes().empty())
      throw Infeasible(
          asked_.fixed.recompute
              ? fmt::format("{} has no recompute {}", framework_.name, word_of(*asked_.fixed.recompute))
              : fmt::format("{} has no recompute that keeps {}", framework_.name,
                            kinds_text(*asked_.fixed.offload)),
          {asked_.fixed.recompute ? "another --recompute" : "no --offload"});
  }

  /// Refuses kinds of kept tensors in host memory that no setting of the framework moves there.
  void check_offload() const {
    if (!offloads(asked_)) return;
    const bool whole = *asked_.fixed.offload == Offload::everything() &&
                       asked_.fixed.recompute.value_or(Recompute::none) == Recompute::none;
    if (whole && framework_.offloads_layers) return check_offloaded_layers();
    throw Infeasible(
        fmt::format("{} has no setting that moves these kinds of kept tensors to host memory",
                    framework_.name),
        framework_.offloads_layers
            ? std::vector<std::string>{"--offload input,qkv,attention,mlp --recompute none", "no --offload"}
            : std::vector<std::string>{"no --offload", "--recompute offload, where it has that"});
  }

  [[nodiscard]] bool offloads(const PlanRequest& request) const {
    return request.fixed.offload && request.fixed.offload->any() && !framework_.any_plan;
  }
  /// The setting counts the layers of one stage, of models whose layers are alike.
  void check_offloaded_layers() const {
    if (asked_.workload.pipeline > 1 && !asked_.search_pipeline)
      throw Infeasible(
          fmt::format("{} moves kept tensors to host memory only without a pipeline", framework_.name),
          {"--pipeline 1", "no --offload"});
    if (asked_.model->attention_layers() < asked_.model->layers)
      throw Infeasible(fmt::format("{} has no setting that moves what layers of {} kinds keep to host memory",
                                   framework_.name, asked_.model->kinds.size()),
                       {"no --offload", "--recompute full"});
  }

  /// Of a pipeline that the flags fix.
  void check_stages() const {
    const Workload& w = asked_.workload;
    const i64 parts = i64{w.pipeline} * w.virtual_stages;
    if (asked_.search_pipeline || !framework_.equal_stages || asked_.model->layers % parts == 0 ||
        has_fewer_at_ends())
      return;
    throw Infeasible(
        fmt::format(
            "{} divides a model into parts of equally many layers{}: {} are no multiple of pipeline {} x {}",
            framework_.name,
            framework_.fewer_at_ends ? ", but for fewer on the first and last stage of one chunk each" : "",
            counted(asked_.model->layers, "layer"), w.pipeline, counted(w.virtual_stages, "virtual stage")),
        {"--pipeline and --virtual-stages whose product divides the layers", "--pipeline auto"});
  }

  /// Whether the flags fix a pipeline whose ends can hold what fewer layers are left for them.
  [[nodiscard]] bool has_fewer_at_ends() const {
    const Workload& w = asked_.workload;
    return framework_.fewer_at_ends && !asked_.search_pipeline && w.virtual_stages == 1 && w.pipeline > 1 &&
           asked_.model->layers % w.pipeline != 0 &&
           stages_with_fewer_at_ends(asked_.model->layers, w.pipeline).has_value();
  }

  [[nodiscard]] std::vector<int> stages() const {
    std::vector<int> list = framework_.zero_stages;
    if (!asked_.workload.training) list = {0, 3};
    if (asked_.fixed.zero_stage)
      std::erase_if(list, [&](int stage) { return stage != *asked_.fixed.zero_stage; });
    else if (asked_.workload.training)
      std::erase(list, 0);  // stage 1 costs as little and holds less
    return list;
  }

  [[nodiscard]] std::vector<Recompute> recomputes() const {
    if (!asked_.workload.training) return {Recompute::none};
    std::vector<Recompute> list = framework_.recomputes;
    if (list.empty())
      for (const Word<Recompute>& word : word_list<Recompute>()) list.push_back(word.value);
    if (asked_.fixed.recompute)
      std::erase_if(list, [&](Recompute recompute) { return recompute != *asked_.fixed.recompute; });
    else if (!asked_.cluster->nodes.front().pcie_gb_s.known())
      std::erase(list, Recompute::offload);
    if (const auto& kinds = asked_.fixed.offload)
      std::erase_if(list, [&](Recompute recompute) { return kinds->without(kept_by(recompute)).any(); });
    return list;
  }

  void search(const PlanRequest& base, const ExchangeMode& mode, bool with_ring) {
    auto search = search_of(base, mode, with_ring);
    if (!search) {
      reasons_.push_back(fmt::format("{}: the flags fix what it has otherwise", mode.word));
      return;
    }
    StepPricer pricer(search->request);
    if (!some_mesh_possible(*search, pricer)) return;
    PlanResult found;
    try {
      found = search_with(search->request, pricer);
    } catch (const Infeasible& error) {
      reasons_.push_back(fmt::format("{}: {}", mode.word, first_line(error)));
      return;
    }
    considered_ += found.considered;
    calibration_ = found.calibration;
    bool kept = false;
    for (PlanCandidate& candidate : found.candidates) kept = take(*search, pricer, candidate) || kept;
    if (kept) searches_.push_back(std::move(*search));
  }

  /// Whether the framework can take a mesh of the search, before any is priced; else its reasons are kept. A
  /// pipeline's meshes are not known before.
  bool some_mesh_possible(const ModeSearch& search, const StepPricer& pricer) {
    if (asked_.search_pipeline) return true;
    std::vector<Rejection> rejected;
    bool possible = false, meant = false;
    for (const Degrees& d : degrees_of(search.request, pricer.world(), pricer.devices_per_node())) {
      if (search.with_ring != (d.ring > 1) || (search.mode->both && d.ulysses == 1)) continue;
      meant = true;
      const std::string reason = why_not(search, d.ring, d.ulysses, d.tensor);
      possible = possible || reason.empty();
      if (!reason.empty()) rejected.push_back({d.ring, d.ulysses, d.data, d.tensor, reason});
    }
    if (meant && !possible) std::move(rejected.begin(), rejected.end(), std::back_inserter(rejected_));
    return !meant || possible;
  }

  /// Empty where the framework can take these degrees.
  [[nodiscard]] std::string why_not(const ModeSearch& search, int ring, int ulysses, int tensor) const {
    const FrameworkCase job = framework_case(asked_, tensor);
    std::string reason = unsupported_job(framework_, job);
    if (reason.empty() && ring * ulysses > 1)
      reason = unsupported_mode(framework_, *search.mode, job, ring, ulysses);
    return reason.empty() ? "" : fmt::format("{}: {}", search.mode->word, reason);
  }

  /// Keeps the mesh of a candidate if the framework can take it.
  bool take(const ModeSearch& search, StepPricer& pricer, PlanCandidate& candidate) {
    const Choice& choice = candidate.choice;
    const int ring = choice.mesh.ring(), ulysses = choice.mesh.ulysses;
    if (search.with_ring != (ring > 1)) return false;
    if (!seen_.insert({search.mode, ring, ulysses, choice.data(), choice.tensor()}).second) return false;
    if (std::string reason = why_not(search, ring, ulysses, choice.tensor()); !reason.empty()) {
      rejected_.push_back({ring, ulysses, choice.data(), choice.tensor(), std::move(reason)});
      return false;
    }
    if (search.mode->repeats_kv || search.mode->whole_mask) price_mode(search, candidate);
    decide_memory(pricer, candidate);
    return true;
  }

  /// Prices what the planner's own plans never do: KV heads repeated before the exchange, hidden scores.
  void price_mode(const ModeSearch& search, PlanCandidate& candidate) {
    const Choice& choice = candidate.choice;
    LinkPricer links(*asked_.cluster, *asked_.calibration);
    for (LayerAttention& layer : candidate.attention) {
      const AttentionPlan plan = mode_plan(*search.mode, layer.plan, choice.mesh.ring(), choice.mesh.ulysses);
      if (plan.shape.kv_heads == layer.plan.shape.kv_heads && plan.band == layer.plan.band) continue;
      const Documents documents = attention_documents(asked_.workload, asked_.model->kinds[layer.kind]);
      AttentionPricer of_layer(links, plan.shape, documents, search.request.execution);
      layer.price = of_layer.price(plan, choice.placement);
    }
  }

  /// The fastest of the framework's recompute modes and ZeRO stages that fits; else the smallest.
  void decide_memory(StepPricer& pricer, const PlanCandidate& candidate) {
    std::optional<PlanCandidate> fastest, smallest;
    for (const Recompute recompute : recomputes())
      for (const int stage : stages()) {
        PlanRequest one = pricer.request();
        if (one.workload.training) one.fixed.recompute = recompute;
        one.fixed.zero_stage = stage;
        MemoryChoices choices =
            choose_memory(one, pricer, candidate.choice, candidate.attention, {*candidate.choice.split});
        const auto& fast = choices.fastest;
        if (fast && (!fastest || fast->seconds_per_token < fastest->seconds_per_token)) fastest = fast;
        if (!smallest || pricer.overfull(choices.smallest) < pricer.overfull(*smallest))
          smallest = choices.smallest;
      }
    found_.push_back({fastest ? std::move(*fastest) : std::move(*smallest), searches_.size()});
  }

  FrameworkPlan finish() {
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      const PlanCandidate &x = a.candidate, &y = b.candidate;
      if (x.fits != y.fits) return x.fits;
      return x.fits ? x.seconds_per_token < y.seconds_per_token : x.memory.total_bytes < y.memory.total_bytes;
    });
    if (found_.empty() || !found_.front().candidate.fits)
      throw Infeasible(fmt::format("{}{}{}", framework_.name, no_plan_text, why_none()),
                       {"another --framework", "more devices, or a shorter sequence"});
    const ModeSearch& best = searches_[found_.front().search];
    FrameworkPlan plan;
    plan.mode = best.mode;
    plan.request = best.request;
    plan.request.max_candidates = asked_.max_candidates;
    plan.request.progress = nullptr;
    PlanResult& result = plan.result;
    i64 least = INT64_MAX;
    std::set<std::string> listed;  // several modes make one layout: the fastest stands for it
    for (Found& found : found_) {
      if (!listed.insert(describe(found.candidate.choice)).second) continue;
      const i64 bytes = found.candidate.memory.total_bytes;
      const bool front = found.candidate.fits && bytes < least;
      if (front) least = bytes, result.pareto.push_back(result.candidates.size());
      if (front || result.candidates.size() < asked_.max_candidates)
        result.candidates.push_back(std::move(found.candidate));
    }
    result.rejected = std::move(rejected_);
    result.calibration = calibration_;
    result.considered = considered_;
    result.verdict = compare_best(*asked_.cluster, result.candidates, calibration_.kernel_error);
    if (result.verdict.runner_up.empty())
      result.verdict.alone = "no other mesh is possible in this framework";
    return plan;
  }

  /// The framework's own limits, where they are what is in the way.
  [[nodiscard]] std::string why_none() {
    std::vector<std::string> of_framework;
    for (const Rejection& r : rejected_)
      if (std::find(of_framework.begin(), of_framework.end(), r.reason) == of_framework.end())
        of_framework.push_back(r.reason);
    std::vector<std::string>& reasons = of_framework.empty() ? reasons_ : of_framework;
    reasons.resize(std::min(reasons.size(), max_reasons));
    return join(reasons, "; ");
  }

  struct Found {
    PlanCandidate candidate;
    std::size_t search;  ///< index into searches_
  };

  const PlanRequest& asked_;
  const FrameworkTraits& framework_;
  std::vector<ModeSearch> searches_;
  std::vector<Found> found_;
  std::set<std::tuple<const ExchangeMode*, int, int, int, int>> seen_;  ///< mode, ring, ulysses, data, tensor
  std::vector<Rejection> rejected_;
  std::vector<std::string> reasons_;
  CalibrationSummary calibration_;
  i64 considered_ = 0;
};

}  // namespace

FrameworkPlan plan_in_modes(const PlanRequest& request, const FrameworkTraits& framework) {
  if (request.latent_kv)
    throw UsageError(fmt::format("--latent-kv: no exchange of {} ships latents; leave it or --framework out",
                                 framework.name));
  if (!framework.any_plan) return Within(request, framework).run();
  if (const std::string reason =
          unsupported_job(framework, framework_case(request, request.fixed.tensor.value_or(1)));
      !reason.empty())
    throw Infeasible(reason, {"another --framework"});
  FrameworkPlan plan{request, {}, nullptr};
  if (!framework.tensor) plan.request.fixed.tensor = 1;
  plan.result = plan_step(plan.request);
  return plan;
}

FrameworkPlan plan_within(const PlanRequest& request, const FrameworkTraits& framework) {
  FrameworkPlan plan = plan_in_modes(request, framework);
  if (framework.any_plan) return plan;
  for (PlanCandidate& c : plan.result.candidates)
    if (c.choice.mesh.size() > 1)
      c.unexecutable_reason =
          fmt::format("priced as {} executes it, over NCCL in its own order", framework.name);
  const PlanCandidate& best = plan.result.best();
  plan.result.notes.push_back(fmt::format(
      "within {} ({}): {}", framework.name, framework.version,
      best.choice.mesh.size() > 1 ? fmt::format("mode {}", plan.mode->word) : "one rank per sequence"));
  const PlanResult free = plan_step(request);
  const double cost = best.seconds_per_token / free.best().seconds_per_token - 1;
  plan.result.notes.push_back(fmt::format("--framework {} costs {} per token: without it {}, {}",
                                          framework.word, format_percent(cost), describe(free.best().choice),
                                          format_seconds(free.best().step_s)));
  return plan;
}

}  // namespace usp
