// SPDX-License-Identifier: Apache-2.0
// The two forms of a schedule carry the same bytes, exactly, and cost the same time, to rounding.
#include "usp/planner/pricing.hpp"

#include "schedule_cases.hpp"

#include "usp/planner/cluster_calibration.hpp"
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

/// Eight H200 of one NVSwitch, with the kernels that `hopper` was measured to have.
const Machine& hopper_machine() {
  static const Machine m = [] {
    Machine made{topology::read_synthetic("node:1 nvswitch gpu:8(h200-sxm) nic:8(400G)", "test"), {}};
    made.calibration = calibration_of(made.cluster, "h200_sxm-pair");
    return made;
  }();
  return m;
}

AttentionPlan ring_of_8(int heads, int kv_heads) {
  AttentionPlan plan;
  plan.mesh = {1, 8, 1};
  plan.method = Method::all_gather_kv;
  plan.backend = Backend::hopper;
  plan.band = {0, unbounded};
  plan.shape = {1, 1 << 16, 1 << 16, heads, kv_heads, 128, 128, DType::bf16};
  return plan;
}

/// In one launch the first of W waves of tiles walks through all blocks of a list, and waits for the last: of
/// 8 blocks that arrive every a and take t each the stall is 7 (a - t / W), and less by what the calls before
/// a list compute.
TEST(Pricing, TheFirstWaveOfAListWaitsForItsLastBlock) {
  const std::vector<int> ends[] = {{8}, {1, 8}, {1, 3, 8}, {1, 2, 4, 8}};
  const Machine& m = hopper_machine();
  LinkPricer links(m.cluster, m.calibration);
  const KernelData& kernel = m.calibration.kernel_of(Backend::hopper).data();
  const double tick_s = m.calibration.beside(Transport::copy_engine).tick_s;
  for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {16, 16}}) {
    AttentionPlan plan = ring_of_8(heads, kv_heads);
    AttentionPricer pricer(links, plan.shape, Documents::single(1 << 16, 1 << 16), {});
    std::vector<TickPrice> apart, unused;
    (void)pricer.price(plan, {}, &apart, &unused);
    const double own = apart[1].compute_s - tick_s, each = apart[2].compute_s / 7,
                 arrival = apart[1].intra_node_s / 7, waves = heads * 64 / 132.0;
    ASSERT_GT(arrival, each / waves) << "something stalls";
    const double state = 8.0 * 8192 * heads * 128 / kernel.memory_bytes_s;
    plan.gated = true;
    double first_cut = 0, times[4];
    for (plan.gate_phases = 1; plan.gate_phases <= 4; ++plan.gate_phases) {
      const std::vector<int>& through = ends[plan.gate_phases - 1];
      std::vector<TickPrice> ticks;
      (void)pricer.price(plan, {}, &ticks, &unused);
      const double work = ticks[1].compute_s - tick_s, more = work - own - 7 * each;
      if (plan.gate_phases == 2) {
        EXPECT_NEAR(more, state, 1e-6 * state);
      }
      if (plan.gate_phases == 3) first_cut = more - 2 * state;
      EXPECT_GE(first_cut, 0);
      EXPECT_LT(first_cut, state) << "a launch is short";
      double least = 0, before = 0;
      for (std::size_t phase = 0, block = 0; phase < through.size(); ++phase) {
        if (phase > 0) before += state + (phase > 1 ? first_cut : 0);
        const double begin = before;
        for (; block < static_cast<std::size_t>(through[phase]); ++block) {
          const double gone = begin + (before - begin) / waves;
          least = std::max(least, static_cast<double>(block) * arrival + work - gone);
          before += block == 0 ? own : each;
        }
      }
      if (plan.gate_phases == 1) {
        EXPECT_NEAR(least - work, 7 * arrival - (own + 6 * each) / waves, 1e-9 * work) << "7 (a - t / W)";
      }
      const double busy =
          ticks[1].compute_s +
          m.calibration.beside(Transport::copy_engine).added_seconds(ticks[1].compute_s, 7 * arrival);
      EXPECT_NEAR(ticks[1].total_s, std::max(least, busy), 1e-9 * busy)
          << heads << " heads in " << plan.gate_phases;
      times[plan.gate_phases - 1] = ticks[1].total_s;
    }
    EXPECT_LT(times[1], times[0]);
    EXPECT_EQ(times[2] < times[1], heads == 16) << "two phases suffice where keys are few";
  }
}

/// Blocks of a list that is cut cost as much in both forms, also where ranks see some of them only.
TEST(Pricing, CompactEqualsExplicitInPhases) {
  const Machine& m = hopper_machine();
  LinkPricer links(m.cluster, m.calibration);
  for (const bool packed : {false, true})
    for (const int phases : {1, 2, 3, 4}) {
      ScheduleCase c{ring_of_8(8, 8), Documents::single(4096, 4096)};
      c.plan.shape.q_tokens = c.plan.shape.kv_tokens = 4096;
      if (packed) c.documents = Documents::packed({0, 700, 701, 3000, 4096});
      c.plan.prune = packed;
      c.plan.gated = true;
      c.plan.gate_phases = phases;
      check(c, {}, links);
      if (HasFatalFailure()) return;
    }
}

/// Where transfers have no gates a call runs behind all of them, but for that of the own block.
TEST(Pricing, TheFirstOfSeveralPhasesRunsBesideTransfersWithoutGates) {
  const topology::Cluster cluster =
      topology::read_synthetic("node:4 gpu:1(h100-sxm) nic:1(25G) fabric:rail", "test");
  LinkPricer links(cluster, machine().calibration);
  AttentionPlan plan;
  plan.mesh = {1, 4, 1};
  plan.method = Method::all_gather_kv;
  plan.shape = {1, 1 << 15, 1 << 15, 16, 16, 128, 128, DType::bf16};
  AttentionPricer pricer(links, plan.shape, Documents::single(1 << 15, 1 << 15), {});
  std::vector<TickPrice> apart, one, two, three, unused;
  (void)pricer.price(plan, {}, &apart, &unused);
  plan.gated = true;
  for (std::vector<TickPrice>* ticks : {&one, &two, &three}) {
    (void)pricer.price(plan, {}, ticks, &unused);
    ++plan.gate_phases;
  }
  const double flight = one[1].inter_node_s;
  EXPECT_NEAR(one[1].total_s, flight + one[1].compute_s, 1e-9 * flight);
  EXPECT_NEAR(two[1].total_s, flight + one[1].compute_s - apart[1].compute_s, 1e-3 * flight);
  EXPECT_EQ(three[1].total_s, two[1].total_s);
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
