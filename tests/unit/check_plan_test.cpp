// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/schedule/validate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace usp {
namespace {

AttentionPlan good() {
  AttentionPlan plan;
  plan.shape = {1, 64, 64, 8, 4, 32, 32, DType::bf16};
  plan.mesh = {2, 2, 4};
  plan.method = Method::double_ring;
  plan.replicated_k = {{0, 2}, {4, 6}};
  return plan;
}

/// The field that a change makes wrong.
std::string field_of(const std::function<void(AttentionPlan&)>& change) {
  AttentionPlan plan = good();
  change(plan);
  try {
    check_attention_plan(plan);
  } catch (const InvalidInput& error) {
    return error.where().token;
  }
  return "";
}

TEST(CheckPlan, ADoubleRingWithoutAnInnerOneIsNoPlainRing) {
  EXPECT_EQ(field_of([](AttentionPlan& plan) { plan.mesh = {1, 4, 4}; }), "mesh/ring_inner");
  EXPECT_EQ(field_of([](AttentionPlan& plan) { plan.mesh = {4, 1, 4}; }), "mesh/ring_inner");
  EXPECT_EQ(field_of([](AttentionPlan& plan) { plan.mesh = {1, 1, 8}; }), "") << "one row: nothing travels";
}

/// Blocks that a call awaits come from their owners, to memory that holds them all.
TEST(CheckPlan, OnlyGatheredBlocksAreGated) {
  const auto gated = [](Method method, Mesh mesh) {
    return field_of([&](AttentionPlan& plan) {
      plan.method = method, plan.mesh = mesh;
      plan.gated = true;
    });
  };
  EXPECT_EQ(gated(Method::all_gather_kv, {1, 4, 2}), "");
  EXPECT_EQ(gated(Method::all_gather_kv, {1, 1, 8}), "gated");
  EXPECT_EQ(gated(Method::ring, {1, 4, 2}), "gated");
  EXPECT_EQ(gated(Method::ring_direct, {1, 4, 2}), "gated");
  EXPECT_EQ(gated(Method::double_ring, {2, 2, 2}), "gated");
  EXPECT_EQ(field_of([](AttentionPlan& p) {
              p.mesh = {1, 4, 1};
              p.method = Method::all_gather_kv;
              p.gated = true;
              p.dkv_return = DkvReturn::cycle;
            }),
            "gated");
}

TEST(CheckPlan, PhasesAreOfGatedPlansAndAttendABlockEach) {
  const auto phases = [](int count, bool gated, int ring = 3) {
    return field_of([&](AttentionPlan& plan) {
      plan.method = Method::all_gather_kv, plan.mesh = {1, ring, 2};
      plan.gated = gated, plan.gate_phases = count;
    });
  };
  EXPECT_EQ(phases(3, true), "");
  EXPECT_EQ(phases(1, false), "");
  EXPECT_EQ(phases(2, false), "gate_phases");
  EXPECT_EQ(phases(4, true), "gate_phases");
  EXPECT_EQ(phases(4, true, 4), "");
  for (const int count : {-1, 0, 5}) EXPECT_EQ(phases(count, true, 8), "gate_phases") << count;
}

/// Rows that GPU kernels number in 31 bits: the last count that fits, and the next.
TEST(CheckPlan, GpuRowsOfAStep) {
  AttentionPlan plan;
  plan.mesh = {1, 2, 2};
  plan.shape = {1, i64{1} << 28, i64{1} << 28, 32, 4, 8, 8, DType::bf16};
  const auto text = [&](Backend backend) {
    plan.backend = backend;
    try {
      check_attention_plan(plan);
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, "backend");
      EXPECT_EQ(error.problem(), too_many_gpu_rows(plan));
      return error.problem();
    }
    return std::string();
  };
  for (const Backend gpu : {Backend::mma, Backend::cudnn}) {
    plan.shape.q_tokens = i64{1} << 28;
    EXPECT_NE(text(gpu).find("134217728 rows x 16 heads"), std::string::npos);  // 2^31
    EXPECT_EQ(text(Backend::cpu), "");
    plan.head_chunks = 2;
    EXPECT_EQ(text(gpu), "");
    plan.head_chunks = 1;
    plan.shape.q_tokens -= 2;
    EXPECT_EQ(text(gpu), "");
  }
  EXPECT_NO_THROW(check_gpu_rows(1, max_gpu_rows, 1));
  EXPECT_THROW(check_gpu_rows(2, i64{1} << 30, 1), InvalidInput);
  EXPECT_THROW(check_gpu_rows(max_batch, max_tokens, max_heads), InvalidInput);
}

