// SPDX-License-Identifier: Apache-2.0
#include "empty_state.hpp"

#include "usp/kernels/memory.hpp"

#include <limits>

namespace usp::kernels {
namespace {

[[nodiscard]] View heads_of(const View& view, Range heads) {
  View part = view;
  part.data = view.at(0, 0, heads.begin);
  part.heads = heads;
  return part;
}

}  // namespace

void begin_empty(const AttendArgs& a) {
  if (!a.overwrite || a.scope.query_heads.empty()) return;
  fill(heads_of(a.o, a.scope.query_heads), 0);
  const View lse = heads_of(a.lse, a.scope.query_heads);
  if (a.sink == nullptr)
    fill(lse, -std::numeric_limits<double>::infinity());
  else
    host_memory().fill_heads(lse, a.sink);
}

void begin_empty(const AttendGradArgs& a) {
  if (a.scope.query_heads.empty()) return;
  if (a.overwrite) fill(heads_of(a.dq, a.scope.query_heads), 0);
  if (!a.overwrites_dkv()) return;
  fill(heads_of(a.dk, a.scope.kv_heads()), 0);
  fill(heads_of(a.dv, a.scope.kv_heads()), 0);
}

}  // namespace usp::kernels
