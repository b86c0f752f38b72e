// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/pricing.hpp"

#include <optional>
#include <string>
#include <vector>

/// `usp price`: what one given layout of one attention call costs, tick by tick and byte by byte.
namespace usp {

/// One attention call laid out on a machine.
struct AttentionCall {
  AttentionPlan plan;
  Documents documents;
  Placement placement;
  ExecutionOptions execution;
  bool backward = true;  ///< false: forward only
};

/// The layout that a call is priced with where none is asked for, among those that a search would take:
/// zigzag of causal rings, contiguous where masks or rows leave nothing to balance.
[[nodiscard]] LayoutKind default_layout(const Mesh& mesh, Band band);

/// What computes a call whose backend is not asked for: of those that the calibration measured and that take
/// all of it on these cards, the fastest in this layout; the host's where there is none, as plan_attention
/// has it.
[[nodiscard]] Backend fastest_backend(const topology::Cluster& cluster, const Calibration& calibration,
                                      AttentionCall call);

/// Bytes of one kind of transfer in one pass, over the ranks of the group.
struct TransferBytes {
  std::string name;  ///< word of a TransferName; "all" for their sum
  i64 total = 0;     ///< sent by all ranks
  i64 sent_max = 0, received_max = 0;
  double mean = 0;  ///< sent per rank
};

struct PassReport {
  PassPrice price;
  std::vector<TickPrice> ticks;          ///< sum to price.seconds
  std::vector<TransferBytes> transfers;  ///< in order of first use
  TransferBytes all;
  double flops = 0;   ///< of the call on all ranks: 2 per visible pair, head and width; backward twice those
  double flop_s = 0;  ///< flops per second and rank
};

struct PriceReport {
  AttentionCall call;
  ClusterSummary cluster;
  CalibrationSummary calibration;
  std::vector<PassReport> passes;  ///< forward, and backward if asked for
  double seconds = 0;
  double band = 0;  ///< relative half width
  bool uneven_heads = false;
  double flop_s = 0;          ///< of all passes, per second and rank
  std::optional<double> mfu;  ///< flop_s over the data-sheet peak of the type; empty: the peak is not known
  std::vector<std::string> notes;
};

/// Throws Infeasible naming the reason and the nearest degrees that work.
void check_call(const AttentionCall& call, const topology::Cluster& cluster);

/// Checks and prices the call.
[[nodiscard]] PriceReport price_call(const topology::Cluster& cluster, const Calibration& calibration,
                                     const AttentionCall& call);

[[nodiscard]] std::string price_text(const PriceReport& report);
/// One JSON object (schema: configs/schema/price.v2.schema.json).
[[nodiscard]] std::string price_json(const PriceReport& report);

/// What is said where an attention call uses only some devices, the first ones.
[[nodiscard]] std::string idle_devices_note(i64 used, i64 devices);

}  // namespace usp
