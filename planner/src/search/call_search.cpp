// SPDX-License-Identifier: Apache-2.0
#include "alternatives.hpp"
#include "backend_choice.hpp"
#include "device_order.hpp"
#include "doubts.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/price_report.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

namespace usp {
namespace {

/// The call as a model of one layer, so that the rules of legality are asked in one place.
Model one_layer(const AttentionShape& shape) {
  LayerKind kind;
  kind.layers = {0};
  kind.query_heads = shape.query_heads;
  kind.kv_heads = shape.kv_heads;
  kind.head_dim_qk = shape.head_dim_qk;
  kind.head_dim_v = shape.head_dim_v;
  Model model;
  model.name = "attention call";
  model.layers = 1;
  model.kinds = {kind};
  return model;
}

bool same_degrees(const AttentionCandidate& a, const AttentionCandidate& b) {
  return a.plan.mesh.ring() == b.plan.mesh.ring() && a.plan.mesh.ulysses == b.plan.mesh.ulysses;
}

/// Errors that both share cancel: only what differs can turn the order.
double uncertainty(const PassPrice& a, const PassPrice& b) {
  return std::max(a.band, b.band) *
         (std::abs(a.compute_s - b.compute_s) + std::abs(a.exposed_s - b.exposed_s));
}

/// What of two plans as fast as each other is simpler comes first.
std::tuple<bool, bool, int, int> complexity(const AttentionCandidate& c) {
  return {c.price.forward.spans_hosts || c.price.backward.spans_hosts, c.plan.method->two_level_ring,
          c.plan.head_chunks, c.plan.gate_phases};
}

class AttentionSearch {
 public:
  explicit AttentionSearch(const AttentionRequest& request)
      : request_(request),
        links_(*request.cluster, *request.calibration),
        model_(one_layer(request.shape)),
        data_(request.fixed.data.value_or(1)),
        tensor_(request.fixed.tensor.value_or(1)),
        links_order_(order_by_links(*request.cluster)) {
    workload_.seq = request.shape.q_tokens;
    workload_.batch = request.shape.batch;
    legality_ = {&model_,
                 &workload_,
                 static_cast<i64>(request.cluster->devices.size()),
                 static_cast<int>(request.cluster->devices.size() /
                                  std::max<std::size_t>(1, request.cluster->nodes.size())),
                 request.fixed.head_chunks.value_or(1),
                 {},
                 &request.fixed};
  }

  AttentionResult run() {
    const AttentionShape& shape = request_.shape;
    LegalityInput of_tensor = legality_;
    of_tensor.world = i64{data_} * tensor_;
    of_tensor.fixed = nullptr;
    if (tensor_ > 1 && (shape.query_heads % tensor_ != 0 ||
                        (shape.kv_heads % tensor_ != 0 && tensor_ % shape.kv_heads != 0)))
      throw Infeasible(unsupported_reason(of_tensor, tensor_, data_, {1, 1, 1}), {"another --tensor"});
    local_ = shape;
    local_.query_heads /= tensor_;
    local_.kv_heads = std::max(1, local_.kv_heads / tensor_);
    pricer_ = std::make_unique<AttentionPricer>(links_, local_, request_.documents, request_.execution);
    take_part();
    note(priced_devices_note(request_));
    note(unknown_cards_note());
    if (request_.score.block_tokens > 0) result_.notes.push_back(block_pattern_note(request_.score));
    const auto list = meshes();
    for (std::size_t i = 0; i < list.size(); ++i) {
      mesh_ = static_cast<i64>(i), meshes_ = static_cast<i64>(list.size());
      try_mesh(list[i].first, list[i].second);
    }
    if (result_.candidates.empty()) throw Infeasible(nothing(), remedies());
    price_smaller();
    finish();
    return std::move(result_);
  }

 private:
  /// Threads of a host stand for no cards.
  [[nodiscard]] std::string unknown_cards_note() const {
    if (request_.all_devices) return "";
    return CardBackends(*request_.cluster, *request_.calibration)
        .unknown_note(request_.backend.value_or(Backend{}));
  }

  /// Degrees that are all given may name fewer ranks than there are devices: one call need not use them all.
  void take_part() {
    const Constraints& fixed = request_.fixed;
    if (request_.all_devices || !fixed.ring || !fixed.ulysses) return;
    const i64 used = ranks_of({*fixed.ring, *fixed.ulysses, data_, tensor_});
    if (used >= legality_.world) return;
    result_.notes.push_back(idle_devices_note(used, legality_.world));
    legality_.world = used;
  }