TEST(CheckPlan, EachFieldIsNamed) {
  using Plan = AttentionPlan;
  EXPECT_EQ(field_of([](Plan&) {}), "");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.batch = 0; }), "shape/batch");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.q_tokens = unbounded + 1; }), "shape/q_tokens");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.kv_heads = 3; }), "shape/kv_heads");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.head_dim_v = -1; }), "shape/head_dim_v");
  EXPECT_EQ(field_of([](Plan& p) { p.mesh.ulysses = 9; }), "mesh/ulysses");
  EXPECT_EQ(field_of([](Plan& p) { p.mesh.ring_inner = 0; }), "mesh/ring_inner");
  EXPECT_EQ(field_of([](Plan& p) { p.mesh = {4, 1, 4}; }), "mesh/ring_inner");
  EXPECT_EQ(field_of([](Plan& p) { p.mesh = {200, 200, 1}; }), "mesh/ring");
  EXPECT_EQ(field_of([](Plan& p) { p.method = Method::ring; }), "mesh/ring_outer");
  EXPECT_EQ(field_of([](Plan& p) { p.backend = Backend::cudnn; }), "");
  EXPECT_EQ(field_of([](Plan& p) { p.backend = Backend::mma, p.shape.dtype = DType::fp32; }), "backend");
  EXPECT_EQ(field_of([](Plan& p) { p.backend = Backend::cudnn, p.shape.head_dim_v = 257; }), "backend");
  EXPECT_EQ(field_of([](Plan& p) { p.band = {1, 0}; }), "band/diff_min");
  EXPECT_EQ(field_of([](Plan& p) { p.head_chunks = 0; }), "head_chunks");
  EXPECT_EQ(field_of([](Plan& p) { p.head_chunks = 2; }), "");
  EXPECT_EQ(field_of([](Plan& p) { p.head_chunks = 3; }), "head_chunks");  // of two heads of a rank
  EXPECT_EQ(field_of([](Plan& p) { p.shape.query_heads = 4096, p.head_chunks = max_head_chunks + 1; }),
            "head_chunks");
  EXPECT_EQ(field_of([](Plan& p) {
              p.mesh = {1, 32767, 1}, p.shape.query_heads = 64, p.head_chunks = 64;
            }),
            "head_chunks");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.head_dim_qk = max_head_dim + 1; }), "shape/head_dim_qk");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.batch = max_batch + 1; }), "shape/batch");
  EXPECT_EQ(field_of([](Plan& p) { p.shape.batch = max_batch, p.shape.q_tokens = max_tokens; }), "shape");
  EXPECT_EQ(field_of([](Plan& p) { p.layout = static_cast<LayoutKind>(200); }), "layout");
  EXPECT_EQ(field_of([](Plan& p) { p.score.scale = std::nan(""); }), "score/scale");
  EXPECT_EQ(field_of([](Plan& p) { p.score.softcap = -1; }), "score/softcap");
  EXPECT_EQ(field_of([](Plan& p) { p.score.dropout = 1; }), "score/dropout");
  EXPECT_EQ(field_of([](Plan& p) { p.score.block_tokens = p.shape.kv_tokens = 32; }), "score/block_tokens");
  EXPECT_EQ(field_of([](Plan& p) { p.replicated_q = {{0, 65}}; }), "replicated_q/0");
  EXPECT_EQ(field_of([](Plan& p) { p.replicated_k[1].begin = 1; }), "replicated_k/1");
}

PlanFile file_of(const AttentionShape& shape, Band band) {
  const topology::Cluster cluster = thread_cluster(3);
  const Calibration calibration = uncalibrated(data_sheet_of(cluster));
  AttentionRequest request;
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.shape = shape;
  request.band = band;
  request.score.alibi = true;
  request.documents = Documents::single(shape.q_tokens, shape.kv_tokens);
  return make_plan_file(request, plan_attention(request).best());
}

/// What is wrong in a file is found by the same rules and named where it stands there.
TEST(CheckPlan, FilesNameThePointer) {
  const std::string text = write_plan(file_of({1, 24, 24, 6, 6, 8, 8, DType::bf16}, {}));
  const std::pair<const char*, Json> wrong[] = {{"/layers/0/shape/kv_heads", 4},
                                                {"/layers/0/shape/query_heads", 0},
                                                {"/layers/0/score/dropout", 1.0},
                                                {"/layers/0/head_chunks", 2000},
                                                {"/layers/0/replicated_k/0", Json::array({0, 25})},
                                                {"/mesh/ulysses", 0},
                                                {"/layers/0/shape/q_tokens", 12}};
  for (const auto& [pointer, value] : wrong) {
    Json json = Json::parse(text);
    json[Json::json_pointer(pointer)] = value;
    try {
      (void)read_plan(json.dump(), "plan");
      ADD_FAILURE() << pointer;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, pointer);
    }
  }
}

