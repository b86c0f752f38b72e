// SPDX-License-Identifier: Apache-2.0
#include "alternatives.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/plan.hpp"
#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace usp {
namespace {

/// Heads of one layer kind under a tensor degree; empty reason when they split.
std::string unsupported_tensor(const LayerKind& kind, int tensor) {
  if (kind.kind == LayerMixer::none) return "";
  if (kind.is_linear()) {
    if (!splits_linear_heads(*kind.linear, tensor))
      return fmt::format("tensor {} does not divide the {} key and {} value heads of the linear layers",
                         tensor, kind.linear->key_heads, kind.linear->value_heads);
    return "";
  }
  if (kind.query_heads % tensor != 0)
    return fmt::format("tensor {} does not divide query_heads {}", tensor, kind.query_heads);
  if (kind.kv_heads % tensor != 0 && tensor % kind.kv_heads != 0)
    return fmt::format("tensor {} neither divides kv_heads {} nor is a multiple of it", tensor,
                       kind.kv_heads);
  return "";
}

/// What the types of a schedule count.
std::string unsupported_degree(const Mesh& mesh, int head_chunks) {
  const char* axis = mesh.ring() > max_degree ? "ring" : "ulysses";
  if (const int degree = std::max(mesh.ring(), mesh.ulysses); degree > max_degree)
    return fmt::format("{} {} exceeds {}, the most ranks of an axis that a schedule numbers (in 16 bits)",
                       axis, degree, max_degree);
  if (i64{mesh.ring()} * head_chunks > max_units)
    return fmt::format("ring {} times {} head chunks is a schedule of more than {} steps", mesh.ring(),
                       head_chunks, max_units);
  return "";
}

/// Whether a ring is cut into an outer and an inner one of more than one rank each.
bool is_product(int ring) {
  for (int d = 2; i64{d} * d <= ring; ++d)
    if (ring % d == 0) return true;
  return false;
}

constexpr std::string_view of_gates = "gated attention ", of_phases = "gate_phases ",
                           of_laps = " runs laps inside laps";

/// Fixed choices that no layout of this ring has.
std::string unsupported_choices(const Constraints& fixed, const Mesh& mesh) {
  if (const std::string why = gates_refused(fixed, mesh); !why.empty()) return std::string(of_gates) + why;
  if (const std::string why = phases_refused(fixed, mesh.ring()); fixed.gated && !why.empty())
    return std::string(of_phases) + why;
  if (std::string why = return_refused(fixed); !why.empty() && mesh.ring() > 1) return why;
  if (fixed.method && (*fixed.method)->two_level_ring && !is_product(mesh.ring()))
    return fmt::format(
        "{}{}: it needs a ring that is a product of two degrees, such as 4 or 6, which {} is not",
        word_of(*fixed.method), of_laps, mesh.ring());
  return "";
}

std::string unsupported_heads(const LayerKind& kind, int tensor, int ulysses, int head_chunks) {
  if (kind.kind == LayerMixer::none) return "";
  const i64 query = kind.is_linear() ? kind.linear->value_heads / tensor : kind.query_heads / tensor;
  if (ulysses > query)
    return fmt::format("ulysses {} exceeds the {}{} heads of a layer{}; some ranks would hold none", ulysses,
                       query, kind.is_linear() ? " value" : " query",
                       tensor > 1 ? fmt::format(" after tensor {}", tensor) : "");
  if (kind.is_linear() && !splits_linear_heads(*kind.linear, i64{tensor} * ulysses))
    return fmt::format(
        "ulysses {} does not divide the {} key and {} value heads of the linear layers; a recurrent state "
        "cannot be split across ranks",
        ulysses, kind.linear->key_heads / tensor, query);
  if (!kind.is_linear() && head_chunks > query / ulysses)
    return too_many_chunks(head_chunks, query / ulysses);
  return "";
}

}  // namespace

