// SPDX-License-Identifier: Apache-2.0
#include "memory_choices.hpp"

#include "alternatives.hpp"

#include "usp/base/text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace usp {
namespace {

/// Tokens of a rank beyond which more rows in a microbatch make no kernel faster.
constexpr i64 most_tokens = 65536;
constexpr i64 most_rows = 8;
/// Tokens of an MLP tile where the planner chooses tiles.
constexpr i64 mlp_tile = 8192;
/// Splits that are tried with all choices of recompute and ZeRO: those that look fastest.
constexpr std::size_t most_splits = 4;

std::vector<i64> rows_per_microbatch(const PlanRequest& request, i64 batch, int sequence_ranks) {
  const Workload& w = request.workload;
  if (!global_batch_of(request) || w.microbatches > 1)
    return batch % w.microbatches == 0 ? std::vector<i64>{batch / w.microbatches} : std::vector<i64>{};
  std::vector<i64> list{1};
  for (i64 rows = 2; rows <= std::min(batch, most_rows); rows *= 2)
    if (batch % rows == 0 && rows * (w.seq / sequence_ranks) <= most_tokens) list.push_back(rows);
  return list;
}

std::vector<int> expert_degrees(const PlanRequest& request, i64 ranks) {
  if (!request.search_expert || !request.model->moe) return {request.workload.expert};
  std::vector<int> list;
  for (const int degree : divisors_of(request.model->moe->experts))
    if (ranks % degree == 0) list.push_back(degree);
  return list;
}

std::vector<int> virtual_stages(const PlanRequest& request, int pipeline, i64 microbatches) {
  // The interleaved schedule runs microbatches in rounds of as many as there are stages.
  if (!request.search_pipeline) {
    const int given = request.workload.virtual_stages;
    return given == 1 || microbatches % pipeline == 0 ? std::vector<int>{given} : std::vector<int>{};
  }
  std::vector<int> list{1};
  for (const int chunks : {2, 4, 8})
    if (pipeline > 1 && microbatches % pipeline == 0 && request.model->layers >= i64{pipeline} * chunks)
      list.push_back(chunks);
  return list;
}

class Chooser {
 public:
  Chooser(const PlanRequest& request, StepPricer& pricer, Choice choice,
          const std::vector<LayerAttention>& attention)
      : request_(request),
        pricer_(pricer),
        choice_(std::move(choice)),
        attention_(attention),
        given_rows_(choice_.split->batch / choice_.split->microbatches) {}

  /// Seconds of a split with little memory and with much; infinite where neither fits.
  [[nodiscard]] double outlook(const StepSplit& split) {
    take_split(split);
    double least = std::numeric_limits<double>::infinity();
    for (const int stage : {zero_stages().front(), zero_stages().back()})
      for (const Keep& kept : {keeps().front(), keeps().back()}) {
        choice_.zero_stage = stage;
        choose(kept);
        const PlanCandidate c = keep(attention());
        if (c.fits) least = std::min(least, c.step_s);
      }
    return least;
  }

  void try_split(const StepSplit& split) {
    take_split(split);
    for (const int stage : zero_stages()) {
      choice_.zero_stage = stage;
      std::optional<PlanCandidate> everything;
      for (const Keep& kept : keeps()) {
        choose(kept);
        PlanCandidate all = keep(attention());
        const bool none = kept.recompute == Recompute::none && !kept.offload.any();
        if (none) everything = all;
        // What runs again or moves only takes longer; the last stage is tried whole for the smallest
        // candidate.
        if (none && all.fits && stage != zero_stages().back()) break;
        if (kept.least_layers && static_cast<double>(all.memory.total_bytes) <= pricer_.device_bytes()) {
          // Fewer may fit a host that cannot hold those of all layers.
          const std::optional<double> moved = least_offloaded(all);
          // Where nothing of the way to the host shows, nothing that computes again is faster.
          const bool hidden = kept.recompute == Recompute::none && everything && moved == everything->step_s;
          if (hidden && stage != zero_stages().back()) break;
        } else if (all.fits && !kept.least_layers && everything && !everything->fits &&
                   kept.recompute != Recompute::offload && !request_.workload.recompute_layers) {
          some_layers(attention(), *everything, all);
        }
      }
    }
  }
  [[nodiscard]] MemoryChoices take() {
    explain(made_.smallest, smallest_rows_);
    if (made_.fastest) explain(*made_.fastest, fastest_rows_);
    return std::move(made_);
  }

 private:
  /// Of so many rows in a microbatch.
  [[nodiscard]] const std::vector<LayerAttention>& attention_of(i64 rows) const {
    const auto own = own_.find(rows);
    return own == own_.end() ? attention_ : own->second;
  }
  [[nodiscard]] const std::vector<LayerAttention>& attention() const { return attention_of(rows_); }

