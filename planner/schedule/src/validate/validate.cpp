// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/validate.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace usp {
namespace {

constexpr double max_scale = 1e6;  // of logits: beyond, something else was meant

std::string too_many_gpu_rows(i64 batch, i64 rows, i64 heads) {
  if (i128{batch} * rows * heads <= max_gpu_rows) return "";
  return fmt::format(
      "is for GPUs, whose kernels number the rows of a step in 31 bits: a rank has batch {} x {} rows x {} "
      "heads in one, the most are {}; take more ranks or head chunks, or backend cpu",
      batch, rows, heads, max_gpu_rows);
}

[[noreturn]] void fail(const std::string& field, const std::string& problem) {
  throw InvalidInput({"attention plan", 0, field}, problem);
}

void within(const char* field, i64 value, i64 least, i64 most) {
  if (value < least || value > most)
    fail(field, fmt::format("is {}; it must be {} to {}", value, least, most));
}

/// A value that was cast from a number may be none of the words.
template <class E>
void named(const char* field, E value, E last) {
  within(field, static_cast<i64>(value), 0, static_cast<i64>(last));
}

void check_words(const AttentionPlan& plan) {
  named("shape/dtype", plan.shape.dtype, DType::fp64);
  named("layout", plan.layout, LayoutKind::balanced);
  named("dkv_return", plan.dkv_return, DkvReturn::cycle);
}

void check_shape(const AttentionShape& s) {
  within("shape/batch", s.batch, 1, max_batch);
  within("shape/q_tokens", s.q_tokens, 1, max_tokens);
  within("shape/kv_tokens", s.kv_tokens, 1, max_tokens);
  within("shape/query_heads", s.query_heads, 1, max_heads);
  within("shape/kv_heads", s.kv_heads, 1, max_heads);
  within("shape/head_dim_qk", s.head_dim_qk, 1, max_head_dim);
  within("shape/head_dim_v", s.head_dim_v, 1, max_head_dim);
  if (s.query_heads % s.kv_heads != 0)
    fail("shape/kv_heads", fmt::format("{} does not divide query_heads {}", s.kv_heads, s.query_heads));
}

void check_degrees(const Mesh& mesh) {
  within("mesh/ring_outer", mesh.ring_outer, 1, max_degree);
  within("mesh/ring_inner", mesh.ring_inner, 1, max_degree);
  within("mesh/ulysses", mesh.ulysses, 1, max_degree);
  const i64 ring = i64{mesh.ring_outer} * mesh.ring_inner;
  within("mesh/ring", ring, 1, max_degree);
  if (ring * mesh.ulysses > max_ranks)
    fail("mesh/ulysses",
         fmt::format("{} times the ring is too many ranks; the most are {}", mesh.ulysses, max_ranks));
}

void check_mesh_of(const AttentionPlan& plan) {
  const Mesh& mesh = plan.mesh;
  if (mesh.ulysses > plan.shape.query_heads)
    fail("mesh/ulysses",
         fmt::format("{} exceeds the {} query heads: some ranks would hold none; widen the ring instead",
                     mesh.ulysses, plan.shape.query_heads));
  if (const std::optional<PlanProblem> problem = plan.method->problem(plan))
    fail(problem->field, problem->text);
  if (plan.split_own_block && !schedule::may_split_own_block(plan))
    fail("split_own_block",
         "is for rings whose own block stays at home: not ring 1, and not dkv_return cycle");
  if (plan.gated && !schedule::may_gate(plan))
    fail("gated", gate_refusal(plan.mesh, plan.method, plan.dkv_return));
  if (plan.gate_phases > 1 && !plan.gated) fail("gate_phases", std::string(schedule::phases_without_gates));
  if (const std::string why = phases_refusal(plan.mesh.ring(), plan.gate_phases); !why.empty())
    fail("gate_phases", why);
}

void check_score(const AttentionPlan& plan) {
  const ScoreRules& score = plan.score;
  if (!(std::abs(score.scale) <= max_scale)) fail("score/scale", "must be finite, from -1e6 to 1e6");
  if (!(score.softcap >= 0 && score.softcap <= max_scale))
    fail("score/softcap", "must be finite, from 0 to 1e6");
  if (!(score.dropout >= 0 && score.dropout < 1))
    fail("score/dropout", "must be at least 0 and below 1, where nothing would be left");
  if (score.block_tokens > 0 && plan.shape.q_tokens != plan.shape.kv_tokens)
    fail("score/block_tokens", "needs queries and keys of the same tokens; leave out the block pattern");
}

/// What neither the backend nor any of its fallbacks takes.
void check_backend(const AttentionPlan& plan) {
  const schedule::KernelTraits& traits = schedule::kernel_traits(last_fallback(plan.backend));
  const std::string name(word_of(plan.backend));
  const AttentionShape& s = plan.shape;
  if (!traits.supports_fp32_fp64 && bytes_of(s.dtype) > 2)
    fail("backend", fmt::format("{} takes bf16 and fp16, which tensor cores multiply, not {}; use backend {}",
                                name, word_of(s.dtype), word_of(Backend{})));
  if (std::max(s.head_dim_qk, s.head_dim_v) > traits.max_head_dim)
    fail("backend",
         fmt::format("{} takes head dims up to {}, not {}; use backend {}", name, traits.max_head_dim,
                     std::max(s.head_dim_qk, s.head_dim_v), word_of(Backend{})));
  if (const std::string reason = too_many_gpu_rows(plan); !reason.empty()) fail("backend", reason);
}

/// Head chunks, and the length of the schedule that they make.
void check_units(const AttentionPlan& plan) {
  within("head_chunks", plan.head_chunks, 1, max_head_chunks);
  if (i64{plan.mesh.ring()} * plan.head_chunks > max_units)
    fail("head_chunks", fmt::format("{} times ring {} is a schedule of more than {} steps; take fewer chunks",
                                    plan.head_chunks, plan.mesh.ring(), max_units));
}

/// Sums of bytes over ranks, transfers and passes are counted in 64 bits.
void check_bytes(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  const i64 row_bytes =
      i64{s.query_heads} * std::max(s.head_dim_qk, s.head_dim_v) * bytes_of(accumulator_of(s.dtype));
  i64 replicated = 0;
  for (const auto* ranges : {&plan.replicated_q, &plan.replicated_k})
    for (const Range& range : *ranges) replicated += range.size();
  const i128 rows = s.batch * (i128{std::max(s.q_tokens, s.kv_tokens)} * plan.mesh.ring() +
                               i128{replicated} * plan.mesh.size());
  if (rows * row_bytes > max_call_bytes)
    fail("shape", fmt::format("is too large: batch x tokens x query_heads x head_dim x ring is {} of sums; "
                              "64 bits count the traffic of at most {}",
                              format_bytes(static_cast<double>(rows) * static_cast<double>(row_bytes)),
                              format_bytes(static_cast<double>(max_call_bytes))));
}

void check_ranges(const std::string& field, const std::vector<Range>& ranges, i64 tokens) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const i64 least = i == 0 ? 0 : ranges[i - 1].end;
    if (ranges[i].begin < least || ranges[i].end < ranges[i].begin || ranges[i].end > tokens)
      fail(fmt::format("{}/{}", field, i),
           fmt::format("must be ascending and disjoint, within {} tokens; range {} is not", tokens, i));
  }
}

}  // namespace