/// Layers count from 0, each once per kind, and no decision is for more than there are.
TEST(CheckPlan, ListsOfLayersAgreeWithTheModel) {
  PlanFile plan = file_of({1, 24, 24, 6, 6, 8, 8, DType::bf16}, {});
  plan.layers.front().layers = {0, 2};
  plan.layers.push_back(plan.layers.front());
  plan.layers.back().layers = {1, 3};
  plan.inputs.step.emplace().model_layers = 4;
  const auto token_of = [&](const auto& change) -> std::string {
    PlanFile changed = plan;
    change(changed);
    try {
      (void)read_plan(write_plan(changed), "plan");
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return "";
  };
  EXPECT_EQ(token_of([](PlanFile&) {}), "");
  EXPECT_EQ(token_of([](PlanFile& p) { p.layers.back().layers = {1, 4}; }), "/layers/1/layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.layers.back().layers = {1, 1}; }), "/layers/1/layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.layers.back().layers = {2, 3}; }), "/layers/1/layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.layers.front().layers.clear(); }), "/layers/0/layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.inputs.step->recompute_layers = 5; }),
            "/inputs/step/recompute_layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.inputs.step->offload_layers = 5; }), "/inputs/step/offload_layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.pipeline = 5; }), "/placement/pipeline");
  const auto two_attentions_in_a_layer = [](PlanFile& p) {
    p.layers.back().kind = p.layers.front().kind == "sliding" ? "softmax" : "sliding";
    p.layers.back().layers = {2, 3};
  };
  EXPECT_EQ(token_of(two_attentions_in_a_layer), "");
  // Without a count the lists hold all layers, each once.
  plan.inputs.step->model_layers.reset();
  EXPECT_EQ(token_of([](PlanFile&) {}), "");
  EXPECT_EQ(token_of([](PlanFile& p) { p.layers.back().layers = {1, 4}; }), "/layers/1/layers");
  EXPECT_EQ(token_of(two_attentions_in_a_layer), "/layers/1/layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.inputs.step->recompute_layers = 5; }),
            "/inputs/step/recompute_layers");
  EXPECT_EQ(token_of([](PlanFile& p) { p.inputs.step->virtual_stages = 5; }), "/placement/pipeline");
}

/// The schema requires every key; one without a value is null.
TEST(CheckPlan, FilesNeedEveryKey) {
  const std::string text = write_plan(file_of({1, 24, 24, 6, 6, 8, 8, DType::bf16}, {}));
  int erased = 0;
  const auto each = [&](const auto& self, const Json& value, const std::string& pointer) -> void {
    if (value.is_array())
      for (std::size_t i = 0; i < value.size(); ++i) self(self, value[i], pointer + "/" + std::to_string(i));
    if (!value.is_object()) return;
    for (const auto& item : value.items()) {
      Json json = Json::parse(text);
      json[Json::json_pointer(pointer)].erase(item.key());
      const std::string erased_key = pointer + "/" + item.key();
      ++erased;
      try {
        (void)read_plan(json.dump(), "plan");
        ADD_FAILURE() << erased_key;
      } catch (const InvalidInput& error) {
        EXPECT_EQ(error.where().token, erased_key);
      }
      self(self, item.value(), erased_key);
    }
  };
  each(each, Json::parse(text), "");
  EXPECT_GT(erased, 80);
}

/// The last query stands at the last key, whoever makes the documents and whatever the mask.
TEST(CheckPlan, CrossAttentionHasOneAlignment) {
  for (const Band band : {Band{}, Band{0, unbounded}})
    for (const i64 keys : {36, 12}) {
      const PlanFile plan = file_of({1, 24, keys, 6, 6, 8, 8, DType::bf16}, band);
      const Documents ran = layer_documents(plan.layers.front(), {});
      EXPECT_EQ(ran.shift, (std::vector<i64>{keys - 24}));
      EXPECT_EQ(ran.shift, Documents::single(24, keys).shift);
    }
}

}  // namespace
}  // namespace usp
