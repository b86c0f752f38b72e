// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/score.hpp"

#include "usp/base/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace usp {
namespace {

const std::string header =
    "machine,world,direction,causal,dtype,batch,seq,heads,kv_heads,head_dim,ring,ulysses,layout,exchange,"
    "iters_per_s\n";

std::string row(std::int64_t seq, int ring, int ulysses, const std::string& rate,
                const std::string& layout = "zigzag") {
  return "box,4,forward,true,bf16,1," + std::to_string(seq) + ",8,8,64," + std::to_string(ring) + "," +
         std::to_string(ulysses) + "," + layout + ",qkvpack," + rate + "\n";
}

std::string small_table() {
  return "# a comment\n" + header + row(65536, 1, 4, "10") + row(65536, 2, 2, "8") + row(65536, 4, 1, "5") +
         row(32768, 1, 4, "20", "striped") + row(32768, 2, 2, "25", "striped") +
         row(32768, 4, 1, "OOM", "striped") + "\n" + row(512, 1, 4, "100") + row(512, 4, 1, "200") +
         row(131072, 1, 4, "1");
}

TEST(ScoreCsv, ReadsRowsAndCountsOutOfMemory) {
  const auto rows = parse_score_csv(small_table(), "t.csv");
  ASSERT_EQ(rows.size(), 9U);
  EXPECT_EQ(rows[0].line, 3);
  EXPECT_NEAR(*rows[0].seconds, 0.1, 1e-12);
  EXPECT_FALSE(rows[5].seconds.has_value());
  EXPECT_EQ(rows[6].line, 10);  // after the blank line
  EXPECT_EQ(rows[3].layout, ScoreRow::Layout::striped);
}

TEST(ScoreCsv, RefusesWithTheLine) {
  const auto line_of = [](const std::string& text) -> long {
    try {
      static_cast<void>(parse_score_csv(text, "t.csv"));
    } catch (const InvalidInput& error) {
      return error.where().line;
    }
    return -1;
  };
  const std::string good = row(65536, 1, 4, "10");
  EXPECT_EQ(line_of(header + good), -1);
  EXPECT_EQ(line_of(header + good + good), 3);                    // twice
  EXPECT_EQ(line_of(header + good + row(65536, 2, 4, "10")), 3);  // 2 * 4 != 4
  EXPECT_EQ(line_of(header + row(65536, 1, 4, "0")), 2);
  EXPECT_EQ(line_of(header + row(65536, 1, 4, "fast")), 2);
  EXPECT_EQ(line_of(header + row(65536, 1, 4, "nan")), 2);
  EXPECT_EQ(line_of(header + row(65536, 1, 4, "")), 2);
  EXPECT_EQ(line_of(header + row(65536, 1, 4, "10", "diagonal")), 2);
  EXPECT_EQ(line_of(header + "box,4\n"), 2);
  EXPECT_EQ(line_of("machine,colour\n"), 1);
  EXPECT_EQ(line_of("machine,world\n"), 1);
  EXPECT_EQ(line_of(header), 0);
  EXPECT_EQ(line_of(""), 0);
}

TEST(Score, TauCountsTies) {
  EXPECT_DOUBLE_EQ(kendall_tau_b({1, 2, 3, 4}, {10, 20, 30, 40}), 1);
  EXPECT_DOUBLE_EQ(kendall_tau_b({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
  EXPECT_NEAR(kendall_tau_b({1, 2, 3}, {1, 3, 2}), 1.0 / 3, 1e-12);
  EXPECT_NEAR(kendall_tau_b({1, 1, 2}, {1, 2, 3}), 2 / std::sqrt(2.0 * 3.0), 1e-12);
  EXPECT_DOUBLE_EQ(kendall_tau_b({1, 1}, {1, 2}), 0);
}

TEST(Score, MetricsOfAHandMadeTable) {
  const ScoreMethod exact{"exact", [](const ScoreRow& r) { return r.seconds.value_or(0); }};
  const ScoreMethod twice{"twice", [](const ScoreRow& r) { return 2 * r.seconds.value_or(0); }};
  const ScoreReport report = score(parse_score_csv(small_table(), "t.csv"),
                                   {exact, twice, max_ulysses_rule(8), always_ring_rule()}, 32768);
  ASSERT_EQ(report.groups.size(), 4U);
  EXPECT_EQ(report.out_of_memory, 1);
  EXPECT_EQ(report.gated[0].ranked_groups, 2);  // 131072 has one row: in MAPE and tau, not ranked
  EXPECT_EQ(report.gated[0].rows, 6);
  EXPECT_EQ(report.gated[0].top1, 2);
  EXPECT_DOUBLE_EQ(report.gated[0].mean_regret, 0);
  EXPECT_DOUBLE_EQ(*report.gated[0].mape, 0);
  EXPECT_DOUBLE_EQ(*report.gated[0].tau, 1);
  EXPECT_NEAR(*report.gated[1].mape, 1, 1e-12);
  EXPECT_EQ(report.gated[1].top1, 2);

  const ScoreMetrics& ulysses = report.gated[2];
  EXPECT_EQ(ulysses.top1, 1);
  EXPECT_NEAR(ulysses.worst_regret, 0.25, 1e-12);  // 1/20 against 1/25
  EXPECT_NEAR(ulysses.mean_regret, 0.125, 1e-12);
  EXPECT_NEAR(ulysses.tau_in_groups, 0, 1e-12);  // +1 and -1
  EXPECT_FALSE(ulysses.mape.has_value());
  EXPECT_NEAR(report.gated[3].worst_regret, 1, 1e-12);  // 1/5 against 1/10
  EXPECT_EQ(report.shorter[3].top1, 1);
  EXPECT_EQ(report.shorter[2].top1, 0);
}

TEST(Score, EqualCostsGetNoCreditForLuck) {
  const ScoreMethod blind{"blind", [](const ScoreRow&) { return 1.0; }, CostUnit::rank};
  const ScoreReport report = score(parse_score_csv(small_table(), "t.csv"), {blind}, 32768);
  EXPECT_EQ(report.gated[0].top1, 0);
  EXPECT_NEAR(report.gated[0].worst_regret, 1, 1e-12);
}

TEST(Score, MostUlyssesStaysInsideTheNode) {
  const ScoreReport report = score(parse_score_csv(small_table(), "t.csv"), {max_ulysses_rule(2)}, 32768);
  EXPECT_EQ(report.groups[0].choice[0].ulysses, 2);
  const ScoreReport wide = score(parse_score_csv(small_table(), "t.csv"), {max_ulysses_rule(4)}, 32768);
  EXPECT_EQ(wide.groups[0].choice[0].ulysses, 4);
}

TEST(Score, ReportsForPeopleAndPrograms) {
  const ScoreReport report =
      score(parse_score_csv(small_table(), "t.csv"),
            {max_ulysses_rule(8), volume_rule([](const ScoreRow& r) { return 1.0 * r.ring; })});
  const std::string text = score_text(report);
  EXPECT_NE(text.find("not gated"), std::string::npos);
  EXPECT_NE(text.find("1 out of memory"), std::string::npos);
  const auto json = nlohmann::json::parse(score_json(report));
  EXPECT_EQ(json.at("version"), 2);
  EXPECT_EQ(json.at("gated").at(1).at("method"), "volume rule");
  EXPECT_EQ(json.at("groups").size(), 4U);
  EXPECT_EQ(json.at("groups").at(0).at("best").at("ulysses"), 4);
  EXPECT_TRUE(json.at("gated").at(0).at("mape").is_null());
}

// Where no group is gated there is nothing to rank: no share of nothing, no regret of 0.
TEST(Score, OfNoGroupsThereIsNone) {
  const ScoreReport report = score(parse_score_csv(small_table(), "t.csv"), {max_ulysses_rule(8)}, 1 << 30);
  const std::string text = score_text(report);
  const std::string gated = text.substr(0, text.find("Shorter groups"));
  EXPECT_NE(gated.find("none"), std::string::npos);
  EXPECT_EQ(gated.find("0/0"), std::string::npos);
  EXPECT_EQ(gated.find("0.00%"), std::string::npos);
  const auto json = nlohmann::json::parse(score_json(report));
  for (const char* key : {"mean_regret", "worst_regret", "tau_in_groups"}) {
    EXPECT_TRUE(json.at("gated").at(0).at(key).is_null()) << key;
    EXPECT_TRUE(json.at("shorter").at(0).at(key).is_number()) << key;
  }
}

}  // namespace
}  // namespace usp