  /// Both degrees given are tried even where they do not match the cluster: legality says why.
  [[nodiscard]] std::vector<std::pair<int, int>> meshes() const {
    const Constraints& fixed = request_.fixed;
    if (fixed.ring && fixed.ulysses) return {{*fixed.ring, *fixed.ulysses}};
    const i64 group = legality_.world / (i64{data_} * tensor_);
    std::vector<std::pair<int, int>> list;
    for (const int ulysses : divisors_of(group)) {
      const int ring = static_cast<int>(group) / ulysses;
      if ((!fixed.ring || *fixed.ring == ring) && (!fixed.ulysses || *fixed.ulysses == ulysses))
        list.emplace_back(ring, ulysses);
    }
    return list;
  }

  /// Each choice in the natural order of the devices, then in that of their links where it is another.
  [[nodiscard]] std::vector<Choice> with_orders(std::vector<Choice> choices) const {
    if (links_order_.empty() || legality_.world != static_cast<i64>(links_order_.size())) return choices;
    const std::size_t natural = choices.size();
    for (std::size_t i = 0; i < natural; ++i) {
      choices.push_back(choices[i]);
      choices.back().placement.devices = links_order_;
    }
    return choices;
  }

  /// One device, and those of a host, as if they made the call alone.
  void price_smaller() {
    const Constraints& fixed = request_.fixed;
    if (request_.all_devices || fixed.ring || fixed.ulysses || i64{data_} * tensor_ != 1) return;
    AttentionResult all = std::move(result_);
    const i64 world = std::exchange(legality_.world, 1);
    for (const int devices : divisors_of(std::min<i64>(world, node_size(*request_.cluster)))) {
      if (devices == world) break;
      legality_.world = devices;
      result_ = {};
      for (const auto& [ring, ulysses] : meshes()) try_mesh(ring, ulysses);
      const auto faster = [](const AttentionCandidate& a, const AttentionCandidate& b) {
        return a.seconds() < b.seconds();
      };
      if (!result_.candidates.empty())
        all.smaller.push_back(
            *std::min_element(result_.candidates.begin(), result_.candidates.end(), faster));
    }
    legality_.world = world;
    result_ = std::move(all);
  }

  /// Inputs whose plausible range puts another mesh or method first.
  void name_guesses() {
    const AttentionCandidate best = result_.candidates.front();
    for (const Doubt& doubt : doubts_of(*request_.cluster, *request_.calibration))
      for (const double factor : {doubt.low, doubt.high}) {
        const AttentionCandidate* first = first_under(doubt, factor);
        if (first == nullptr) continue;
        const topology::Cluster& cluster = *request_.cluster;
        result_.guesses.push_back(
            {doubt.input, doubt.provenance, factor, describe(*first),
             measurement_of(doubt.of, cluster, local_.dtype, best.plan.mesh, first->plan.mesh)});
        break;
      }
    if (result_.guesses.empty()) return;
    result_.tie = true;
    measure_first(result_.guesses, result_.tie_breaking_measurements);
  }

  /// The candidate of another mesh or method that is first with a rate of the machine times `factor`; none:
  /// the best one still is.
  [[nodiscard]] const AttentionCandidate* first_under(const Doubt& doubt, double factor) const {
    topology::Cluster cluster = *request_.cluster;
    Calibration calibration = *request_.calibration;
    doubt.scale(cluster, calibration, factor);
    LinkPricer links(cluster, calibration);
    AttentionPricer pricer(links, local_, request_.documents, request_.execution);
    const auto seconds = [&](const AttentionCandidate& c) {
      const AttentionPrice price = pricer.price(c.plan, c.placement);
      return price.forward.seconds + (request_.training ? price.backward.seconds : 0);
    };
    const auto& list = result_.candidates;
    const double own = seconds(list.front());
    // No price grows or shrinks by more than the rate does, nor, kernels being what they are, below them.
    const double most = std::max(factor, 1 / factor);
    const double kernels = doubt.of == Doubt::Of::kernels ? 1 / most : 1;
    double least = own * (1 - same_time);
    const AttentionCandidate* first = nullptr;
    for (const AttentionCandidate& c : list) {
      if (same_degrees(c, list.front()) && c.plan.method == list.front().plan.method) continue;
      const double compute = c.price.forward.compute_s + c.price.backward.compute_s;
      if (compute * kernels >= least || c.seconds() / most >= least) continue;
      const double time = seconds(c);
      if (time >= least) continue;
      least = time;
      first = &c;
    }
    return first;
  }

