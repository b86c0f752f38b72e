// SPDX-License-Identifier: Apache-2.0
// What a ring's blocks cost beside one full call: priced, and as measured. All numbers are computed from data
// files: nothing here is timed.
#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace usp {
namespace {

/// A row of ring_of_8.csv.
struct Ring {
  std::string card;
  i64 local = 0;
  int ring = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Method method;
  Pass pass = Pass::forward;
  double least = 0, most = 0;

  [[nodiscard]] std::string text() const {
    return card + " " + std::string(word_of(method)) + (pass == Pass::forward ? " forward" : " backward");
  }
};

std::vector<Ring> rings() {
  std::istringstream file(read_file(std::string(USP_TEST_DATA) + "/measurements/ring_of_8.csv"));
  std::vector<Ring> rows;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line.front() == '#' || line.rfind("card,", 0) == 0) continue;
    std::istringstream text(line);
    const auto next = [&] {
      std::string cell;
      std::getline(text, cell, ',');
      return cell;
    };
    Ring row;
    row.card = next();
    row.local = std::stoi(next());
    for (int* count : {&row.ring, &row.heads, &row.kv_heads, &row.head_dim}) *count = std::stoi(next());
    row.method = next() == "ring" ? Method::ring : Method::all_gather_kv;
    row.pass = next() == "forward" ? Pass::forward : Pass::backward;
    row.least = std::stod(next());
    row.most = std::stod(next());
    rows.push_back(row);
  }
  return rows;
}

/// Rate over visible pairs of one rank over that of one call of all its queries and keys, transfers left out.
double priced(const Ring& row, const Calibration& calibration) {
  topology::ClusterRequest request;
  request.source = "nvswitch gpu:" + std::to_string(row.ring) + "(" + row.card + ")";
  const topology::Cluster cluster = topology::compose(request);
  LinkPricer links(cluster, calibration);
  const i64 tokens = row.local * row.ring;
  AttentionPlan plan;
  plan.backend = Backend::cudnn;
  plan.method = row.method;
  plan.mesh = {1, row.ring, 1};
  plan.shape = {1, tokens, tokens, row.heads, row.kv_heads, row.head_dim, row.head_dim, DType::bf16};
  plan.band = {0, unbounded};
  plan.split_own_block = schedule::splits_own_block(plan);
  AttentionPricer pricer(links, plan.shape, Documents::single(tokens, tokens), {});
  const AttentionPrice price = pricer.price(plan, {});
  KernelShape full;
  full.query_heads = row.heads;
  full.kv_heads = row.kv_heads;
  full.rows = static_cast<double>(row.local);
  full.mean_keys = full.key_rows = static_cast<double>(tokens);
  full.mask = KernelShape::Mask::full;
  const bool forward = row.pass == Pass::forward;
  const double call =
      (forward ? calibration.kernel.forward(full) : calibration.kernel.backward(full)).seconds;
  const double blocks = (forward ? price.forward : price.backward).compute_s;
  return pricer.visible_pairs(plan) / row.ring / (full.rows * full.key_rows) * call / blocks;
}

/// On H100 backward was measured when dK and dV of every block were zeroed and added to; the first step of a
/// block writes them now, whose price is up to that much lower.
double below(const Ring& row) {
  return row.pass == Pass::backward && row.card == "h100-sxm" ? 0.11 : 0.08;
}

TEST(RingHops, CostWhatWasMeasuredOnTheirKernels) {
  const Calibration cudnn = load_calibration("h200_sxm-cudnn-9.19");
  int checked = 0;
  for (const Ring& row : rings()) {
    if (row.card != "h200-sxm") continue;
    const double ratio = priced(row, cudnn) / (0.5 * (row.least + row.most));
    EXPECT_GT(ratio, 1 - 0.06) << row.text();
    EXPECT_LT(ratio, 1 + 0.06) << row.text();
    ++checked;
  }
  EXPECT_EQ(checked, 4);
}

TEST(RingHops, CostAboutAsMuchByTheCurvesOfOtherKernels) {
  for (const Ring& row : rings()) {
    const double ratio = priced(row, load_calibration(row.card == "h100-sxm" ? "h100_sxm" : "h200_sxm"));
    EXPECT_GT(ratio, row.least / 1.08) << row.text();
    EXPECT_LT(ratio, row.most * (1 + below(row))) << row.text();
  }
}

/// Sums of dK and dV weigh a sixth as much where six query heads share them.
TEST(RingHops, SharedHeadsCostLessBackward) {
  Ring row = rings().at(1);
  ASSERT_EQ(row.pass, Pass::backward);
  const Calibration calibration = load_calibration("h200_sxm");
  const double own = priced(row, calibration);
  row.heads = 48;
  row.kv_heads = 8;
  EXPECT_GT(priced(row, calibration), own + 0.05);
}

/// The hand-shakes of a tick in which something flies beside a kernel: of a ring of two the first of two.
TEST(RingHops, ATickTakesItsHandShakes) {
  topology::ClusterRequest request;
  request.source = "h200";
  const topology::Cluster cluster = topology::compose(request);
  Calibration calibration = load_calibration("h200_sxm");
  const auto forward_s = [&] {
    LinkPricer links(cluster, calibration);
    AttentionPlan plan;
    plan.mesh = {1, 2, 1};
    plan.shape = {1, 65536, 65536, 16, 16, 128, 128, DType::bf16};
    plan.band = {0, unbounded};
    AttentionPricer pricer(links, plan.shape, Documents::single(65536, 65536), {});
    return pricer.price(plan, {}).forward.seconds;
  };
  const double without = forward_s();
  for (Interference& beside : calibration.interference) beside.tick_s = 1e-3;
  EXPECT_NEAR(forward_s() - without, 1e-3, 1e-9);
}

}  // namespace
}  // namespace usp
