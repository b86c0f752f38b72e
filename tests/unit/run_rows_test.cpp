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

/// What every format has.
Json printed(const char* format, const PlanFile& plan) {
  Json request{
      {"plan_digest", plan_digest(plan)}, {"layer", 0}, {"seed", 0}, {"watchdog_s", 60.0}, {"repeat", 1}};
  for (const char* unset : {"documents", "device", "kernel", "devices", "ulysses_transport", "ring_transport",
                            "q", "k", "v", "d_out", "tolerance"})
    request[unset] = nullptr;
  for (const char* off : {"forward_only", "deterministic", "trust_network", "verify", "dry_run", "debug_nan"})
    request[off] = false;
  return {{"format", format},   {"version", 2},
          {"request", request}, {"mesh", {{"ring_outer", 1}, {"ring_inner", 2}, {"ring", 2}, {"ulysses", 1}}},
          {"ranks", 2},         {"communicator", "threads"},
          {"kernel", "cpu"}};
}

Json run_of(const PlanFile& plan) {
  Json run = printed("usp.run", plan);
  for (const char* object : {"errors", "bounds", "rows"}) run[object] = Json::object();
  for (const char* unset : {"tolerance", "device_memory"}) run[unset] = nullptr;
  run["plan_digest"] = plan_digest(plan);
  run["dtype"] = "fp32";
  run["ok"] = true;
  run["verdict"] = "verified";
  run["traffic"] = {{"planned_bytes", 8}, {"executed_bytes", 8}, {"equal", true}, {"difference", nullptr}};
  run["passes"] = {{"forward", {{"time_s", 1e-3}}}, {"backward", nullptr}};
  run["fallbacks"] = Json::array();
  return run;
}

Json bench_of(const PlanFile& plan) {
  Json bench = printed("usp.bench", plan);
  bench["cores"] = bench["workers"] = 2;
  bench["passes"] = Json::array({{{"pass", "backward"}, {"time_s", 2e-3}}});
  return bench;
}

Json gpu_bench_of(const PlanFile& plan) {
  Json bench = printed("usp.bench_gpu", plan);
  bench["kernel"] = bench["backend"] = "mma";
  bench["dtype"] = "fp32";
  bench["devices"] = {"0 NVIDIA H200", "1 NVIDIA H200"};
  bench["passes"] = Json::array({{{"pass", "forward"}, {"time_s", 1e-3}}});
  return bench;
}