  void simplest_first() {
    auto& list = result_.candidates;
    const double limit = list.front().seconds() * (1 + same_time);
    const auto end = std::find_if(list.begin(), list.end(),
                                  [&](const AttentionCandidate& c) { return c.seconds() > limit; });
    std::stable_sort(list.begin(), end, [](const AttentionCandidate& a, const AttentionCandidate& b) {
      return complexity(a) < complexity(b);
    });
  }

  void try_mesh(int ring, int ulysses) {
    if (std::string reason = unsupported_reason(legality_, tensor_, data_, {1, ring, ulysses});
        !reason.empty()) {
      result_.rejected.push_back({ring, ulysses, data_, tensor_, std::move(reason)});
      return;
    }
    const AlternativesInput input{&request_.fixed,
                                  ring,
                                  ulysses,
                                  local_.kv_heads,
                                  request_.band.diff_min == 0,
                                  request_.documents.count() > 1};
    for (const Choice& choice : with_orders(alternatives(input))) {
      tell(request_.progress, mesh_, meshes_, "meshes");
      AttentionCandidate candidate;
      candidate.plan = plan_of(choice);
      if (const std::string reason = too_many_gpu_rows(candidate.plan); !reason.empty()) {
        too_many_rows_ = true;
        if (rejected_before(ring, ulysses)) continue;  // of this mesh, by another choice
        result_.rejected.push_back({ring, ulysses, data_, tensor_,
                                    fmt::format("backend {} {}", word_of(candidate.plan.backend), reason)});
        continue;
      }
      check_attention_plan(candidate.plan);
      candidate.placement = choice.placement;
      candidate.placement.data = data_;
      candidate.placement.tensor = tensor_;
      if (std::string reason = pricer_->too_much_work(candidate.plan, candidate.placement); !reason.empty()) {
        result_.rejected.push_back({ring, ulysses, data_, tensor_, std::move(reason)});
        continue;
      }
      candidate.uneven_heads = !even_degree(local_.query_heads, local_.kv_heads, ulysses);
      candidate.price = pricer_->price(candidate.plan, candidate.placement);
      if (!request_.training) candidate.price.backward = {};
      ++result_.considered;
      extrapolation_ |= candidate.price.forward.extrapolation | candidate.price.backward.extrapolation;
      result_.candidates.push_back(std::move(candidate));
    }
  }

  [[nodiscard]] AttentionPlan plan_of(const Choice& choice) const {
    AttentionPlan plan;
    plan.shape = local_;
    plan.mesh = choice.mesh;
    plan.method = choice.method;
    plan.layout = choice.layout;
    plan.band = request_.band;
    plan.sink = request_.sink;
    plan.return_lse = request_.return_lse;
    plan.backend = request_.backend.value_or(Backend{});
    plan.score = request_.score;
    plan.replicated_q = request_.replicated_q;
    plan.replicated_k = request_.replicated_k;
    plan.dkv_return = choice.dkv_return;
    plan.head_chunks = choice.head_chunks;
    plan.prune = request_.documents.count() > 1 || request_.band.diff_max < unbounded;
    plan.split_own_block = schedule::splits_own_block(plan);
    plan.gated = choice.gated;
    plan.gate_phases = choice.gate_phases;
    return plan;
  }

  void finish() {
    auto& list = result_.candidates;
    const auto by = [](auto time) {
      return [time](const AttentionCandidate& a, const AttentionCandidate& b) { return time(a) < time(b); };
    };
    const auto forward = [](const AttentionCandidate& c) { return c.price.forward.seconds; };
    const auto backward = [](const AttentionCandidate& c) { return c.price.backward.seconds; };
    const auto both = [](const AttentionCandidate& c) { return c.seconds(); };
    std::stable_sort(list.begin(), list.end(), by(both));
    simplest_first();
    result_.best_forward = *std::min_element(list.begin(), list.end(), by(forward));
    result_.best_backward =
        request_.training ? *std::min_element(list.begin(), list.end(), by(backward)) : result_.best_forward;
    note_device_order(result_.best().placement.devices, *request_.cluster, result_.notes);
    compare_best();
    name_guesses();
    keep_best_of_every_mesh();
    for (AttentionCandidate& c : list) fill_live(c);
    for (AttentionCandidate* c : {&result_.best_forward, &result_.best_backward}) fill_live(*c);
    result_.calibration = request_.calibration->summary(extrapolation_);
    note_gates();
    count_backends();
    note_scores();
  }

