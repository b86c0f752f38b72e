// SPDX-License-Identifier: Apache-2.0
// What usp run --device and usp bench --gpu decide and print, without a GPU: from runs that are made up.
#include "usp/runtime/gpu_bench.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/runtime/devices.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

namespace usp {
namespace {

using Json = nlohmann::json;

AttentionPlan small_plan(DType dtype = DType::bf16) {
  AttentionPlan plan;
  plan.mesh = {.ring_inner = 2, .ulysses = 2};
  plan.shape = {.batch = 2,
                .q_tokens = 8,
                .kv_tokens = 8,
                .query_heads = 4,
                .kv_heads = 2,
                .head_dim_qk = 16,
                .head_dim_v = 8,
                .dtype = dtype};
  plan.band = {0, unbounded};
  return plan;
}

std::string no_objection(Backend) {
  return "";
}
std::string objection(Backend) {
  return "it was not found";
}
std::string must_not_ask(Backend) {
  ADD_FAILURE() << "nobody needs to know";
  return "";
}

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PlacePlan, AHostPlanTakesTheFirstPreferredThatIsThereElseMma) {
  const PlacedPlan both = place_plan(small_plan(), RunOn::gpu, "", no_objection);
  EXPECT_EQ(both.plan.backend, Backend::hopper_cudnn);
  EXPECT_EQ(both.note, "backend cpu of the plan becomes hopper_cudnn, hopper with cuDNN is available");
  const PlacedPlan fast = place_plan(small_plan(), RunOn::gpu, "", [](Backend backend) {
    return std::string(backend.has_parts() ? "it is for other cards" : "");
  });
  EXPECT_EQ(fast.plan.backend, Backend::cudnn);
  EXPECT_EQ(fast.note, "backend cpu of the plan becomes cudnn, cuDNN is available");
  const PlacedPlan plain = place_plan(small_plan(), RunOn::gpu, "", objection);
  EXPECT_EQ(plain.plan.backend, Backend::mma);
  EXPECT_EQ(plain.note, "backend cpu of the plan becomes mma, cuDNN is not available: it was not found");
  EXPECT_EQ(place_plan(small_plan(), RunOn::gpu, "mma", must_not_ask).plan.backend, Backend::mma);
}

TEST(PlacePlan, AGpuPlanKeepsItsBackendOnGpusAndLosesItOnTheHost) {
  AttentionPlan plan = small_plan();
  plan.backend = Backend::mma;
  EXPECT_EQ(place_plan(plan, RunOn::gpu, "", must_not_ask).plan.backend, Backend::mma);
  EXPECT_EQ(place_plan(plan, RunOn::gpu, "", must_not_ask).note, "");
  EXPECT_EQ(place_plan(plan, RunOn::gpu, "cudnn", must_not_ask).plan.backend, Backend::cudnn);
  EXPECT_EQ(place_plan(plan, RunOn::host, "", must_not_ask).plan.backend, Backend::cpu);
  EXPECT_EQ(place_plan(plan, RunOn::host, "reference", must_not_ask).note,
            "backend mma of the plan becomes cpu");
  EXPECT_EQ(place_plan(plan, std::nullopt, "", must_not_ask).plan.backend, Backend::mma);
}

TEST(PlacePlan, WhatCannotRunThereIsRefusedBeforeAGpuIsSought) {
  const auto place = [](const AttentionPlan& plan, RunOn on, const char* kernel) {
    return refusal([&] { static_cast<void>(place_plan(plan, on, kernel, must_not_ask)); });
  };
  EXPECT_TRUE(holds(place(small_plan(DType::fp32), RunOn::gpu, ""), "bf16 and fp16"));
  AttentionPlan wide = small_plan();
  wide.shape.head_dim_qk = 320;
  EXPECT_TRUE(holds(place(wide, RunOn::gpu, ""), "head dims up to 256"));
  EXPECT_TRUE(holds(place(small_plan(), RunOn::host, "cudnn"), "--kernel cudnn"));
  EXPECT_TRUE(holds(place(small_plan(), RunOn::gpu, "reference"), "--kernel reference"));
  EXPECT_EQ(parse_word<RunOn>("cuda", "--device"), RunOn::gpu);
  EXPECT_EQ(word_of(RunOn::host), "cpu");
  EXPECT_TRUE(holds(refusal([] { static_cast<void>(parse_word<RunOn>("tpu", "--device")); }), "cpu, cuda"));
  EXPECT_TRUE(holds(refusal([] {
                      const Documents documents = Documents::single(8, 8);
                      static_cast<void>(gpu_bench_call(small_plan(), documents, {}, {}));
                    }),
                    "no stream"));
}

/// Every rank sends 3 bytes along its Ulysses axis in tick 0, rank 1 two more; 10 along the ring in tick 1.
RunResult made_up_run(const Mesh& mesh) {
  RunResult run;
  run.kernel = "cudnn";
  run.communicator = "copy_engine";
  run.ranks.resize(static_cast<std::size_t>(mesh.size()));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    RankResult& mine = run.ranks[static_cast<std::size_t>(rank)];
    mine.device = rank < 2 ? "0 Card A" : "1 Card A";
    for (const int pass : {0, 1}) {
      PassRecord& record = mine.record[pass];
      const int r = mesh.ring_of(rank), u = mesh.ulysses_of(rank);
      record.transfers = {{0, mesh.rank(r, 1 - u), true, 0, rank == 1 ? 5 : 3},
                          {1, mesh.rank(1 - r, u), true, 0, 10},
                          {1, mesh.rank(1 - r, u), false, 0, 1000}};  // received: counted by who sent it
      record.ticks = {{0, 1, 2, 2.25}, {2.25, 3, 4, 4 + 0.25 * rank}};
      mine.seconds[pass] = {2e-9, 1e-9 * (rank + 1), 4e-9};
    }
  }
  return run;
}

