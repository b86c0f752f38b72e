// SPDX-License-Identifier: Apache-2.0
// What usp run and usp bench printed, as rows that correct a calibration.
#include "usp/planner/run_rows.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json.hpp"

#include <gtest/gtest.h>

#include <tuple>

namespace usp {
namespace {

PlanFile plan_of_two() {
  PlanFile file;
  file.mesh = {1, 2, 1};
  PlanLayer& layer = file.layers.emplace_back();
  layer.plan.mesh = file.mesh;
  layer.plan.shape = {1, 256, 256, 4, 2, 64, 64, DType::fp32};
  layer.plan.band = {0, unbounded};
  return file;
}

Json run_of(const PlanFile& plan) {
  return {{"format", "usp.run"},
          {"version", 2},
          {"request",
           {{"plan_digest", plan_digest(plan)}, {"layer", 0}, {"dry_run", false}, {"debug_nan", false}}},
          {"plan_digest", plan_digest(plan)},
          {"mesh", {{"ring_outer", 1}, {"ring_inner", 2}, {"ring", 2}, {"ulysses", 1}}},
          {"ranks", 2},
          {"kernel", "cpu"},
          {"dtype", "fp32"},
          {"ok", true},
          {"verdict", "verified"},
          {"traffic", {{"equal", true}}},
          {"passes", {{"forward", {{"time_s", 1e-3}}}, {"backward", nullptr}}}};
}

TEST(RunRows, ARunIsARowPerPassThatWasTimed) {
  const PlanFile plan = plan_of_two();
  Json run = run_of(plan);
  const auto rows = run_rows(run.dump(), "run", plan);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].ring, 2);
  EXPECT_EQ(*rows[0].seconds, 1e-3);
  EXPECT_EQ(rows[0].backend, Backend::cpu);
  run["kernel"] = "cpu-avx512";
  EXPECT_EQ(run_rows(run.dump(), "run", plan)[0].backend, Backend::cpu);
  run["kernel"] = "hopper_cudnn";
  EXPECT_EQ(run_rows(run.dump(), "run", plan)[0].backend, Backend::hopper_cudnn);
  run["passes"]["backward"] = {{"time_s", 2e-3}};
  EXPECT_EQ(run_rows(run.dump(), "run", plan).size(), 2U);
}

TEST(RunRows, RunsThatTellNothingAreRefusedWithTheKey) {
  const PlanFile plan = plan_of_two();
  const std::tuple<const char*, Json, const char*> faults[] = {
      {"/format", "usp.plan", "/format"},
      {"/version", 1, "/version"},
      {"/request/plan_digest", "0", "/request/plan_digest"},
      {"/request/dry_run", true, "/request/dry_run"},
      {"/request/debug_nan", true, "/request/debug_nan"},
      {"/request/deterministic", true, "/request/deterministic"},
      {"/request/device", "cuda", "/request/device"},
      {"/request/device", "tpu", "/request/device"},
      {"/request/kernel", "reference", "/request/kernel"},
      {"/request/kernel", "mma", "/request/kernel"},
      {"/request/devices", Json::array({0}), "/request/devices"},
      {"/request/ring_transport", "nccl", "/request/ring_transport"},
      {"/verdict", "wrong", "/verdict"},
      {"/verdict", "ok", "/verdict"},
      {"/ok", false, "/ok"},
      {"/plan_digest", "0", "/plan_digest"},
      {"/traffic/equal", false, "/traffic/equal"},
      {"/mesh/ring", 1, "/mesh/ring"},
      {"/mesh/ring_outer", 2, "/mesh/ring_outer"},
      {"/mesh/ulysses", 2, "/mesh/ulysses"},
      {"/ranks", 4, "/ranks"},
      {"/dtype", "bf16", "/dtype"},
      {"/fallbacks", Json::array({{{"step", "attend"}}}), "/fallbacks"},
      {"/passes", Json::object(), "/passes"},
      {"/passes", Json::parse(R"({"forward": null, "backward": null})"), "/passes"},
      {"/passes", Json::array(), "/passes"}};
  for (const auto& [at, value, named] : faults) {
    Json run = run_of(plan);
    run[Json::json_pointer(at)] = value;
    try {
      static_cast<void>(run_rows(run.dump(), "run", plan));
      ADD_FAILURE() << at << " is taken";
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, named);
    }
  }
}