  void note(std::string text) {
    if (!text.empty()) result_.notes.push_back(std::move(text));
  }

  void note_gates() {
    const AttentionCandidate& best = result_.best();
    if (!best.plan.gated) return;
    AttentionPlan ungated = best.plan;
    ungated.gated = false, ungated.gate_phases = 1;
    const AttentionPrice price = pricer_->price(ungated, best.placement);
    const double ungated_s = price.forward.seconds + (request_.training ? price.backward.seconds : 0);
    note(gates_note(best.seconds(), ungated_s));
    note(stall_note(*request_.calibration, computing_backends(best.plan, false).front()));
  }

  void note_scores() {
    const AttentionPlan& plan = result_.best().plan;
    note(scores_note(*request_.calibration, plan, computing_backends(plan, request_.training).front()));
  }

  void count_backends() {
    if (request_.backend.value_or(Backend{})->fallback == nullptr) return;
    PlanLayer layer;
    layer.plan = result_.best().plan;
    WorkspaceBasis basis = WorkspaceBasis::exact;
    predict_bytes(layer, request_.documents, request_.training, basis);
    result_.forward_steps = layer.forward.steps;
    result_.backward_steps = layer.backward.steps;
    StepSample& sample = result_.step_sample;
    sample = {layer.plan.mesh.size(), layer.forward.steps, layer.backward.steps};
    if (!sample.forward) {
      sample.ranks = std::min(sample.ranks, AttentionPricer::sampled_ranks);
      sample.forward = sampled(Pass::forward);
      if (request_.training) sample.backward = sampled(Pass::backward);
    }
    const std::vector<Backend> computing = computing_backends(layer.plan, request_.training);
    note(schedule::all_left_note(layer.plan, request_.training, sample.forward, sample.backward));
    note(unmeasured_kernels_note(*request_.calibration, layer.plan, computing));
  }

  [[nodiscard]] std::optional<schedule::StepBackends> sampled(Pass pass) {
    const std::vector<schedule::StepBackends>& ranks = pricer_->sampled_steps(result_.best().plan, pass);
    if (ranks.empty()) return std::nullopt;
    schedule::StepBackends sum;
    for (const schedule::StepBackends& rank : ranks) sum.add(rank);
    return sum;
  }

  [[nodiscard]] std::vector<Backend> computing_backends(const AttentionPlan& plan, bool training) {
    std::vector<Backend> list{pricer_->computing_backend(plan, Pass::forward)};
    if (training) list.push_back(pricer_->computing_backend(plan, Pass::backward));
    return list;
  }

  void compare_best() {
    const auto& list = result_.candidates;
    const AttentionCandidate& best = list.front();
    const auto next = std::find_if(list.begin(), list.end(),
                                   [&](const AttentionCandidate& c) { return !same_degrees(c, best); });
    if (next == list.end()) return;
    result_.margin = std::max(0.0, next->seconds() / best.seconds() - 1);
    result_.tie =
        next->seconds() - best.seconds() <= uncertainty(best.price.forward, next->price.forward) +
                                                uncertainty(best.price.backward, next->price.backward);
    if (!result_.tie) return;
    for (const AttentionCandidate* c : {&best, &*next})
      for (const std::string& run : exchange_measurements(*request_.cluster, c->plan, c->price.forward))
        if (std::find(result_.tie_breaking_measurements.begin(), result_.tie_breaking_measurements.end(),
                      run) == result_.tie_breaking_measurements.end())
          result_.tie_breaking_measurements.push_back(run);
  }

  /// The `max_candidates` best, and the best of each further mesh.
  void keep_best_of_every_mesh() {
    std::vector<AttentionCandidate> kept;
    for (AttentionCandidate& c : result_.candidates) {
      const bool first_of_mesh = std::none_of(
          kept.begin(), kept.end(), [&](const AttentionCandidate& other) { return same_degrees(c, other); });
      if (kept.size() < request_.max_candidates || first_of_mesh) kept.push_back(std::move(c));
    }
    result_.candidates = std::move(kept);
  }