GpuBenchReport made_up_report() {
  const AttentionPlan plan = small_plan();
  RunOptions options;
  options.repeat = 3;
  options.deterministic = true;
  options.ring_transport = Transport::nccl;
  const RunResult run = made_up_run(plan.mesh);
  return gpu_bench_report(plan, Documents::single(8, 8), options, run, run);
}

TEST(GpuBench, CountsPairsAxesAndWhatWaits) {
  const GpuBenchReport report = made_up_report();
  ASSERT_EQ(report.passes.size(), 2U);
  const GpuPassBench &forward = report.passes[0], &backward = report.passes[1];
  const double pairs = 36.0 * 2 * 4;  // causal pairs of 8 tokens, batch rows, query heads
  EXPECT_DOUBLE_EQ(forward.flops, pairs * 2 * (16 + 8));
  EXPECT_DOUBLE_EQ(backward.flops, pairs * 2 * (3 * 16 + 2 * 8));
  EXPECT_DOUBLE_EQ(forward.seconds, 4e-9);  // of 2, 4 and 4
  EXPECT_DOUBLE_EQ(forward.tflop_s(), forward.flops / 4e-9 / 1e12);
  EXPECT_EQ(forward.ulysses.bytes, 14);
  EXPECT_EQ(forward.ulysses.max_bytes, 5);
  EXPECT_EQ(forward.ring.bytes, 40);
  EXPECT_DOUBLE_EQ(forward.gb_s(forward.ring), 10 / 4e-9 / 1e9);
  EXPECT_DOUBLE_EQ(forward.exposed_s(), 0.25 + 0.75);  // rank 3
  ASSERT_EQ(forward.ticks.size(), 2U);
  EXPECT_DOUBLE_EQ(forward.ticks[1].computed_s, 1);
  EXPECT_EQ(forward.ticks[0].transfers, std::vector<std::string>{"qkv_all_to_all"});
  EXPECT_FALSE(forward.ticks[0].computes);
  EXPECT_EQ(forward.ticks[1].transfers, std::vector<std::string>{"kv_exchange"});
  EXPECT_TRUE(forward.ticks[1].computes);
}

TEST(GpuBench, TextNamesDevicesOnceAndEveryAxis) {
  const std::string text = gpu_bench_text(made_up_report());
  for (const char* part : {"ring 2 x ulysses 2 (copy_engine), cudnn kernel, bf16, deterministic, median of 3",
                           "on 0 Card A, 1 Card A\n", "TF/s", "1000.000 ms", "ulysses", "nccl", "backward"})
    EXPECT_TRUE(holds(text, part)) << part << " in\n" << text;
}

TEST(GpuBench, TicksThatWaitLongAreExplained) {
  const std::string text = gpu_bench_text(made_up_report());
  EXPECT_TRUE(holds(text, "exposed in tick 0 of forward: 250 ms, ")) << text;
  EXPECT_TRUE(holds(text, "qkv_all_to_all: nothing is computed in this tick that could hide it")) << text;
  EXPECT_TRUE(holds(text, "kv_exchange: longer than the 1 s of compute beside it")) << text;
  GpuBenchReport short_waits = made_up_report();
  for (GpuPassBench& pass : short_waits.passes) pass.seconds = 1000;
  EXPECT_FALSE(holds(gpu_bench_text(short_waits), "exposed in tick"));
}

TEST(GpuBench, AnAxisOfOneRankIsLeftOut) {
  GpuBenchReport report = made_up_report();
  report.plan.mesh = {.ring_inner = 1, .ulysses = 2};
  EXPECT_FALSE(holds(gpu_bench_text(report), "nccl"));
  EXPECT_EQ(Json::parse(gpu_bench_json(report))["passes"][0]["axes"].size(), 1U);
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object.items()) names.insert(key);
  return names;
}

TEST(GpuBench, JsonHasTheKeysOfItsSchema) {
  const Json json = Json::parse(gpu_bench_json(made_up_report()));
  const Json schema = Json::parse(read_file(USP_CONFIGS "/schema/bench_gpu.v2.schema.json"));
  const Json& pass = schema["properties"]["passes"]["items"];
  EXPECT_EQ(keys(json), keys(schema["properties"]));
  EXPECT_EQ(keys(json["passes"][1]), keys(pass["properties"]));
  EXPECT_EQ(keys(json["passes"][1]["axes"][0]), keys(pass["properties"]["axes"]["items"]["properties"]));
  EXPECT_EQ(json["passes"][0]["axes"][1]["transport"], "nccl");
  EXPECT_EQ(json["devices"].size(), 4U);
  EXPECT_DOUBLE_EQ(json["passes"][0]["exposed_s"].get<double>(), 1);
  EXPECT_EQ(keys(json["request"]), keys(schema["definitions"]["run_request"]["properties"]));
}

}  // namespace
}  // namespace usp