/// Two ranks on each of some hosts.
topology::Cluster cluster_of(int hosts) {
  topology::Cluster cluster;
  for (int id = 0; id < 2; ++id) {
    topology::Device device;
    device.id = id;
    device.node = id % hosts;
    cluster.devices.push_back(device);
  }
  return cluster;
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
      {"/fallbacks", "none", "/fallbacks"},
      {"/fallbacks", Json::array({1}), "/fallbacks"},
      {"/communicator", 3, "/communicator"},
      {"/ok", nullptr, "/ok"},
      {"/verdict", nullptr, "/verdict"},
      {"/traffic", nullptr, "/traffic"},
      {"/traffic/equal", nullptr, "/traffic/equal"},
      {"/plan_digest", nullptr, "/plan_digest"},
      {"/dtype", nullptr, "/dtype"},
      {"/cores", 2, "/cores"},
      {"/request/repeat", "3", "/request/repeat"},
      {"/request/repeats", 3, "/request/repeats"},
      {"/request/documents", "256", "/request/documents"},
      {"/request/documents", Json::array({"256"}), "/request/documents"},
      {"/request/documents", Json::array({100, 28}), "/request/documents"},
      {"/request/documents", Json::array({128}), "/request/documents"},
      {"/passes/sideways", nullptr, "/passes/sideways"},
      {"/passes", Json::array({{{"pass", "forward"}, {"time_s", 1e-3}}}), "/passes"},
      {"/passes", Json::object(), "/passes/forward"},
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
  run = gpu_bench_of(plan);
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

TEST(RunRows, WhatAFormatAlwaysHasIsThere) {
  const PlanFile plan = plan_of_two();
  for (const Json& good : {run_of(plan), bench_of(plan), gpu_bench_of(plan)}) {
    EXPECT_NO_THROW(static_cast<void>(run_rows(good.dump(), "run", plan))) << good["format"];
    std::vector<std::string> keys;
    for (const auto& [key, value] : good.items()) keys.push_back("/" + key);
    for (const auto& [key, value] : good["request"].items()) keys.push_back("/request/" + key);
    for (const std::string& key : keys) {
      Json run = good;
      const Json::json_pointer at(key);
      run[at.parent_pointer()].erase(at.back());
      EXPECT_THROW(static_cast<void>(run_rows(run.dump(), "run", plan)), InvalidInput)
          << good["format"] << key;
    }
  }
}

TEST(RunRows, PassesAreThoseThatWereAskedFor) {
  const PlanFile plan = plan_of_two();
  const auto token = [&](const Json& run) -> std::string {
    try {
      static_cast<void>(run_rows(run.dump(), "run", plan));
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return "";
  };
  Json run = bench_of(plan);
  run["request"]["documents"] = {256};
  EXPECT_EQ(token(run), "");
  run["request"]["forward_only"] = true;
  EXPECT_EQ(token(run), "/request/forward_only");
  run = bench_of(plan);
  run["passes"].push_back(run["passes"][0]);
  EXPECT_EQ(token(run), "/passes/1/pass");
}

TEST(RunRows, RanksThatShareACardAreRefused) {
  CalibrationFile calibration;
  calibration.device.name = "NVIDIA H200";
  calibration.attention.backend = "mma";
  const auto token = [&](const Json& run, int hosts) -> std::string {
    try {
      check_run_machine(run.dump(), "run", calibration, cluster_of(hosts));
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return "";
  };
  Json run = gpu_bench_of(plan_of_two());
  EXPECT_EQ(token(run, 1), "");
  for (const Json& shared : {Json{0}, Json{1, 1}, Json::array()}) {
    run["request"]["devices"] = shared;
    EXPECT_EQ(token(run, 1), "/request/devices") << shared;
  }
  run["request"]["devices"] = {0};
  EXPECT_EQ(token(run, 2), "") << "a GPU of each host";
  run["request"]["devices"] = nullptr;
  run["devices"][1] = run["devices"][0];
  EXPECT_EQ(token(run, 1), "/devices/1");
  EXPECT_EQ(token(run, 2), "");
  run["devices"] = {"0 NVIDIA H200"};
  EXPECT_EQ(token(run, 1), "/devices");
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
  run = bench_of(plan);
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
  const std::string gathered = problem([](AttentionPlan& p) { p.method = Method::all_gather_kv; });
  EXPECT_NE(gathered.find("a call with method all_gather_kv"), std::string::npos);
  EXPECT_NE(gathered.find("--method ring"), std::string::npos) << gathered;
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
  const topology::Cluster cluster = cluster_of(1);
  Json run = run_of(plan_of_two());
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration, cluster));
  run = gpu_bench_of(plan_of_two());
  run["kernel"] = "cpu";
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration, cluster));
  run["devices"][1] = "1 NVIDIA A100-SXM4-80GB";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration, cluster), InvalidInput);
  run = run_of(plan_of_two());
  run["kernel"] = "reference";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration, cluster), InvalidInput);
  run["kernel"] = "mma";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration, cluster), InvalidInput)
      << "the calibration names none";
  calibration.attention.backend = "cpu";
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration, cluster)) << "add_rows finds its kernels";
  run["kernel"] = "cpu-avx512";
  EXPECT_THROW(check_run_machine(run.dump(), "run", calibration, cluster), InvalidInput)
      << "cpu was measured, not this";
  calibration.attention.library->name = "cpu-avx512";
  EXPECT_NO_THROW(check_run_machine(run.dump(), "run", calibration, cluster));
}

}  // namespace
}  // namespace usp
