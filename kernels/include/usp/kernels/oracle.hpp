// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"

#include <functional>
#include <vector>

/// Dense attention in fp64, and what rounding may do to it: beside each result the sum of the absolute terms
/// that it is made of, through every product, exponential and cancellation on the way.
namespace usp::kernels {

/// One result, packed [batch][row][head][width].
struct OracleTensor {
  OracleTensor() = default;
  OracleTensor(i64 batch_count, i64 row_count, Range head_range, i64 row_width);

  i64 batch = 0, rows = 0;
  Range heads;
  i64 width = 0;
  std::vector<double> values;
  /// In units of c * u (rounding.hpp): of the call's `rounds`, for lse of its accumulator. 0: the value is
  /// exact. Infinite: a term is beyond the finite numbers of the type, and nothing can be said.
  std::vector<double> terms;

  [[nodiscard]] std::size_t at(i64 b, i64 row, i64 head) const {
    return static_cast<std::size_t>(((b * rows + row) * heads.size() + head - heads.begin) * width);
  }
};

struct Oracle {
  OracleTensor out, lse, delta, dq, dk, dv;  ///< gradients are empty where d_o was not given
  std::vector<double> d_sink, d_sink_terms;  ///< per global query head; empty without a sink or d_o
};

/// One call: rows of the views are those that the slices name. Everything lies on the host.
struct OracleCall {
  ConstView q, k, v;
  ConstView d_o;  ///< data null: forward alone
  AttendScope scope;
  const double* sink = nullptr;  ///< logit per global query head; null: none
  i64 grad_rows = 0;             ///< of dk and dv, counted from Slice::dk_row
  /// What P, dS, O and results are rounded to; sums are carried in its accumulator type.
  DType rounds = DType::fp32;
  /// d_o is wider than `rounds` (a sum of copies) and is rounded to it before it is multiplied.
  bool rounds_d_o = false;
};

/// Zeros for all heads of the views of a call: what add_heads() fills.
[[nodiscard]] Oracle empty_oracle(const OracleCall& call);
/// Computes the query heads of the call's scope and all that they add to dk and dv. Calls on disjoint KV
/// heads may run at the same time. `computed`, on the calling thread, gets the number of pairs within the
/// band of each row and head.
void add_heads(const OracleCall& call, Oracle& oracle, const std::function<void(i64)>& computed = {});
/// The query heads of the scope, on this thread.
[[nodiscard]] Oracle attention_oracle(const OracleCall& call);

}  // namespace usp::kernels