void check_plan_sizes(const AttentionPlan& plan) {
  check_words(plan);
  check_shape(plan.shape);
  check_degrees(plan.mesh);
  check_units(plan);
  within("gate_phases", plan.gate_phases, 1, schedule::max_gate_phases);
  within("band/diff_min", plan.band.diff_min, -unbounded, unbounded);
  within("band/diff_max", plan.band.diff_max, -unbounded, unbounded);
  within("score/block_tokens", plan.score.block_tokens, 0, max_tokens);
  check_ranges("replicated_q", plan.replicated_q, plan.shape.q_tokens);
  check_ranges("replicated_k", plan.replicated_k, plan.shape.kv_tokens);
  check_bytes(plan);
}

std::string gate_refusal(const Mesh& mesh, Method method, DkvReturn dkv_return) {
  if (mesh.ring() == 1) return "is for rings of more than one rank: nothing arrives on ring 1";
  if (dkv_return == DkvReturn::cycle)
    return "is not for dkv_return cycle, whose own block travels before it is attended; use dkv_return "
           "direct "
           "or circulate";
  if (method->joins_remote_blocks) return "";
  std::vector<std::string_view> others;
  for (const Method other : methods())
    if (other->joins_remote_blocks) others.push_back(other->word);
  return fmt::format(
      "needs blocks that come straight from their owners to memory which holds them all; method {} attends "
      "one block after another in slots that are filled again, so use method {}",
      word_of(method), fmt::join(others, " or "));
}

std::string phases_refusal(int ring, int phases) {
  if (phases <= ring) return "";
  return fmt::format("{} exceeds the ring of {}: every phase attends a block; use at most {}", phases, ring,
                     std::min(ring, schedule::max_gate_phases));
}

void check_mesh(const Mesh& mesh) {
  try {
    check_degrees(mesh);
  } catch (const InvalidInput& error) {
    const std::string& field = error.where().token;
    throw UsageError(fmt::format("{} {}", field.substr(field.find('/') + 1), error.problem()));
  }
}

void check_attention_plan(const AttentionPlan& plan) {
  check_plan_sizes(plan);
  check_mesh_of(plan);
  check_backend(plan);
  if (plan.band.diff_min > plan.band.diff_max)
    fail("band/diff_min", "exceeds diff_max: no pair would be visible");
  const int heads = plan.shape.query_heads / plan.mesh.ulysses;
  if (plan.head_chunks > heads) fail("head_chunks", "is " + too_many_chunks(plan.head_chunks, heads));
  check_score(plan);
}

void check_gpu_rows(i64 batch, i64 rows, i64 heads) {
  if (const std::string reason = too_many_gpu_rows(batch, rows, heads); !reason.empty())
    fail("backend", reason);
}

std::string too_many_gpu_rows(const AttentionPlan& plan) {
  if (!plan.backend->on_gpu) return "";
  const AttentionShape& s = plan.shape;
  const i64 parts = i64{plan.mesh.ulysses} * plan.head_chunks;
  return too_many_gpu_rows(s.batch, (s.q_tokens + plan.mesh.ring() - 1) / plan.mesh.ring(),
                           (s.query_heads + parts - 1) / parts);
}

std::string too_many_chunks(i64 chunks, i64 heads) {
  return fmt::format("{} head chunks for {} {} of a rank: some chunks would hold none; use at most {}",
                     chunks, heads, heads == 1 ? "query head" : "query heads", heads);
}

}  // namespace usp
