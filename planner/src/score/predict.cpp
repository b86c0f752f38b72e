// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

using Direction = ScoreRow::Direction;

LayoutKind layout_of(ScoreRow::Layout layout) {
  switch (layout) {
    case ScoreRow::Layout::contiguous:
      return LayoutKind::contiguous;
    case ScoreRow::Layout::zigzag:
      return LayoutKind::zigzag;
    case ScoreRow::Layout::striped:
      return LayoutKind::striped;
  }
  throw InternalError("a layout of a score row is not known");
}

DType dtype_of(ScoreRow::Type type) {
  switch (type) {
    case ScoreRow::Type::bf16:
      return DType::bf16;
    case ScoreRow::Type::fp16:
      return DType::fp16;
    case ScoreRow::Type::fp32:
      return DType::fp32;
  }
  throw InternalError("a type of a score row is not known");
}

void check(bool holds, const ScoreRow& row, const std::string& file, const char* token,
           const std::string& problem) {
  if (!holds) throw InvalidInput(location_of(row, file, token), problem);
}

/// What a reader of predictions for rings should know, from the longest row.
std::vector<std::string> notes_on(const std::vector<ScoreRow>& rows, const topology::Cluster& cluster,
                                  const Calibration& calibration) {
  const ScoreRow* longest = nullptr;
  for (const ScoreRow& row : rows)
    if (row.ring > 2 && (longest == nullptr || row.seq > longest->seq)) longest = &row;
  if (longest == nullptr) return {};
  const double hop = 2.0 * 2 * static_cast<double>(longest->batch * longest->kv_heads * longest->head_dim) *
                     (static_cast<double>(longest->seq) / static_cast<double>(longest->world));
  const std::string note = contended_link_note(calibration.comm, Transport::nccl,
                                               std::min(longest->ring, node_size(cluster)), hop);
  return note.empty() ? std::vector<std::string>{} : std::vector<std::string>{note};
}

}  // namespace

AttentionPlan score_plan(const ScoreRow& row, const std::string& file) {
  check(row.heads % row.kv_heads == 0, row, file, "kv_heads",
        fmt::format("{} query heads do not divide into {} groups; correct the row", row.heads, row.kv_heads));
  check(row.ulysses <= row.heads, row, file, "ulysses",
        fmt::format("a Ulysses degree of {} exceeds the {} query heads, so that some rank would hold none; "
                    "correct the row",
                    row.ulysses, row.heads));
  AttentionPlan plan;
  plan.shape = {row.batch,
                row.seq,
                row.seq,
                static_cast<int>(row.heads),
                static_cast<int>(row.kv_heads),
                static_cast<int>(row.head_dim),
                static_cast<int>(row.head_dim),
                dtype_of(row.dtype)};
  plan.mesh = {1, row.ring, row.ulysses};
  plan.layout = layout_of(row.layout);
  if (row.causal) plan.band = {0, unbounded};
  plan.dkv_return = DkvReturn::cycle;
  plan.backend = row.backend.value_or(Backend{});
  try {
    check_attention_plan(plan);
  } catch (const InvalidInput& error) {
    throw InvalidInput(location_of(row, file, error.where().token), error.problem());
  }
  return plan;
}

ExecutionOptions score_execution(const ScoreRow& row) {
  ExecutionOptions options;
  options.transport = row.transport;
  options.packed = row.exchange == ScoreRow::Exchange::qkvpack;
  options.pack_kernels = row.transport == Transport::nccl;
  options.merge_kernels = true;
  return options;
}

double library_overhead_s(const ScoreRow& row, const AttentionCostModel& kernel) {
  if (row.library != ScoreRow::Library::yunchang) return 0;
  const double head_rows =
      static_cast<double>(row.batch * row.heads) * static_cast<double>(row.seq) / row.world;
  constexpr double merge_bytes = 38 - 10;  // per element, beside what merge_kernels prices
  double seconds = (row.ring - 1) *
                   kernel.memory_bound(merge_bytes * head_rows * static_cast<double>(row.head_dim)).seconds;
  if (row.ulysses == 1) {
    const double kv_rows = head_rows * static_cast<double>(row.kv_heads) / static_cast<double>(row.heads);
    for (const double rows :
         {head_rows, kv_rows, kv_rows, head_rows})  // q, k, v, out: 2 bytes read and written
      seconds += 3 * kernel.memory_bound(4 * rows * static_cast<double>(row.head_dim)).seconds;
  }
  return (row.direction == Direction::forward_backward ? 2 : 1) * seconds;
}

