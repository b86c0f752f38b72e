// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/oracle.hpp"

#include <optional>
#include <string>
#include <vector>

/// How far results are from the oracle, row by row and head by head.
namespace usp::kernels {

/// Where in a tensor; of d_sink the head alone counts.
struct Place4 {
  i64 batch = 0, token = 0, head = 0, element = 0;
};

/// The greatest |x - truth| over u * sum of |terms| of one result.
struct Deviation {
  /// Compare with rounding_factor(). Infinite where x is not finite, or differs though it must be exact.
  double ratio = 0;
  Place4 at;
  double value = 0, truth = 0;     ///< there
  std::optional<Place4> overflow;  ///< the first element whose terms overflow the type; it has no ratio

  /// The worse of two; a first overflow stays.
  void merge(const Deviation& other);
};

/// Rows of `x` in order, of the oracle's batch, heads and width; row i is the oracle's row `tokens[i]`.
/// `type` is the one whose roundings the terms count: OracleCall::rounds, for lse its accumulator.
[[nodiscard]] Deviation deviation(const ConstView& x, const std::vector<i64>& tokens,
                                  const OracleTensor& truth, DType type);
/// All rows.
[[nodiscard]] Deviation deviation(const ConstView& x, const OracleTensor& truth, DType type);
/// One number per head.
[[nodiscard]] Deviation deviation(const std::vector<double>& x, const std::vector<double>& truth,
                                  const std::vector<double>& terms, DType type);

/// What is wrong with a result, in words with its name and place; empty: nothing.
[[nodiscard]] std::string fault(const std::string& name, const Deviation& deviation, DType type, Pass pass);

}  // namespace usp::kernels
