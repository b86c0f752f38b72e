// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/detail/axes.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/synthetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace usp {
namespace {

/// A call on threads; the request points into this.
struct Call {
  topology::Cluster cluster;
  Calibration calibration;
  AttentionRequest request;

  Call(int ranks, int query_heads, int kv_heads, i64 tokens)
      : cluster(thread_cluster(ranks)), calibration(uncalibrated(data_sheet_of(cluster))) {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.shape = {1, tokens, tokens, query_heads, kv_heads, 64, 64, DType::bf16};
    request.documents = Documents::single(tokens, tokens);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Call& mesh(int ring, int ulysses) {
    request.fixed.ring = ring;
    request.fixed.ulysses = ulysses;
    return *this;
  }
};

struct Step {
  topology::Cluster cluster =
      topology::read_synthetic("node:2 nvswitch gpu:8(h100) nic:8(400G) fabric:rail", "test");
  Calibration calibration = calibration_of(cluster);
  Model model = load_model("llama-3.1-8b");
  PlanRequest request;

  Step() {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 65536;
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
};

std::vector<int> even_degrees(int query_heads, int kv_heads) {
  std::vector<int> list;
  for (int u = 1; u <= query_heads; ++u)
    if (even_degree(query_heads, kv_heads, u)) list.push_back(u);
  return list;
}

std::vector<i64> query_splits(int query_heads, int ulysses) {
  const Heads heads(query_heads, query_heads, ulysses, 1);
  std::vector<i64> sizes;
  for (int u = 0; u < ulysses; ++u) sizes.push_back(heads.query_of(u).size());
  return sizes;
}

TEST(Degrees, B035EvenDegreesOf40And8) {
  EXPECT_EQ(even_degrees(40, 8), (std::vector<int>{1, 2, 4, 8, 40}));
  Call call(16, 40, 8, 4096);
  const AttentionResult result = plan_attention(call.request);
  EXPECT_FALSE(result.best().uneven_heads);
  EXPECT_TRUE(result.rejected.empty());
  Call uneven(16, 40, 8, 4096);
  EXPECT_TRUE(plan_attention(uneven.mesh(1, 16).request).best().uneven_heads);
}

TEST(Degrees, B037FewerKvHeadsThanRanks) {
  const Heads heads(32, 2, 8, 1);
  for (int u = 0; u < 8; ++u) {
    EXPECT_EQ(heads.query_of(u), (Range{4 * u, 4 * u + 4}));
    EXPECT_EQ(heads.kv_of(u), (Range{2 * u / 8, 2 * u / 8 + 1}));
  }
  EXPECT_TRUE(heads.shared_kv());
  // Every KV head goes to 4 ranks: 8 ranks each attend one head of all tokens, though there are only 2.
  Call shared(8, 32, 2, 4096), plenty(8, 32, 8, 4096);
  const PlanFile few = make_plan_file(shared.request, plan_attention(shared.mesh(1, 8).request).best());
  const PlanFile many = make_plan_file(plenty.request, plan_attention(plenty.mesh(1, 8).request).best());
  EXPECT_EQ(few.layers.front().forward.sent_bytes, many.layers.front().forward.sent_bytes);
}

TEST(Degrees, B038UnevenSplits) {
  EXPECT_EQ(query_splits(7, 4), (std::vector<i64>{2, 2, 2, 1}));
  EXPECT_EQ(query_splits(20, 8), (std::vector<i64>{3, 3, 3, 3, 2, 2, 2, 2}));
  // 3 heads on the fullest rank instead of 2.5: kernels take longer than an even split of the same work.
  Call uneven(8, 20, 20, 32768), even(8, 24, 24, 32768);
  const double three = plan_attention(uneven.mesh(1, 8).request).best().price.forward.compute_s;
  EXPECT_NEAR(three / plan_attention(even.mesh(1, 8).request).best().price.forward.compute_s, 1.0, 0.01);
}

TEST(Layout, B040EveryTokenHasOnePlace) {
  Call call(8, 24, 24, 57826);
  call.request.band = {};
  const PlanFile plan = make_plan_file(call.request, plan_attention(call.mesh(1, 8).request).best());
  const Json json = parse_json(explain_json(plan, {}), "explain");
  std::vector<char> seen(57826, 0);
  for (const Json& rank : json.at("ranks"))
    for (const Json& run : rank.at("tokens"))
      for (i64 i = 0; i < run.at("count").get<i64>(); ++i)
        ++seen.at(static_cast<std::size_t>(run.at("first").get<i64>() + i * run.at("step").get<i64>()));
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 57826);
}

TEST(Layout, B044RanksWithTwoReplicas) {
  const Mesh mesh{1, 2, 2};
  Placement placement;
  placement.data = 2;
  EXPECT_EQ(world_devices(mesh, placement), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  const topology::Cluster cluster = thread_cluster(8);
  const auto axes = axes_of(cluster, mesh, placement, 1, Transport::copy_engine);
  ASSERT_EQ(axes.size(), 3U);
  EXPECT_EQ(axes[0].groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(axes[1].groups, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(axes[2].groups, (std::vector<std::vector<int>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  placement.order = AxisOrder::ring_inner;
  EXPECT_EQ(world_devices(mesh, placement), (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
}

TEST(Degrees, B045ProductMustEqualTheWorld) {
  Call call(8, 8, 8, 4096);
  EXPECT_EQ(plan_attention(call.mesh(1, 4).request).notes,
            (std::vector<std::string>{"the first 4 of 8 devices are used, the others idle",
                                      priced_devices_note(call.request)}));
  call.request.all_devices = true;  // the ranks of a launch
  try {
    (void)plan_attention(call.request);
    FAIL();
  } catch (const Infeasible& error) {
    EXPECT_NE(std::string(error.what()).find("--data 2"), std::string::npos) << error.what();
  }
  Step step;
  step.request.fixed.ring = 1;
  step.request.fixed.ulysses = 4;
  EXPECT_NO_THROW(check_degrees(step.request));
  step.request.fixed.data = step.request.fixed.tensor = 1;
  EXPECT_THROW(check_degrees(step.request), Infeasible);
  step.request.fixed.data = 4;
  EXPECT_NO_THROW(check_degrees(step.request));
  step.request.fixed.ulysses = 3;
  step.request.fixed.data = std::nullopt;
  EXPECT_THROW(check_degrees(step.request), Infeasible);
}

TEST(Bytes, B048RingSendsKvHeadsOnly) {
  Call call(4, 32, 8, 4096);
  call.request.fixed.method = Method::ring;
  call.request.fixed.layout = LayoutKind::zigzag;
  const PlanFile plan = make_plan_file(call.request, plan_attention(call.mesh(4, 1).request).best());
  // Three hops of 1024 tokens, keys and values of 8 heads of 64 elements in 2 bytes; not of 32 heads.
  EXPECT_EQ(plan.layers.front().forward.sent_bytes, 3 * 1024 * 2 * 8 * 64 * 2);
}

TEST(Degrees, B049FewerTokensThanRanks) {
  Call call(4, 8, 8, 3);
  EXPECT_THROW((void)plan_attention(call.request), Infeasible);
}

TEST(PlanFile, RoundTripIsExact) {
  Call call(6, 28, 4, 4096);
  const PlanFile plan = make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best());
  const std::string text = write_plan(plan);
  EXPECT_EQ(write_plan(read_plan(text, "plan")), text);
  EXPECT_LT(text.size(), 8192U);
  EXPECT_GT(plan.layers.front().backward.workspace_bytes, 0);

  Step step;
  step.request.workload.documents = {40000, 25536};
  const PlanResult result = plan_step(step.request);
  const std::string whole = write_plan(make_plan_file(step.request, result.best()));
  EXPECT_EQ(write_plan(read_plan(whole, "plan")), whole);
}

TEST(PlanFile, EchoesItsInputs) {
  Step step;
  PlanRequest& request = step.request;
  request.workload.batch = 4;
  request.workload.microbatches = 2;
  request.workload.optimizer = Optimizer::sgd;
  request.fixed.ulysses = 8;
  request.fixed.layout = LayoutKind::zigzag;
  request.memory.mlp_tile_tokens = 4096;
  request.memory.device_bytes = 7.5e10;
  request.execution.overlap = false;
  const PlanFile plan = read_plan(write_plan(make_plan_file(request, plan_step(request).best())), "plan");
  EXPECT_EQ(plan.inputs.fixed.ulysses, 8);
  EXPECT_EQ(plan.inputs.fixed.layout, LayoutKind::zigzag);
  EXPECT_EQ(plan.inputs.fixed.ring, std::nullopt);
  EXPECT_FALSE(plan.inputs.execution.overlap);
  ASSERT_TRUE(plan.inputs.step);
  EXPECT_EQ(plan.inputs.step->batch, 4);
  EXPECT_EQ(plan.inputs.step->microbatches, 2);
  EXPECT_EQ(plan.inputs.step->optimizer, Optimizer::sgd);
  EXPECT_EQ(plan.inputs.step->memory.mlp_tile_tokens, 4096);
  EXPECT_EQ(plan.inputs.step->memory.device_bytes, 7.5e10);

  Call call(6, 28, 4, 4096);
  const PlanFile one = make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best());
  EXPECT_EQ(one.inputs.step, std::nullopt);
  EXPECT_EQ(one.inputs.fixed.ring, 3);
}

/// The planner never chooses gates by itself, and a plan file keeps those that were asked for.
TEST(PlanFile, HoldsGates) {
  Call call(6, 28, 4, 4096);
  EXPECT_FALSE(plan_attention(call.mesh(3, 2).request).best().plan.gated);
  call.request.fixed.gated = true;
  const PlanFile file = make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best());
  EXPECT_TRUE(file.layers.front().plan.gated);
  EXPECT_EQ(file.layers.front().plan.method, Method::all_gather_kv);
  const PlanFile read = read_plan(write_plan(file), "plan");
  EXPECT_TRUE(read.layers.front().plan.gated);
  EXPECT_TRUE(read.inputs.fixed.gated);
  EXPECT_EQ(read.inputs.fixed.gate_phases, std::nullopt);
  EXPECT_EQ(write_plan(file).find("gate_phases"), std::string::npos) << "one phase is the default";
  call.request.fixed.gate_phases = 3;
  const PlanFile cut = read_plan(
      write_plan(make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best())), "plan");
  EXPECT_EQ(cut.layers.front().plan.gate_phases, 3);
  EXPECT_EQ(cut.inputs.fixed.gate_phases, 3);
  call.request.fixed.gate_phases = 4;
  EXPECT_THROW((void)plan_attention(call.mesh(3, 2).request), Infeasible);
  call.request.fixed.gate_phases.reset();
  call.request.fixed.method = Method::ring;
  EXPECT_THROW((void)plan_attention(call.mesh(3, 2).request), Error);
}

TEST(PlanFile, EveryChangeIsRefused) {
  Call call(6, 28, 4, 4096);
  const std::string text =
      write_plan(make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best()));
  const auto changed = [&](const char* pointer, Json value) {
    Json json = Json::parse(text);
    json[Json::json_pointer(pointer)] = std::move(value);
    return json.dump();
  };
  EXPECT_NO_THROW((void)read_plan(Json::parse(text).dump(), "plan"));
  const std::pair<const char*, Json> changes[] = {{"/layers/0/layout", "contiguous"},
                                                  {"/layers/0/band/diff_max", 5},
                                                  {"/layers/0/prune", true},
                                                  {"/prediction/step_s", 1.0},
                                                  {"/digests/model", "0"},
                                                  {"/transports/ring", "nccl"},
                                                  {"/layers/0/dkv_return", "cycle"},
                                                  {"/overlap", false},
                                                  {"/placement/order", "sideways"},
                                                  {"/mesh/ulysses", 3},
                                                  {"/capacity/tokens", 4097},
                                                  {"/layers/0/shape/kv_heads", 3},
                                                  {"/placement/devices", {0, 1, 2, 3}},
                                                  {"/documents", {1, 2}},
                                                  {"/unknown", 1},
                                                  {"/version", 1},
                                                  {"/inputs/fixed/ring", 5},
                                                  {"/inputs/execution/packed", false},
                                                  {"/inputs/all_devices", 1},
                                                  {"/inputs/fixed/unknown", 1},
                                                  {"/inputs/fixed/gate_phases", 3},
                                                  {"/digest", "0123456789abcdef"},
                                                  {"/layers/0/shape/query_heads", 1e300}};
  for (const auto& [pointer, value] : changes)
    EXPECT_THROW((void)read_plan(changed(pointer, value), "plan"), InvalidInput) << pointer;
  for (std::size_t cut = 0; cut < text.size() - 2; cut += 97)
    EXPECT_THROW((void)read_plan(text.substr(0, cut), "plan"), InvalidInput) << cut;
}

TEST(PlanFile, ExplicitScheduleSendsThePredictedBytes) {
  Call call(6, 28, 4, 4096);
  const PlanFile plan = make_plan_file(call.request, plan_attention(call.mesh(3, 2).request).best());
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    i64 most = 0;
    for (int rank = 0; rank < 6; ++rank) {
      ExplainRequest request;
      request.rank = rank;
      request.pass = pass;
      const Json schedule = parse_json(explain_json(plan, request), "explain").at("schedule");
      most = std::max(most, schedule.at("sent_bytes").get<i64>());
    }
    const PlanLayer& layer = plan.layers.front();
    EXPECT_EQ(most, (pass == Pass::forward ? layer.forward : layer.backward).sent_bytes);
  }
}

TEST(PlanText, SumsAndLabels) {
  Step step;
  const PlanResult result = plan_step(step.request);
  const std::string text = plan_text(step.request, result);
  EXPECT_EQ(text.find("uncalibrated"), std::string::npos);
  const Json json = parse_json(plan_result_json(step.request, result), "plan");
  double time = 0;
  for (const Json& term : json.at("best").at("terms")) time += term.at("time_s").get<double>();
  EXPECT_NEAR(time, json.at("best").at("time_s").get<double>(), 1e-6 * time);
  i64 bytes = 0;
  for (const Json& row : json.at("best").at("memory").at("rows")) bytes += row.at("bytes").get<i64>();
  EXPECT_EQ(bytes, json.at("best").at("memory").at("total_bytes").get<i64>());
  std::vector<int> placement = json.at("best").at("placement").get<std::vector<int>>();
  std::sort(placement.begin(), placement.end());
  std::vector<int> all(16);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(placement, all);

  step.calibration = uncalibrated(data_sheet_of(step.cluster));
  EXPECT_NE(plan_text(step.request, plan_step(step.request)).find("(uncalibrated)"), std::string::npos);
}

TEST(Axes, SayWhatCrossesTheNetwork) {
  const Step step;
  const auto inner = axes_of(step.cluster, {1, 2, 8}, {}, 1, Transport::copy_engine);
  EXPECT_FALSE(inner[0].spans_hosts);
  EXPECT_TRUE(inner[1].spans_hosts);
  EXPECT_EQ(inner[1].transport, Transport::nccl);
  Placement outer;
  outer.order = AxisOrder::ring_inner;
  EXPECT_TRUE(axes_of(step.cluster, {1, 2, 8}, outer, 1, Transport::copy_engine)[0].spans_hosts);
  EXPECT_EQ(rank_list({0, 8, 16, 24, 32}), "0-32 by 8");
  EXPECT_EQ(rank_list({0, 1, 2}), "0-2");
}

}  // namespace
}  // namespace usp