  void take_split(const StepSplit& split) {
    const i64 rows = split.batch / split.microbatches;
    choice_.split = split;
    if (rows != given_rows_ && own_.count(rows) == 0) own_.emplace(rows, pricer_.attention(choice_));
    const bool other = !memory_ || rows != rows_;
    rows_ = rows;
    if (other) memory_ = pricer_.attention_memory(choice_, attention());
  }

  /// Adds attention and the reasons of memory rows, which the search prices candidates without.
  void explain(PlanCandidate& c, i64 rows) {
    const std::vector<LayerAttention>& attention = attention_of(rows);
    c = rows == rows_
            ? pricer_.candidate(c.choice, attention, *memory_, true)
            : pricer_.candidate(c.choice, attention, pricer_.attention_memory(c.choice, attention), true);
    c.attention = attention;
  }

  /// What is kept of a layer and where, and whether that is asked of as few layers as fit.
  struct Keep {
    Recompute recompute;
    Offload offload;
    bool least_layers = false;
  };

  void choose(const Keep& kept) {
    choice_.recompute = kept.recompute;
    choice_.offload = kept.offload;
    choice_.split->recompute_layers = request_.workload.recompute_layers;
    choice_.split->offload_layers = request_.workload.offload_layers;
  }

  /// Fewest layers that must wait in host memory, of those that fit with all: memory is linear in them.
  /// Returns the seconds of the step with them.
  std::optional<double> least_offloaded(const PlanCandidate& all) {
    const auto layers = static_cast<double>(request_.model->layers);
    const auto away = static_cast<double>(all.memory.host_total_bytes);
    if (away <= 0) return std::nullopt;
    const double room = pricer_.device_bytes() - static_cast<double>(all.memory.total_bytes);
    const double kept = room / (1 + request_.memory.reserve_fraction) / away;
    const auto fewest = std::max<i64>(1, static_cast<i64>(std::ceil(layers * (1 - kept))));
    for (i64 n = fewest; n < request_.model->layers; n += std::max<i64>(1, n / 8)) {
      choice_.split->offload_layers = n;
      const PlanCandidate fewer = keep(attention());
      if (fewer.fits) return fewer.step_s;
    }
    return all.fits ? std::optional<double>(all.step_s) : std::nullopt;
  }

  /// Fewest layers that must compute again: memory is linear in them.
  void some_layers(const std::vector<LayerAttention>& attention, const PlanCandidate& none,
                   const PlanCandidate& all) {
    const auto layers = static_cast<double>(request_.model->layers);
    const double over = static_cast<double>(none.memory.total_bytes) - pricer_.device_bytes();
    const auto saved = static_cast<double>(none.memory.total_bytes - all.memory.total_bytes);
    const auto fewest = static_cast<i64>(std::ceil(layers * over / saved));
    for (i64 n = std::max<i64>(1, fewest); n < request_.model->layers; n += std::max<i64>(1, n / 8)) {
      choice_.split->recompute_layers = n;
      if (keep(attention).fits) return;
    }
  }

  PlanCandidate keep(const std::vector<LayerAttention>& attention) {
    choice_.split->mlp_tile_tokens = 0;
    PlanCandidate c = pricer_.candidate(choice_, attention, *memory_, false);
    if (!c.fits && may_tile() && tiles_may_help(c)) {
      choice_.split->mlp_tile_tokens = mlp_tile;
      c = pricer_.candidate(choice_, attention, *memory_, false);
    }
    const bool first = made_.smallest.memory.rows.empty();
    const bool smaller = first || pricer_.overfull(c) < pricer_.overfull(made_.smallest);
    const bool faster = c.fits && (!made_.fastest || better(c, *made_.fastest));
    if (smaller) made_.smallest = c, smallest_rows_ = rows_;
    if (faster) made_.fastest = c, fastest_rows_ = rows_;
    return c;
  }

  /// Faster; of equals the one that holds less in host memory.
  [[nodiscard]] static bool better(const PlanCandidate& c, const PlanCandidate& than) {
    if (c.seconds_per_token != than.seconds_per_token) return c.seconds_per_token < than.seconds_per_token;
    return c.memory.host_total_bytes < than.memory.host_total_bytes;
  }

  /// Tiles cost nothing where the MLP runs again anyway; a user who wants none says --mlp-tile with all
  /// tokens.
  [[nodiscard]] bool may_tile() const {
    const Recompute r = choice_.recompute;
    const bool again = !request_.workload.training || (r != Recompute::none && r != Recompute::selective);
    return again && request_.memory.mlp_tile_tokens == 0;
  }

  /// Tiles shorten the live layer only.
  [[nodiscard]] bool tiles_may_help(const PlanCandidate& c) const {
    const i64 rest = c.memory.total_bytes - c.memory.bytes_of(MemoryKind::live_layer);
    return c.fits_host &&
           static_cast<double>(rest) * (1 - request_.memory.reserve_fraction) < pricer_.device_bytes();
  }

