// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan.hpp"

#include <cstddef>
#include <string>

namespace usp {

/// What it takes to price one attention call, known before it is priced.
struct Effort {
  double parts = 0;   ///< blocks that the mask makes of the rows, where they differ
  double unions = 0;  ///< of a pruned plan: rows whose needed keys are joined, over all transfers
  double routes = 0;  ///< device pairs whose way is followed
};
/// @param documents number of documents of the batch
/// @param sources   devices whose messages are followed for one pattern (LinkPricer); 0: none are
[[nodiscard]] Effort effort_of(const AttentionPlan& plan, std::size_t documents, i64 sources);

/// Why a plan takes too long to price (seconds), and what would not; empty: it does not.
[[nodiscard]] std::string too_much_work(const Effort& effort, const AttentionPlan& plan);

/// What the explicit schedules of ranks hold, both passes together, known before they are made.
struct ExpansionEffort {
  double messages = 0;  ///< sends and receives
  double blocks = 0;    ///< pieces that mask and layout make of the rows
};
/// @param documents number of documents of the batch
/// @param ranks     how many of the mesh are expanded
[[nodiscard]] ExpansionEffort expansion_effort(const AttentionPlan& plan, std::size_t documents, i64 ranks);

/// Why schedules take too long to expand (seconds) or too much memory, with count and limit; empty: they do
/// not.
[[nodiscard]] std::string too_much_to_expand(const ExpansionEffort& effort, const AttentionPlan& plan);

}  // namespace usp
