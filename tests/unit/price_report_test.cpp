// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/price_report.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace usp {
namespace {

struct Machine {
  explicit Machine(const std::string& name) {
    topology::ClusterRequest request;
    request.source = name;
    cluster = topology::compose(request);
    calibration = calibration_of(cluster);
  }
  topology::Cluster cluster;
  Calibration calibration;
};

AttentionCall call_of(int ring, int ulysses, int heads = 32, int kv_heads = 8, i64 tokens = 65536) {
  AttentionCall call;
  call.plan.shape = {1, tokens, tokens, heads, kv_heads, 128, 128, DType::bf16};
  call.plan.mesh = {1, ring, ulysses};
  call.plan.band = {0, unbounded};
  call.documents = Documents::single(tokens, tokens);
  return call;
}

TEST(PriceReport, TicksAndMovesSumUp) {
  for (const char* name : {"dgx-h100", "l40s"}) {
    const Machine machine(name);
    for (const int ulysses : {1, 2, 4, 8}) {
      const PriceReport report =
          price_call(machine.cluster, machine.calibration, call_of(8 / ulysses, ulysses));
      double seconds = 0;
      for (const PassReport& pass : report.passes) {
        double ticks = 0;
        for (const TickPrice& tick : pass.ticks) ticks += tick.total_s;
        EXPECT_NEAR(ticks, pass.price.seconds, 1e-9 * ticks) << name << " " << ulysses;
        seconds += pass.price.seconds;
        i64 total = 0;
        for (const TransferBytes& move : pass.transfers) total += move.total;
        EXPECT_EQ(total, pass.all.total);
      }
      EXPECT_NEAR(seconds, report.seconds, 1e-12);
    }
  }
}

/// What a price counts on the wire is what the ledger counts of the schedule, whichever way gradients return.
TEST(PriceReport, BytesOnTheWireAreThoseOfTheLedger) {
  const Machine machine("dgx-h100");
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv})
    for (const DkvReturn way : {DkvReturn::circulate, DkvReturn::direct, DkvReturn::cycle}) {
      AttentionCall call = call_of(4, 2);
      call.plan.method = method;
      call.plan.dkv_return = way;
      for (const PassReport& pass : price_call(machine.cluster, machine.calibration, call).passes)
        EXPECT_DOUBLE_EQ(pass.price.wire_bytes, static_cast<double>(pass.all.sent_max))
            << word_of(method) << " " << word_of(way);
    }
}

/// No rank waits between the blocks of a list: in one launch gates add nothing to kernels, also where each
/// block keeps another rank busiest.
TEST(PriceReport, ListsOfOneLaunchTakeWhatTheBusiestRankTakes) {
  Machine machine("h200");
  machine.calibration = calibration_of(machine.cluster, "h200_sxm-pair");
  std::vector<i64> cu_seqlens;
  for (i64 token = 0; token <= 65536; token += 8192) cu_seqlens.push_back(token);
  for (const bool packed : {false, true})
    for (const i64 window : {i64{8192}, unbounded})
      for (const Backend backend : {Backend::hopper, Backend::mma}) {
        AttentionCall call = call_of(8, 1);
        call.plan.method = Method::all_gather_kv;
        call.plan.layout = LayoutKind::zigzag;
        call.plan.backend = backend;
        call.plan.band = {0, window == unbounded ? unbounded : window - 1};
        if (packed) call.documents = Documents::packed(cu_seqlens);
        const PriceReport apart = price_call(machine.cluster, machine.calibration, call);
        call.plan.gated = true;
        const PriceReport gated = price_call(machine.cluster, machine.calibration, call);
        for (std::size_t i = 0; i < apart.passes.size(); ++i) {
          const double ratio = gated.passes[i].price.compute_s / apart.passes[i].price.compute_s;
          // One launch but for the time of a tick; a launch per block keeps its own loss.
          EXPECT_NEAR(ratio, 1, backend->waits_inside ? 0.02 : 0.15) << packed << " " << window << " " << i;
        }
      }
}

/// The planner cuts a gated forward pass in as many calls as take least time: one where nothing stalls.
TEST(PriceReport, ASearchTakesThePhasesOfTheLeastPrice) {
  Machine machine("h200");
  machine.calibration = calibration_of(machine.cluster, "h200_sxm-pair");
  AttentionRequest request;
  request.cluster = &machine.cluster;
  request.calibration = &machine.calibration;
  request.backend = Backend::hopper;
  request.fixed.ring = 8, request.fixed.ulysses = 1;
  request.fixed.gated = true;
  for (const auto& [heads, kv_heads, phases] : {std::tuple{32, 1, 1}, {16, 16, 3}}) {
    AttentionCall call = call_of(8, 1, heads, kv_heads);
    call.plan.method = Method::all_gather_kv;
    call.plan.backend = Backend::hopper;
    call.plan.gated = true;
    request.shape = call.plan.shape;
    request.documents = call.documents;
    request.band = call.plan.band;
    const AttentionCandidate best = plan_attention(request).best();
    EXPECT_EQ(best.plan.gate_phases, phases) << heads << "/" << kv_heads;
    for (call.plan.gate_phases = 1; call.plan.gate_phases <= 4; ++call.plan.gate_phases)
      EXPECT_GE(price_call(machine.cluster, machine.calibration, call).seconds, (1 - 0.005) * best.seconds());
  }
}

