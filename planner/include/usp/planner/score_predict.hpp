// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/planner/score.hpp"

#include <memory>
#include <vector>

namespace usp {

/// The attention call of a measured row. Throws InvalidInput naming file and line for heads that the planner
/// does not know how to split.
[[nodiscard]] AttentionPlan score_plan(const ScoreRow& row, const std::string& file);

/// How the measured library executes a row. The columns of the table are those of long-context-attention
/// (yunchang): NCCL moves the bytes; an all-to-all packs and unpacks with copies of its own, and `qkvpack`
/// concatenates q, k and v first; flash-attn computes blocks that a second kernel merges.
[[nodiscard]] ExecutionOptions score_execution(const ScoreRow& row);

/// Prices rows on the first `world` devices of a cluster. Both arguments must outlive it.
class ScorePredictor {
 public:
  ScorePredictor(const topology::Cluster& cluster, const Calibration& calibration, std::string file);

  /// Of the row's direction, in seconds. Throws InvalidInput when the cluster has fewer devices than `world`.
  [[nodiscard]] double seconds(const ScoreRow& row) { return price(row, score_execution(row)).seconds; }
  /// FLOPs and bytes only, no merge or pack kernels: for data-sheet rates.
  [[nodiscard]] double bare_seconds(const ScoreRow& row);
  /// Most bytes that one rank sends or receives, from the schedule.
  [[nodiscard]] double wire_bytes(const ScoreRow& row) { return price(row, score_execution(row)).wire_bytes; }
  /// Extrapolation bits of all rows priced so far.
  [[nodiscard]] std::uint32_t extrapolation() const { return extrapolation_; }

 private:
  struct Price {
    double seconds = 0;
    double wire_bytes = 0;
  };
  Price price(const ScoreRow& row, const ExecutionOptions& options);

  const topology::Cluster& cluster_;
  LinkPricer links_;
  std::string file_;
  std::uint32_t extrapolation_ = 0;
};

/// Scores a table on a machine: the planner's prediction beside most Ulysses inside the node, always ring,
/// the volume rule and spec-sheet alpha-beta. Throws InvalidInput for tables of more than max_score_rows.
/// @param file for messages
inline constexpr std::size_t max_score_rows = 1 << 15;  ///< ranks are compared pair by pair
[[nodiscard]] ScoreReport score_on(const topology::Cluster& cluster, const Calibration& calibration,
                                   std::vector<ScoreRow> rows, const std::string& file,
                                   std::int64_t gate_tokens = 32768, WorkProgress* progress = nullptr);

}  // namespace usp
