// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pairwise.hpp"
#include "schedule_cases.hpp"

#include "usp/kernels/score_terms.hpp"

#include <utility>

namespace usp::test {

/// How a caller's tensors lie in memory.
enum class MemoryOrder : std::uint8_t { batch_row_head, row_batch_head, batch_head_row };

struct RuntimeCase {
  AttentionPlan plan;
  Documents documents;
  MemoryOrder order = MemoryOrder::batch_row_head;
  std::uint64_t seed = 0;
};

/// The factors of the covering design over what one attention call supports. The mesh is given.
struct Factors {
  enum : std::size_t {
    method,
    layout,
    dkv_return,
    mask,
    documents,
    cross,
    heads,
    dims,
    length,
    batch,
    order,
    chunks,
    prune,
    save_exchanged_qkv,
    sink,
    softcap,
    alibi,
    dropout,
    blocks,
    replicated,
    return_lse,
    split_own_block,
    gated,
    count
  };
  [[nodiscard]] static std::vector<int> levels() {
    return {4, 4, 3, 5, 3, 2, 8, 3, 4, 2, 3, 3, 2, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2};
  }
};

namespace case_detail {

inline void set_heads(AttentionPlan& plan, int level, int ulysses) {
  static const std::pair<int, int> fixed[] = {{4, 2}, {7, 7},  {7, 1}, {8, 2},
                                              {6, 3}, {28, 4}, {9, 3}, {12, 12}};
  auto [query, kv] = fixed[level];
  while (query < ulysses) query *= 2;  // a mesh needs a query head per column; groups only get larger
  plan.shape.query_heads = query, plan.shape.kv_heads = kv;
}

[[nodiscard]] inline std::vector<i64> cut(CaseGenerator& draw, i64 tokens, i64 documents) {
  std::vector<i64> cu{0, tokens};
  for (i64 i = 1; i < documents; ++i) cu.push_back(draw.between(0, tokens));
  std::sort(cu.begin(), cu.end());
  return cu;
}

inline void set_tokens(RuntimeCase& c, const std::vector<int>& row, CaseGenerator& draw) {
  AttentionShape& shape = c.plan.shape;
  const i64 ranks = c.plan.mesh.size();
  const i64 lengths[] = {draw.between(17, 40), std::max<i64>(1, ranks - 1), 2 * ranks, draw.between(1, 9)};
  shape.q_tokens = lengths[row[Factors::length]];
  const bool cross = row[Factors::cross] == 1 && c.plan.score.block_tokens == 0;
  shape.kv_tokens = cross ? draw.between(1, 40) : shape.q_tokens;
  const i64 documents[] = {1, 3, 9};
  const i64 count = documents[row[Factors::documents]];
  c.documents.cu_q = cut(draw, shape.q_tokens, count);
  c.documents.cu_k = cross ? cut(draw, shape.kv_tokens, count) : c.documents.cu_q;
  const i64 window = draw.between(1, 12);
  const Band bands[] = {
      {0, unbounded}, {}, {0, window - 1}, {-draw.between(0, 5), window - 1}, {-unbounded, 0}};
  c.plan.band = bands[row[Factors::mask]];
  for (std::size_t d = 0; d < static_cast<std::size_t>(count); ++d) {
    const i64 q = c.documents.cu_q[d + 1] - c.documents.cu_q[d],
              k = c.documents.cu_k[d + 1] - c.documents.cu_k[d];
    c.documents.shift.push_back(c.documents.cu_k[d] - c.documents.cu_q[d] +
                                (c.plan.band.diff_min == 0 ? k - q : 0));
  }
  const i64 most = std::min(shape.q_tokens, shape.kv_tokens);
  const i64 copies[] = {0, std::min<i64>(3, most), most};
  if (const i64 n = copies[row[Factors::replicated]]; n > 0) {
    c.plan.replicated_k = {{0, n}};
    if (!cross || draw.chance(0.5)) c.plan.replicated_q = c.plan.replicated_k;
  }
}

}  // namespace case_detail

/// One row of the design on one mesh. `outer` > 1 cuts the ring of a double ring.
[[nodiscard]] inline RuntimeCase make_case(const std::vector<int>& row, int ring, int ulysses, DType dtype,
                                           std::uint64_t seed) {
  CaseGenerator draw(seed);
  RuntimeCase c;
  c.seed = seed;
  AttentionPlan& plan = c.plan;
  plan.mesh = {1, ring, ulysses};
  plan.method = methods()[static_cast<std::size_t>(row[Factors::method])];
  if (plan.method == Method::double_ring)
    for (int inner = ring; inner > 1; --inner)
      if (ring % inner == 0 && inner * inner <= ring) {
        plan.mesh = {ring / inner, inner, ulysses};
        break;
      }
  if (plan.method == Method::double_ring && plan.mesh.ring_outer == 1)
    plan.method = Method::ring;  // no divisor cuts it
  plan.layout = static_cast<LayoutKind>(row[Factors::layout]);
  plan.dkv_return = static_cast<DkvReturn>(row[Factors::dkv_return]);
  if (plan.method == Method::ring_direct || plan.method == Method::all_gather_kv)
    plan.dkv_return = DkvReturn::circulate;
  plan.shape.dtype = dtype;
  plan.shape.batch = 1 + row[Factors::batch];
  case_detail::set_heads(plan, row[Factors::heads], ulysses);
  const std::pair<int, int> dims[] = {{8, 8}, {5, 3}, {16, 24}};
  plan.shape.head_dim_qk = dims[row[Factors::dims]].first;
  plan.shape.head_dim_v = dims[row[Factors::dims]].second;
  plan.head_chunks = std::min(1 + row[Factors::chunks], plan.shape.query_heads / ulysses);
  plan.prune = row[Factors::prune] == 1;
  plan.save_exchanged_qkv = row[Factors::save_exchanged_qkv] == 1;
  plan.sink = row[Factors::sink] == 1;
  plan.return_lse = row[Factors::return_lse] == 1;
  plan.split_own_block = row[Factors::split_own_block] == 1 && schedule::may_split_own_block(plan);
  plan.gated = row[Factors::gated] == 1 && schedule::may_gate(plan);
  plan.score.softcap = row[Factors::softcap] == 1 ? 1.5 : 0;
  plan.score.alibi = row[Factors::alibi] == 1;
  plan.score.dropout = row[Factors::dropout] == 1 ? 0.3 : 0;
  plan.score.block_tokens = row[Factors::blocks] == 1 ? 3 : 0;
  c.order = static_cast<MemoryOrder>(row[Factors::order]);
  case_detail::set_tokens(c, row, draw);
  return c;
}

/// Packed causal documents on a mesh whose ranks await the blocks of one another inside a call.
[[nodiscard]] inline RuntimeCase gated_case(int ring, int ulysses, const AttentionShape& shape,
                                            std::vector<i64> cu_seqlens) {
  RuntimeCase c;
  c.plan.mesh = {1, ring, ulysses};
  c.plan.method = Method::all_gather_kv;
  c.plan.gated = true;
  c.plan.shape = shape;
  c.plan.band = {0, unbounded};
  c.documents = Documents::packed(std::move(cu_seqlens));
  c.seed = 21;
  return c;
}

[[nodiscard]] inline std::string describe(const RuntimeCase& c) {
  return describe(ScheduleCase{c.plan, c.documents}) + " batch " + std::to_string(c.plan.shape.batch) +
         " order " + std::to_string(static_cast<int>(c.order)) + " softcap " +
         std::to_string(c.plan.score.softcap) + " alibi " + std::to_string(c.plan.score.alibi) + " dropout " +
         std::to_string(c.plan.score.dropout) + " blocks " + std::to_string(c.plan.score.block_tokens) +
         " seed " + std::to_string(c.seed);
}

}  // namespace usp::test
