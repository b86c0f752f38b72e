// SPDX-License-Identifier: Apache-2.0
#include "usp/base/digest.hpp"

#include "usp/runtime/attention_call.hpp"
#include "usp/runtime/executor.hpp"

#include <cstring>

namespace usp {
namespace {

[[nodiscard]] std::uint64_t bits(double x) {
  std::uint64_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

void add_ranges(Digest& digest, const std::vector<Range>& ranges) {
  digest.add(ranges.size());
  for (const Range& r : ranges) digest.add(r.begin).add(r.end);
}

void add_list(Digest& digest, const std::vector<i64>& list) {
  digest.add(list.size()).add(digest_of_bytes(list.data(), list.size() * sizeof(i64)));
}

}  // namespace

std::uint64_t layer_dropout_seed(std::uint64_t step_seed, std::int64_t layer) {
  if (layer == 0) return step_seed;
  std::uint64_t x = step_seed + static_cast<std::uint64_t>(layer) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t digest(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  Digest d;
  d.add(s.batch).add(s.q_tokens).add(s.kv_tokens).add(s.query_heads).add(s.kv_heads);
  d.add(s.head_dim_qk).add(s.head_dim_v).add(s.dtype);
  d.add(plan.mesh.ring_outer).add(plan.mesh.ring_inner).add(plan.mesh.ulysses);
  d.bytes(plan.method->word)
      .add(plan.layout)
      .add(plan.band.diff_min)
      .add(plan.band.diff_max)
      .add(plan.dkv_return)
      .add(plan.split_own_block)
      .add(plan.gated)
      .add(plan.gate_phases);
  d.add(plan.head_chunks)
      .add(plan.prune)
      .add(plan.save_exchanged_qkv)
      .add(plan.sink)
      .add(plan.return_lse)
      .bytes(plan.backend->word);
  d.add(bits(plan.score.scale)).add(bits(plan.score.softcap)).add(bits(plan.score.dropout));
  d.add(plan.score.alibi).add(plan.score.block_tokens);
  add_ranges(d, plan.replicated_q);
  add_ranges(d, plan.replicated_k);
  return d.value();
}

std::uint64_t digest(const Documents& documents) {
  Digest d;
  add_list(d, documents.cu_q);
  add_list(d, documents.cu_k);
  add_list(d, documents.shift);
  return d.value();
}

}  // namespace usp