std::string gates_refused(const Constraints& fixed, const Mesh& mesh) {
  if (!fixed.gated) return "";
  return gate_refusal(mesh, fixed.method.value_or(gated_method()),
                      fixed.dkv_return.value_or(DkvReturn::circulate));
}

std::string phases_refused(const Constraints& fixed, std::optional<int> ring) {
  if (!fixed.gate_phases) return "";
  if (!fixed.gated) return std::string(schedule::phases_without_gates);
  return ring ? phases_refusal(*ring, *fixed.gate_phases) : "";
}

std::string return_refused(const Constraints& fixed) {
  if (fixed.dkv_return != DkvReturn::cycle || !fixed.method || (*fixed.method)->partials_travel) return "";
  return fmt::format("dkv_return cycle follows the hops of a ring; method {} has none",
                     word_of(*fixed.method));
}

std::vector<std::string> fixed_choice_remedies(const Constraints& fixed,
                                               const std::vector<Rejection>& rejected) {
  const auto says = [&](std::string_view text) {
    return std::any_of(rejected.begin(), rejected.end(),
                       [&](const Rejection& r) { return r.reason.find(text) != std::string::npos; });
  };
  std::vector<std::string> remedies;
  if (fixed.gated && says(of_gates)) remedies.emplace_back("no --gated");
  if (fixed.gate_phases && says(of_phases)) remedies.emplace_back("fewer --gate-phases");
  if (fixed.method && says(of_laps)) remedies.emplace_back("another --method");
  return remedies;
}

bool even_degree(i64 query_heads, i64 kv_heads, int ulysses) {
  return query_heads % ulysses == 0 && (kv_heads % ulysses == 0 || ulysses % kv_heads == 0);
}

std::string unsupported_reason(const LegalityInput& input, int tensor, int data, const Mesh& mesh) {
  const Workload& w = *input.workload;
  const i64 used = ranks_of({tensor, data, mesh.ring(), mesh.ulysses, w.pipeline});
  if (used != input.world)
    return fmt::format("ring {} x ulysses {} x tensor {} x data {}{} is {} ranks, the cluster has {}{}",
                       mesh.ring(), mesh.ulysses, tensor, data,
                       w.pipeline > 1 ? fmt::format(" x pipeline {}", w.pipeline) : "",
                       used > max_ranks ? fmt::format("more than {}", max_ranks) : std::to_string(used),
                       counted(input.world, "device"),
                       used <= max_ranks && input.world % (used / data) == 0
                           ? fmt::format("; use --data {}", input.world / (used / data))
                           : "");
  if (std::string reason = unsupported_degree(mesh, input.head_chunks); !reason.empty()) return reason;
  if (tensor > input.devices_per_node)
    return fmt::format("tensor {} would leave the host ({})", tensor,
                       counted(input.devices_per_node, "device"));
  for (const LayerKind& kind : input.model->kinds) {
    if (std::string reason = unsupported_tensor(kind, tensor); !reason.empty()) return reason;
    if (std::string reason = unsupported_heads(kind, tensor, mesh.ulysses, input.head_chunks);
        !reason.empty())
      return reason;
    if (kind.is_linear() && mesh.ring() > 1)
      return fmt::format(
          "ring {} needs a state exchange for the linear-attention layers, which no generator makes yet; use "
          "ring 1",
          mesh.ring());
  }
  if (input.global_batch && *input.global_batch % data != 0)
    return fmt::format("data {} does not divide the {} of the global batch", data,
                       counted(*input.global_batch, "sequence"));
  if (w.seq < mesh.size())
    return fmt::format("the sequence of {} is shorter than its {}; use fewer", counted(w.seq, "token"),
                       counted(mesh.size(), "rank"));
  if (const i64 pool = w.expert_pool(i64{data} * mesh.size(), tensor); w.expert > 1 && pool % w.expert != 0)
    return fmt::format("expert {} does not divide the {} data x sequence{} ranks", w.expert, pool,
                       w.expert_tensor ? "" : " x tensor");
  return input.fixed == nullptr ? "" : unsupported_choices(*input.fixed, mesh);
}

}  // namespace usp
