// SPDX-License-Identifier: Apache-2.0
#include "search_size.hpp"

#include "alternatives.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Fewest KV heads of a softmax layer after tensor parallelism: what head chunks have to fit.
i64 fewest_kv_heads(const PlanRequest& request, int tensor) {
  i64 fewest = INT64_MAX;
  for (const LayerKind& kind : request.model->kinds)
    if (kind.has_softmax()) fewest = std::min(fewest, std::max<i64>(1, kind.kv_heads / tensor));
  return fewest;
}

/// In ticks of equal rows: what a schedule takes beside its ticks, what a tick takes whose rows differ, and
/// one where every rank needs other keys. A ring of rings repeats fewer transfers than a plain one. Measured
/// on searches of 72 to 65,536 devices.
constexpr double ticks_beside = 300, uneven_rows = 12, pruned_rows = 60, two_level_ring = 1.5;

bool allows(const std::optional<int>& fixed, i64 degree) {
  return !fixed || *fixed == degree;
}

}  // namespace

std::vector<Degrees> degrees_of(const PlanRequest& request, i64 world, int devices_per_node, int pipeline) {
  const Constraints& fixed = request.fixed;
  const i64 ranks = world / (pipeline > 0 ? pipeline : request.workload.pipeline);
  std::vector<Degrees> list;
  for (const int tensor : fixed.tensor ? std::vector<int>{*fixed.tensor} : divisors_of(ranks)) {
    if (ranks % tensor != 0 || (tensor > devices_per_node && !fixed.tensor)) continue;
    for (const int group : divisors_of(ranks / tensor)) {
      const int data = static_cast<int>(ranks / tensor / group);
      if (!allows(fixed.data, data)) continue;
      for (const int ulysses : divisors_of(group))
        if (allows(fixed.ring, group / ulysses) && allows(fixed.ulysses, ulysses))
          list.push_back({tensor, data, group / ulysses, ulysses});
    }
  }
  return list;
}

std::vector<Choice> alternatives_of(const PlanRequest& request, const Degrees& degrees) {
  const Workload& workload = request.workload;
  return alternatives({&request.fixed, degrees.ring, degrees.ulysses,
                       fewest_kv_heads(request, degrees.tensor), workload.causal,
                       !workload.documents.empty()});
}

double search_ticks(const PlanRequest& request, i64 world, int devices_per_node) {
  LegalityInput input{request.model, &request.workload, world, devices_per_node};
  input.fixed = &request.fixed;
  double schedules = 0, ticks = 0;
  for (const Degrees& d : degrees_of(request, world, devices_per_node)) {
    if (d.ring > max_degree || !unsupported_reason(input, d.tensor, d.data, {1, d.ring, d.ulysses}).empty())
      continue;
    const bool even = request.workload.seq % (2 * i64{d.ring} * d.ulysses) == 0;
    for (const Choice& choice : alternatives_of(request, d)) {
      const int ring_ticks = choice.method->joins_remote_blocks ? 2 : d.ring;
      ++schedules;
      const double weight = (even ? 1 : uneven_rows) * (choice.method->two_level_ring ? two_level_ring : 1);
      ticks += weight * 2.0 * choice.head_chunks * ring_ticks;
    }
  }
  double sum = 0;
  for (const LayerKind& kind : request.model->kinds)
    if (kind.has_softmax()) sum += schedules * ticks_beside + ticks * (kind.window ? pruned_rows : 1);
  return sum;
}

void check_ticks(double ticks, const std::string& what) {
  if (ticks > max_search_ticks)
    throw Infeasible(fmt::format("{} would price {} million ticks of schedules; the most is {} million", what,
                                 static_cast<i64>(ticks / 1e6), static_cast<i64>(max_search_ticks / 1e6)),
                     {"fewer values or devices", "degrees, method or layout fixed by flags"});
}

}  // namespace usp
