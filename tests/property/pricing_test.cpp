// SPDX-License-Identifier: Apache-2.0
// The two forms of a schedule carry the same bytes, exactly, and cost the same time, to rounding.
#include "usp/planner/pricing.hpp"

#include "schedule_cases.hpp"

#include "usp/topology/synthetic.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace usp::test {
namespace {

struct Machine {
  topology::Cluster cluster;
  Calibration calibration;
};

const Machine& machine() {
  static const Machine m{
      topology::read_synthetic("node:256 nvswitch gpu:8(h100-sxm) nic:8(400G) fabric:rail", "test"),
      load_calibration("h100_sxm")};
  return m;
}

std::vector<schedule::RankSchedule> expand_all(const schedule::TokenMap& geometry,
                                               const schedule::CompactSchedule& compact, Pass pass) {
  std::vector<schedule::RankSchedule> ranks;
  for (int p = 0; p < geometry.mesh().size(); ++p)
    ranks.push_back(schedule::expand(geometry, compact, p, pass));
  return ranks;
}

void check(const ScheduleCase& c, const Placement& placement, LinkPricer& links) {
  const schedule::TokenMap geometry(c.plan, c.documents);
  AttentionPricer pricer(links, c.plan.shape, c.documents, {});
  const AttentionPrice price = pricer.price(c.plan, placement);
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const auto ranks = expand_all(geometry, pricer.schedule(c.plan), pass);
    const Ledger bytes = ledger(geometry, pricer.schedule(c.plan).of(pass));
    for (std::size_t p = 0; p < ranks.size(); ++p) {
      i64 sent = 0, received = 0;
      for (const schedule::Transfer& t : ranks[p].transfers) (t.send ? sent : received) += t.bytes;
      ASSERT_EQ(bytes.sent[p], sent) << "rank " << p << ", " << describe(c);
      ASSERT_EQ(bytes.received[p], received) << "rank " << p << ", " << describe(c);
    }
    const PassPrice& compact = pass == Pass::forward ? price.forward : price.backward;
    const PassPrice explicit_price = pricer.price_explicit(c.plan, placement, ranks);
    ASSERT_NEAR(compact.seconds, explicit_price.seconds, 1e-9 * explicit_price.seconds) << describe(c);
    ASSERT_NEAR(compact.wire_bytes, explicit_price.wire_bytes, 1e-9 * explicit_price.wire_bytes)
        << describe(c);
    // One rank may have nothing to do: no visible pair, and no delta before it.
    bool idle = true;
    for (const schedule::RankSchedule& rank : ranks) {
      for (const schedule::Slice& slice : rank.slices) idle = idle && schedule::area(slice) == 0;
      for (const schedule::Transfer& t : rank.transfers) idle = idle && t.bytes == 0;
      for (const schedule::Step& step : rank.steps) idle = idle && !step.is(schedule::operations::delta);
    }
    ASSERT_EQ(compact.seconds > 0, !idle) << describe(c);
  }
}

TEST(Pricing, CompactEqualsExplicitOnRandomCases) {
  CaseGenerator g(11);
  LinkPricer links(machine().cluster, machine().calibration);
  for (int i = 0; i < 600; ++i) {
    ScheduleCase c = g.draw();
    Placement placement;
    placement.order = g.chance(0.5) ? AxisOrder::ulysses_inner : AxisOrder::ring_inner;
    check(c, placement, links);
    if (HasFatalFailure()) return;
  }
}

TEST(Pricing, CompactEqualsExplicitOnEveryMeshOfUpTo64Ranks) {
  CaseGenerator g(12);
  LinkPricer links(machine().cluster, machine().calibration);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    ScheduleCase c = g.draw(ranks);
    if (c.plan.mesh.ulysses > c.plan.shape.query_heads) {
      c.plan.shape.query_heads = 64;
      c.plan.shape.kv_heads = 8;
    }
    check(c, {}, links);
    if (HasFatalFailure()) return;
  }
}

TEST(Pricing, CompactEqualsExplicitOnLargeEvenMeshes) {
  LinkPricer links(machine().cluster, machine().calibration);
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv, Method::double_ring})
    for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped})
      for (const int ulysses : {8, 64}) {
        ScheduleCase c;
        c.plan.mesh = {1, 512 / ulysses, ulysses};
        if (method == Method::double_ring) c.plan.mesh = {512 / ulysses / 4, 4, ulysses};
        c.plan.method = method;
        c.plan.layout = layout;
        c.plan.band = {0, unbounded};
        c.plan.shape = {1, 1 << 17, 1 << 17, 64, 8, 128, 128, DType::bf16};
        c.documents = Documents::single(1 << 17, 1 << 17);
        check(c, {}, links);
        if (HasFatalFailure()) return;
      }
}

