// SPDX-License-Identifier: Apache-2.0
#include "search_size.hpp"
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

namespace usp {
namespace {

/// Searches on fewer devices are small, and a sweep makes many of them.
constexpr i64 counted_from = 64;

class Search {
 public:
  Search(const PlanRequest& request, StepPricer& pricer)
      : request_(request), pricer_(pricer), fixed_(request.fixed) {}

  PlanResult run() {
    if (pricer_.world() % request_.workload.pipeline != 0)
      throw UsageError(fmt::format("pipeline {} does not divide the {} devices of the cluster",
                                   request_.workload.pipeline, pricer_.world()));
    if (pricer_.world() > counted_from || fixed_.head_chunks)
      check_ticks(search_ticks(request_, pricer_.world(), pricer_.devices_per_node()), "the search");
    const std::vector<Degrees> all = degrees_of(request_, pricer_.world(), pricer_.devices_per_node());
    meshes_ = all.size();
    for (mesh_ = 0; mesh_ < meshes_; ++mesh_) try_mesh(all[mesh_]);
    finish();
    return std::move(result_);
  }

 private:
  void try_mesh(const Degrees& d) {
    const LegalityInput input{request_.model, &request_.workload, pricer_.world(), pricer_.devices_per_node(),
                              fixed_.head_chunks.value_or(1)};
    if (std::string reason = unsupported_reason(input, d.tensor, d.data, {1, d.ring, d.ulysses});
        !reason.empty()) {
      result_.rejected.push_back({d.ring, d.ulysses, d.data, d.tensor, std::move(reason)});
      return;
    }
    ++legal_meshes_;
    const bool uneven_heads = uneven(d.tensor, d.ulysses);
    best_.reset();
    for (Choice& choice : alternatives_of(request_, d)) {
      choice.placement.tensor = d.tensor;
      choice.placement.data = d.data;
      choice.uneven_heads = uneven_heads;
      consider(choice);
    }
    if (best_) decide_memory();
  }

  [[nodiscard]] bool uneven(int tensor, int ulysses) const {
    return std::any_of(
        request_.model->kinds.begin(), request_.model->kinds.end(), [&](const LayerKind& kind) {
          return !kind.is_linear() &&
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
    const double seconds = pricer_.attention_seconds(attention, Recompute::full);
    if (best_ && best_->seconds <= seconds) return;
    best_ = Best{choice, std::move(attention), seconds};
  }

  /// Recompute and ZeRO stage do not change the schedule: they are chosen per mesh, the fastest that fits.
  void decide_memory() {
    Choice choice = best_->choice;
    const StepPricer::AttentionMemory memory = pricer_.attention_memory(choice, best_->attention);
    std::vector<PlanCandidate> all;
    for (Recompute recompute : recomputes())
      for (int stage : stages()) {
        choice.recompute = recompute;
        choice.zero_stage = stage;
        all.push_back(pricer_.candidate(choice, best_->attention, memory));
      }
    std::size_t smallest = 0;
    std::optional<std::size_t> fastest;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].memory.total_bytes < all[smallest].memory.total_bytes) smallest = i;
      if (all[i].fits && (!fastest || all[i].step_s < all[*fastest].step_s)) fastest = i;
    }
    if (fastest) keep(std::move(all[*fastest]));
    if (!fastest || all[smallest].memory.total_bytes < result_.candidates.back().memory.total_bytes)
      keep(std::move(all[smallest]));
  }
  void keep(PlanCandidate candidate) {
    candidate.attention = best_->attention;
    result_.candidates.push_back(std::move(candidate));
  }

  [[nodiscard]] std::vector<Recompute> recomputes() const {
    if (!request_.workload.training) return {Recompute::none};
    if (fixed_.recompute) return {*fixed_.recompute};
    std::vector<Recompute> list{Recompute::none, Recompute::selective, Recompute::full};
    if (request_.cluster->nodes.front().pcie_gb_s.known()) list.push_back(Recompute::offload);
    return list;
  }
  [[nodiscard]] std::vector<int> stages() const {
    if (fixed_.zero_stage) return {*fixed_.zero_stage};
    return request_.workload.training ? std::vector<int>{1, 2, 3} : std::vector<int>{0, 3};
  }