TEST(RunRows, ARunIsOfTheHardwareThatItsRequestNames) {
  const PlanFile plan = plan_of_two();
  Json run = run_of(plan);
  run["request"]["device"] = run["request"]["kernel"] = "cpu";
  run["kernel"] = "cpu-avx512";
  EXPECT_NO_THROW(static_cast<void>(run_rows(run.dump(), "run", plan)));
  run["request"]["device"] = "cuda";
  run["request"]["kernel"] = run["kernel"] = "mma";
  run["request"]["devices"] = {2, 3};
  run["request"]["ring_transport"] = "copy_engine";
  run["devices"] = {"2 NVIDIA H200", "3 NVIDIA H200"};
  const auto rows = run_rows(run.dump(), "run", plan);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].transport, Transport::copy_engine);
  const auto faulty = [&](const Json& of, const char* key) {
    try {
      static_cast<void>(run_rows(of.dump(), "run", plan));
      ADD_FAILURE() << key << " is taken";
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, key) << error.what();
    }
  };
  Json other = run;
  other["devices"][1] = "31 NVIDIA H200";
  faulty(other, "/devices/1");
  other = run;
  other["request"]["device"] = "cpu";
  faulty(other, "/request/device");
  other = run;
  other["request"]["kernel"] = "hopper";
  faulty(other, "/request/kernel");
}

/// Errors about a row name what its file has: a column and a line of a table, a key of a run.
TEST(RunRows, RowsKnowTheirKeys) {
  const PlanFile plan = plan_of_two();
  Json run = run_of(plan);
  const auto key = [&](const char* column) {
    const Where where = location_of(run_rows(run.dump(), "run", plan).front(), "run", column);
    EXPECT_EQ(where.line, 0);
    return where.token;
  };
  EXPECT_EQ(key("iters_per_s"), "/passes/forward/time_s");
  EXPECT_EQ(key("direction"), "/passes/forward");
  EXPECT_EQ(key("backend"), "/kernel");
  EXPECT_EQ(key("world"), "/ranks");
  EXPECT_EQ(key("ring"), "/mesh/ring");
  EXPECT_EQ(key("dtype"), "/dtype");
  EXPECT_EQ(key("heads"), "/request/plan_digest");
  run["passes"] = Json::array({{{"pass", "backward"}, {"time_s", 2e-3}}});
  run.erase("dtype");
  EXPECT_EQ(key("iters_per_s"), "/passes/0/time_s");
  EXPECT_EQ(key("dtype"), "/request/plan_digest");
  ScoreRow row;
  row.line = 7;
  EXPECT_EQ(location_of(row, "table", "iters_per_s").line, 7);
  EXPECT_EQ(location_of(row, "table", "iters_per_s").token, "iters_per_s");
}

TEST(RunRows, CallsThatRowsDoNotDescribeAreRefused) {
  const auto problem = [](const auto& change) -> std::string {
    PlanFile plan = plan_of_two();
    change(plan.layers.front().plan);
    try {
      static_cast<void>(run_rows(run_of(plan).dump(), "run", plan));
    } catch (const InvalidInput& error) {
      return error.problem();
    }
    return "";
  };
  EXPECT_EQ(problem([](AttentionPlan&) {}), "");
  EXPECT_NE(problem([](AttentionPlan& p) { p.head_chunks = 2; }).find("head chunks"), std::string::npos);
  EXPECT_NE(problem([](AttentionPlan& p) { p.sink = true; }).find("sinks"), std::string::npos);
  EXPECT_NE(problem([](AttentionPlan& p) { p.score.softcap = 30; }).find("rules of scores"),
            std::string::npos);
  EXPECT_NE(problem([](AttentionPlan& p) { p.prune = true; }).find("pruned"), std::string::npos);
}

TEST(RunRows, OtherKernelsAndOtherDevicesSayNothingOfACalibration) {
  CalibrationFile calibration;
  calibration.name = "mine";
  calibration.device.name = "NVIDIA H200";
  calibration.attention.library = AttentionSurface::Library{"cpu", "1"};
  Json run = run_of(plan_of_two());
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration));
  run["devices"] = {"0 NVIDIA H200", "1 NVIDIA H200"};
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration));
  run["devices"][1] = "1 NVIDIA A100-SXM4-80GB";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration), InvalidInput);
  run.erase("devices");
  run["kernel"] = "reference";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration), InvalidInput);
  run["kernel"] = "mma";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration), InvalidInput)
      << "the calibration names none";
  calibration.attention.backend = "cpu";
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration)) << "add_rows finds its kernels";
  run["kernel"] = "cpu-avx512";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration), InvalidInput)
      << "cpu was measured, not this";
  calibration.attention.library->name = "cpu-avx512";
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration));
}

}  // namespace
}  // namespace usp
