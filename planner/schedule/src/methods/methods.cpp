// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {

const std::vector<Method>& methods() {
  static const std::vector<Method> list = {Method::ring, Method::ring_direct, Method::all_gather_kv,
                                           Method::double_ring};
  return list;
}

std::size_t index_of(Method method) {
  const auto at = std::find(methods().begin(), methods().end(), method);
  expects(at != methods().end(), "a method that no list names has no number");
  return static_cast<std::size_t>(at - methods().begin());
}

template <>
WordList<Method> word_list<Method>() {
  static const std::vector<Word<Method>> words = [] {
    std::vector<Word<Method>> list;
    for (const Method method : methods()) list.push_back({method->word, method});
    return list;
  }();
  return {words.data(), words.size()};
}

Method gated_method() {
  const auto& all = methods();
  return *std::find_if(all.begin(), all.end(), [](Method m) { return m->joins_remote_blocks; });
}

Method default_method(const Mesh& mesh) {
  if (mesh.ring_outer == 1) return {};
  for (const Method method : methods())
    if (method->two_level_ring) return method;
  return {};
}

std::optional<PlanProblem> outer_ring_problem(const AttentionPlan& plan) {
  if (plan.mesh.ring_outer == 1) return {};
  return PlanProblem{"mesh/ring_outer", fmt::format("{} needs method {}: no other has one",
                                                    plan.mesh.ring_outer, default_method(plan.mesh)->word)};
}

}  // namespace usp
