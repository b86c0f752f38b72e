// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/gemm.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace usp {
namespace {

GemmModel h200() {
  return {gemm_card("h200-sxm"), 989e12, 4.8e12};
}

struct Row {
  double m, n, k, seconds;
};

/// The three products of every row of the measured table.
std::vector<Row> measured() {
  std::vector<Row> rows;
  for_each_line(read_file(std::string(USP_TEST_DATA) + "/measurements/gemm_h200.csv"),
                [&](long, std::string_view line) {
                  if (line.empty() || line.front() == '#' || line.front() == 'm') return;
                  std::vector<double> v;
                  for (const std::string& cell : split(line, ',')) v.push_back(std::stod(cell));
                  rows.push_back({v[0], v[1], v[2], v[3]});
                  rows.push_back({v[0], v[2], v[1], v[4]});
                  rows.push_back({v[1], v[2], v[0], v[5]});
                });
  return rows;
}

TEST(Gemm, TheLawIsWithinItsBandOfTheMeasuredTable) {
  const GemmModel model = h200();
  std::vector<double> large, all;
  for (const Row& row : measured()) {
    const double error = std::abs(model.seconds(row.m, row.n, row.k, 2) / row.seconds - 1);
    all.push_back(error);
    if (2 * row.m * row.n * row.k > 1e12) large.push_back(error);
  }
  ASSERT_GT(large.size(), 100U);
  const auto mean = [](const std::vector<double>& v) {
    double sum = 0;
    for (const double x : v) sum += x;
    return sum / static_cast<double>(v.size());
  };
  EXPECT_LT(mean(large), 0.03);
  EXPECT_LT(*std::max_element(large.begin(), large.end()), 0.12);
  EXPECT_LT(mean(all), 0.10);
}

TEST(Gemm, SmallProductsRunSlower) {
  const GemmModel model = h200();
  EXPECT_GT(model.efficiency(16384, 8192, 8192, 2), 0.67);
  EXPECT_LT(model.efficiency(256, 1024, 4096, 2), 0.2);  // 132 of 989 TFLOP/s measured
  // 134 MB of weights at 4.3 TB/s are 31 us: 69 TFLOP/s at most.
  EXPECT_LT(model.efficiency(16, 8192, 8192, 2), 0.07);
  // A group of small products fills the card together.
  EXPECT_LT(model.seconds(512, 4096, 1024, 2, 8), 8 * model.seconds(512, 4096, 1024, 2));
}

// Whatever the shape, unless its bytes take longer: a row at a time reads 64 MiB of weights.
TEST(Gemm, AGivenEfficiencyHoldsWhereTheBytesAllowIt) {
  const GemmModel model(gemm_card("h200-sxm"), 1e15, 4.8e12, 0.5);
  EXPECT_DOUBLE_EQ(model.efficiency(512, 512, 512, 2), 0.5);
  EXPECT_DOUBLE_EQ(model.efficiency(16384, 8192, 8192, 2), 0.5);
  const double bytes = 2 * (8192.0 + 4096.0 * 8192 + 4096);
  EXPECT_DOUBLE_EQ(model.seconds(1, 4096, 8192, 2), bytes / (0.9 * 4.8e12));
}

// (500 / 700 - .17) / .83 = .656, to the power .4: .845.
TEST(Gemm, ALowerPowerLimitLowersTheClock) {
  const GemmCard card = gemm_card("h100-sxm"), limited = card.at_power(500);
  EXPECT_NEAR(limited.sustained / card.sustained, 0.845, 0.001);
  EXPECT_GT(limited.band, card.band);
  EXPECT_DOUBLE_EQ(card.at_power(0).sustained, card.sustained);
  EXPECT_THROW(static_cast<void>(card.at_power(100)), UsageError);
  EXPECT_THROW(static_cast<void>(gemm_card("unheard-of").at_power(100)), UsageError);
}

TEST(Gemm, AnUnknownCardSaysSo) {
  EXPECT_NE(gemm_card("unheard-of").source.find("no table"), std::string::npos);
  EXPECT_GT(gemm_card("unheard-of").band, gemm_card("h100-sxm").band);
  EXPECT_EQ(gemm_card("h20").multiprocessors, 78);  // not a row whose name begins alike
}

}  // namespace
}  // namespace usp
