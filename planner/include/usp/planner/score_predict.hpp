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

/// What yunchang does beside that, in seconds of its rank: its merge is a chain of elementwise kernels of 38
/// bytes an element where ours has 10, and an exchange among one rank still packs, copies and unpacks.
[[nodiscard]] double library_overhead_s(const ScoreRow& row, const AttentionCostModel& kernel);

/// Prices rows on the first `world` devices of a cluster. Both arguments must outlive it.
class ScorePredictor {
 public:
  ScorePredictor(const topology::Cluster& cluster, const Calibration& calibration, std::string file);

  /// Of the row's direction, in seconds. Throws InvalidInput when the cluster has fewer devices than `world`.
  [[nodiscard]] double seconds(const ScoreRow& row) { return library_price(row).seconds; }
  /// Relative half width of seconds(), as Estimate::band.
  [[nodiscard]] double band(const ScoreRow& row) { return library_price(row).band; }
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
    double band = 0;
  };
  Price library_price(const ScoreRow& row);
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