  [[nodiscard]] std::vector<Keep> keeps() const {
    const Constraints& fixed = request_.fixed;
    if (!request_.workload.training) return {{Recompute::none, {}}};
    const bool over_pcie = request_.cluster->nodes.front().pcie_gb_s.known();
    const bool least = !request_.workload.offload_layers && !request_.workload.recompute_layers;
    std::vector<Recompute> modes{Recompute::none, Recompute::mlp, Recompute::keep_attention, Recompute::full};
    if (fixed.recompute) modes = {*fixed.recompute};
    // Of fixed kinds all must be kept, or the choice would not do what it says.
    if (fixed.offload)
      std::erase_if(modes, [&](Recompute mode) { return fixed.offload->without(kept_by(mode)).any(); });
    const bool free = !fixed.recompute && !fixed.offload && over_pcie;
    std::vector<Keep> list;
    for (const Recompute mode : modes) {
      list.push_back({mode, fixed.offload.value_or(Offload{}), false});
      if (!free) continue;
      // Whole activations take terabytes of a host: only where its memory is known to hold them.
      if (mode == Recompute::full)
        list.push_back({Recompute::offload, {}, least});
      else if (request_.search_offload && pricer_.host_bytes() > 0)
        list.push_back({mode, kept_by(mode), least});
    }
    return list;
  }
  [[nodiscard]] std::vector<int> zero_stages() const {
    if (request_.fixed.zero_stage) return {*request_.fixed.zero_stage};
    return request_.workload.training ? std::vector<int>{1, 2, 3} : std::vector<int>{0, 3};
  }

  const PlanRequest& request_;
  StepPricer& pricer_;
  Choice choice_;
  const std::vector<LayerAttention>& attention_;
  i64 given_rows_;                                  ///< of a microbatch, that attention_ is of
  std::map<i64, std::vector<LayerAttention>> own_;  ///< of other numbers of rows
  std::optional<StepPricer::AttentionMemory> memory_;
  i64 rows_ = 0;  ///< of a microbatch, that memory_ is for
  i64 smallest_rows_ = 0, fastest_rows_ = 0;
  MemoryChoices made_;
};

}  // namespace

std::vector<StepSplit> splits_of(const PlanRequest& request, int pipeline, int data, int sequence_ranks,
                                 int tensor) {
  const std::optional<i64> global = global_batch_of(request);
  const i64 batch = global ? *global / data : request.workload.batch;
  std::vector<StepSplit> list;
  for (const i64 rows : rows_per_microbatch(request, batch, sequence_ranks))
    for (const int chunks : virtual_stages(request, pipeline, batch / rows)) {
      if (request.equal_stages && request.model->layers % (i64{pipeline} * chunks) != 0) continue;
      for (const int expert :
           expert_degrees(request, request.workload.expert_pool(i64{data} * sequence_ranks, tensor)))
        list.push_back({batch, batch / rows, pipeline, chunks, expert, request.workload.recompute_layers,
                        request.workload.offload_layers});
    }
  return list;
}

std::string why_no_split(const PlanRequest& request, int pipeline, int data) {
  const std::optional<i64> global = global_batch_of(request);
  const Workload& w = request.workload;
  const i64 batch = global ? *global / data : w.batch;
  const i64 microbatches = w.microbatches;
  if (batch % microbatches != 0)
    return fmt::format("{} microbatches do not divide the {} of a replica{}", microbatches,
                       counted(batch, "row"), data > 1 ? fmt::format(" (data {})", data) : "");
  if (!request.search_pipeline && w.virtual_stages > 1 && batch % pipeline != 0)
    return fmt::format("{} virtual stages run microbatches in rounds of {}, which does not divide {}",
                       w.virtual_stages, pipeline, counted(batch, "row"));
  if (request.equal_stages)
    return fmt::format("{} layers do not divide over {} of {}", request.model->layers,
                       counted(pipeline, "stage"),
                       counted(request.search_pipeline ? 1 : w.virtual_stages, "chunk"));
  return "no expert degree divides the ranks";
}

MemoryChoices choose_memory(const PlanRequest& request, StepPricer& pricer, const Choice& choice,
                            const std::vector<LayerAttention>& attention,
                            const std::vector<StepSplit>& splits) {
  Chooser chooser(request, pricer, choice, attention);
  std::vector<StepSplit> tried = splits;
  if (tried.size() > most_splits) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < splits.size(); ++i) order.emplace_back(chooser.outlook(splits[i]), i);
    std::stable_sort(order.begin(), order.end());
    tried.clear();
    for (std::size_t i = 0; i < most_splits; ++i) tried.push_back(splits[order[i].second]);
  }
  for (const StepSplit& split : tried) chooser.try_split(split);
  return chooser.take();
}

}  // namespace usp
