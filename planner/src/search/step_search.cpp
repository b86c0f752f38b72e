// SPDX-License-Identifier: Apache-2.0
#include "alternatives.hpp"
#include "device_order.hpp"
#include "memory_choices.hpp"
#include "search_size.hpp"
#include "simplest.hpp"
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/request_fault.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace usp {
namespace {

/// Searches on fewer devices are small, and a sweep makes many of them.
constexpr i64 counted_from = 64;

class Search {
 public:
  Search(const PlanRequest& request, StepPricer& pricer)
      : request_(request),
        pricer_(pricer),
        fixed_(request.fixed),
        links_order_(order_by_links(*request.cluster)) {}

  PlanResult run() {
    if (!request_.search_pipeline && pricer_.world() % request_.workload.pipeline != 0)
      throw UsageError(fmt::format("pipeline {} does not divide the {} of the cluster",
                                   request_.workload.pipeline, counted(pricer_.world(), "device")));
    if (pricer_.world() > counted_from || fixed_.head_chunks)
      check_ticks(search_ticks(request_, pricer_.world(), pricer_.devices_per_node()), "the search");
    for (const int stages : pipelines()) {
      workload_ = workload_of(request_, {});
      workload_.pipeline = stages;
      const std::vector<Degrees> all =
          degrees_of(request_, pricer_.world(), pricer_.devices_per_node(), stages);
      mesh_ = 0, meshes_ = all.size();
      for (const Degrees& degrees : all) {
        try_mesh(degrees);
        ++mesh_;
      }
    }
    finish();
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::vector<int> pipelines() const {
    if (!request_.search_pipeline) return {request_.workload.pipeline};
    std::vector<int> list;
    for (const int stages : divisors_of(pricer_.world()))
      if (stages <= request_.model->layers) list.push_back(stages);
    return list;
  }

  void try_mesh(const Degrees& d) {
    LegalityInput input{request_.model,
                        &workload_,
                        pricer_.world(),
                        pricer_.devices_per_node(),
                        fixed_.head_chunks.value_or(1),
                        global_batch_of(request_),
                        &fixed_};
    if (std::string reason = unsupported_reason(input, d.tensor, d.data, {1, d.ring, d.ulysses});
        !reason.empty()) {
      result_.rejected.push_back({d.ring, d.ulysses, d.data, d.tensor, std::move(reason)});
      input.global_batch.reset();
      if (!request_.global_batch &&
          unsupported_reason(input, d.tensor, d.data, {1, d.ring, d.ulysses}).empty())
        least_replicas_ = std::min(least_replicas_.value_or(d.data), d.data);
      return;
    }
    if (request_.latent_kv && (d.ring == 1 || d.ulysses > 1)) {
      result_.rejected.push_back({d.ring, d.ulysses, d.data, d.tensor, "only a ring alone ships latents"});
      return;
    }
    splits_ = splits_of(request_, workload_.pipeline, d.data, d.ring * d.ulysses, d.tensor);
    if (splits_.empty()) {
      result_.rejected.push_back(
          {d.ring, d.ulysses, d.data, d.tensor, why_no_split(request_, workload_.pipeline, d.data)});
      return;
    }
    ++legal_meshes_;
    best_.reset();
    const auto known = attended_.find(key_of(d));
    if (known != attended_.end()) {  // of other stages: the schedule is the same
      best_ = known->second;
      best_->choice.placement.data = d.data;
      best_->choice.split = splits_.front();
    } else {
      price_alternatives(d);
      if (best_ && request_.search_pipeline) attended_.emplace(key_of(d), *best_);
    }
    if (best_) decide_memory();
  }

  /// What attention depends on: degrees, and rows of a microbatch.
  [[nodiscard]] std::tuple<int, int, int, i64> key_of(const Degrees& d) const {
    return {d.tensor, d.ring, d.ulysses, splits_.front().batch / splits_.front().microbatches};
  }

  void price_alternatives(const Degrees& d) {
    const bool uneven_heads = uneven(d.tensor, d.ulysses);
    for (Choice& choice : alternatives_of(request_, d)) {
      choice.placement.tensor = d.tensor;
      choice.placement.data = d.data;
      choice.uneven_heads = uneven_heads;
      choice.latent_kv = request_.latent_kv;
      choice.split = splits_.front();
      consider(choice);
      if (links_order_.empty() || workload_.pipeline > 1 || request_.search_pipeline) continue;
      choice.placement.devices = links_order_;
      consider(choice);
    }
    if (best_) take_simplest();
  }

  /// Alternatives come in order of complexity: of those as fast as the fastest, the first.
  void take_simplest() {
    const auto simplest = std::find_if(considered_.begin(), considered_.end(), [&](const auto& known) {
      return known.second * (1 - same_attention) <= best_->seconds;
    });
    if (simplest->second > best_->seconds)
      best_ = Best{simplest->first, pricer_.attention(simplest->first), simplest->second};
    considered_.clear();
  }

  [[nodiscard]] bool uneven(int tensor, int ulysses) const {
    return std::any_of(
        request_.model->kinds.begin(), request_.model->kinds.end(), [&](const LayerKind& kind) {
          return kind.has_softmax() &&
                 !even_degree(kind.query_heads / tensor, std::max<i64>(1, kind.kv_heads / tensor), ulysses);
        });
  }

  void consider(const Choice& choice) {
    tell(request_.progress, static_cast<i64>(mesh_), static_cast<i64>(meshes_), "meshes");
    if (std::string reason = pricer_.too_much_work(choice); !reason.empty()) {
      result_.rejected.push_back(
          {choice.mesh.ring(), choice.mesh.ulysses, choice.data(), choice.tensor(), std::move(reason)});
      return;
    }
    std::vector<LayerAttention> attention = pricer_.attention(choice);
    const double seconds = pricer_.attention_seconds(attention);
    considered_.emplace_back(choice, seconds);
    if (best_ && best_->seconds <= seconds) return;
    best_ = Best{choice, std::move(attention), seconds};
  }

  /// What does not change the schedule is chosen per mesh: the fastest that fits, and the smallest.
  void decide_memory() {
    const MemoryChoices made = choose_memory(request_, pricer_, best_->choice, best_->attention, splits_);
    if (made.fastest) result_.candidates.push_back(*made.fastest);
    if (!made.fastest || made.smallest.memory.total_bytes < made.fastest->memory.total_bytes)
      result_.candidates.push_back(made.smallest);
  }

  void finish() {
    auto& list = result_.candidates;
    result_.considered = pricer_.priced();
    std::stable_sort(list.begin(), list.end(), [&](const PlanCandidate& a, const PlanCandidate& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.seconds_per_token < b.seconds_per_token : pricer_.overfull(a) < pricer_.overfull(b);
    });
    if (list.empty())
      throw Infeasible("no mesh is legal for this model on this cluster" + first_reasons(),
                       remedies_without_mesh());
    if (!list.front().fits) throw does_not_fit(request_, pricer_, list.front());
    lead_with_simplest(list, [](const PlanCandidate& c) -> const PlanCandidate& { return c; });
    note_device_order(list.front().choice.placement.devices, *request_.cluster, result_.notes);
    mark_pareto();
    std::uint32_t extrapolation = 0;
    for (const PlanCandidate& c : list) extrapolation |= c.extrapolation;
    result_.calibration = request_.calibration->summary(extrapolation);
    result_.verdict = compare_best(*request_.cluster, list, result_.calibration.kernel_error);
    if (result_.verdict.runner_up.empty()) result_.verdict.alone = why_alone();
    if (list.size() > request_.max_candidates) shorten();
  }

  /// Why the best mesh has no runner-up: others do not fit, were not asked for, or are not legal.
  [[nodiscard]] std::string why_alone() const {
    const std::string fixed = join(fixed_degrees(), ", ");
    if (legal_meshes_ > 1) return "no other mesh fits" + (fixed.empty() ? "" : " beside the fixed " + fixed);
    if (!fixed.empty()) return "no other mesh was tried beside the fixed " + fixed;
    return "no other mesh is legal";
  }

  /// The flags of degrees that are given.
  [[nodiscard]] std::vector<std::string> fixed_degrees() const {
    std::vector<std::string> flags;
    for (const auto& [flag, degree] :
         {std::pair("--ring", fixed_.ring), std::pair("--ulysses", fixed_.ulysses),
          std::pair("--data", fixed_.data), std::pair("--tensor", fixed_.tensor)})
      if (degree) flags.push_back(fmt::format("{} {}", flag, *degree));
    return flags;
  }

  void mark_pareto() {
    i64 least = INT64_MAX;
    for (std::size_t i = 0; i < result_.candidates.size() && result_.candidates[i].fits; ++i) {
      if (result_.candidates[i].memory.total_bytes >= least) continue;
      least = result_.candidates[i].memory.total_bytes;
      result_.pareto.push_back(i);
    }
  }

  /// Keeps the best ones and the whole Pareto front.
  void shorten() {
    std::vector<PlanCandidate> kept;
    std::vector<std::size_t> pareto_front;
    for (std::size_t i = 0; i < result_.candidates.size(); ++i) {
      const bool on_front =
          std::find(result_.pareto.begin(), result_.pareto.end(), i) != result_.pareto.end();
      if (i >= request_.max_candidates && !on_front) continue;
      if (on_front) pareto_front.push_back(kept.size());
      kept.push_back(std::move(result_.candidates[i]));
    }
    result_.candidates = std::move(kept);
    result_.pareto = std::move(pareto_front);
  }

  [[nodiscard]] std::string first_reasons() const {
    std::set<std::string> seen;
    std::string text;
    for (const Rejection& r : result_.rejected)
      if (seen.size() < 3 && seen.insert(r.reason).second) text += (text.empty() ? ": " : "; ") + r.reason;
    return text;
  }
  [[nodiscard]] std::vector<std::string> remedies_without_mesh() const {
    std::vector<std::string> list;
    if (const auto fixed = fixed_degrees(); !fixed.empty())
      list.push_back(fmt::format("free the degrees that are fixed ({})", fmt::join(fixed, ", ")));
    if (fixed_.head_chunks.value_or(1) > 1) list.emplace_back("fewer --head-chunks");
    for (std::string& remedy : fixed_choice_remedies(fixed_, result_.rejected))
      list.push_back(std::move(remedy));
    if (least_replicas_)
      list.push_back(
          fmt::format("--objective throughput: {} replicas, which take a batch each", *least_replicas_));
    if (workload_.microbatches > 1) list.emplace_back("--microbatches that divide a replica's rows");
    list.emplace_back("use a device count whose divisors fit the heads, with --nodes or --devices");
    return list;
  }
  struct Best {
    Choice choice;
    std::vector<LayerAttention> attention;
    double seconds = 0;
  };

  const PlanRequest& request_;
  StepPricer& pricer_;
  const Constraints& fixed_;
  std::optional<int> least_replicas_;  ///< of a mesh that only the given batch forbids
  std::vector<int> links_order_;       ///< of the devices along their links; empty: the natural one
  std::optional<Best> best_;
  std::vector<std::pair<Choice, double>> considered_;        ///< of the mesh, with seconds of attention
  std::map<std::tuple<int, int, int, i64>, Best> attended_;  ///< by key_of, where several stages are tried
  Workload workload_;              ///< the request's, with the stages that are being tried
  std::vector<StepSplit> splits_;  ///< of the mesh that is being tried
  int legal_meshes_ = 0;
  std::size_t mesh_ = 0, meshes_ = 0;  ///< the one that is being tried, and all
  PlanResult result_;
};

}  // namespace

PlanResult search_with(const PlanRequest& request, StepPricer& pricer) {
  if (const auto fault = request_fault(request))
    throw UsageError(fmt::format("{}: {}", fault->flag, fault->why));
  if (!request.latent_kv) return Search(request, pricer).run();
  const PlanRequest ring = ring_of_latents(request);
  return Search(ring, pricer).run();
}

PlanResult plan_step(const PlanRequest& request) {
  StepPricer pricer(request);
  PlanResult result = search_with(request, pricer);
  if (request.latent_kv) {
    add_notes(request, result);
    return result;
  }
  name_guesses(request, result);
  result.verdict.flag_costs = flag_costs(request, pricer, result.best());
  add_notes(request, result);
  add_latent(request, pricer, result);
  return result;
}

PlanCandidate price_choice(const PlanRequest& request, const Choice& choice) {
  StepPricer pricer(request);
  const Workload workload = workload_of(request, choice);
  const std::string reason = unsupported_reason(
      {request.model, &workload, pricer.world(), pricer.devices_per_node(), choice.head_chunks},
      choice.tensor(), choice.data(), choice.mesh);
  if (!reason.empty()) throw Infeasible(reason, {});
  const std::vector<LayerAttention> attention = pricer.attention(choice);
  PlanCandidate candidate =
      pricer.candidate(choice, attention, pricer.attention_memory(choice, attention), true);
  candidate.attention = attention;
  return candidate;
}

}  // namespace usp
