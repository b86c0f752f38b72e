// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/compare.hpp"

#include "../search/search_size.hpp"
#include "../search/step_pricer.hpp"
#include "records.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace usp {
namespace {

/// Elements of softmax scores that a layer holds at once, of which there are two: scores and probabilities.
constexpr double score_tensors = 2;

/// Colossal-AI's ring self-attention (Li et al., arXiv:2105.13120): keys go round, then values; each rank
/// holds its rows of the whole score matrix.
FrameworkTraits ring_self_attention() {
  FrameworkTraits t;
  t.word = "colossalai";
  t.name = "Colossal-AI ring self-attention";
  ExchangeMode mode;
  mode.word = "ring_self_attention";
  mode.ring = mode.whole_mask = true;
  mode.layout = LayoutKind::contiguous;
  mode.overlap = false;
  t.modes = {mode};
  t.pipeline = t.expert = false;
  t.zero_stages = {0, 1, 2, 3};
  return t;
}

class Comparer {
 public:
  explicit Comparer(const PlanRequest& asked) : request_(asked) {
    request_.fixed.data = asked.fixed.data.value_or(1);
    request_.fixed.tensor = asked.fixed.tensor.value_or(1);
    request_.max_candidates = 100000;
    // No framework's way is priced with it; what is compared are exchanges.
    request_.search_offload = false;
    if (!asked.fixed.data) {
      best_name_ += ", data 1";
      result_.notes.emplace_back(
          "all devices share one sequence where the mesh names no data degree; usp plan weighs replicas too, "
          "which serve several sequences at once");
    }
    if (asked.search_offload && asked.workload.training && !asked.fixed.offload && !asked.fixed.recompute)
      result_.notes.emplace_back(
          "every way keeps its tensors on the devices; usp plan weighs to move them to the host's memory "
          "too");
    if (asked.fixed.gated)
      result_.notes.emplace_back(
          "--gated: rings of gathered KV have gates; the other ways, and those of frameworks, have none and "
          "are priced without");
  }

  Comparison run() {
    add_own();
    for (const FrameworkTraits* framework : frameworks())
      if (!framework->any_plan) add_framework(*framework);
    add_tensor();
    add_ring_self_attention();
    add_lasp2();
    check_some_fits();
    return std::move(result_);
  }

 private:
  using Change = std::function<void(Constraints&)>;

  using OfMode = std::function<bool(const ExchangeMode&)>;

  void add_own() {
    const auto one = [](std::optional<int>& degree) { degree = 1; };
    const auto any = [](const Mesh&) { return true; };
    const auto both = [](const Mesh& m) { return m.ring() > 1 && m.ulysses > 1; };
    const auto ring_by = [](Method method) -> OfMode {
      return [method](const ExchangeMode& m) { return m.ring && !m.both && m.method == method; };
    };
    const auto two_axes = [](AxisOrder order) -> OfMode {
      return [order](const ExchangeMode& m) {
        return m.ring && m.ulysses && m.method == Method::ring && m.order.value_or(order) == order;
      };
    };
    own(
        best_name_.c_str(), [](Constraints&) {}, any, [](const ExchangeMode&) { return false; });
    own(
        "Ulysses", [&](Constraints& c) { one(c.ring); }, any,
        [](const ExchangeMode& m) { return m.ulysses && !m.both; });
    own(
        "ring", [&](Constraints& c) { one(c.ulysses), c.method = Method::ring; }, any, ring_by(Method::ring));
    own(
        "gathered KV", [&](Constraints& c) { one(c.ulysses), c.method = Method::all_gather_kv; }, any,
        ring_by(Method::all_gather_kv));
    own(
        "2D, Ulysses inside",
        [](Constraints& c) { c.method = Method::ring, c.order = AxisOrder::ulysses_inner; }, both,
        two_axes(AxisOrder::ulysses_inner));
    own(
        "2D, ring inside", [](Constraints& c) { c.method = Method::ring, c.order = AxisOrder::ring_inner; },
        both, two_axes(AxisOrder::ring_inner));
  }

  /// "megatron p2p": the modes of frameworks that make the exchange of a way.
  static std::vector<std::string> modes_that(const OfMode& is_same) {
    std::vector<std::string> list;
    for (const FrameworkTraits* framework : frameworks())
      for (const ExchangeMode& mode : framework->modes)
        if (!framework->any_plan && is_same(mode))
          list.push_back(fmt::format("{} {}", framework->word, mode.word));
    return list;
  }

  void check_some_fits() const {
    const auto fits = [](const ComparedWay& way) { return way.plan && way.plan->fits; };
    if (std::any_of(result_.ways.begin(), result_.ways.end(), fits)) return;
    std::vector<std::string> remedies{
        "--data and --tensor, where several replicas or tensor ranks may share the devices"};
    remedies.insert(remedies.end(), remedies_.begin(), remedies_.end());
    throw Infeasible(fmt::format("no way to divide this job over all devices fits; {}: {}", best_name_,
                                 result_.ways.front().impossible_reason),
                     std::move(remedies));
  }

