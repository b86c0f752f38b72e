// SPDX-License-Identifier: Apache-2.0
#include "alternatives.hpp"

#include "usp/schedule/gate_phases.hpp"

#include <algorithm>

namespace usp {
namespace {

/// all_gather_kv holds the keys of the whole sequence; beyond this the other methods send as little and hold
/// less.
constexpr int longest_gather = 128;

std::vector<LayoutKind> layouts(const AlternativesInput& in) {
  if (in.fixed->layout) return {*in.fixed->layout};
  if (in.ring == 1) return {LayoutKind::contiguous};
  // Striping would cut every document over every rank.
  if (in.packed) return {LayoutKind::balanced, LayoutKind::zigzag, LayoutKind::contiguous};
  if (!in.causal) return {LayoutKind::contiguous};
  return {LayoutKind::zigzag, LayoutKind::striped, LayoutKind::contiguous};
}

/// A ring of one row moves nothing: every method is the same there.
std::vector<std::pair<Method, Mesh>> methods(const AlternativesInput& in) {
  const auto wanted = [&](Method m) {
    return (!in.fixed->method || *in.fixed->method == m) && (!in.fixed->gated || m->joins_remote_blocks) &&
           (in.fixed->dkv_return != DkvReturn::cycle || m->partials_travel);
  };
  const Mesh flat{1, in.ring, in.ulysses};
  if (in.ring == 1) return {{in.fixed->method.value_or(Method::ring), flat}};
  std::vector<std::pair<Method, Mesh>> list;
  if (wanted(Method::ring)) list.emplace_back(Method::ring, flat);
  if (wanted(Method::ring_direct)) list.emplace_back(Method::ring_direct, flat);
  if (wanted(Method::all_gather_kv) && (in.ring <= longest_gather || in.fixed->method || in.fixed->gated))
    list.emplace_back(Method::all_gather_kv, flat);
  if (wanted(Method::double_ring))
    for (const int inner : divisors_of(in.ring))
      if (inner > 1 && inner < in.ring)
        list.emplace_back(Method::double_ring, Mesh{in.ring / inner, inner, in.ulysses});
  return list;
}

std::vector<DkvReturn> returns(const AlternativesInput& in, Method method) {
  if (in.ring == 1) return {DkvReturn::circulate};  // nothing returns
  if (in.fixed->dkv_return) return {*in.fixed->dkv_return};
  const bool rides = method->partials_travel;
  if (rides) return {DkvReturn::circulate, DkvReturn::direct};
  return {DkvReturn::circulate};
}

/// Head chunks hide the Ulysses exchange behind attention; their borders lie on KV groups.
std::vector<int> head_chunks(const AlternativesInput& in) {
  if (in.fixed->head_chunks) return {*in.fixed->head_chunks};
  std::vector<int> list{1};
  for (const int chunks : {2, 4})
    if (in.ulysses > 1 && in.kv_heads / in.ulysses >= chunks) list.push_back(chunks);
  return list;
}

std::vector<AxisOrder> orders(const AlternativesInput& in) {
  if (in.fixed->order) return {*in.fixed->order};
  if (in.ring == 1 || in.ulysses == 1) return {AxisOrder::ulysses_inner};
  return {AxisOrder::ulysses_inner, AxisOrder::ring_inner};
}

/// Calls of a gated forward pass; first the fewest, which is the answer where more gain nothing.
std::vector<int> gate_phases(const AlternativesInput& in) {
  if (!in.fixed->gated) return {1};
  if (in.fixed->gate_phases) return {*in.fixed->gate_phases};
  std::vector<int> list;
  for (int phases = 1; phases <= std::min(in.ring, schedule::max_gate_phases); ++phases)
    list.push_back(phases);
  return list;
}

}  // namespace

std::vector<int> divisors_of(i64 n) {
  std::vector<int> low, high;
  for (i64 d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(static_cast<int>(d));
    if (d * d != n) high.push_back(static_cast<int>(n / d));
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<Choice> alternatives(const AlternativesInput& in) {
  std::vector<Choice> list;
  Choice choice;
  // Layout and axis order leave the schedule as it is: innermost, so that a pricer generates it once for
  // them.
  for (const auto& [method, mesh] : methods(in))
    for (const DkvReturn way : returns(in, method))
      for (const int chunks : head_chunks(in))
        for (const int phases : gate_phases(in))
          for (const LayoutKind layout : layouts(in))
            for (const AxisOrder order : orders(in)) {
              choice.mesh = mesh;
              choice.method = method;
              choice.layout = layout;
              choice.dkv_return = way;
              choice.head_chunks = chunks;
              choice.placement.order = order;
              choice.gated = in.fixed->gated;
              choice.gate_phases = phases;
              list.push_back(choice);
            }
  return list;
}

}  // namespace usp
