// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/compare.hpp"
#include "usp/planner/export_plan.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan_within.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace usp {
namespace {

FrameworkCase job_of(i64 query, i64 kv, i64 seq) {
  FrameworkCase job;
  job.seq = seq;
  job.layers = {{query, kv, false, false, false, false}};
  return job;
}

const ExchangeMode& mode_named(const FrameworkTraits& framework, std::string_view word) {
  return *std::find_if(framework.modes.begin(), framework.modes.end(),
                       [&](const ExchangeMode& mode) { return mode.word == word; });
}

const FrameworkTraits& of(const char* word) {
  return framework_named(word, "--to");
}

TEST(Framework, RecordsNameVersionAndSource) {
  std::set<std::string_view> words;
  for (const FrameworkTraits* framework : frameworks()) {
    EXPECT_TRUE(words.insert(framework->word).second);
    EXPECT_FALSE(framework->version.empty());
    EXPECT_FALSE(framework->source.empty());
    EXPECT_NE(framework->write, nullptr);
    EXPECT_TRUE(framework->any_plan || !framework->modes.empty()) << framework->word;
  }
  EXPECT_THROW(static_cast<void>(framework_named("megatrn", "--to")), UsageError);
}

TEST(Framework, A2aNeedsDividedKvHeadsUlyssesOfDeepSpeedRepeatsThem) {
  const FrameworkCase llama = job_of(32, 8, 1 << 17);
  const ExchangeMode& a2a = mode_named(of("megatron"), "a2a");
  const ExchangeMode& ulysses = mode_named(of("deepspeed"), "ulysses");
  EXPECT_EQ(unsupported_mode(of("megatron"), a2a, llama, 1, 8), "");
  EXPECT_NE(unsupported_mode(of("megatron"), a2a, llama, 1, 16), "");
  EXPECT_EQ(unsupported_mode(of("deepspeed"), ulysses, llama, 1, 16), "");
  EXPECT_NE(unsupported_mode(of("deepspeed"), ulysses, job_of(28, 4, 1 << 17), 1, 8), "") << "28 heads on 8";
  AttentionPlan base;
  base.shape.kv_heads = 8;
  EXPECT_EQ(mode_plan(ulysses, base, 1, 16).shape.kv_heads, 16);
  EXPECT_EQ(mode_plan(a2a, base, 1, 4).shape.kv_heads, 8);
}

TEST(Framework, LimitsOfModes) {
  const FrameworkTraits& megatron = of("megatron");
  const ExchangeMode& p2p = mode_named(megatron, "p2p");
  const FrameworkTraits& accelerate = of("accelerate");
  const ExchangeMode& both = mode_named(megatron, "a2a+p2p");
  EXPECT_NE(unsupported_mode(megatron, both, job_of(32, 8, 1 << 17), 1, 8), "") << "one axis alone";
  EXPECT_EQ(unsupported_mode(megatron, both, job_of(32, 8, 1 << 17), 2, 8), "");
  EXPECT_NE(unsupported_mode(megatron, p2p, job_of(32, 8, 1000), 8, 1), "") << "1000 is no multiple of 16";
  EXPECT_EQ(unsupported_mode(megatron, p2p, job_of(32, 8, 1008), 8, 1), "");
  FrameworkCase tensor = job_of(16, 4, 1 << 17);
  tensor.tensor = 2;
  EXPECT_NE(unsupported_mode(accelerate, mode_named(accelerate, "deepspeed"), tensor, 1, 4), "");
  EXPECT_EQ(unsupported_mode(accelerate, mode_named(accelerate, "alltoall"), tensor, 4, 1), "");
  FrameworkCase window = job_of(32, 8, 1 << 17);
  window.layers.front().window = true;
  EXPECT_NE(unsupported_mode(megatron, p2p, window, 8, 1), "");
  EXPECT_EQ(unsupported_mode(megatron, mode_named(megatron, "all_gather"), window, 8, 1), "");
}

TEST(Framework, LimitsOfJobs) {
  FrameworkCase job = job_of(32, 8, 1 << 17);
  EXPECT_NE(unsupported_job(of("xdit"), job), "");
  job.training = job.causal = false;
  EXPECT_EQ(unsupported_job(of("xdit"), job), "");
  job.tensor = 2;
  EXPECT_NE(unsupported_job(of("deepspeed"), job), "");
  EXPECT_EQ(unsupported_job(of("megatron"), job), "");
  job.kv_heads = 8, job.tensor = 16;
  EXPECT_NE(unsupported_job(of("torchtitan"), job), "");
}

/// A plan of Llama-3.1-8B on two hosts, with its cluster.
struct Planned {
  topology::Cluster cluster;
  Calibration calibration;
  Model model = load_model("llama-3.1-8b");
  PlanRequest request;
  PlanFile plan;

