// SPDX-License-Identifier: Apache-2.0
#include "call_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/runtime/call_run.hpp"

#include <cmath>
#include <cstring>
#include <random>

namespace usp {
namespace {

HostTensor noise(std::mt19937_64& engine, const AttentionShape& shape, i64 tokens, int heads, int width) {
  HostTensor values(DType::fp64, shape.batch, tokens, {0, heads}, width);
  std::normal_distribution<> normal;
  auto& bytes = values.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(double)) {
    const double value = normal(engine);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  return values.as(shape.dtype);
}

i64 blocks_of(const AttentionPlan& plan, const Documents& documents) {
  return (documents.cu_q.back() + plan.score.block_tokens - 1) / plan.score.block_tokens;
}

}  // namespace

CallTensors random_tensors(const AttentionPlan& plan, const Documents& documents, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const AttentionShape& s = plan.shape;
  const i64 queries = documents.cu_q.back(), keys = documents.cu_k.back();
  CallTensors t;
  t.q = noise(engine, s, queries, s.query_heads, s.head_dim_qk);
  t.k = noise(engine, s, keys, s.kv_heads, s.head_dim_qk);
  t.v = noise(engine, s, keys, s.kv_heads, s.head_dim_v);
  t.d_out = noise(engine, s, queries, s.query_heads, s.head_dim_v);
  t.dropout_seed = seed;
  std::normal_distribution<> normal;
  for (int h = 0; h < s.query_heads; ++h) {
    if (plan.sink) t.sink.push_back(normal(engine));
    if (plan.score.alibi) t.alibi_slopes.push_back(std::exp2(-8.0 * (h + 1) / s.query_heads));
  }
  if (plan.score.block_tokens == 0) return t;
  const i64 n = blocks_of(plan, documents);
  std::bernoulli_distribution admits(0.6);
  for (i64 i = 0; i < s.query_heads * n * n; ++i) t.admitted.push_back(admits(engine) ? 1 : 0);
  return t;
}

kernels::BlockMask block_mask(const AttentionPlan& plan, const Documents& documents,
                              const CallTensors& tensors) {
  if (plan.score.block_tokens == 0) return {};
  const i64 edge = plan.score.block_tokens, n = blocks_of(plan, documents);
  return {edge, edge, n, n, tensors.admitted.data()};
}

AttentionInputs per_head_inputs(const AttentionPlan& plan, const CallTensors& tensors,
                                const kernels::BlockMask& blocks) {
  AttentionInputs in;
  if (plan.sink) in.sink = tensors.sink.data();
  if (plan.score.alibi) in.alibi_slopes = tensors.alibi_slopes.data();
  if (plan.score.block_tokens > 0) in.blocks = &blocks;
  in.dropout_seed = tensors.dropout_seed;
  return in;
}

std::vector<schedule::Slice> document_slices(const Band& band, const Documents& documents) {
  std::vector<schedule::Slice> slices;
  for (std::size_t d = 0; d < documents.count(); ++d) {
    schedule::Slice x;
    x.q_row = documents.cu_q[d];
    x.q_count = documents.cu_q[d + 1] - x.q_row;
    x.q_pos = x.q_row + documents.shift[d];
    x.k_row = x.k_pos = x.dk_row = documents.cu_k[d];
    x.k_count = documents.cu_k[d + 1] - x.k_row;
    x.diff_min = band.diff_min;
    x.diff_max = band.diff_max;
    slices.push_back(x);
  }
  return slices;
}

double visible_pairs(const AttentionPlan& plan, const Documents& documents) {
  double pairs = 0;
  for (const schedule::Slice& slice : document_slices(plan.band, documents))
    pairs += static_cast<double>(schedule::area(slice));
  return pairs * static_cast<double>(plan.shape.batch) * plan.shape.query_heads;
}

double flops_per_pair(const AttentionShape& shape, Pass pass) {
  return pass == Pass::forward ? 2.0 * (shape.head_dim_qk + shape.head_dim_v)
                               : 2.0 * (3 * shape.head_dim_qk + 2 * shape.head_dim_v);
}

}  // namespace usp