  /// Searches once. All ways together may price as many ticks as one command does: later ones are refused.
  PlanResult searched(const PlanRequest& request) {
    StepPricer pricer(request);
    const double ticks = search_ticks(request, pricer.world(), pricer.devices_per_node());
    check_ticks(spent_ticks_ + ticks, "it, with the ways before it,");
    spent_ticks_ += ticks;
    return search_with(request, pricer);
  }

  /// One of this project's ways: the constraints beside those that are asked for, and the meshes that are it.
  void own(const char* name, const Change& change, const std::function<bool(const Mesh&)>& is_meant,
           const OfMode& is_same) {
    ComparedWay way{name, "usp", std::nullopt, "", modes_that(is_same)};
    PlanRequest request = request_;
    change(request.fixed);
    // Gates are of rings of gathered blocks: other ways are priced without, which a note says.
    const Mesh mesh{1, request.fixed.ring.value_or(2), 1};
    request.fixed.gated = request.fixed.gated && gates_refused(request.fixed, mesh).empty();
    try {
      const PlanResult found = searched(request);
      result_.calibration = found.calibration;
      for (const PlanCandidate& c : found.candidates)
        if (c.fits && !way.plan && is_meant(c.choice.mesh)) way.plan = measured(request, c, nullptr);
      if (!way.plan) way.impossible_reason = "no mesh of this kind fits or is legal";
    } catch (const Infeasible& error) {
      way.impossible_reason = first_line(error);
      if (result_.ways.empty()) remedies_ = error.remedies();
    }
    result_.ways.push_back(std::move(way));
  }

  void add_framework(const FrameworkTraits& framework) {
    for (const ExchangeMode& mode : framework.modes) {
      FrameworkTraits alone = framework;
      alone.modes = {mode};
      result_.ways.push_back(
          in_mode(fmt::format("{} {}", framework.word, mode.word), std::string(framework.word), alone));
    }
  }

  ComparedWay in_mode(std::string name, std::string runs_on, const FrameworkTraits& alone) {
    ComparedWay way{std::move(name), std::move(runs_on), std::nullopt, "", {}};
    try {
      PlanRequest request = request_;
      request.fixed.gated = request.fixed.gated && alone.any_plan;  // a choice of this project's own ways
      const FrameworkPlan plan = plan_in_modes(request, alone);
      way.plan = measured(plan.request, plan.result.best(), plan.mode);
    } catch (const Infeasible& error) {
      way.impossible_reason = first_line(error);
      const std::string of_framework = std::string(alone.name) + no_plan_text;
      const std::string of_mode = std::string(alone.modes.front().word) + ": ";
      for (const std::string& said : {of_framework, of_mode})  // the row's name says both
        for (std::size_t at = 0; (at = way.impossible_reason.find(said, at)) != std::string::npos;)
          way.impossible_reason.erase(at, said.size());
    }
    return way;
  }

  /// Megatron's sequence parallelism: activations are sharded over the tensor ranks of a host.
  void add_tensor() {
    ComparedWay way{"megatron tensor SP", "megatron", std::nullopt, "", {}};
    PlanRequest request = request_;
    request.library_kernels = true;
    request.fixed.gated = false;
    request.fixed.ring = request.fixed.ulysses = 1;
    request.fixed.tensor.reset();
    request.fixed.data.reset();
    try {
      const PlanResult found = searched(request);
      const PlanCandidate* widest = nullptr;
      for (const PlanCandidate& c : found.candidates)
        if (c.fits && c.choice.tensor() > 1 &&
            (widest == nullptr || c.choice.tensor() > widest->choice.tensor()))
          widest = &c;
      if (widest != nullptr)
        way.plan = measured(request, *widest, nullptr);
      else
        way.impossible_reason = "no tensor degree inside a host fits";
    } catch (const Infeasible& error) {
      way.impossible_reason = first_line(error);
    }
    result_.ways.push_back(std::move(way));
  }

  void add_ring_self_attention() {
    static const FrameworkTraits traits = ring_self_attention();
    ComparedWay way = in_mode("colossalai ring", std::string(traits.word), traits);
    if (way.plan) {
      const Choice& choice = way.plan->choice;
      double scores = 0;
      for (const LayerKind& kind : request_.model->kinds) {
        if (!kind.has_softmax()) continue;
        const AttentionPlan plan = attention_plan(request_, choice, kind);
        const double rows = static_cast<double>(plan.shape.q_tokens) / choice.mesh.size();
        scores = std::max(scores, rows * static_cast<double>(plan.shape.kv_tokens * plan.shape.batch) *
                                      plan.shape.query_heads);
      }
      const double bytes = scores * score_tensors * bytes_of(request_.workload.dtype);
      way.plan->memory_bytes += static_cast<i64>(bytes);
      way.plan->fits = static_cast<double>(way.plan->memory_bytes) <= StepPricer(request_).device_bytes();
      result_.notes.push_back(fmt::format(
          "ring self-attention: priced with fused kernels, which it has not; its scores take {} of "
          "the memory",
          format_bytes(bytes)));
    }
    result_.ways.push_back(std::move(way));
  }

