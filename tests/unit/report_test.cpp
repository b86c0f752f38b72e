// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/report.hpp"

#include "usp/base/json.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace usp {
namespace {

struct Page {
  topology::Cluster cluster;
  Calibration calibration = load_calibration("h100_sxm");
  Model model = load_model("llama-3.1-8b");
  PlanRequest request;
  PlanResult plan;
  ReportSweep sweep;
  explicit Page(bool swept = false) {
    topology::ClusterRequest source;
    source.source = "dgx-h100";
    source.nodes = 2;
    cluster = topology::compose(source);
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 1 << 18;
    plan = plan_step(request);
    if (swept) sweep = report_sweep(request, plan);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  [[nodiscard]] std::string html() const {
    return report_html({&request, &plan, &sweep, "llama-3.1-8b --seq 256k"});
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Report, HasEverySectionOnceAndIsTheSameTwice) {
  const Page page;
  const std::string html = page.html();
  for (const char* id : {"commands", "compared", "mesh", "ticks", "sweep", "verdict", "inputs", "text"})
    EXPECT_EQ(count(html, "<section id=\"" + std::string(id) + "\""), 1U) << id;
  EXPECT_EQ(html, page.html());
  EXPECT_EQ(count(html, "{{"), 0U) << "a mark of the template stayed";
  EXPECT_EQ(count(html, "http"), 1U) << "http-equiv alone: no network";
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(Report, DataSaysWhatPlanAndSweepSay) {
  const Page page(true);
  const Json data = Json::parse(report_data_json({&page.request, &page.plan, &page.sweep, "MODEL"}));
  EXPECT_EQ(data["plan"], Json::parse(plan_result_json(page.request, page.plan)));
  EXPECT_EQ(data["commands"][0]["command"], "usp plan MODEL -o plan.json");
  ASSERT_EQ(page.sweep.results.size(), 1U);
  const WhatIfResult& sweep = page.sweep.results.front();
  ASSERT_EQ(data["sweep"]["results"][0]["points"].size(), sweep.points.size());
  EXPECT_EQ(sweep.axes.size(), 3U) << "sequence, NICs, hosts";
  EXPECT_EQ(data["sweep"]["base"]["seq"], page.request.workload.seq);
}

TEST(Report, SweepHoldsThePlanItself) {
  const Page page(true);
  const WhatIfResult& sweep = page.sweep.results.front();
  std::size_t same = 0;
  for (const WhatIfPoint& point : sweep.points) {
    const double seq = sweep.axes[0].values[point.at[0]].number,
                 nic = sweep.axes[1].values[point.at[1]].number,
                 nodes = sweep.axes[2].values[point.at[2]].number;
    if (seq != static_cast<double>(page.request.workload.seq) || nic != 50 || nodes != 2) continue;
    ++same;
    EXPECT_DOUBLE_EQ(point.plan.step_s, page.plan.best().step_s);
    EXPECT_EQ(point.plan.memory_bytes, page.plan.best().memory.total_bytes);
  }
  EXPECT_EQ(same, 1U);
}

TEST(Report, TicksSumToThePassesOfEveryLayer) {
  const Page page;
  const Json data = Json::parse(report_data_json({&page.request, &page.plan, nullptr, ""}));
  ASSERT_EQ(data["ticks"].size(), page.plan.best().attention.size());
  for (const char* pass : {"forward", "backward"}) {
    const Json& priced = data["ticks"][0][pass];
    double sum = 0;
    for (const Json& tick : priced["ticks"]) sum += tick["time_s"].get<double>();
    EXPECT_NEAR(sum, priced["time_s"].get<double>(), 1e-9 * sum) << pass;
  }
  EXPECT_TRUE(data["sweep"].is_null());
}

TEST(Report, TextOfTheInputIsEscaped) {
  Page page;
  const std::string hostile = "<img src=x onerror=alert(1)></script><!--\"'&\x01";
  page.model.name = hostile;
  page.model.notes = {hostile};
  page.cluster.name = hostile;
  page.cluster.notes = {hostile};
  page.plan.verdict.runner_up = hostile;
  page.plan.verdict.tie_breaking_measurements = {hostile};
  page.plan.verdict.sensitive_terms = {hostile};
  page.plan.rejected.push_back({1, 1, 1, 1, hostile});
  page.plan.candidates.front().terms.front().name = hostile;
  page.plan.candidates.front().memory.rows.front().reason = hostile;
  page.plan.calibration.name = hostile;
  page.plan.calibration.sources = {hostile};
  const std::string html = page.html();
  EXPECT_EQ(count(html, "<img"), 0U);
  EXPECT_EQ(count(html, "</script"), 2U) << "the data and the script of the page";
  EXPECT_EQ(count(html, "<!--"), 0U);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  EXPECT_GE(count(html, "\\u003cimg src=x onerror=alert(1)>"), 12U) << "in the data";
  EXPECT_GE(count(html, "&lt;img src=x onerror=alert(1)&gt;"), 2U) << "in the title and the text";
}

TEST(Report, EveryRankStandsOnItsDevice) {
  const Page page;
  const Json data = Json::parse(report_data_json({&page.request, &page.plan, nullptr, ""}));
  std::set<int> ranks;
  for (const Json& device : data["machine"]["devices"]) ranks.insert(device["rank"].get<int>());
  EXPECT_EQ(ranks.size(), 16U);
  EXPECT_EQ(*ranks.begin(), 0);
  EXPECT_EQ(*ranks.rbegin(), 15);
  EXPECT_EQ(data["machine"]["nics"].size(), 16U);
  EXPECT_EQ(data["machine"]["links"].size(), 0U) << "an NVLink switch, no bridges";
}

}  // namespace
}  // namespace usp
