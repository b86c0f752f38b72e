// SPDX-License-Identifier: Apache-2.0
#include "call_flags.hpp"

#include "usp/base/error.hpp"

#include <utility>
#include <vector>

namespace usp::cli {

AttentionShape CallFlags::shape() const {
  AttentionShape shape;
  shape.batch = workload.batch;
  shape.q_tokens = shape.kv_tokens = workload.seq;
  shape.query_heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim_qk = head_dim;
  shape.head_dim_v = head_dim_v.value_or(head_dim);
  shape.dtype = workload.dtype;
  return shape;
}

Band CallFlags::band() const {
  workload.check_mask();
  if (!window) return workload.full ? Band{} : Band{0, unbounded};
  if (workload.full) throw UsageError("--window looks back from a causal query; leave out --full");
  return {0, *window - 1};
}

Documents CallFlags::packed_documents() const {
  if (workload.documents.empty()) return Documents::single(workload.seq, workload.seq);
  check_documents(workload.documents, workload.seq);
  std::vector<i64> cu_seqlens{0};
  for (const i64 length : workload.documents) cu_seqlens.push_back(cu_seqlens.back() + length);
  return Documents::packed(std::move(cu_seqlens));
}

void add_call_flags(const Verb& verb, CallFlags& flags) {
  constexpr const char* name = "Attention";
  FlagGroup group(verb, name);
  group.number("--heads", flags.heads, "query heads", 1, max_heads)->required();
  group
      .number("--kv-heads", flags.kv_heads, "KV heads; as many as --heads for multi-head attention", 1,
              max_heads)
      ->required();
  group.number("--head-dim", flags.head_dim, "dimension of q and k of a head", 1, max_head_dim)->required();
  group.number("--head-dim-v", flags.head_dim_v, "dimension of v, where it differs", 1, max_head_dim);
  add_workload_flags(verb, flags.workload,
                     {name, "global tokens, e.g. 128k or 1M", "sequences",
                      "; times of fp32 and fp64 are uncalibrated", "37k,51k,40k", "no backward pass"})
      ->required();
  group.tokens("--window", flags.window, "a query sees this many tokens, itself included");
}

}  // namespace usp::cli
