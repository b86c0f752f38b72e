// SPDX-License-Identifier: Apache-2.0
// What computes a pass that is priced.
#include "pricer_state.hpp"

#include "usp/schedule/effort.hpp"
#include "usp/schedule/step_backends.hpp"

#include <algorithm>
#include <optional>

namespace usp {
namespace {

/// Pieces of rows of one rank whose steps are looked at within a search.
constexpr double max_sampled_blocks = 1 << 19;

/// Query heads of a rank that are no whole KV groups.
std::optional<Range> torn_heads(const Heads& heads) {
  for (int u = 0; u < heads.ulysses(); ++u)
    for (int c = 0; c < heads.chunks(); ++c)
      if (const Range range = heads.query_of(u, c);
          range.begin % heads.group() != 0 || range.end % heads.group() != 0)
        return range;
  return std::nullopt;
}

}  // namespace

Backend AttentionPricer::computing_backend(const AttentionPlan& plan, Pass pass) {
  return computing_backend(plan, pass, context_of(plan, Placement{}).split->heads);
}

Backend AttentionPricer::computing_backend(const AttentionPlan& plan, Pass pass, const Heads& heads) {
  const Backend own = plan.backend.of(pass);
  const Backend takes = shared_->cards.computing(plan, pass, {0, plan.shape.query_heads});
  if (takes != own || own->fallback == nullptr) return takes;
  const schedule::KernelTraits& traits = schedule::kernel_traits(own);
  if (!traits.kv_group_spans_ranks)
    if (const auto torn = torn_heads(heads)) return shared_->cards.computing(plan, pass, *torn);
  if (traits.any_slices || documents_->count() == 1) return own;
  for (const schedule::StepBackends& rank : sampled_steps(plan, pass, heads))
    if (rank.steps() > 0 && rank.of(own) == 0)
      return std::max_element(rank.counts.begin(), rank.counts.end(),
                              [](const auto& a, const auto& b) { return a.steps < b.steps; })
          ->backend;
  return own;
}

const std::vector<schedule::StepBackends>& AttentionPricer::sampled_steps(const AttentionPlan& plan,
                                                                          Pass pass) {
  return sampled_steps(plan, pass, context_of(plan, Placement{}).split->heads);
}

const std::vector<schedule::StepBackends>& AttentionPricer::sampled_steps(const AttentionPlan& plan,
                                                                          Pass pass, const Heads& heads) {
  const Mesh& mesh = plan.mesh;
  const auto [at, fresh] =
      shared_->sampled.try_emplace({&*plan.backend, pass, mesh.ring_outer, mesh.ring_inner, mesh.ulysses,
                                    plan.method->word, plan.layout, plan.band.diff_min, plan.band.diff_max});
  std::vector<schedule::StepBackends>& ranks = at->second;
  if (!fresh || expansion_effort(plan, documents_->count(), 1).blocks > max_sampled_blocks) return ranks;
  const schedule::TokenMap geometry(plan, batch_of(plan.band));
  lay_out(plan, heads.shared_kv(), schedule::Binds::with);
  const int count = std::min(sampled_ranks, mesh.size());
  for (int i = 0; i < count; ++i) {
    const int rank = static_cast<int>(i64{i} * (mesh.size() - 1) / std::max(1, count - 1));
    schedule::add_steps(ranks.emplace_back(), schedule::expand(geometry, schedule_, rank, pass));
  }
  return ranks;
}

}  // namespace usp