  void fill_live(AttentionCandidate& c) {
    c.live_bytes = pricer_->live_bytes(c.plan, Pass::forward).total;
    if (request_.training)
      c.live_bytes = std::max(c.live_bytes, pricer_->live_bytes(c.plan, Pass::backward).total);
  }

  [[nodiscard]] bool rejected_before(int ring, int ulysses) const {
    return !result_.rejected.empty() && result_.rejected.back().ring == ring &&
           result_.rejected.back().ulysses == ulysses;
  }

  [[nodiscard]] std::string nothing() const {
    if (result_.rejected.size() == 1) return result_.rejected.front().reason;
    std::string text = fmt::format("no mesh of {} is legal for this call", counted(legality_.world, "rank"));
    if (result_.rejected.empty()) text += fixed_product();
    std::set<std::string> seen;
    for (const Rejection& r : result_.rejected)
      if (seen.size() < 3 && seen.insert(r.reason).second)
        text += (seen.size() == 1 ? ": " : "; ") + r.reason;
    return text;
  }

  /// What the fixed degrees make, where no mesh of the devices has them.
  [[nodiscard]] std::string fixed_product() const {
    const std::pair<const char*, i64> all[] = {{"ring", request_.fixed.ring.value_or(1)},
                                               {"ulysses", request_.fixed.ulysses.value_or(1)},
                                               {"tensor", tensor_},
                                               {"data", data_}};
    std::string text;
    i64 ranks = 1;
    for (const auto& [name, degree] : all) {
      if (degree == 1) continue;
      text += fmt::format("{}{} {}", text.empty() ? ": " : " x ", name, degree);
      ranks *= degree;
    }
    return text.empty() ? ""
                        : fmt::format("{} is {}, the cluster has {}", text, counted(ranks, "rank"),
                                      counted(legality_.world, "device"));
  }

  [[nodiscard]] std::vector<std::string> remedies() const {
    if (too_many_rows_) return {"more devices", "more --head-chunks", "--backend cpu"};
    const i64 group = legality_.world / (i64{data_} * tensor_);
    std::vector<std::string> meshes, list;
    for (const int u : divisors_of(group))
      if (const int ring = static_cast<int>(group / u);
          unsupported_reason(legality_, tensor_, data_, {1, ring, u}).empty())
        meshes.push_back(
            fmt::format("--ring {} --ulysses {}{}", ring, u,
                        even_degree(local_.query_heads, local_.kv_heads, u) ? "" : " (uneven heads)"));
    if (!meshes.empty()) {
      meshes.resize(std::min<std::size_t>(meshes.size(), 8));
      list.push_back(fmt::format("one of the meshes that are legal here: {}", fmt::join(meshes, ", ")));
    } else if (request_.fixed.head_chunks.value_or(1) > 1) {
      list.emplace_back("fewer --head-chunks");
    }
    for (std::string& remedy : fixed_choice_remedies(request_.fixed, result_.rejected))
      list.push_back(std::move(remedy));
    if (list.empty())
      list.push_back(fmt::format(
          "a number of devices that the call can use: at most one rank per token, and ulysses at most {}",
          local_.query_heads));
    return list;
  }

  const AttentionRequest& request_;
  LinkPricer links_;
  Model model_;
  Workload workload_;
  LegalityInput legality_;
  int data_, tensor_;
  std::vector<int> links_order_;  ///< of the devices along their links; empty: the natural one
  AttentionShape local_;
  std::unique_ptr<AttentionPricer> pricer_;
  bool too_many_rows_ = false;  ///< of some plan, for a GPU
  i64 mesh_ = 0, meshes_ = 0;   ///< the one that is being tried, and all
  std::uint32_t extrapolation_ = 0;
  AttentionResult result_;
};

}  // namespace

double AttentionCandidate::band() const {
  const double sum = seconds();
  return sum > 0
             ? (price.forward.seconds * price.forward.band + price.backward.seconds * price.backward.band) /
                   sum
             : 0;
}

AttentionResult plan_attention(const AttentionRequest& request) {
  expects(!request.cluster->devices.empty(), "a cluster without devices");
  if (request.backend && !request.all_devices)
    CardBackends(*request.cluster, *request.calibration)
        .check_runs(call_of(request, *request.backend), request.training);
  if (request.backend) return AttentionSearch(request).run();
  return with_fastest_backend(request, [](const AttentionRequest& of) { return AttentionSearch(of).run(); });
}

}  // namespace usp