ScorePredictor::Price ScorePredictor::library_price(const ScoreRow& row) {
  ExecutionOptions options = score_execution(row);
  if (links_.calibration().link_class == host_links) options.pack_kernels = false;  // copies place every row
  Price result = price(row, options);
  result.seconds += library_overhead_s(row, links_.calibration().kernel);
  return result;
}

ScorePredictor::ScorePredictor(const topology::Cluster& cluster, const Calibration& calibration,
                               std::string file)
    : cluster_(cluster), links_(cluster, calibration), file_(std::move(file)) {}

double ScorePredictor::bare_seconds(const ScoreRow& row) {
  ExecutionOptions options = score_execution(row);
  options.pack_kernels = options.merge_kernels = false;
  return price(row, options).seconds;
}

ScorePredictor::Price ScorePredictor::price(const ScoreRow& row, const ExecutionOptions& options) {
  check(static_cast<std::size_t>(row.world) <= cluster_.devices.size(), row, file_, "world",
        fmt::format("{} ranks need as many devices, the cluster has {}; name the machine that was measured, "
                    "or add hosts with --nodes",
                    row.world, cluster_.devices.size()));
  const AttentionPlan plan = score_plan(row, file_);
  AttentionPricer pricer(links_, plan.shape, Documents::single(row.seq, row.seq), options);
  const AttentionPrice both = pricer.price(plan, Placement{});
  Price result;
  const auto add = [&](const PassPrice& pass) {
    result.seconds += pass.seconds;
    result.wire_bytes += pass.wire_bytes;
    result.band += pass.band * pass.seconds;
    extrapolation_ |= pass.extrapolation;
  };
  if (row.direction != Direction::backward) add(both.forward);
  if (row.direction != Direction::forward) add(both.backward);
  result.band = result.seconds > 0 ? result.band / result.seconds : 0;
  return result;
}

ScoreReport score_on(const topology::Cluster& cluster, const Calibration& calibration,
                     std::vector<ScoreRow> rows, const std::string& file, std::int64_t gate_tokens,
                     WorkProgress* progress) {
  if (rows.size() > max_score_rows)
    throw InvalidInput({file, 0, ""}, fmt::format("has {} rows; the most is {}, split the table", rows.size(),
                                                  max_score_rows));
  const auto total = static_cast<i64>(rows.size());
  i64 done = 0;
  DataSheet sheet = data_sheet_of(cluster);
  const Calibration guess = uncalibrated(sheet);
  sheet.efficiency = 1;
  const Calibration peak = uncalibrated(sheet);
  ScorePredictor predictor(cluster, calibration, file), at_peak(cluster, peak, file),
      at_guess(cluster, guess, file);
  const std::vector<ScoreMethod> methods = {
      {"usp",
       [&](const ScoreRow& row) {
         tell(progress, done++, total, "rows");
         return predictor.seconds(row);
       },
       CostUnit::seconds, [&](const ScoreRow& row) { return predictor.band(row); }},
      max_ulysses_rule(node_size(cluster)),
      always_ring_rule(),
      volume_rule([&](const ScoreRow& row) { return predictor.wire_bytes(row); }),
      spec_sheet_method([&](const ScoreRow& row) { return at_peak.bare_seconds(row); }),
      {"the same at half the peak", [&](const ScoreRow& row) { return at_guess.bare_seconds(row); }}};
  // A row that ran out of memory is not priced, but still has to be one that could be.
  for (const ScoreRow& row : rows)
    if (!row.seconds) static_cast<void>(score_plan(row, file));
  ScoreReport report = score(std::move(rows), methods, gate_tokens, node_size(cluster));
  report.csv = file;
  report.cluster = cluster_summary(cluster);
  for (std::string& note : notes_on(report.rows, cluster, calibration))
    report.notes.push_back(std::move(note));
  report.calibration = calibration.summary(predictor.extrapolation());
  return report;
}

}  // namespace usp
