// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/schedule/words.hpp"

#include <optional>
#include <string>
#include <vector>

/// `usp score` on a table of whole training steps: predictions against published runs.
namespace usp {

/// One line of the table: a run as its source printed it. Empty: not stated there.
struct StepRun {
  long line = 0;  ///< in the file, from 1
  std::string id, origin, model, gpu, interconnect, dtype, sequence_parallel, cp_method, recompute, offload,
      kernels, notes, printed;
  std::optional<i64> layers, hidden, heads, kv_heads, ffn, vocab;
  std::optional<i64> gpus, gpus_per_node, seq, micro_batch, global_batch;
  std::optional<i64> tensor, pipeline, virtual_stages, context, expert, data, zero;
  std::optional<double> tokens_s, tflops, step_s, memory_gib;  ///< per device; measured
  std::optional<double> mfu;                                   ///< a ratio

  /// What its id begins with: rows of one source are judged together.
  [[nodiscard]] std::string source() const { return id.substr(0, id.rfind('-')); }
};

/// Whether the text is a table of steps: its header has the column tokens_per_s_per_gpu.
[[nodiscard]] bool is_step_table(const std::string& text);

/// Reads the CSV: lines that begin with # and blank lines are skipped; cells may be quoted. Throws
/// InvalidInput with the line for a column that is not known or missing, and for numbers that are none.
[[nodiscard]] std::vector<StepRun> parse_step_table(const std::string& text, const std::string& file);

/// A run as predicted.
struct StepPrediction {
  std::string why;                ///< why it is not priced; empty: it is
  double tokens_s = 0, band = 0;  ///< per device
  std::optional<double>
      measured_s;         ///< tokens per second and device, converted where the source prints FLOP/s
  double memory_gib = 0;  ///< as a framework reports it: without what the planner keeps in reserve
  bool fits = true;
  std::string layout;  ///< as priced, with what the source left open
  std::string card;
  bool calibrated = false;
  bool gated = false;                ///< 16-bit types on a calibrated card
  std::vector<std::string> assumed;  ///< what the source does not state

  [[nodiscard]] double error() const { return measured_s ? tokens_s / *measured_s - 1 : 0; }
};
/// Prices one run with no knowledge of what was measured.
[[nodiscard]] StepPrediction predict_run(const StepRun& run);

/// Of some rows: errors are predicted over measured tokens per second, minus one.
struct StepMetrics {
  std::string name;
  i64 rows = 0, memory_rows = 0;
  double bias = 0;          ///< median error
  double median_error = 0;  ///< of its absolute value
  double coverage = 0;      ///< share of rows whose measurement lies within the band
  double half_width = 0;    ///< median band
  double memory_error = 0;  ///< median absolute error of memory
};

/// A source judged by what the other sources say: a common factor on predictions and one on bands are fitted
/// to their rows, none to its own.
struct LeftOutSource {
  std::string name;
  i64 rows = 0;
  double factor = 1;    ///< on predicted rates: the median over the other sources of measured over predicted
  double widening = 1;  ///< exponent of 1 + band that covers 90% of the other sources' rows
  double median_error = 0;  ///< with that factor
  double coverage = 0;      ///< with both
  double half_width = 0;    ///< median, widened
};

struct StepScore {
  std::string file;
  std::vector<StepRun> runs;
  std::vector<StepPrediction> predictions;
  i64 priced = 0, infeasible = 0;
  std::vector<StepMetrics> classes, sources;  ///< sources: of gated rows
  StepMetrics gated;
  double median_over_sources = 0;       ///< of the sources' median errors, gated rows
  std::vector<LeftOutSource> left_out;  ///< of gated rows; empty with fewer than two sources
  double left_out_median = 0;           ///< over the sources, of their median errors
  double left_out_coverage = 0;         ///< of all gated rows
  std::vector<std::string> notes;
};
/// Fills the left-out figures of gated runs and predictions.
void judge_left_out(StepScore& score);
[[nodiscard]] StepScore score_steps(std::vector<StepRun> runs, const std::string& file,
                                    WorkProgress* progress = nullptr);

[[nodiscard]] std::string step_score_text(const StepScore& score);
/// One JSON object (schema: configs/schema/step_score.v2.schema.json).
[[nodiscard]] std::string step_score_json(const StepScore& score);

}  // namespace usp