  explicit Planned(int ring, int ulysses) {
    topology::ClusterRequest source;
    source.source = "dgx-h100";
    source.nodes = 2;
    cluster = topology::compose(source);
    calibration = calibration_of(cluster);
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 1 << 18;
    request.fixed.ring = ring;
    request.fixed.ulysses = ulysses;
    request.fixed.data = request.fixed.tensor = 1;
    plan = make_plan_file(request, plan_step(request).best());
  }
  [[nodiscard]] ExportedPlan to(const char* word) const {
    ExportRequest asked;
    asked.plan = &plan;
    asked.framework = &of(word);
    asked.cluster = &cluster;
    asked.calibration = &calibration;
    return export_plan(asked);
  }
};

TEST(ExportPlan, KeepsThePlansMeshWhereTheFrameworkHasIt) {
  const Planned planned(2, 8);
  const ExportedPlan megatron = planned.to("megatron");
  EXPECT_TRUE(megatron.same_exchange);
  EXPECT_EQ(megatron.chosen.mode->word, "a2a+p2p");
  EXPECT_EQ(megatron.chosen.ulysses, 8);
  const auto sizes = std::find_if(megatron.arguments.begin(), megatron.arguments.end(), [](const Setting& s) {
    return s.name == "--hierarchical-context-parallel-sizes";
  });
  ASSERT_NE(sizes, megatron.arguments.end());
  EXPECT_EQ(sizes->value, "8 2") << "the a2a group first";
  EXPECT_GE(*megatron.chosen.attention_s, megatron.plan_attention_s * 0.999) << "NCCL is no faster";
}

TEST(ExportPlan, TakesTheFastestElse) {
  const ExportedPlan titan = Planned(2, 8).to("torchtitan");
  EXPECT_FALSE(titan.same_exchange);
  EXPECT_EQ(titan.chosen.ring, 16);
  EXPECT_GT(*titan.chosen.attention_s, titan.plan_attention_s);
  for (const PricedMode& mode : titan.modes) EXPECT_GE(*mode.attention_s, *titan.chosen.attention_s);
  const auto moved = std::find_if(titan.differences.begin(), titan.differences.end(),
                                  [](const Difference& d) { return d.plan == "ring 2 x ulysses 8"; });
  EXPECT_NE(moved, titan.differences.end());
}

TEST(ExportPlan, TextNamesWhatIsImpossibleAsJsonDoes) {
  const Planned planned(16, 1);
  ExportRequest asked;
  asked.plan = &planned.plan;
  ExportedPlan exported = planned.to("megatron");
  exported.impossible = {"ulysses: 32 ranks are more than its 8 heads"};
  for (const bool some : {true, false}) {
    if (!some) exported.modes.clear();
    EXPECT_NE(export_text(asked, exported).find(exported.impossible.front()), std::string::npos) << some;
    EXPECT_NE(export_json(asked, exported).find(exported.impossible.front()), std::string::npos) << some;
  }
}

TEST(ExportPlan, FindsTheShippedClusterByItsDigest) {
  const Planned planned(2, 8);
  const auto found = cluster_of_plan(planned.plan);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->devices.size(), 16U);
  PlanFile other = planned.plan;
  other.cluster_digest = "0";
  EXPECT_FALSE(cluster_of_plan(other).has_value());
}