  void finish() {
    auto& list = result_.candidates;
    result_.considered = pricer_.priced();
    std::stable_sort(list.begin(), list.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.seconds_per_token < b.seconds_per_token : a.memory.total_bytes < b.memory.total_bytes;
    });
    if (list.empty())
      throw Infeasible("no mesh is legal for this model on this cluster" + first_reasons(),
                       remedies_without_mesh());
    if (!list.front().fits)
      throw DoesNotFit(too_big(list.front()), remedies(list.front()), list.front().memory.total_bytes,
                       pricer_.device_bytes());
    mark_pareto();
    std::uint32_t extrapolation = 0;
    for (const PlanCandidate& c : list) extrapolation |= c.extrapolation;
    result_.calibration = request_.calibration->summary(extrapolation);
    result_.verdict = compare_best(list, result_.calibration.kernel_error);
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
    list.emplace_back("use a device count whose divisors fit the heads, with --nodes or --devices");
    return list;
  }
  [[nodiscard]] std::string too_big(const PlanCandidate& c) const {
    const auto largest =
        std::max_element(c.memory.rows.begin(), c.memory.rows.end(),
                         [](const MemoryRow& a, const MemoryRow& b) { return a.bytes < b.bytes; });
    return fmt::format("no plan fits: the smallest ({}) needs {} of {} per device; most of it is {}, {} ({})",
                       describe(c.choice), format_bytes(static_cast<double>(c.memory.total_bytes)),
                       format_bytes(pricer_.device_bytes()), largest->name,
                       format_bytes(static_cast<double>(largest->bytes)), largest->reason);
  }
  [[nodiscard]] std::vector<std::string> remedies(const PlanCandidate& c) const {
    std::vector<std::string> list;
    const double over = static_cast<double>(c.memory.total_bytes) / pricer_.device_bytes();
    if (const double devices = static_cast<double>(pricer_.world()) * over; devices < max_ranks)
      list.push_back(fmt::format("about {} devices instead of {} (--nodes)", static_cast<i64>(devices) + 1,
                                 pricer_.world()));
    if (const i64 tokens = static_cast<i64>(static_cast<double>(request_.workload.seq) / over) / 1024 * 1024;
        tokens > 0)
      list.push_back(fmt::format("a sequence of about {} tokens instead of {} (--seq)", format_tokens(tokens),
                                 format_tokens(request_.workload.seq)));
    if (request_.memory.loss_tile_tokens == 0) list.emplace_back("a tiled loss (--loss-tile 2048)");
    if (fixed_.recompute) list.emplace_back("another recompute mode (drop --recompute)");
    if (fixed_.zero_stage && *fixed_.zero_stage < 3) list.emplace_back("ZeRO stage 3 (--zero 3)");
    if (request_.memory.mlp_tile_tokens == 0) list.emplace_back("a tiled MLP (--mlp-tile 8192)");
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
  std::optional<Best> best_;
  int legal_meshes_ = 0;
  std::size_t mesh_ = 0, meshes_ = 0;  ///< the one that is being tried, and all
  PlanResult result_;
};

}  // namespace

PlanResult search_with(const PlanRequest& request, StepPricer& pricer) {
  return Search(request, pricer).run();
}

PlanResult plan_step(const PlanRequest& request) {
  StepPricer pricer(request);
  return search_with(request, pricer);
}

PlanCandidate price_choice(const PlanRequest& request, const Choice& choice) {
  StepPricer pricer(request);
  const std::string reason = unsupported_reason(
      {request.model, &request.workload, pricer.world(), pricer.devices_per_node(), choice.head_chunks},
      choice.tensor(), choice.data(), choice.mesh);
  if (!reason.empty()) throw Infeasible(reason, {});
  const std::vector<LayerAttention> attention = pricer.attention(choice);
  PlanCandidate candidate = pricer.candidate(choice, attention, pricer.attention_memory(choice, attention));
  candidate.attention = attention;
  return candidate;
}

}  // namespace usp
