// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/kernels/deviation.hpp"
#include "usp/kernels/oracle.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/schedule/plan.hpp"

#include <optional>
#include <string>
#include <vector>

/// The truth of one attention call, and how far a run is from it.
namespace usp {

/// The whole problem at once in fp64: no mesh, no layout, no exchange. Rows are global tokens; lse and d_sink
/// as the operator defines them. Uses every core. Throws InvalidInput naming tensor and index of an input
/// that is not a finite number. `progress` hears of the scores, on this thread.
[[nodiscard]] kernels::Oracle dense_attention(const AttentionPlan& plan, const Documents& documents,
                                              const CallTensors& tensors, bool training,
                                              WorkProgress* progress = nullptr);

/// What dense_attention() takes, known before it starts.
struct DenseEffort {
  double scores = 0;   ///< of all rows and heads, those that a block pattern hides too
  double seconds = 0;  ///< on this machine's cores, within a factor of some
  int cores = 1;
};
[[nodiscard]] DenseEffort dense_effort(const AttentionPlan& plan, const Documents& documents, bool training);

/// How far one result is from the truth.
struct ResultError {
  /// RMS(a - b) / RMS(b) of the whole tensor; RMS(a) where b is zero everywhere. Gradients that vanish are
  /// held against a quarter of the greatest gradient's RMS; infinities must agree exactly.
  double whole = 0;
  kernels::Deviation rows;  ///< the worst row and head by its own terms
  /// RMS of what the terms of each element allow it to be off by, over the same RMS(b) as `whole`.
  double allowed = 0;
};
struct CallErrors {
  DType dtype = DType::bf16;
  std::optional<ResultError> out, lse, dq, dk, dv, d_sink;

  /// A term or a value exceeds the finite range of its type, so that the comparison is undefined.
  [[nodiscard]] bool verifiable() const;
};
[[nodiscard]] CallErrors errors_of(const RunResult& run, const kernels::Oracle& truth, DType dtype);

/// What a whole tensor of a correct run stays below, by input type. fp64 1e-10 and fp32 1e-5; bf16 and fp16,
/// which round outputs and gradients: 1e-2 for out and lse, 2e-2 for gradients. More where the terms of its
/// elements allow more (whole_bound()). Each row and head has the bound rounding_factor()
/// (rounding.hpp) besides.
struct Tolerance {
  double output = 0;
  double gradient = 0;
  bool strict = false;  ///< holds whatever the terms allow
};
[[nodiscard]] Tolerance tolerance_of(DType dtype);
/// What ResultError::whole is held against. Unless the tolerance is strict, at least ResultError::allowed:
/// a tensor whose elements are all within their own bounds is within its own.
[[nodiscard]] double whole_bound(const ResultError& error, const Tolerance& tolerance, Pass pass);

/// What exceeds its bound (a NaN does), in words: whole tensors, and the worst row and head of each. Empty
/// when nothing does.
[[nodiscard]] std::string exceeded(const CallErrors& errors, const Tolerance& tolerance);

}  // namespace usp