/// Ulysses 8 x ring 2 on two hosts: the all-to-alls stay inside, every hop crosses.
TEST(LinkBytes, FollowTheAxes) {
  const Planned planned(2, 8);
  const PlanLayer& layer = planned.plan.layers.front();
  const Documents documents = layer_documents(layer, {});
  const auto bytes = [&](AxisOrder order) {
    Placement placement;
    placement.order = order;
    return link_bytes(planned.cluster, layer.plan, documents, placement, Pass::forward);
  };
  const double tokens = (1 << 18) / 16.0, head = 128 * 2;
  const double exchanged = tokens * head * (32 + 8 + 8 + 32) * 7 / 8;  // q, k, v and o to 7 of 8 ranks
  const double hop = (1 << 18) / 2.0 * head * 2;                       // k and v of one head, once
  EXPECT_DOUBLE_EQ(bytes(AxisOrder::ulysses_inner).inside, exchanged);
  EXPECT_DOUBLE_EQ(bytes(AxisOrder::ulysses_inner).nics, hop);
  EXPECT_DOUBLE_EQ(bytes(AxisOrder::ring_inner).inside, hop + exchanged * 3 / 7);
  EXPECT_DOUBLE_EQ(bytes(AxisOrder::ring_inner).nics, exchanged * 4 / 7);
}

TEST(Compare, OwnWaysAreNoFasterThanTheBestOfThem) {
  const Planned planned(2, 8);
  PlanRequest request = planned.request;
  request.fixed = {};
  const Comparison result = compare_ways(request);
  ASSERT_TRUE(result.ways.front().plan.has_value());
  const double best = result.ways.front().plan->seconds_per_token;
  for (const ComparedWay& way : result.ways) {
    EXPECT_EQ(way.plan.has_value(), way.impossible_reason.empty()) << way.name;
    if (!way.plan || way.plan->choice.data() > 1) continue;
    EXPECT_GE(way.plan->seconds_per_token, best * 0.999) << way.name;
  }
}

TEST(PlanWithin, EveryCandidateIsPossibleInTheFramework) {
  const Planned planned(2, 8);
  PlanRequest request = planned.request;
  request.fixed = {};
  for (const FrameworkTraits* framework : frameworks()) {
    if (!framework->training || framework->any_plan) continue;
    const FrameworkPlan plan = plan_within(request, *framework);
    for (const PlanCandidate& c : plan.result.candidates) {
      const int ring = c.choice.mesh.ring(), ulysses = c.choice.mesh.ulysses;
      const FrameworkCase job = framework_case(request, c.choice.tensor());
      const bool possible =
          ring * ulysses == 1 ||
          std::any_of(framework->modes.begin(), framework->modes.end(), [&](const ExchangeMode& mode) {
            return unsupported_mode(*framework, mode, job, ring, ulysses).empty() &&
                   (ring == 1 || mode.method == c.choice.method);
          });
      EXPECT_TRUE(possible) << framework->word << ": " << describe(c.choice);
      EXPECT_TRUE(c.choice.head_chunks == 1 && !c.choice.method->two_level_ring) << framework->word;
      EXPECT_NE(std::find(framework->zero_stages.begin(), framework->zero_stages.end(), c.choice.zero_stage),
                framework->zero_stages.end());
    }
    EXPECT_GE(plan.result.best().seconds_per_token, plan_step(request).best().seconds_per_token * 0.999);
  }
}

/// Where Ulysses ranks are a multiple of the KV heads, a head goes to each rank that attends it, repeated
/// before the exchange or not. Partial gradients come home in fp32 where they are summed, and in the input
/// type where each repeated head has one contributor.
TEST(PlanWithin, ListsALayoutOnce) {
  const Planned planned(2, 8);
  PlanRequest request = planned.request;
  request.fixed = {};
  request.memory.device_bytes = 0x1p39;  // replicas of one rank each fit, which every mode makes
  std::set<std::string> listed;
  const FrameworkPlan plan = plan_within(request, of("megatron"));
  for (const PlanCandidate& c : plan.result.candidates)
    EXPECT_TRUE(listed.insert(describe(c.choice)).second) << describe(c.choice);
}