/// The backend and the layout that a search would give the same call.
TEST(PriceReport, DefaultsAreThoseOfASearch) {
  Machine machine("h200");
  machine.calibration = calibration_of(machine.cluster, "h200_sxm-pair");
  AttentionRequest request;
  request.cluster = &machine.cluster;
  request.calibration = &machine.calibration;
  for (const auto& [ring, ulysses] : {std::pair{1, 8}, {4, 2}})
    for (const double softcap : {0.0, 30.0})
      for (const bool causal : {true, false}) {
        AttentionCall call = call_of(ring, ulysses);
        call.plan.score.softcap = softcap;
        call.plan.band = causal ? Band{0, unbounded} : Band{};
        call.plan.layout = default_layout(call.plan.mesh, call.plan.band);
        call.plan.backend = fastest_backend(machine.cluster, machine.calibration, call);
        request.shape = call.plan.shape;
        request.documents = call.documents;
        request.band = call.plan.band;
        request.score = call.plan.score;
        request.fixed.ring = ring;
        request.fixed.ulysses = ulysses;
        request.fixed.head_chunks = 1;
        request.fixed.method = Method::ring;
        request.fixed.dkv_return = DkvReturn::circulate;
        if (ring > 1) request.fixed.layout = call.plan.layout;
        const AttentionCandidate best = plan_attention(request).best();
        EXPECT_EQ(best.plan.layout, call.plan.layout);
        EXPECT_EQ(best.plan.backend, call.plan.backend) << ring << " " << softcap << " " << causal;
      }
  EXPECT_EQ(default_layout({1, 4, 2}, {0, unbounded}), LayoutKind::zigzag);
}

TEST(PriceReport, APassThatIsLeftToAFallbackIsPricedAsThat) {
  Machine machine("h200");
  machine.calibration = calibration_of(machine.cluster, "h200_sxm-pair");
  AttentionCall call = call_of(1, 8);
  call.plan.score.alibi = true;
  const auto priced = [&](Backend backend) {
    call.plan.backend = backend;
    return price_call(machine.cluster, machine.calibration, call);
  };
  const PriceReport left = priced(Backend::hopper_cudnn), mma = priced(Backend::mma);
  EXPECT_EQ(left.passes[0].price.seconds, mma.passes[0].price.seconds);
  ASSERT_EQ(left.notes.size(), 2U);
  EXPECT_EQ(left.notes[1], "backend hopper_cudnn: backward is left to mma, and priced so");
  EXPECT_TRUE(mma.notes.empty());
}

// 4 x 128 FLOPs per visible pair and head, backward twice as many.
TEST(PriceReport, FlopsAreOfVisiblePairs) {
  const Machine machine("dgx-h100");
  AttentionCall call = call_of(2, 4);
  for (const i64 batch : {1, 3}) {
    call.plan.shape.batch = batch;
    const PriceReport report = price_call(machine.cluster, machine.calibration, call);
    const double pairs = 65536.0 * 65537 / 2 * static_cast<double>(batch);
    EXPECT_DOUBLE_EQ(report.passes[0].flops, 4 * 128 * 32 * pairs);
    EXPECT_DOUBLE_EQ(report.passes[1].flops, 2 * report.passes[0].flops);
    EXPECT_NEAR(report.flop_s, 3 * report.passes[0].flops / report.seconds / 8, 1);
    EXPECT_NEAR(*report.mfu, report.flop_s / 989e12, 1e-9);
  }
}

TEST(PriceReport, BytesOfAnEvenMeshAreTheClosedForms) {
  const Machine machine("dgx-h100");
  const PriceReport report = price_call(machine.cluster, machine.calibration, call_of(2, 4));
  // X = tokens/P * head_dim * 2 bytes; entry (U-1)/U X (H + 2G), hops 2 G X, exit (U-1)/U X H.
  const i64 x = 65536 / 8 * 128 * 2;
  const PassReport& forward = report.passes[0];
  ASSERT_EQ(forward.transfers.size(), 3U);
  EXPECT_EQ(forward.transfers[0].name, "qkv_all_to_all");
  EXPECT_EQ(forward.transfers[0].sent_max, 3 * x * (32 + 16) / 4);
  EXPECT_EQ(forward.transfers[1].name, "kv_exchange");
  EXPECT_EQ(forward.transfers[1].sent_max, 2 * 8 * x);
  EXPECT_EQ(forward.transfers[2].name, "out_all_to_all");
  EXPECT_EQ(forward.transfers[2].sent_max, 3 * x * 32 / 4);
  EXPECT_EQ(forward.all.total, 8 * forward.all.sent_max);
}

