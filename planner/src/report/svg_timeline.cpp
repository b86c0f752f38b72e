// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr std::size_t max_ticks = 48;
constexpr double width = 860, left = 150, right = 840, lane_height = 24, lane_gap = 6;

struct Lane {
  const char* name;
  double TickPrice::*amount;
  std::size_t hue;
};
constexpr Lane lanes[] = {{"attention kernels", &TickPrice::compute_s, 0},
                          {"transfers in hosts", &TickPrice::intra_node_s, 1},
                          {"transfers between", &TickPrice::inter_node_s, 2}};

std::string ticks_table(const std::string& caption, const std::vector<TickPrice>& ticks) {
  std::vector<std::vector<std::string>> rows = {{"tick", "attention", "in hosts", "between hosts", "length"}};
  for (std::size_t t = 0; t < ticks.size() && t < max_ticks; ++t)
    rows.push_back({std::to_string(t), format_seconds(ticks[t].compute_s),
                    format_seconds(ticks[t].intra_node_s), format_seconds(ticks[t].inter_node_s),
                    format_seconds(ticks[t].total_s)});
  return fmt::format("<details><summary>{}</summary>{}</details>\n", escaped(caption),
                     html_table(caption, rows, 1));
}

std::string picture(const std::string& name, const std::vector<TickPrice>& ticks, double seconds) {
  const std::size_t shown = std::min(max_ticks, ticks.size());
  double total = 0;
  for (std::size_t t = 0; t < shown; ++t) {
    double longest = ticks[t].total_s;
    for (const Lane& lane : lanes) longest = std::max(longest, ticks[t].*lane.amount);
    total += shown == 1 ? longest : ticks[t].total_s;
  }
  const Scale scale{0, total, left, right};
  Svg svg(width, 3 * (lane_height + lane_gap) + 60, name + " of one attention layer",
          "Ticks of the schedule from left to right: the kernels of the slowest rank, and the transfers that "
          "are due at "
          "the end of each tick.");
  svg.text(4, 14, fmt::format("{}: {}", name, format_seconds(seconds)), "strong");
  const double bottom = 24 + 3 * (lane_height + lane_gap);
  double begin = 0;
  for (std::size_t t = 0; t < shown; ++t) {
    svg.line(scale.at(begin), 20, scale.at(begin), bottom, "grid");
    for (std::size_t l = 0; l < 3; ++l) {
      const double amount = ticks[t].*lanes[l].amount;
      if (amount <= 0) continue;
      const double end = std::min(begin + amount, total);
      svg.rect(scale.at(begin), 24 + static_cast<double>(l) * (lane_height + lane_gap),
               scale.at(end) - scale.at(begin), lane_height, colour(lanes[l].hue) + " part",
               fmt::format("tick {}, {}: {}", t, lanes[l].name, format_seconds(amount)));
    }
    begin += ticks[t].total_s;
  }
  for (std::size_t l = 0; l < 3; ++l)
    svg.text(left - 8, 24 + static_cast<double>(l) * (lane_height + lane_gap) + 16, lanes[l].name, "end");
  svg.line(left, bottom, right, bottom, "axis");
  for (const double tick : scale.ticks()) {
    svg.line(scale.at(tick), bottom, scale.at(tick), bottom + 5, "axis");
    svg.text(scale.at(tick), bottom + 20, tick == 0 ? "0" : format_seconds(tick), "mid");
  }
  return svg.str();
}

}  // namespace

std::string timeline_section(const ReportInput& input) {
  const PlanRequest& request = *input.request;
  const PlanCandidate& best = input.plan->best();
  std::string text = "<section id=\"timeline\"><h2>Attention, tick by tick</h2>\n";
  if (best.attention.empty()) return text + "<p>No layer computes softmax attention.</p></section>\n";
  LinkPricer links(*request.cluster, *request.calibration);
  for (const LayerAttention& layer : best.attention) {
    const LayerKind& kind = request.model->kinds[layer.kind];
    AttentionPricer pricer(links, layer.plan.shape, attention_documents(request.workload, kind),
                           request.execution);
    std::vector<TickPrice> forward, backward;
    const AttentionPrice price = pricer.price(layer.plan, best.choice.placement, &forward, &backward);
    text += fmt::format("<h3>{} {} layers</h3>\n{}{}", kind.layers.size(), escaped(mixer_name(kind.kind)),
                        picture("forward", forward, price.forward.seconds),
                        ticks_table("Forward by tick", forward));
    if (request.workload.training)
      text +=
          picture("backward", backward, price.backward.seconds) + ticks_table("Backward by tick", backward);
    if (std::max(forward.size(), backward.size()) > max_ticks)
      text += fmt::format("<p class=\"note\">The first {} ticks are shown.</p>\n", max_ticks);
  }
  return text +
         "<p class=\"note\">A transfer is drawn from the start of the tick in which it is due; what it "
         "exceeds "
         "the kernels by shows in the step time.</p></section>\n";
}

}  // namespace usp
