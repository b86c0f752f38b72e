// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/score_terms.hpp"
#include "usp/kernels/view.hpp"

#include <cstdint>

/// The tensors of one attention call on one rank.
namespace usp {

/// Inputs of both passes. q, k, v are [batch][row][head][width] in any strides, all heads of the rank's home
/// tokens: first those that every rank holds (AttentionPlan::replicated_*), then its own, each in ascending
/// order (Prepared::q_tokens). Per-head lists are indexed by global head.
struct AttentionInputs {
  kernels::ConstView q, k, v;
  const void* sink = nullptr;            ///< logits, one per query head; required iff the plan has a sink
  const double* alibi_slopes = nullptr;  ///< one per query head; required iff the plan has ALiBi
  const kernels::BlockMask* blocks =
      nullptr;                     ///< required iff the plan has a block pattern; the same on every rank
  std::uint64_t dropout_seed = 0;  ///< the same on every rank and in both passes of a step
  std::int64_t layer = 0;          ///< layers of one seed drop different pairs; the same in both passes
  DType sink_type = DType::fp64;
};

/// Gradients of one rank's home tokens, all written. Types: the input type, or the accumulator type. A
/// replicated token's gradients are partial sums: its gradient is the sum over ranks.
struct AttentionGradients {
  kernels::View dq, dk, dv;
  void* d_sink = nullptr;  ///< per query head, added to: partial sums over ranks, as parameter gradients are
  DType d_sink_type = DType::fp64;
};

/// The seed of the dropout of one layer: layer 0 has the step's own, others a hash of both (splitmix64,
/// Steele et al., OOPSLA'14).
[[nodiscard]] std::uint64_t layer_dropout_seed(std::uint64_t step_seed, std::int64_t layer);

}  // namespace usp
