// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/score_terms.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/runtime/host_tensor.hpp"
#include "usp/schedule/attention.hpp"

#include <optional>
#include <string>
#include <vector>

/// The truth of one attention call, and how far a run is from it.
namespace usp {

/// Outputs and gradients in fp64, [batch][token][head][width]; lse and d_sink as the operator defines them.
struct DenseResults {
  HostTensor out, lse, dq, dk, dv;
  std::vector<double> d_sink;
};

/// The whole problem at once by the reference kernel: no mesh, no layout, no exchange. Uses every core.
[[nodiscard]] DenseResults dense_attention(const AttentionPlan& plan, const Documents& documents,
                                           const CallTensors& tensors, bool training);

/// RMS(a - b) / RMS(b); RMS(a) where b is zero everywhere; infinities must agree exactly.
struct CallErrors {
  std::optional<double> out, lse, dq, dk, dv, d_sink;
};
[[nodiscard]] CallErrors errors_of(const CallRun& run, const DenseResults& truth);

/// What a correct run stays below, by input type. fp64 1e-10 and fp32 1e-5; bf16 and fp16, which round
/// outputs and gradients: 1e-2 for out and lse, 2e-2 for gradients.
struct Tolerance {
  double output = 0;
  double gradient = 0;
};
[[nodiscard]] Tolerance tolerance_of(DType dtype);

/// What exceeds its bound (a NaN does), in words; empty when nothing does.
[[nodiscard]] std::string exceeded(const CallErrors& errors, const Tolerance& tolerance);

}  // namespace usp
