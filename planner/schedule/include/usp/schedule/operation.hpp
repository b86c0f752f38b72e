// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <string_view>

namespace usp {
struct AttentionPlan;
}  // namespace usp

/// What a rank computes in a tick. An operation is one record: its word, the buffers that it reads and
/// writes, and what it costs. Expansion, prices, explain and traces follow from the record; the runtime adds
/// one function per operation, which calls the kernel (usp/runtime/operation_kernels.hpp).
namespace usp::schedule {

struct ComputeOp;

/// Where a computation says that a buffer lies: ComputeOp::q, ComputeOp::kv, ...
using SlotMember = BufferSlot ComputeOp::*;

/// One buffer of an operation, which has at most one per tensor.
struct Operand {
  Tensor tensor = Tensor::q;
  SlotMember slot = nullptr;                       ///< where the schedule says; null: in row layout
  bool (*wanted)(const AttentionPlan&) = nullptr;  ///< null: under every plan
};

/// Whose time an operation takes, and how often.
struct OperationCost {
  enum class Kernel : std::uint8_t {
    attention_forward,   ///< on the rows, keys and pairs of the step
    attention_backward,  ///< on the same
    row_sums,            ///< of two tensors of head_dim_v, over all query rows
  };
  Kernel kernel = Kernel::row_sums;
  double times = 1;
};

/// Refers to arrays that outlive it.
struct Operation {
  std::string_view word;
  const Operand* operands = nullptr;
  int operand_count = 0;
  OperationCost cost;
  /// Works on the visible pairs of its stage: has slices, KV heads and a backend, and is left out where
  /// nothing is visible.
  bool has_pairs = false;
  Tensor key_results = Tensor::k;  ///< with pairs: the buffer whose rows Slice::dk_row counts

  [[nodiscard]] const Operand* begin() const { return operands; }
  [[nodiscard]] const Operand* end() const { return operands + operand_count; }
};

namespace operations {
extern const Operation attend;       ///< query rows against key rows, merged into the carried (o, lse)
extern const Operation delta;        ///< rowsum(dO * O); with a sink also its gradient
extern const Operation attend_grad;  ///< gradients of the pairs, added into dq, dk, dv
}  // namespace operations

}  // namespace usp::schedule
