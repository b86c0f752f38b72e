// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/gemm.hpp"
#include "usp/planner/model.hpp"
#include "usp/planner/workload.hpp"

#include <cstdint>

namespace usp {

/// What the parts of a layer outside its softmax attention run on.
struct LayerMachine {
  GemmModel gemm;             ///< of the layers
  GemmModel head;             ///< of logits
  bool fp8 = false;           ///< the layers' products take fp8, quantised before each
  double memory_bytes_s = 0;  ///< data sheet
};

/// Where a layer runs: the share of one rank.
struct LayerShare {
  double tokens = 0;  ///< of one microbatch, on all tensor ranks together
  double tensor = 1, expert = 1;
  bool sequence_parallel = true;
  double expert_load = 1;              ///< tokens of the busiest expert rank over the mean
  bool expert_tensor = true;           ///< tensor ranks split each expert's width
  bool fused = true;                   ///< pointwise kernels, as a compiler makes them
  double mlp_tile = 0, loss_tile = 0;  ///< tokens of the MLP and of logits at a time; 0: all
  double earlier_tokens = 0;           ///< that a token's indexer scores, on average
};

/// Seconds of one layer and one microbatch on a rank, outside softmax attention and exchanges. The backward
/// of a product is two products: gradients of its input and of its weights.
struct LayerWork {
  double projections = 0;         ///< into attention, forward; the recurrent core of linear layers too
  double output = 0;              ///< out of attention, forward
  double mlp = 0;                 ///< dense MLP, or router, shared and routed experts, forward
  double backward = 0;            ///< products of the backward pass
  double norms = 0;               ///< norms and rotary embedding, forward: bound by memory
  double mlp_pointwise = 0;       ///< activation, and the sorting of tokens by expert, forward
  double residual = 0;            ///< sums, forward
  double pointwise_backward = 0;  ///< of all of these
  double kernels = 0;             ///< launches of forward
  double kernels_backward = 0;

  [[nodiscard]] double products() const { return projections + output + mlp; }
  [[nodiscard]] double pointwise() const { return norms + mlp_pointwise + residual; }
};

/// Throws MissingValue when the MLP's width or number of matrices is unknown.
[[nodiscard]] LayerWork layer_work(const Model& model, int layer, Precision dtype, const LayerShare& share,
                                   const LayerMachine& machine);

/// Outside the layers: embedding, logits and loss of one microbatch on a rank that holds them.
struct HeadWork {
  double products = 0, products_backward = 0;
  double pointwise = 0, pointwise_backward = 0;
  double kernels = 0, kernels_backward = 0;  ///< launches
};
[[nodiscard]] HeadWork head_work(const Model& model, Precision dtype, const LayerShare& share,
                                 const LayerMachine& machine);

/// Bytes per second that kernels bound by memory reach of the data sheet's.
[[nodiscard]] double streamed_bytes_s(double data_sheet_bytes_s);

}  // namespace usp
