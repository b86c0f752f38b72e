// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/limits.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/price_report.hpp"
#include "usp/schedule/geometry.hpp"
#include "usp/schedule/validate.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

/// Pairs of n queries with n keys, and of those under the diagonal.
TEST(Limits, AreasOfLongSequencesAreExact) {
  for (const i64 n : {i64{1} << 31, i64{1} << 32, (i64{1} << 32) + 1, max_tokens}) {
    schedule::Slice s;
    s.q_count = s.k_count = n;
    EXPECT_TRUE(schedule::area(s) == i128{n} * n) << n;
    s.diff_min = 0;
    EXPECT_TRUE(schedule::area(s) == i128{n} * (n + 1) / 2) << n;
    s.diff_max = 1;
    EXPECT_TRUE(schedule::area(s) == i128{n} + n - 1) << n;
  }
}

/// Chunks are dealt by causal pairs, whose sum is beyond 64 bits: both rows get as many.
TEST(Limits, BalancedRowsOfLongSequencesAreBalanced) {
  const SequenceLayout layout = make_layout(LayoutKind::balanced, max_tokens, 2, 1, {0, max_tokens});
  const auto work = [&](int r) {
    double pairs = 0;
    for (const usp::Run& run : layout.row(r))
      pairs += (static_cast<double>(run.first) + static_cast<double>(run.count) / 2) *
               static_cast<double>(run.count);
    return pairs;
  };
  EXPECT_NEAR(work(0) / work(1), 1, 1e-6);
}

double seconds_of(i64 tokens, LayoutKind layout, Band band) {
  const topology::Cluster cluster = thread_cluster(4);
  const Calibration calibration = uncalibrated(data_sheet_of(cluster));
  AttentionCall call;
  call.plan.shape = {1, tokens, tokens, 8, 8, 128, 128, DType::bf16};
  call.plan.mesh = {1, 2, 2};
  call.plan.layout = layout;
  call.plan.band = band;
  call.documents = Documents::single(tokens, tokens);
  return price_call(cluster, calibration, call).passes.front().price.compute_s;
}

/// Twice the tokens, four times the pairs, whatever the lengths are.
TEST(Limits, PricesGrowWithTheSquareOfTheTokens) {
  for (const LayoutKind layout :
       {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped, LayoutKind::balanced})
    for (const Band band : {Band{}, Band{0, unbounded}}) {
      const double at_31 = seconds_of(i64{1} << 31, layout, band);
      EXPECT_NEAR(seconds_of(i64{1} << 32, layout, band) / at_31, 4, 0.01);
      EXPECT_NEAR(seconds_of(max_tokens, layout, band) / at_31 / (1 << 18), 1, 0.01);
    }
}

/// A ring beyond the numbers of its offsets is refused with the reason, before anything is priced.
TEST(Limits, RingsBeyondTheirNumbersAreNoCandidates) {
  LayerKind kind;
  kind.query_heads = 32;
  kind.kv_heads = 8;
  Model model;
  model.kinds = {kind};
  Workload workload;
  workload.seq = 1 << 20;
  LegalityInput input{&model, &workload, 65536, 8};
  EXPECT_NE(unsupported_reason(input, 1, 1, {1, 65536, 1}).find("ring 65536 exceeds 32767"),
            std::string::npos);
  EXPECT_NE(unsupported_reason(input, 1, 1, {1, 32768, 2}).find("ring 32768 exceeds 32767"),
            std::string::npos);
  EXPECT_EQ(unsupported_reason(input, 1, 1, {1, 16384, 4}), "");
  input.head_chunks = 9;  // of the 8 heads that ulysses 4 leaves
  EXPECT_NE(unsupported_reason(input, 1, 1, {1, 16384, 4}).find("9 head chunks for 8 query heads"),
            std::string::npos);
  input.head_chunks = 8;
  EXPECT_EQ(unsupported_reason(input, 1, 1, {1, 16384, 4}), "");
  workload.pipeline = 1 << 20;  // no product of degrees leaves 64 bits
  EXPECT_NE(unsupported_reason(input, 1 << 24, 1 << 24, {1, 32767, 32}).find("more than 16777216 ranks"),
            std::string::npos);
}

TEST(Limits, DocumentsBeyondEveryMaskAreRefused) {
  AttentionPlan plan;
  plan.shape = {1, 64, 64, 4, 4, 8, 8, DType::bf16};
  Documents documents = Documents::single(64, 64);
  EXPECT_NO_THROW(schedule::TokenMap(plan, documents));
  documents.shift[0] = unbounded;
  EXPECT_THROW(schedule::TokenMap(plan, documents), InvalidInput);
  documents.shift[0] = std::numeric_limits<i64>::min();
  EXPECT_THROW(schedule::TokenMap(plan, documents), InvalidInput);
  EXPECT_THROW((void)chunked_documents({max_tokens}, 1), InvalidInput);
  EXPECT_EQ(chunked_documents({10, 3}, 4).cu_q, (std::vector<i64>{0, 4, 8, 10, 13}));
}

/// A plan made by hand is refused where it would be expanded, not only where it is read.
TEST(Limits, GeometryRefusesWhatItsTypesDoNotCount) {
  const Documents documents = Documents::single(1 << 20, 1 << 20);
  AttentionPlan plan;
  plan.shape = {1, 1 << 20, 1 << 20, 4, 4, 8, 8, DType::bf16};
  plan.mesh = {1, 65536, 1};
  EXPECT_THROW(schedule::TokenMap(plan, documents), InvalidInput);
  plan.mesh = {1, 1, 1};
  plan.head_chunks = 40000;
  EXPECT_THROW(schedule::TokenMap(plan, documents), InvalidInput);
  plan.head_chunks = 1;
  plan.layout = static_cast<LayoutKind>(9);
  EXPECT_THROW(schedule::TokenMap(plan, documents), InvalidInput);
}

TEST(Limits, WorkloadsHaveTheRangesOfTheirCalls) {
  Workload w;
  w.seq = max_tokens;
  EXPECT_NO_THROW(check_workload(w));
  w.seq = max_tokens + 1;
  EXPECT_THROW(check_workload(w), UsageError);
  w.seq = max_tokens;
  w.batch = max_batch;  // their product is beyond what is counted
  EXPECT_THROW(check_workload(w), UsageError);
  w.seq = 1;
  EXPECT_NO_THROW(check_workload(w));
  w.batch = max_batch + 1;
  EXPECT_THROW(check_workload(w), UsageError);
  w.batch = 1;
  w.pipeline = static_cast<int>(max_ranks) + 1;
  EXPECT_THROW(check_workload(w), UsageError);
}

TEST(Limits, TokensAndRatesAreRefusedByName) {
  EXPECT_EQ(parse_tokens("1048576M", "--seq", max_tokens), max_tokens);
  EXPECT_THROW((void)parse_tokens("1048577M", "--seq", max_tokens), UsageError);
  for (const char* text : {"nan", "inf", "-1", "0", "1e308", "18446744073709551616", ""})
    EXPECT_THROW((void)parse_tokens(text, "--seq", max_tokens), UsageError) << text;
  for (const char* text : {"1e308TB/s", "1e-300G", "nanG", "0G", "-1G"})
    EXPECT_THROW((void)parse_line_rate_gb_s(text, "--nic"), UsageError) << text;
}

}  // namespace
}  // namespace usp