TEST(PlanWithin, RepeatedKvHeadsTravelAsOftenAsTheyAreNeeded) {
  const Planned planned(1, 16);
  const AttentionPrice repeated =
      plan_within(planned.request, of("deepspeed")).result.best().attention.front().price;
  PlanRequest sent_once = planned.request;
  sent_once.execution = mode_execution(of("deepspeed").modes.front());
  sent_once.fixed.head_chunks = 1;
  const AttentionPrice once = plan_step(sent_once).best().attention.front().price;
  EXPECT_EQ(repeated.forward.wire_bytes, once.forward.wire_bytes);
  EXPECT_LT(repeated.backward.wire_bytes, once.backward.wire_bytes);
}

TEST(PlanWithin, RefusesWhatTheFlagsFixAndTheFrameworkHasNot) {
  const Planned planned(2, 8);
  EXPECT_THROW(static_cast<void>(plan_within(planned.request, of("deepspeed"))), Infeasible) << "a ring";
  PlanRequest stage = planned.request;
  stage.fixed.zero_stage = 1;
  EXPECT_THROW(static_cast<void>(plan_within(stage, of("accelerate"))), Infeasible);
}

TEST(ExportPlan, RefusesWhatNoModeCanDo) {
  Planned planned(2, 8);
  planned.plan.capacity_tokens = 1001;
  EXPECT_THROW(static_cast<void>(planned.to("megatron")), Infeasible);
}

ExportedPlan exported(const PlanFile& plan, const char* word) {
  ExportRequest asked;
  asked.plan = &plan;
  asked.framework = &of(word);
  return export_plan(asked);
}

/// "" of a switch; empty where it is not set.
std::optional<std::string> value_of(const ExportedPlan& result, std::string_view name) {
  for (const Setting& s : result.arguments)
    if (s.name == name) return s.value;
  return std::nullopt;
}

bool has_difference(const ExportedPlan& result, const std::string& plan) {
  return std::any_of(result.differences.begin(), result.differences.end(),
                     [&](const Difference& d) { return d.plan == plan; });
}

/// 32 layers over 4 stages of 2 chunks, with every decision of a step that is not the default.
PlanFile decided_step() {
  PlanFile plan = Planned(2, 8).plan;
  plan.pipeline = 4;
  plan.placement.tensor = 2;
  plan.recompute = Recompute::full;
  StepWorkload& step = *plan.inputs.step;
  step.virtual_stages = 2;
  step.expert = 2;
  step.expert_tensor = step.sequence_parallel = false;
  step.recompute_layers = 16;
  return plan;
}

