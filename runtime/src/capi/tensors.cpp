// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp::capi {
namespace {

constexpr std::size_t first_record =
    offsetof(usp_pass_record, workspace_bytes) + sizeof(usp_pass_record::workspace_bytes);

}  // namespace

usp_attention_inputs default_inputs() {
  auto inputs = zero<usp_attention_inputs>();
  inputs.sink_dtype = USP_FP64;
  return inputs;
}

usp_attention_gradients default_gradients() {
  auto gradients = zero<usp_attention_gradients>();
  gradients.d_sink_dtype = USP_FP64;
  return gradients;
}

kernels::View Tensors::q(const usp_tensor& t, const char* name) const {
  return view(t, q_rows_, plan_.shape.query_heads, plan_.shape.head_dim_qk, name);
}
kernels::View Tensors::k(const usp_tensor& t, const char* name) const {
  return view(t, kv_rows_, plan_.shape.kv_heads, plan_.shape.head_dim_qk, name);
}
kernels::View Tensors::v(const usp_tensor& t, const char* name) const {
  return view(t, kv_rows_, plan_.shape.kv_heads, plan_.shape.head_dim_v, name);
}
kernels::View Tensors::out(const usp_tensor& t, const char* name) const {
  return view(t, q_rows_, plan_.shape.query_heads, plan_.shape.head_dim_v, name);
}
kernels::View Tensors::lse(const usp_tensor* t) const {
  return t == nullptr ? kernels::View{} : view(*t, q_rows_, plan_.shape.query_heads, 1, "lse.dtype");
}

kernels::View Tensors::view(const usp_tensor& t, i64 rows, i64 heads, i64 width, const char* name) const {
  kernels::View v(static_cast<std::byte*>(t.data), enumerator(t.dtype, DType::fp64, name), plan_.shape.batch,
                  rows, {0, heads}, width);
  v.batch_stride = t.batch_stride;
  v.row_stride = t.row_stride;
  v.head_stride = t.head_stride;
  return v;
}

AttentionInputs Tensors::inputs(const usp_attention_inputs* inputs, kernels::BlockMask& mask) const {
  const usp_attention_inputs in = taken(inputs, first_inputs, default_inputs(), "inputs");
  const i64 edge = plan_.score.block_tokens;
  mask = {edge, edge, in.block_rows, in.block_columns, in.blocks};
  AttentionInputs out;
  out.q = q(in.q, "q.dtype");
  out.k = k(in.k, "k.dtype");
  out.v = v(in.v, "v.dtype");
  require(in.reserved == 0, fmt::format("inputs.reserved is {}; it must be 0", in.reserved));
  out.sink = in.sink;
  out.sink_type = enumerator(in.sink_dtype, DType::fp64, "inputs.sink_dtype");
  out.alibi_slopes = in.alibi_slopes;
  out.blocks = in.blocks == nullptr ? nullptr : &mask;
  out.dropout_seed = in.dropout_seed;
  return out;
}

AttentionGradients Tensors::gradients(const usp_attention_gradients* gradients) const {
  const usp_attention_gradients g = taken(gradients, first_gradients, default_gradients(), "gradients");
  require(g.reserved == 0, fmt::format("gradients.reserved is {}; it must be 0", g.reserved));
  return {q(g.dq, "dq.dtype"), k(g.dk, "dk.dtype"), v(g.dv, "dv.dtype"), g.d_sink,
          enumerator(g.d_sink_dtype, DType::fp64, "gradients.d_sink_dtype")};
}

std::vector<i64> borders(const int64_t* cu, i64 documents, const char* name) {
  given(cu, name);
  require(documents <= max_documents,
          fmt::format("documents is {}; it must be 1 to {}", documents, max_documents));
  std::vector<i64> list(cu, cu + documents + 1);
  if (list.front() != 0 || !std::is_sorted(list.begin(), list.end()))
    throw InvalidInput({"batch", 0, name}, "must start at 0 and not decrease");
  return list;
}

std::vector<i64> self_borders(const int64_t* cu_seqlens, i64 documents) {
  require(documents >= 1, fmt::format("documents is {}; a batch has at least one", documents));
  return borders(cu_seqlens, documents, "cu_seqlens");
}

Documents cross_documents(const int64_t* cu_q, const int64_t* cu_k, const int64_t* shift, i64 documents) {
  require(documents >= 1, fmt::format("documents is {}; a batch has at least one", documents));
  Documents batch;
  batch.cu_q = borders(cu_q, documents, "cu_q");
  batch.cu_k = borders(cu_k, documents, "cu_k");
  for (std::size_t i = 0; i < static_cast<std::size_t>(documents); ++i)
    batch.shift.push_back(shift != nullptr ? shift[i] : batch.cu_k[i + 1] - batch.cu_q[i + 1]);
  return batch;
}

Pass pass_of(std::int32_t pass) {
  return enumerator(pass, Pass::backward, "pass");
}

void put_record(const PassRecord& from, usp_pass_record* record) {
  auto own = zero<usp_pass_record>();
  own.planned_sent = from.planned_bytes(true);
  own.planned_received = from.planned_bytes(false);
  own.executed_sent = from.executed_bytes(true);
  own.executed_received = from.executed_bytes(false);
  own.equal = difference(from.transfers).empty() ? 1 : 0;
  own.ticks = static_cast<int32_t>(from.ticks.size());
  own.workspace_bytes = from.workspace_bytes;
  for (const TickTimes& tick : from.ticks) own.host_wait_s += tick.end_s - tick.computed_s;
  put(own, first_record, record, "record");
}

}  // namespace usp::capi
