// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/trace.hpp"

#include "usp/base/json.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/expand.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr int planned_track = 0, executed_track = 1;
constexpr double us = 1e6;

/// Seconds per tick of both passes, as priced.
struct Prices {
  std::vector<TickPrice> ticks[2];

  Prices(const AttentionPlan& plan, const Documents& documents) {
    const topology::Cluster cluster = thread_cluster(plan.mesh.size());
    const Calibration calibration = uncalibrated(data_sheet_of(cluster));
    LinkPricer links(cluster, calibration);
    AttentionPricer pricer(links, plan.shape, documents, {});
    static_cast<void>(pricer.price(plan, {}, &ticks[0], &ticks[1]));
  }
};

i64 bytes_at(const PassRecord& record, std::size_t tick, bool send, i64 TransferRecord::*bytes) {
  i64 sum = 0;
  for (const TransferRecord& t : record.transfers)
    if (static_cast<std::size_t>(t.tick) == tick && t.send == send) sum += t.*bytes;
  return sum;
}

class Trace {
 public:
  void name(const char* what, int process, int thread, const std::string& text) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", text}}}});
  }
  void span(const std::string& text, int process, int thread, double begin_s, double end_s, Json args) {
    events_.push_back({{"ph", "X"},
                       {"name", text},
                       {"pid", process},
                       {"tid", thread},
                       {"ts", begin_s * us},
                       {"dur", std::max(0.0, end_s - begin_s) * us},
                       {"args", std::move(args)}});
  }
  [[nodiscard]] std::string text() const {
    return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events_}}.dump() + "\n";
  }

 private:
  Json events_ = Json::array();
};

void planned_spans(Trace& trace, int rank, const std::vector<TickPrice>& ticks, double begin_s,
                   double length_s, const schedule::RankSchedule& schedule, const PassRecord& record) {
  double total = 0, at = begin_s;
  for (const TickPrice& tick : ticks) total += tick.total_s;
  const double factor = total > 0 ? length_s / total : 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double end = at + ticks[i].total_s * factor;
    trace.span(fmt::format("tick {}", i), rank, planned_track, at, end,
               {{"tick", i},
                {"pass", word_of(record.pass)},
                {"steps", traced_steps(schedule, i)},
                {"sent_bytes", bytes_at(record, i, true, &TransferRecord::planned_bytes)},
                {"received_bytes", bytes_at(record, i, false, &TransferRecord::planned_bytes)},
                {"predicted_ms", ticks[i].total_s * 1e3}});
    at = end;
  }
}

void executed_spans(Trace& trace, int rank, double begin_s, const schedule::RankSchedule& schedule,
                    const PassRecord& record) {
  for (std::size_t i = 0; i < record.ticks.size(); ++i) {
    const TickTimes& t = record.ticks[i];
    const Json args = {{"tick", i},
                       {"pass", word_of(record.pass)},
                       {"steps", traced_steps(schedule, i)},
                       {"sent_bytes", bytes_at(record, i, true, &TransferRecord::executed_bytes)},
                       {"received_bytes", bytes_at(record, i, false, &TransferRecord::executed_bytes)}};
    trace.span(fmt::format("tick {}", i), rank, executed_track, begin_s + t.begin_s, begin_s + t.end_s, args);
    trace.span("post", rank, executed_track, begin_s + t.begin_s, begin_s + t.posted_s, {{"tick", i}});
    trace.span("compute", rank, executed_track, begin_s + t.posted_s, begin_s + t.computed_s, {{"tick", i}});
    trace.span("wait", rank, executed_track, begin_s + t.computed_s, begin_s + t.end_s, {{"tick", i}});
  }
}

}  // namespace

std::vector<std::string_view> traced_steps(const schedule::RankSchedule& schedule, std::size_t tick) {
  std::vector<std::string_view> words;
  if (tick >= schedule.ticks.size()) return words;
  const schedule::ListRef& list = schedule.ticks[tick].steps;
  for (std::int32_t i = list.begin; i < list.begin + list.count; ++i)
    words.push_back(schedule.steps[static_cast<std::size_t>(i)].operation->word);
  return words;
}

std::string chrome_trace(const AttentionPlan& plan, const Documents& documents, const RunResult& run) {
  const Prices prices(plan, documents);
  const schedule::TokenMap geometry(plan, documents);
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  Trace trace;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    trace.name("process_name", rank, 0, fmt::format("rank {}", rank));
    trace.name("thread_name", rank, planned_track, "planned");
    trace.name("thread_name", rank, executed_track, "executed");
  }
  double begin = 0;
  for (const int i : {0, 1}) {
    const Pass pass = i == 0 ? Pass::forward : Pass::backward;
    if (i == 1 && !run.training) break;
    double length = 0;
    for (const RankResult& rank : run.ranks)
      if (!rank.record[i].ticks.empty()) length = std::max(length, rank.record[i].ticks.back().end_s);
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const schedule::RankSchedule schedule = schedule::expand(geometry, compact, rank, pass);
      const PassRecord& record = run.ranks[static_cast<std::size_t>(rank)].record[i];
      planned_spans(trace, rank, prices.ticks[i], begin, length, schedule, record);
      executed_spans(trace, rank, begin, schedule, record);
    }
    begin += length;
  }
  return trace.text();
}

}  // namespace usp