TEST(ExportPlan, PlanFilesHoldTheDecisionsOfAStep) {
  const PlanFile plan = decided_step();
  const PlanFile read = read_plan(write_plan(plan), "plan.json");
  EXPECT_EQ(plan_digest(read), plan_digest(plan));
  EXPECT_EQ(read.inputs.step->virtual_stages, 2);
  EXPECT_FALSE(read.inputs.step->expert_tensor);
  EXPECT_FALSE(read.inputs.step->sequence_parallel);
  EXPECT_EQ(read.inputs.step->recompute_layers, 16);
  PlanFile standard = plan;
  standard.inputs.step = StepWorkload{};
  const std::string text = write_plan(standard);
  for (const char* key : {"virtual_stages", "expert_tensor", "sequence_parallel", "recompute_layers"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
  EXPECT_TRUE(read_plan(text, "plan.json").inputs.step->sequence_parallel);
}

TEST(ExportPlan, MegatronHasTheDecisionsOfAStep) {
  PlanFile plan = decided_step();
  const ExportedPlan result = exported(plan, "megatron");
  EXPECT_EQ(value_of(result, "--num-virtual-stages-per-pipeline-rank"), "2");
  EXPECT_EQ(value_of(result, "--recompute-method"), "block");
  EXPECT_EQ(value_of(result, "--recompute-num-layers"), "2") << "of 4 layers of a chunk";
  EXPECT_EQ(value_of(result, "--expert-tensor-parallel-size"), "1");
  EXPECT_EQ(value_of(result, "--sequence-parallel"), std::nullopt);
  EXPECT_EQ(value_of(result, "--grad-reduce-in-bf16"), "");
  plan.inputs.step->recompute_layers = 20;
  EXPECT_EQ(value_of(exported(plan, "megatron"), "--recompute-num-layers"), "3");
  EXPECT_TRUE(has_difference(exported(plan, "megatron"), "20 layers recompute")) << "24 do";
  plan.inputs.step = StepWorkload{};
  plan.inputs.step->fp32_gradients = true;
  const ExportedPlan standard = exported(plan, "megatron");
  EXPECT_EQ(value_of(standard, "--num-virtual-stages-per-pipeline-rank"), std::nullopt);
  EXPECT_EQ(value_of(standard, "--recompute-method"), "uniform");
  EXPECT_EQ(value_of(standard, "--expert-tensor-parallel-size"), std::nullopt);
  EXPECT_EQ(value_of(standard, "--sequence-parallel"), "");
  EXPECT_EQ(value_of(standard, "--grad-reduce-in-bf16"), std::nullopt);
  EXPECT_EQ(value_of(standard, "--accumulate-allreduce-grads-in-fp32"), "");
}

TEST(ExportPlan, SaysWhichDecisionsOfAStepAFrameworkHasNot) {
  PlanFile plan = decided_step();
  plan.inputs.step->expert_overlap = true;
  EXPECT_TRUE(read_plan(write_plan(plan), "plan.json").inputs.step->expert_overlap);
  EXPECT_EQ(value_of(exported(plan, "megatron"), "--overlap-moe-expert-parallel-comm"), "");
  EXPECT_TRUE(has_difference(exported(plan, "torchtitan"),
                             "dispatch and combine run beside another microbatch's compute"));
  const ExportedPlan titan = exported(plan, "torchtitan");
  EXPECT_EQ(value_of(titan, "--parallelism.pipeline_parallel_schedule"), "Interleaved1F1B");
  EXPECT_EQ(value_of(titan, "--parallelism.pipeline_parallel_layers_per_stage"), "4");
  for (const char* decision : {"recompute full of 16 layers", "tensor ranks hold whole experts",
                               "every tensor rank holds norms and residuals whole", "gradients in bf16"})
    EXPECT_TRUE(has_difference(titan, decision)) << decision;
  plan.inputs.step->virtual_stages = 3;
  EXPECT_TRUE(
      has_difference(exported(plan, "torchtitan"), "3 chunks of the model per pipeline stage, interleaved"));
  plan.inputs.step->virtual_stages = plan.inputs.step->expert = plan.pipeline = 1;
  EXPECT_TRUE(has_difference(exported(plan, "accelerate"), "recompute full of 16 layers"));
  plan.placement.tensor = 1;
  plan.mesh = {1, 1, 16};
  EXPECT_TRUE(has_difference(exported(plan, "deepspeed"), "recompute full of 16 layers"));
}

// Megatron-LM offloads all that some layers keep, without recompute and pipelines; others say that nothing
// moves it.
TEST(ExportPlan, OffloadByKindGoesWhereItCan) {
  PlanFile plan = Planned(2, 8).plan;
  plan.recompute = Recompute::none;
  plan.inputs.step->offload = Offload::everything();
  plan.inputs.step->offload_layers = 20;
  const PlanFile read = read_plan(write_plan(plan), "plan.json");
  EXPECT_EQ(read.inputs.step->offload, Offload::everything());
  EXPECT_EQ(read.inputs.step->offload_layers, 20);
  EXPECT_EQ(value_of(exported(plan, "megatron"), "--cpu-offloading-num-layers"), "20");
  EXPECT_FALSE(
      has_difference(exported(plan, "megatron"), "input, qkv, attention, mlp of 20 layers in host memory"));
  plan.inputs.step->offload_layers.reset();
  EXPECT_EQ(value_of(exported(plan, "megatron"), "--cpu-offloading-num-layers"), "31");
  for (const char* framework : {"accelerate", "torchtitan"})
    EXPECT_TRUE(
        has_difference(exported(plan, framework), "input, qkv, attention, mlp of all layers in host memory"))
        << framework;
  plan.inputs.step->offload = Offload{}.with(Kept::mlp);
  EXPECT_EQ(value_of(exported(plan, "megatron"), "--cpu-offloading-num-layers"), std::nullopt);
  EXPECT_TRUE(has_difference(exported(plan, "megatron"), "mlp of all layers in host memory"));
}

// What no setting moves to host memory takes so much of the device.
TEST(ExportPlan, TensorsThatStayOnTheDeviceAreCounted) {
  PlanFile plan = Planned(2, 8).plan;
  plan.recompute = Recompute::mlp;
  plan.inputs.step->offload = Offload{}.with(Kept::mlp);
  plan.memory_bytes = i64{70} << 30;
  plan.host_memory_bytes = i64{6} << 30;
  const auto stays = [&](double device_bytes) {
    plan.inputs.step->memory.device_bytes = device_bytes;
    for (const Difference& d : exported(read_plan(write_plan(plan), "plan.json"), "deepspeed").differences)
      if (d.plan.find("in host memory") != std::string::npos) return d.framework;
    return std::string();
  };
  EXPECT_NE(stays(80 * 0x1p30).find("needs 76.00 GiB (6.00 GiB more) of its 80.00 GiB"), std::string::npos)
      << stays(80 * 0x1p30);
  EXPECT_NE(stays(72 * 0x1p30).find("and has 72.00 GiB: it does not hold them"), std::string::npos);
}

TEST(ExportPlan, AttentionRunsAgainInTheLayersThatRecompute) {
  PlanFile plan = decided_step();
  const auto seconds = [&] { return exported(plan, "megatron").plan_attention_s; };
  const double half = seconds();
  plan.inputs.step->recompute_layers.reset();
  const double all = seconds();
  plan.recompute = Recompute::none;
  EXPECT_NEAR(half, (all + seconds()) / 2, all * 1e-9);
}

TEST(ExportPlan, MegatronHoldsFewerLayersOnTheFirstAndLastStage) {
  PlanFile plan = decided_step();
  plan.pipeline = 5;
  plan.inputs.step->virtual_stages = 1;
  const ExportedPlan result = exported(plan, "megatron");
  EXPECT_EQ(value_of(result, "--decoder-first-pipeline-num-layers"), "6");
  EXPECT_EQ(value_of(result, "--decoder-last-pipeline-num-layers"), "5") << "32 = 6 + 3 x 7 + 5";
  EXPECT_TRUE(has_difference(result, "32 layers over 5 stages, the first 2 with one more"));
  plan.inputs.step->virtual_stages = 2;
  EXPECT_THROW(static_cast<void>(exported(plan, "megatron")), Infeasible);
  plan.inputs.step->virtual_stages = 1;
  plan.pipeline = 20;
  EXPECT_THROW(static_cast<void>(exported(plan, "megatron")), Infeasible) << "18 stages of 2 leave none";
}

/// 28 layers: 16 devices would be 8 stages, or 4 stages of 2 chunks.
TEST(PlanWithin, StagesOfMegatronHoldEquallyManyLayers) {
  const Planned planned(2, 8);
  const Model model = load_model("qwen2.5-7b");
  PlanRequest request = planned.request;
  request.model = &model;
  request.fixed = {};
  request.workload.seq = 1 << 15;
  request.global_batch = 64;
  request.search_pipeline = true;
  const FrameworkPlan plan = plan_within(request, of("megatron"));
  for (const PlanCandidate& c : plan.result.candidates)
    EXPECT_EQ(model.layers % (i64{c.choice.split->pipeline} * c.choice.split->virtual_stages), 0)
        << describe(c.choice);
  request.search_pipeline = false;
  request.workload.pipeline = 8;  // 28 = 2 + 6 x 4 + 2
  EXPECT_EQ(plan_within(request, of("megatron")).result.best().choice.split->pipeline, 8);
  request.workload.virtual_stages = 2;
  EXPECT_THROW(static_cast<void>(plan_within(request, of("megatron"))), Infeasible);
  request.workload.virtual_stages = 1;
  request.workload.pipeline = 4;
  EXPECT_NO_THROW(static_cast<void>(plan_within(request, of("megatron"))));
}

}  // namespace
}  // namespace usp
