// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/plan.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <algorithm>

namespace usp {
namespace {

std::string number(i64 value) {
  return std::to_string(value);
}

/// Heads of one layer kind under a tensor degree; empty reason when they split.
std::string unsupported_tensor(const LayerKind& kind, int tensor) {
  if (kind.is_linear()) {
    if (kind.linear->key_heads % tensor != 0 || kind.linear->value_heads % tensor != 0)
      return "tensor " + number(tensor) + " does not divide the " + number(kind.linear->key_heads) +
             " key and " + number(kind.linear->value_heads) + " value heads of the linear layers";
    return "";
  }
  if (kind.query_heads % tensor != 0)
    return "tensor " + number(tensor) + " does not divide query_heads " + number(kind.query_heads);
  if (kind.kv_heads % tensor != 0 && tensor % kind.kv_heads != 0)
    return "tensor " + number(tensor) + " neither divides kv_heads " + number(kind.kv_heads) +
           " nor is a multiple of it";
  return "";
}

/// What the types of a schedule count.
std::string unsupported_degree(const Mesh& mesh, int head_chunks) {
  const char* axis = mesh.ring() > max_degree ? "ring" : "ulysses";
  if (const int degree = std::max(mesh.ring(), mesh.ulysses); degree > max_degree)
    return std::string(axis) + " " + number(degree) + " exceeds " + number(max_degree) +
           ", the most ranks of an axis that a schedule numbers (in 16 bits)";
  if (i64{mesh.ring()} * head_chunks > max_units)
    return "ring " + number(mesh.ring()) + " times " + number(head_chunks) +
           " head chunks is a schedule of more than " + number(max_units) + " steps";
  return "";
}

std::string unsupported_heads(const LayerKind& kind, int tensor, int ulysses, int head_chunks) {
  const i64 query = kind.is_linear() ? kind.linear->value_heads / tensor : kind.query_heads / tensor;
  if (ulysses > query)
    return "ulysses " + number(ulysses) + " exceeds the " + number(query) +
           (kind.is_linear() ? " value" : " query") + " heads of a layer" +
           (tensor > 1 ? " after tensor " + number(tensor) : "") + "; some ranks would hold none";
  if (kind.is_linear() && kind.linear->key_heads / tensor % ulysses != 0)
    return "ulysses " + number(ulysses) + " does not divide the " + number(kind.linear->key_heads / tensor) +
           " key heads of the linear layers; a recurrent state cannot be torn";
  if (!kind.is_linear() && head_chunks > query / ulysses)
    return too_many_chunks(head_chunks, query / ulysses);
  return "";
}

}  // namespace

bool even_degree(i64 query_heads, i64 kv_heads, int ulysses) {
  return query_heads % ulysses == 0 && (kv_heads % ulysses == 0 || ulysses % kv_heads == 0);
}

std::string unsupported_reason(const LegalityInput& input, int tensor, int data, const Mesh& mesh) {
  const Workload& w = *input.workload;
  const i64 used = ranks_of({tensor, data, mesh.ring(), mesh.ulysses, w.pipeline});
  if (used != input.world)
    return "ring " + number(mesh.ring()) + " x ulysses " + number(mesh.ulysses) + " x tensor " +
           number(tensor) + " x data " + number(data) +
           (w.pipeline > 1 ? " x pipeline " + number(w.pipeline) : "") + " is " +
           (used > max_ranks ? "more than " + number(max_ranks) : number(used)) + " ranks, the cluster has " +
           number(input.world) + " devices" +
           (used <= max_ranks && input.world % (used / data) == 0
                ? "; use --data " + number(input.world / (used / data))
                : "");
  if (std::string reason = unsupported_degree(mesh, input.head_chunks); !reason.empty()) return reason;
  if (tensor > input.devices_per_node)
    return "tensor " + number(tensor) + " would leave the host (" + number(input.devices_per_node) +
           " devices)";
  for (const LayerKind& kind : input.model->kinds) {
    if (std::string reason = unsupported_tensor(kind, tensor); !reason.empty()) return reason;
    if (std::string reason = unsupported_heads(kind, tensor, mesh.ulysses, input.head_chunks);
        !reason.empty())
      return reason;
    if (kind.is_linear() && mesh.ring() > 1)
      return "ring " + number(mesh.ring()) +
             " needs a state exchange for the linear-attention layers, which no generator "
             "makes yet; use ring 1";
  }
  if (w.seq < mesh.size())
    return "the sequence of " + number(w.seq) + " tokens is shorter than its " + number(mesh.size()) +
           " ranks; use fewer";
  if (w.expert > 1 && (i64{data} * mesh.size()) % w.expert != 0)
    return "expert " + number(w.expert) + " does not divide the " + number(i64{data} * mesh.size()) +
           " data x sequence ranks";
  return "";
}

}  // namespace usp
