// SPDX-License-Identifier: Apache-2.0
#include "plan_layers.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace usp {
namespace {

/// Fails where a step decides for more layers than the model has.
void check_step_layers(const PlanFile& plan, i64 model_layers, const std::string& file) {
  const StepWorkload& step = *plan.inputs.step;
  const std::pair<const char*, i64> counts[] = {
      {"/inputs/step/recompute_layers", step.recompute_layers.value_or(0)},
      {"/inputs/step/offload_layers", step.offload_layers.value_or(0)},
      {"/placement/pipeline", i64{plan.pipeline} * step.virtual_stages}};
  for (const auto& [field, count] : counts)
    if (count > model_layers)
      throw InvalidInput({file, 0, field},
                         fmt::format("needs {} layers, and the model has {}", count, model_layers));
}

}  // namespace

void check_layer_lists(const PlanFile& plan, const std::string& file) {
  i64 listed = 0;
  for (const PlanLayer& entry : plan.layers) listed += static_cast<i64>(entry.layers.size());
  // A step whose file does not count the model's layers lists all of them.
  const bool lists_all = plan.inputs.step && !plan.inputs.step->model_layers && listed > 0;
  const i64 model_layers = plan.inputs.step ? plan.inputs.step->model_layers.value_or(listed) : 0;
  std::map<std::pair<std::string, int>, std::size_t> entry_of;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const PlanLayer& entry = plan.layers[i];
    const auto fail = [&](const std::string& problem) {
      throw InvalidInput({file, 0, fmt::format("/layers/{}/layers", i)}, problem);
    };
    if (entry.layers.empty() && plan.layers.size() > 1)
      fail("is empty beside other kinds; list the layers of the model that have this attention");
    for (const int layer : entry.layers) {
      if (model_layers > 0 && layer >= model_layers)
        fail(lists_all
                 ? fmt::format("names layer {}, and the lists of all kinds hold {} layers", layer, listed)
                 : fmt::format("names layer {}, and the model has {} from 0 on", layer, model_layers));
      const auto [other, is_new] = entry_of.emplace(std::pair(lists_all ? "" : entry.kind, layer), i);
      if (!is_new)
        fail(fmt::format("names layer {} {}", layer,
                         other->second == i ? "twice; per_layer counts the calls in a layer"
                                            : fmt::format("too, as /layers/{} does", other->second)));
    }
  }
  if (model_layers > 0) check_step_layers(plan, model_layers, file);
}

Documents chunked_documents(const std::vector<i64>& lengths, i64 chunk) {
  std::vector<i64> cu{0};
  i64 count = 0;
  for (const i64 length : lengths)
    if ((count += std::max<i64>(1, (length + chunk - 1) / chunk)) > max_documents)
      throw InvalidInput({"documents", 0, std::to_string(chunk)},
                         fmt::format("chunks of so many tokens cut the row into more than {} documents; take "
                                     "longer chunks or a shorter row",
                                     max_documents));
  for (const i64 length : lengths) {
    if (length == 0) cu.push_back(cu.back());
    for (i64 done = 0; done < length; done += chunk) cu.push_back(cu.back() + std::min(chunk, length - done));
  }
  return Documents::packed(std::move(cu));
}

const PlanLayer& layer_at(const PlanFile& plan, std::size_t index) {
  if (index >= plan.layers.size())
    throw UsageError(plan.layers.size() == 1
                         ? "--layer: the plan has 1 kind of attention layer, which is 0; leave the flag out"
                         : fmt::format("--layer: the plan has {} kinds of attention layer; give 0 to {}",
                                       plan.layers.size(), plan.layers.size() - 1));
  return plan.layers[index];
}

void check_other_batch(const PlanFile& plan, const PlanLayer& layer, const std::vector<i64>& lengths) {
  if (layer.plan.shape.q_tokens != layer.plan.shape.kv_tokens || !plan.kv_documents.empty())
    throw UsageError("--documents: the plan is for cross attention; it takes no other batch");
  if (static_cast<i64>(lengths.size()) > plan.capacity_documents)
    throw UsageError(fmt::format("--documents: {} documents exceed the plan's capacity of {}", lengths.size(),
                                 plan.capacity_documents));
}

Documents cross_documents(const std::vector<i64>& query_lengths, const std::vector<i64>& kv_lengths) {
  Documents documents{{0}, {0}, {}};
  for (std::size_t i = 0; i < query_lengths.size(); ++i) {
    documents.cu_q.push_back(documents.cu_q.back() + query_lengths[i]);
    documents.cu_k.push_back(documents.cu_k.back() + kv_lengths.at(i));
    // The last query has the position of the last key.
    documents.shift.push_back(documents.cu_k.back() - documents.cu_q.back());
  }
  return documents;
}

Documents layer_documents(const PlanLayer& layer, const std::vector<i64>& lengths,
                          const std::vector<i64>& kv_lengths) {
  const AttentionShape& shape = layer.plan.shape;
  if (!kv_lengths.empty()) return cross_documents(lengths, kv_lengths);
  if (lengths.empty() && layer.chunk_tokens == 0) return Documents::single(shape.q_tokens, shape.kv_tokens);
  return chunked_documents(lengths.empty() ? std::vector<i64>{shape.q_tokens} : lengths,
                           layer.chunk_tokens > 0 ? layer.chunk_tokens : max_tokens);
}

}  // namespace usp
