// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/schedule/expand.hpp"

namespace usp::schedule {

DType buffer_type(const AttentionPlan& plan, bool shared_kv, BufferName name) {
  const DType io = plan.shape.dtype, sum = accumulator_of(io);
  const bool rounded = name.place == BufferSlot::home || (name.place == BufferSlot::row && rounds_once(plan));
  switch (name.tensor) {
    case Tensor::q:
    case Tensor::k:
    case Tensor::v:
      return io;
    case Tensor::d_o:
      return name.place == BufferSlot::row && !plan.replicated_q.empty() ? sum : io;
    case Tensor::o:
    case Tensor::dq:
      return rounded ? io : sum;
    case Tensor::dk:
    case Tensor::dv:
      return rounded && !shared_kv && plan.replicated_k.empty() ? io : sum;
    case Tensor::lse:
    case Tensor::delta:
      return sum;
  }
  throw InternalError("unknown tensor");
}

DType wire_type(const AttentionPlan& plan, Wire wire) {
  return wire == Wire::io ? plan.shape.dtype : accumulator_of(plan.shape.dtype);
}

i64 width_of(const AttentionShape& shape, Tensor tensor) {
  switch (tensor) {
    case Tensor::q:
    case Tensor::k:
    case Tensor::dq:
    case Tensor::dk:
      return shape.head_dim_qk;
    case Tensor::lse:
    case Tensor::delta:
      return 1;
    default:
      return shape.head_dim_v;
  }
}

i64 wire_bytes_per_row_head(const AttentionPlan& plan, const TransferOp& move) {
  i64 width = 0;
  for (int i = 0; i < move.pairs; ++i) width += width_of(plan.shape, move.from[i].tensor);
  return width * plan.shape.batch * usp::bytes_of(wire_type(plan, move.wire));
}

i64 bytes_of(const Buffer& buffer, i64 batch) {
  return batch * buffer.rows * buffer.heads.size() * buffer.width * usp::bytes_of(buffer.type);
}

}  // namespace usp::schedule