TEST(PriceReport, RefusesWithTheNearestDegrees) {
  const Machine machine("dgx-h100");
  const auto refusal = [&](const AttentionCall& call) {
    try {
      static_cast<void>(price_call(machine.cluster, machine.calibration, call));
    } catch (const Infeasible& error) {
      EXPECT_FALSE(error.remedies().empty());
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_NE(refusal(call_of(1, 8, 4, 4)).find("(2, 4)"), std::string::npos) << refusal(call_of(1, 8, 4, 4));
  EXPECT_NE(refusal(call_of(4096, 8)).find("devices"), std::string::npos);
  EXPECT_NE(refusal(call_of(2, 4, 9, 2)).find("KV heads"), std::string::npos);
  AttentionCall chunks = call_of(1, 8);
  chunks.plan.head_chunks = 5;
  EXPECT_NE(refusal(chunks).find("chunks"), std::string::npos);
  EXPECT_EQ(refusal(call_of(2, 4)), "none");
}

TEST(PriceReport, UnevenHeadsAreSaid) {
  const Machine machine("dgx-h100");
  const PriceReport report = price_call(machine.cluster, machine.calibration, call_of(1, 8, 28, 4));
  EXPECT_TRUE(report.uneven_heads);
  EXPECT_TRUE(std::any_of(report.notes.begin(), report.notes.end(),
                          [](const std::string& note) { return note.find("uneven heads: 28 query") == 0; }));
  AttentionCall forward = call_of(1, 8);
  forward.backward = false;
  EXPECT_EQ(price_call(machine.cluster, machine.calibration, forward).passes.size(), 1U);
}

/// A request names its cluster by the digest that the plan file holds.
TEST(PriceReport, RequestsHoldTheDigestOfTheCluster) {
  const Machine machine("dgx-h100");
  AttentionRequest request;
  request.cluster = &machine.cluster;
  request.calibration = &machine.calibration;
  request.shape = call_of(1, 8).plan.shape;
  request.documents = Documents::single(65536, 65536);
  const AttentionResult result = plan_attention(request);
  const std::string digest = make_plan_file(request, result.best()).cluster_digest;
  const auto digest_in = [](const std::string& text) {
    return parse_json(text, "report").at("request").at("cluster").at("digest").get<std::string>();
  };
  EXPECT_EQ(digest_in(attention_result_json(request, result)), digest);
  EXPECT_EQ(digest_in(price_json(price_call(machine.cluster, machine.calibration, call_of(1, 8)))), digest);

  topology::Cluster faster = machine.cluster;
  faster.links.front().gb_s.value = 2 * *faster.links.front().gb_s.value;
  EXPECT_NE(digest_in(price_json(price_call(faster, machine.calibration, call_of(1, 8)))), digest);
}

TEST(PriceReport, APricerForgetsNothingItShould) {
  // One pricer over many candidates gives what a fresh one gives for each.
  const Machine machine("dgx-h100");
  LinkPricer links(machine.cluster, machine.calibration);
  const AttentionShape shape{1, 65536, 65536, 12, 4, 128, 64, DType::bf16};
  const Documents documents = Documents::single(65536, 65536);
  AttentionPricer shared(links, shape, documents, {});
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv, Method::double_ring})
    for (const int ulysses : {1, 2, 4, 8, 3})
      for (const int chunks : {1, 2})
        for (const DkvReturn back : {DkvReturn::circulate, DkvReturn::direct})
          for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped})
            for (const bool prune : {false, true}) {
              AttentionPlan plan;
              plan.shape = shape;
              plan.band = {0, unbounded};
              const int ring = 8 / ulysses;
              plan.mesh = {1, ring, ulysses};
              plan.method = method;
              if (method == Method::double_ring && ring % 2 == 0) plan.mesh = {2, ring / 2, ulysses};
              plan.head_chunks = chunks * ulysses <= 12 ? chunks : 1;
              plan.dkv_return = back;
              plan.layout = layout;
              plan.prune = prune;
              AttentionPricer fresh(links, shape, documents, {});
              const AttentionPrice a = shared.price(plan, {}), b = fresh.price(plan, {});
              ASSERT_EQ(a.forward.seconds, b.forward.seconds);
              ASSERT_EQ(a.backward.seconds, b.backward.seconds);
              ASSERT_EQ(a.backward.wire_bytes, b.backward.wire_bytes);
            }
}

}  // namespace
}  // namespace usp
