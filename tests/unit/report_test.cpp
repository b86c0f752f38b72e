// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/report.hpp"

#include "usp/planner/model_config.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <string>

namespace usp {
namespace {

struct Page {
  topology::Cluster cluster;
  Calibration calibration = load_calibration("h100_sxm");
  Model model = load_model("llama-3.1-8b");
  PlanRequest request;
  PlanResult plan;
  WhatIfResult sweep;
  Page() {
    topology::ClusterRequest source;
    source.source = "dgx-h100";
    source.nodes = 2;
    cluster = topology::compose(source);
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 1 << 18;
    plan = plan_step(request);
    sweep = report_sweep(request);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  [[nodiscard]] std::string html() const { return report_html({&request, &plan, &sweep}); }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Report, HasEverySectionOnceAndIsTheSameTwice) {
  const Page page;
  const std::string html = page.html();
  for (const char* id : {"answer", "inputs", "time", "memory", "mesh", "timeline", "pareto", "sweep",
                         "verdict", "candidates", "rejected", "sources"})
    EXPECT_EQ(count(html, "<section id=\"" + std::string(id) + "\""), 1U) << id;
  EXPECT_EQ(html, page.html());
  EXPECT_EQ(count(html, "nan"), 0U);
  EXPECT_EQ(count(html, "\"inf"), 0U);
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_EQ(count(html, "http"), 0U) << "no network";
  EXPECT_NE(html.find("prefers-color-scheme:dark"), std::string::npos);
}

TEST(Report, EveryPictureHasTitleAndDescription) {
  const std::string html = Page().html();
  EXPECT_GE(count(html, "<svg "), 7U);
  EXPECT_EQ(count(html, "<svg "), count(html, "<desc>"));
  EXPECT_EQ(count(html, "<svg "), count(html, "role=\"img\""));
}

TEST(Report, TextOfTheInputIsEscaped) {
  Page page;
  const std::string hostile = "<img src=x onerror=alert(1)>\"'&\x01";
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
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  EXPECT_GE(count(html, "&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"), 12U);
}

TEST(Report, EveryRankStandsOnItsDevice) {
  const Page page;
  const std::string html = page.html();
  for (int rank = 0; rank < 16; ++rank) {
    const std::string text = "device " + std::to_string(rank) + ": rank " + std::to_string(rank) + ",";
    EXPECT_EQ(count(html, text), 1U) << text;
  }
}

}  // namespace
}  // namespace usp
