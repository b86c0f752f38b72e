// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "machine.hpp"
#include "scope.hpp"

#include "usp/planner/attention_cost_model.hpp"
#include "usp/planner/network_rates.hpp"

#include <map>
#include <string>
#include <vector>

namespace usp::measure {

/// One measurement of a calibration: what is repeated or resumed as a whole.
struct Part {
  enum class Kind { copy, product, kernel, call, exchange, interference };
  Kind kind = Kind::copy;
  std::string backend;  ///< of a kernel and of a call, its word
  int head_dim = 0, head_dim_v = 0;
  bool backward = false;  ///< of a kernel
  NetworkKey key;         ///< of an exchange, and of the hops of an interference; one host: inside each
  int first_host = -1,
      second_host = -1;  ///< of a hop between two hosts alone, the others idle; -1: of all hosts
  std::optional<Transport> transport{};  ///< between GPUs
  bool optional = false;                 ///< refines what other parts tell: left out where the time is up

  [[nodiscard]] bool between_pair() const { return first_host >= 0; }
  /// Sizes of its rows double, as those of a CollectiveCurve have to.
  [[nodiscard]] bool doubles() const {
    return kind == Kind::exchange && key.hosts == 1 && key.operation != NetworkOperation::hop;
  }
  /// "alltoall of 4 ranks on 1 host, 2 groups at once": names it in files and is unique in a list.
  [[nodiscard]] std::string name() const;
};

/// What one part measured, one row per size or shape. Columns by kind:
/// copy and exchange: bytes, seconds, spread; product: m, n, k, seconds, spread; kernel: query heads, KV
/// heads, rows, mean keys, key rows, mask (0 full, 1 causal, 2 window), seconds, spread; call: seconds of the
/// kernel, of a pass through the runtime; interference: seconds of the kernel, of the kernel beside a
/// transfer of next to no bytes, of the transfer, of kernel and transfer at once.
using Rows = std::vector<std::vector<double>>;
using Results = std::map<std::string, Rows>;

[[nodiscard]] std::size_t columns_of(Part::Kind kind);

/// All parts for a machine, those that the planner needs most first.
[[nodiscard]] std::vector<Part> parts_of(const Machine& machine, const Scope& scope);

/// A kernel call of the grid.
struct GridCall {
  KernelShape shape;
  i64 window = 0;
};
/// Calls of the head dims of a part, of both masks in turn and a few windows at the end; the first
/// least_grid_calls already span short and long ones.
[[nodiscard]] std::vector<GridCall> kernel_grid(const Part& part, i64 element_bytes, const Scope& scope);
/// Products from small to large.
struct ProductShape {
  i64 m = 0, n = 0, k = 0;
};
[[nodiscard]] std::vector<ProductShape> product_grid(const Scope& scope);
/// So many of the grid have to be measured for a fit, whatever the time.
inline constexpr std::size_t least_grid_calls = 8;

}  // namespace usp::measure
