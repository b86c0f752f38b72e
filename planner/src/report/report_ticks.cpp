// SPDX-License-Identifier: Apache-2.0
#include "report_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan_trace.hpp"
#include "usp/planner/pricing.hpp"

#include <algorithm>

namespace usp {
namespace {

constexpr int max_ranks = 16;             ///< whose schedules the page holds, from rank 0
constexpr std::size_t max_events = 6000;  ///< of a kind of layer: fewer ranks where each has many

/// Kernels and transfers of the ranks: events of the plan's trace without its arrows.
Json events_of(const PlanTraceRequest& request) {
  Json events = Json::array();
  const Json trace = Json::parse(plan_trace(request));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    events.push_back({{"rank", event["pid"]},
                      {"kind", event["cat"]},
                      {"lane", event["tid"]},
                      {"name", event["name"]},
                      {"begin_us", event["ts"]},
                      {"time_us", event["dur"]},
                      {"args", event["args"]}});
  }
  return events;
}

/// Events of as many ranks as the page can hold.
Json ranks_json(PlanTraceRequest request) {
  for (request.max_ranks = max_ranks;; request.max_ranks /= 2) {
    try {
      Json events = events_of(request);
      if (events.size() <= max_events || request.max_ranks == 1) return events;
    } catch (const Infeasible&) {  // too many messages to expand
      if (request.max_ranks == 1) return Json::array();
    }
  }
}

Json pass_json(const PassPrice& price, const std::vector<TickPrice>& ticks) {
  Json list = Json::array();
  for (const TickPrice& tick : ticks)
    list.push_back({{"compute_s", tick.compute_s},
                    {"intra_node_s", tick.intra_node_s},
                    {"inter_node_s", tick.inter_node_s},
                    {"time_s", tick.total_s}});
  return {{"time_s", price.seconds},
          {"compute_s", price.compute_s},
          {"exposed_s", price.exposed_s},
          {"band", price.band},
          {"ticks", list}};
}

}  // namespace

Json report_ticks_json(const ReportInput& input) {
  const PlanRequest& request = *input.request;
  const PlanCandidate& best = input.plan->best();
  Json list = Json::array();
  if (best.attention.empty() || !best.executable()) return list;  // no generator makes its schedule
  const PlanFile file = make_plan_file(request, best);
  LinkPricer links(*request.cluster, *request.calibration);
  for (std::size_t i = 0; i < best.attention.size(); ++i) {
    const LayerAttention& layer = best.attention[i];
    const LayerKind& kind = request.model->kinds[layer.kind];
    AttentionPricer pricer(links, layer.plan.shape, attention_documents(request.workload, kind),
                           request.execution);
    std::vector<TickPrice> forward, backward;
    const AttentionPrice price = pricer.price(layer.plan, best.choice.placement, &forward, &backward);
    PlanTraceRequest trace;
    trace.plan = &file;
    trace.layer = i;
    trace.cluster = request.cluster;
    trace.calibration = request.calibration;
    list.push_back({{"kind", mixer_name(kind.kind)},
                    {"layers", kind.layers.size()},
                    {"per_layer", kind.per_layer},
                    {"forward", pass_json(price.forward, forward)},
                    {"backward", request.workload.training ? pass_json(price.backward, backward) : Json()},
                    {"ranks", layer.plan.mesh.size()},
                    {"events", ranks_json(trace)}});
  }
  return list;
}

}  // namespace usp
