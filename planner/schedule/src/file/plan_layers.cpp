// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/plan_file.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {

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
