// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/cluster_summary.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// `usp score`: predictions against a table of measured distributed attention calls.
namespace usp {

/// One line of the table: one attention call on `world` = ring * ulysses ranks.
struct ScoreRow {
  enum class Direction { forward, backward, forward_backward };
  enum class Layout { contiguous, zigzag, striped };
  enum class Exchange { qkvpack, no_packed };  ///< q, k, v in one all-to-all, or in three
  enum class Type { bf16, fp16, fp32 };
  enum class Library { yunchang, usp };  ///< what ran the call: long-context-attention, or this runtime

  long line = 0;  ///< in the file, from 1
  std::string machine;
  int world = 0;
  Direction direction = Direction::forward;
  bool causal = true;
  Type dtype = Type::bf16;
  std::int64_t batch = 0;
  std::int64_t seq = 0;  ///< global tokens
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  int ring = 0;
  int ulysses = 0;
  Layout layout = Layout::contiguous;
  Exchange exchange = Exchange::qkvpack;
  Library library = Library::yunchang;
  std::optional<Backend> backend;  ///< that computed it; empty: not stated, priced by the calibration's own
  Transport transport = Transport::nccl;  ///< between its GPUs
  bool synchronised = true;  ///< the device was waited for after each call, so that its time is the call's
  std::optional<double> seconds;  ///< 1 / iters_per_s; empty: out of memory
  /// Of a run in JSON: pointers to what the columns of a table hold, and of all others by ""; empty: a line.
  std::map<std::string, std::string> keys = {};
};

/// Where a column of a row lies in its file: the line and the column of a table, the key of a run in JSON.
[[nodiscard]] Where location_of(const ScoreRow& row, const std::string& file, const std::string& column);

/// Reads the CSV: comment lines (#) and blank lines are skipped, the header names the columns machine, world,
/// direction, causal, dtype, batch, seq, heads, kv_heads, head_dim, ring, ulysses, layout, exchange,
/// iters_per_s in any order, and perhaps library (yunchang), backend, transport (nccl) and synchronised
/// (true, but of yunchang's qkvpack false: its tables' qkvpack runs did not wait for the device). Throws
/// InvalidInput with the line for anything else, for ring * ulysses != world, and for a row given twice.
[[nodiscard]] std::vector<ScoreRow> parse_score_csv(const std::string& text, const std::string& file);

/// Predicted cost of a row, in the CostUnit of its method.
using ScoreFunction = std::function<double(const ScoreRow&)>;

/// Only seconds compare with measurements: other methods have no MAPE, and tau within groups only.
enum class CostUnit {
  seconds,
  bytes,
  rank,  ///< a number that orders rows and has no unit
};

struct ScoreMethod {
  std::string name;
  ScoreFunction cost;
  CostUnit unit = CostUnit::seconds;
  ScoreFunction band = nullptr;  ///< of the cost, as Estimate::band; empty: none is stated
};

/// Rules of thumb. Where no degree fits the node, the smallest one wins.
[[nodiscard]] ScoreMethod max_ulysses_rule(int gpus_per_node);
[[nodiscard]] ScoreMethod always_ring_rule();
/// Fewest bytes sent per rank; `bytes` comes from the schedule.
[[nodiscard]] ScoreMethod volume_rule(ScoreFunction bytes);
[[nodiscard]] ScoreMethod spec_sheet_method(ScoreFunction seconds);

/// How one method does on a set of groups. A group is all rows that differ in ring and ulysses only; it is
/// ranked when two or more of its rows were measured.
struct ScoreMetrics {
  int ranked_groups = 0;
  int top1 = 0;            ///< groups whose chosen row is the measured best
  double mean_regret = 0;  ///< chosen measured time / best measured time - 1
  double worst_regret = 0;
  double tau_in_groups = 0;    ///< Kendall tau-b of cost against time, mean over ranked groups
  std::optional<double> tau;   ///< over all scored rows at once
  std::optional<double> mape;  ///< mean |cost / time - 1| over all scored rows
  /// Share of the rows whose time lies within the cost's band, and the median band.
  std::optional<double> coverage, median_band;
  std::int64_t rows = 0;  ///< scored rows
};

/// Rows of one method, span and pass under the first method of the report.
struct ScoreClass {
  std::string method;  ///< "ring", "ulysses", "ring x ulysses", "one device"
  std::string span;    ///< "one host", "hosts"
  std::string pass;    ///< "forward", "backward", "forward_backward"
  std::int64_t rows = 0;
  double bias = 0;  ///< geometric mean of cost / time, minus one
  double mape = 0;
  std::optional<double> coverage;
};

/// How far rows of equal work lie apart: Ulysses over all ranks, where the token layout changes nothing.
struct NoiseFloor {
  std::int64_t sets = 0;  ///< with two or more rows
  double mean = 0;        ///< (slowest - fastest) / fastest, mean over the sets
  double worst = 0;
};

/// Kendall's tau-b, ties counted; 0 when either side is constant or there are fewer than two values.
[[nodiscard]] double kendall_tau_b(const std::vector<double>& x, const std::vector<double>& y);

struct ScoreChoice {
  long line = 0;
  int ring = 0, ulysses = 0;
  double seconds = 0;  ///< measured
};

struct ScoreGroup {
  std::string label;
  std::int64_t tokens = 0;
  int out_of_memory = 0;
  bool gated = false;
  std::vector<const ScoreRow*> rows;  ///< measured ones, into ScoreReport::rows
  ScoreChoice best;
  std::vector<ScoreChoice> choice;        ///< per method
  std::vector<double> regret;             ///< per method
  std::vector<std::vector<double>> cost;  ///< per method, per row
  std::vector<std::vector<double>> band;  ///< per method, per row; empty where none is stated
};

struct ScoreReport {
  std::string csv;                        ///< the table's file; empty: rows of another source
  std::optional<ClusterSummary> cluster;  ///< empty where the methods need none
  CalibrationSummary calibration;         ///< of the prediction
  std::vector<std::string> notes;
  std::vector<ScoreRow> rows;
  std::vector<std::string> methods;
  std::vector<CostUnit> units;       ///< of the costs, per method
  std::int64_t gate_tokens = 32768;  ///< groups of at least this many tokens are gated
  std::int64_t out_of_memory = 0;
  std::vector<ScoreGroup> groups;
  std::vector<ScoreMetrics> gated;    ///< per method
  std::vector<ScoreMetrics> shorter;  ///< per method, shown only: shorter, or not synchronised
  std::vector<ScoreClass> classes;    ///< of gated rows, under the first method
  NoiseFloor noise;                   ///< of gated rows

  ScoreReport() = default;
  ScoreReport(ScoreReport&&) = default;
  ScoreReport& operator=(ScoreReport&&) = default;
  ScoreReport(const ScoreReport&) = delete;  ///< groups point into rows
  ScoreReport& operator=(const ScoreReport&) = delete;
  ~ScoreReport() = default;
};

/// Among rows of equal least cost the slowest measured one counts as chosen: a method gets no credit for a
/// coin toss.
[[nodiscard]] ScoreReport score(std::vector<ScoreRow> rows, const std::vector<ScoreMethod>& methods,
                                std::int64_t gate_tokens = 32768, int gpus_per_node = 1 << 30);

/// Bias, error and coverage per method, span and pass of the gated rows. @param gpus_per_node devices of a
/// host
[[nodiscard]] std::vector<ScoreClass> score_classes(const ScoreReport& report, int gpus_per_node);
[[nodiscard]] NoiseFloor noise_floor(const ScoreReport& report);

[[nodiscard]] std::string score_text(const ScoreReport& report);
/// One JSON object (schema: configs/schema/score.v2.schema.json).
[[nodiscard]] std::string score_json(const ScoreReport& report);

}  // namespace usp
