// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/check_plan.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/plan.hpp"
#include "usp/schedule/kernel_traits.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace usp {
namespace {

constexpr i64 most_batch = i64{1} << 32;
constexpr i64 most_head_dim = kernel_traits(Backend::cpu).most_head_dim;
constexpr i64 most_ranks = 1 << 24;
constexpr i64 most_chunks = 1024;
constexpr double most_scale = 1e6;  // of logits: beyond, something else was meant

[[noreturn]] void fail(const std::string& field, const std::string& problem) {
  throw InvalidInput({"attention plan", 0, field}, problem);
}

void within(const char* field, i64 value, i64 least, i64 most) {
  if (value < least || value > most)
    fail(field, "is " + std::to_string(value) + "; it must be " + std::to_string(least) + " to " +
                    std::to_string(most));
}

void check_shape(const AttentionShape& s) {
  within("shape/batch", s.batch, 1, most_batch);
  within("shape/q_tokens", s.q_tokens, 1, unbounded);
  within("shape/kv_tokens", s.kv_tokens, 1, unbounded);
  within("shape/query_heads", s.query_heads, 1, most_degree);
  within("shape/kv_heads", s.kv_heads, 1, most_degree);
  within("shape/head_dim_qk", s.head_dim_qk, 1, most_head_dim);
  within("shape/head_dim_v", s.head_dim_v, 1, most_head_dim);
  if (s.query_heads % s.kv_heads != 0)
    fail("shape/kv_heads",
         std::to_string(s.kv_heads) + " does not divide query_heads " + std::to_string(s.query_heads));
}

void check_mesh(const AttentionPlan& plan) {
  const Mesh& mesh = plan.mesh;
  within("mesh/ring_outer", mesh.ring_outer, 1, most_degree);
  within("mesh/ring_inner", mesh.ring_inner, 1, most_degree);
  within("mesh/ulysses", mesh.ulysses, 1, most_degree);
  const i64 ring = i64{mesh.ring_outer} * mesh.ring_inner;
  within("mesh/ring", ring, 1, most_degree);
  if (ring * mesh.ulysses > most_ranks)
    fail("mesh/ulysses", std::to_string(mesh.ulysses) + " times the ring is too many ranks; the most are " +
                             std::to_string(most_ranks));
  if (mesh.ulysses > plan.shape.query_heads)
    fail("mesh/ulysses", std::to_string(mesh.ulysses) + " exceeds the " +
                             std::to_string(plan.shape.query_heads) +
                             " query heads: some ranks would hold none; widen the ring instead");
  if (mesh.ring_outer == 1) return;
  if (plan.method != Method::double_ring)
    fail("mesh/ring_outer", std::to_string(mesh.ring_outer) + " needs method double_ring: no other has one");
  if (mesh.ring_inner == 1)
    fail("mesh/ring_inner", "is 1: a double ring whose inner ring has one rank is a ring; use method ring");
}

void check_score(const AttentionPlan& plan) {
  const ScoreRules& score = plan.score;
  if (!(std::abs(score.scale) <= most_scale)) fail("score/scale", "must be finite, from -1e6 to 1e6");
  if (!(score.softcap >= 0 && score.softcap <= most_scale))
    fail("score/softcap", "must be finite, from 0 to 1e6");
  if (!(score.dropout >= 0 && score.dropout < 1))
    fail("score/dropout", "must be at least 0 and below 1, where nothing would be left");
  within("score/block_tokens", score.block_tokens, 0, unbounded);
  if (score.block_tokens > 0 && plan.shape.q_tokens != plan.shape.kv_tokens)
    fail("score/block_tokens", "needs queries and keys of the same tokens; leave out the block pattern");
}

/// What no GPU backend takes. What cuDNN alone does not take it leaves to the portable kernel, block by
/// block.
void check_backend(const AttentionPlan& plan) {
  const KernelTraits& traits = kernel_traits(plan.backend);
  const std::string name(backend_name(plan.backend));
  const AttentionShape& s = plan.shape;
  if (!traits.wide_types && bytes_of(s.dtype) > 2)
    fail("backend", name + " takes bf16 and fp16, which tensor cores multiply, not " +
                        std::string(dtype_name(s.dtype)) + "; use backend cpu");
  if (std::max(s.head_dim_qk, s.head_dim_v) > traits.most_head_dim)
    fail("backend", name + " takes head dims up to " + std::to_string(traits.most_head_dim) + ", not " +
                        std::to_string(std::max(s.head_dim_qk, s.head_dim_v)) + "; use backend cpu");
}

void check_ranges(const std::string& field, const std::vector<Range>& ranges, i64 tokens) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const i64 least = i == 0 ? 0 : ranges[i - 1].end;
    if (ranges[i].begin < least || ranges[i].end < ranges[i].begin || ranges[i].end > tokens)
      fail(field + "/" + std::to_string(i), "must be ascending and disjoint, within " +
                                                std::to_string(tokens) + " tokens; range " +
                                                std::to_string(i) + " is not");
  }
}

}  // namespace

void check_attention_plan(const AttentionPlan& plan) {
  check_shape(plan.shape);
  check_mesh(plan);
  check_backend(plan);
  within("band/diff_min", plan.band.diff_min, -unbounded, unbounded);
  within("band/diff_max", plan.band.diff_max, -unbounded, unbounded);
  if (plan.band.diff_min > plan.band.diff_max)
    fail("band/diff_min", "exceeds diff_max: no pair would be visible");
  within("head_chunks", plan.head_chunks, 1, most_chunks);
  check_score(plan);
  check_ranges("replicated_q", plan.replicated_q, plan.shape.q_tokens);
  check_ranges("replicated_k", plan.replicated_k, plan.shape.kv_tokens);
}

}  // namespace usp