/// A gated tick ends no earlier than all work behind the arrival of a block. Inside a host it is as long as
/// its kernels; between hosts NCCL has no gates, and all of the transfer comes before the work.
TEST(Pricing, AGatedTickLastsFromEachArrivalThroughTheWorkBehindIt) {
  for (const char* text :
       {"node:2 gpu:1(h100-sxm) nic:1(25G) fabric:rail", "node:1 nvswitch gpu:2(h100-sxm) nic:2(400G)"}) {
    const topology::Cluster cluster = topology::read_synthetic(text, "test");
    LinkPricer links(cluster, machine().calibration);
    AttentionPlan plan;
    plan.mesh = {1, 2, 1};
    plan.method = Method::all_gather_kv;
    plan.shape = {1, 1 << 15, 1 << 15, 16, 16, 128, 128, DType::bf16};
    AttentionPricer pricer(links, plan.shape, Documents::single(1 << 15, 1 << 15), {});
    std::vector<TickPrice> apart, gated, unused;
    (void)pricer.price(plan, {}, &apart, &unused);
    plan.gated = true;
    unused.clear();
    (void)pricer.price(plan, {}, &gated, &unused);
    ASSERT_EQ(gated.size() + 1, apart.size());
    const double flight = std::max(gated[1].intra_node_s, gated[1].inter_node_s), remote = apart[2].compute_s;
    EXPECT_EQ(flight, std::max(apart[1].intra_node_s, apart[1].inter_node_s));
    EXPECT_NEAR(gated[1].compute_s, apart[1].compute_s + remote, 1e-9);
    EXPECT_GE(gated[1].total_s, std::max(gated[1].compute_s, flight + remote) * (1 - 1e-12)) << text;
    if (gated[1].inter_node_s > 0) {
      EXPECT_NEAR(gated[1].total_s, flight + gated[1].compute_s, 1e-9 * flight) << text;
    } else if (flight > apart[1].compute_s) {
      EXPECT_NEAR(gated[1].total_s, flight + remote, 1e-9 * flight) << text;
    } else {
      EXPECT_LE(gated[1].total_s, (apart[1].total_s + apart[2].total_s) * (1 + 1e-9)) << text;
    }
  }
}

/// dK and dV of a remote block go home beside the work on later ones, over links that are idle: of three
/// equal parts the last one at least comes behind the list. NCCL sends all of it then.
TEST(Pricing, GradientsOfABlockGoHomeBesideTheWorkOnLaterOnes) {
  for (const auto& [transport, ring] : {std::pair(Transport::copy_engine, 4), std::pair(Transport::nccl, 4)})
    for (const i64 tokens : {i64{1} << 13, i64{1} << 17}) {
      const topology::Cluster cluster = topology::read_synthetic("node:1 nvswitch gpu:4(h100-sxm)", "test");
      LinkPricer links(cluster, machine().calibration);
      AttentionPlan plan;
      plan.mesh = {1, ring, 1};
      plan.method = Method::all_gather_kv;
      plan.shape = {1, tokens, tokens, 16, 16, 128, 128, DType::bf16};
      ExecutionOptions options;
      options.transport = transport;
      AttentionPricer pricer(links, plan.shape, Documents::single(tokens, tokens), options);
      std::vector<TickPrice> apart, gated, unused;
      (void)pricer.price(plan, {}, &unused, &apart);
      plan.gated = true;
      unused.clear();
      const AttentionPrice price = pricer.price(plan, {}, &unused, &gated);
      ASSERT_EQ(gated.size() + 1, apart.size());
      const double home = apart[3].intra_node_s, left = gated[2].intra_node_s;
      EXPECT_GT(home, 0);
      EXPECT_GE(left, home / (ring - 1) * (1 - 1e-9));
      EXPECT_LE(left, home * (1 + 1e-9));
      if (transport == Transport::nccl) {
        EXPECT_NEAR(left, home, 1e-9 * home);
      } else if (tokens == 1 << 17) {
        EXPECT_NEAR(left, home / (ring - 1), 1e-9 * home) << "there is time for the others";
      } else {
        EXPECT_LT(left, home);
      }
      EXPECT_GE(price.backward.seconds, price.backward.compute_s * (1 - 1e-12));
    }
}

TEST(Pricing, MoreBandwidthNeverCosts) {
  CaseGenerator g(13);
  for (int i = 0; i < 40; ++i) {
    const ScheduleCase c = g.draw();
    double before = 0;
    for (const char* nic : {"100G", "200G", "400G", "800G"}) {
      const topology::Cluster cluster = topology::read_synthetic(
          "node:8 gpu:1(h100-sxm) nic:1(" + std::string(nic) + ") fabric:rail", "test");
      LinkPricer links(cluster, machine().calibration);
      AttentionPricer pricer(links, c.plan.shape, c.documents, {});
      const double seconds = pricer.price(c.plan, {}).seconds();
      if (before > 0) {
        ASSERT_LE(seconds, before * (1 + 1e-12)) << nic << " " << describe(c);
      }
      before = seconds;
    }
  }
}

}  // namespace
}  // namespace usp::test