  /// LASP-2 (Sun et al., arXiv:2502.07563): one all-gather of the states of all ranks per linear layer and
  /// pass, where the sequence stays cut.
  void add_lasp2() {
    double bytes = 0;
    for (const LayerKind& kind : request_.model->kinds)
      if (kind.is_linear())
        bytes +=
            static_cast<double>(kind.calls()) *
            static_cast<double>(kind.linear->value_heads * kind.linear->key_dim * kind.linear->value_dim) *
            4 * static_cast<double>(request_.workload.batch);
    if (bytes == 0) return;
    const double others = static_cast<double>(request_.cluster->devices.size()) - 1;
    result_.ways.push_back(
        {"LASP-2 (linear layers)",
         "none here",
         std::nullopt,
         fmt::format(
             "its linear layers gather {} of states per device and pass ({} each); no generator makes "
             "that exchange yet",
             format_bytes(bytes * others), format_bytes(bytes)),
         {}});
  }

  [[nodiscard]] ComparedPlan measured(const PlanRequest& request, const PlanCandidate& c,
                                      const ExchangeMode* mode) {
    ComparedPlan plan;
    plan.choice = c.choice;
    plan.step_s = c.step_s;
    plan.seconds_per_token = c.seconds_per_token;
    plan.band = c.band;
    plan.memory_bytes = c.memory.total_bytes;
    plan.fits = c.fits;
    const Workload w = workload_of(request, c.choice);
    const double again = static_cast<double>(w.recompute_layers.value_or(request.model->layers)) /
                         static_cast<double>(request.model->layers);
    const double forwards = 1 + again * (forward_runs(w.training, c.choice.recompute) - 1);
    for (const LayerAttention& layer : c.attention) {
      const LayerKind& kind = request.model->kinds[layer.kind];
      const double runs =
          static_cast<double>(kind.calls()) * static_cast<double>(w.microbatches) / w.pipeline;
      const AttentionPlan of_mode =
          mode == nullptr ? layer.plan
                          : mode_plan(*mode, layer.plan, c.choice.mesh.ring(), c.choice.mesh.ulysses);
      const Documents documents = attention_documents(request.workload, kind);
      const auto add = [&](Pass pass, const PassPrice& price, double times) {
        const LinkBytes bytes = link_bytes(*request.cluster, of_mode, documents, c.choice.placement, pass);
        plan.exposed_s += runs * times * price.exposed_s;
        plan.bytes.inside += runs * times * bytes.inside;
        plan.bytes.nics += runs * times * bytes.nics;
      };
      add(Pass::forward, layer.price.forward, forwards);
      if (w.training) add(Pass::backward, layer.price.backward, 1);
    }
    const double layer_forwards = w.training && layer_again(c.choice.recompute) ? 1 + again : 1;
    add_tensor_exchange(request, c, w, w.training ? layer_forwards + 1 : 1, plan);
    return plan;
  }

  /// All-gathers and reduce-scatters of tensor parallelism, inside hosts.
  static void add_tensor_exchange(const PlanRequest& request, const PlanCandidate& c, const Workload& w,
                                  double passes, ComparedPlan& plan) {
    for (const TimeTerm& term : c.terms)
      if (term.name == "tensor-parallel exchange") plan.exposed_s += term.seconds;
    const int tensor = c.choice.tensor();
    const double tokens = static_cast<double>(w.tokens()) / c.choice.mesh.size();
    const double activation = tokens * static_cast<double>(request.model->hidden * bytes_of(w.dtype));
    plan.bytes.inside += 4 * passes * activation * (tensor - 1) / tensor *
                         static_cast<double>(request.model->layers) / w.pipeline;
  }

  PlanRequest request_;
  std::string best_name_ = "best plan";
  double spent_ticks_ = 0;
  std::vector<std::string> remedies_;  ///< of the best plan, where it does not fit
  Comparison result_;
};

}  // namespace

Comparison compare_ways(const PlanRequest& request) {
  if (request.latent_kv)
    throw UsageError(
        "--latent-kv: the ways side by side are those that something executes, and nothing executes a ring "
        "of "
        "latents; usp plan --latent-kv prices it, and without the flag its note says what that would gain");
  return Comparer(request).run();
}

}  // namespace usp
