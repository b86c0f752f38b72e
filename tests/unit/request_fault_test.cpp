// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/request_fault.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace usp {
namespace {

/// "FLAG: why" of a request for a model after `change`; empty: it has no fault.
std::string fault_of(const char* preset, const std::function<void(PlanRequest&)>& change) {
  const Model model = load_model(preset);
  PlanRequest request;
  request.model = &model;
  request.workload.seq = 8192;
  change(request);
  const auto fault = request_fault(request);
  return fault ? fault->flag + ": " + fault->why : "";
}

std::string dense(const std::function<void(PlanRequest&)>& change) {
  return fault_of("llama-3.1-8b", change);
}
std::string routed(const std::function<void(PlanRequest&)>& change) {
  return fault_of("qwen3-30b-a3b", change);
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

TEST(RequestFault, OffloadIsOfWhatRecomputeKeeps) {
  const auto of = [](Recompute recompute, Offload offload) {
    return dense([&](PlanRequest& r) { r.fixed.recompute = recompute, r.fixed.offload = offload; });
  };
  const Offload input = Offload{}.with(Kept::input), mlp = Offload{}.with(Kept::mlp);
  for (const Word<Recompute>& mode : word_list<Recompute>())
    for (const Word<Kept>& kind : word_list<Kept>())
      EXPECT_EQ(of(mode.value, Offload{}.with(kind.value)).empty(), kept_by(mode.value).has(kind.value))
          << mode.text << " " << kind.text;
  expect_has(of(Recompute::full, mlp), "--offload: recompute full keeps input alone, so that no mlp");
  expect_has(of(Recompute::keep_attention, mlp.with(Kept::qkv)),
             "keeps input, attention alone, so that no qkv and no mlp");
  EXPECT_EQ(of(Recompute::offload, input), "");
  expect_has(of(Recompute::offload, {}), "--offload: none contradicts recompute offload");
  EXPECT_EQ(of(Recompute::full, {}), "");
  EXPECT_EQ(dense([&](PlanRequest& r) { r.fixed.offload = mlp; }), "") << "the planner keeps it";
}

TEST(RequestFault, ExpertChoicesWantExpertsThatExchange) {
  const auto named = [](const std::string& flag) {
    return flag + ": has no effect: llama-3.1-8b has no experts";
  };
  expect_has(dense([](PlanRequest& r) { r.workload.expert = 2; }), named("--expert"));
  expect_has(dense([](PlanRequest& r) { r.workload.expert_load = 1.5; }), named("--expert-load"));
  expect_has(dense([](PlanRequest& r) { r.workload.expert_tensor = false; }), named("--whole-experts"));
  expect_has(dense([](PlanRequest& r) { r.expert_overlap = true; }), named("--overlap-experts"));
  const auto overlap = [](i64 microbatches, std::optional<i64> global, int expert) {
    return routed([&](PlanRequest& r) {
      r.expert_overlap = true;
      r.workload.batch = r.workload.microbatches = microbatches;
      r.global_batch = global;
      r.search_expert = expert == 0;
      if (expert > 0) r.workload.expert = expert;
    });
  };
  expect_has(overlap(1, {}, 0), "a batch of one microbatch");
  expect_has(overlap(1, 1, 0), "a batch of one microbatch");
  EXPECT_EQ(overlap(2, {}, 0), "");
  EXPECT_EQ(overlap(1, 8, 0), "");
  EXPECT_EQ(overlap(2, {}, 8), "");
  expect_has(overlap(2, {}, 1), "one expert rank (--expert 1)");
  expect_has(routed([](PlanRequest& r) { r.workload.expert_load = 2; }), "none is busier");
  expect_has(routed([](PlanRequest& r) { r.workload.expert = 3; }), "128 experts do not divide over 3 ranks");
  // Forward passes of one microbatch have no other either.
  expect_has(routed([](PlanRequest& r) {
               r.expert_overlap = r.search_expert = true;
               r.workload.training = false;
             }),
             "a batch of one microbatch");
}

TEST(RequestFault, WhatTensorRanksSplitWantsSeveral) {
  const auto one = [](std::optional<int> tensor, bool whole_experts, bool whole_tokens) {
    return routed([&](PlanRequest& r) {
      r.fixed.tensor = tensor;
      r.workload.expert_tensor = !whole_experts;
      r.workload.sequence_parallel = !whole_tokens;
    });
  };
  expect_has(one(1, true, false), "--whole-experts: has no effect");
  expect_has(one(1, false, true), "--no-sequence-parallel: has no effect");
  EXPECT_EQ(one(1, false, false), "");
  EXPECT_EQ(one(2, true, true), "");
  EXPECT_EQ(one({}, true, true), "") << "the planner may choose several";
}

/// The window of a call is held against what a query could see: the longest document.
TEST(RequestFault, AWindowOverEveryDocumentMasksNone) {
  const auto read = [](const std::string& window, const std::string& documents) {
    const std::string text =
        R"({"format": "usp.attention_request", "version": 2, "ranks": 2, "shape": {"tokens": 64, "query_heads": 2,
            "head_dim_qk": 8}, "window": )" +
        window + R"(, "documents": )" + documents + "}";
    return read_attention_request(text, "request", [](const std::string&) {})->request.band;
  };
  EXPECT_EQ(read("31", "[32, 32]").diff_max, 30);
  EXPECT_EQ(read("33", "[40, 24]").diff_max, 32);
  EXPECT_EQ(read("[31, 3]", "[32, 32]").diff_min, -3);
  for (const auto& [window, documents] : {std::pair("32", "[32, 32]"), std::pair("40", "[40, 24]"),
                                          std::pair("[31, 31]", "[32, 32]"), std::pair("64", "null")})
    EXPECT_THROW(static_cast<void>(read(window, documents)), InvalidInput) << window << " " << documents;
}

TEST(RequestFault, LayersAreThoseOfTheModel) {
  const auto of = [](const std::function<void(Workload&)>& change) {
    return dense([&](PlanRequest& r) { change(r.workload); });
  };
  EXPECT_EQ(of([](Workload& w) { w.offload_layers = 33; }),
            "--offload-layers: 33 is more than the 32 layers of llama-3.1-8b");
  expect_has(of([](Workload& w) { w.recompute_layers = 33; }), "--recompute-layers: 33 is more");
  expect_has(of([](Workload& w) { w.pipeline = 64; }), "--pipeline: 64 is more");
  expect_has(of([](Workload& w) { w.pipeline = 8, w.virtual_stages = 5; }),
             "--virtual-stages: 8 stages of 5 chunks");
  EXPECT_EQ(of([](Workload& w) { w.pipeline = 8, w.virtual_stages = 4; }), "");
  expect_has(
      dense([](PlanRequest& r) { r.fixed.recompute = Recompute::none, r.workload.recompute_layers = 4; }),
      "recompute none computes nothing again");
  expect_has(dense([](PlanRequest& r) { r.fixed.offload = Offload{}, r.workload.offload_layers = 4; }),
             "offload none moves nothing");
}

TEST(RequestFault, LatentsTravelOverAPlainRing) {
  const auto of = [](const char* preset, std::optional<int> ulysses) {
    return fault_of(preset, [&](PlanRequest& r) { r.latent_kv = true, r.fixed.ulysses = ulysses; });
  };
  expect_has(of("llama-3.1-8b", {}), "--latent-kv: has no effect: llama-3.1-8b has no latent attention");
  EXPECT_EQ(of("deepseek-v3", {}), "");
  EXPECT_EQ(of("deepseek-v3", 1), "");
  expect_has(of("deepseek-v3", 2), "a plain ring alone ships latents");
}

// A request in JSON is refused at the key, with the same words.
TEST(RequestFault, JsonNamesTheKey) {
  const auto at = [](const std::string& model, const std::string& fields) -> std::string {
    const std::string text = "{\"model\": \"" + model + "\", \"cluster\": \"dgx-h100\", " + fields + "}";
    try {
      static_cast<void>(read_plan_request(text, "r.json", [](const std::string&) {}));
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return "";
  };
  const std::string seq = "\"workload\": {\"seq\": 8192}";
  EXPECT_EQ(at("llama-3.1-8b", seq), "");
  EXPECT_EQ(at("llama-3.1-8b", seq + ", \"expert_overlap\": true"), "/expert_overlap");
  EXPECT_EQ(at("llama-3.1-8b", seq + ", \"expert_overlap\": false"), "");
  EXPECT_EQ(at("llama-3.1-8b", seq + ", \"latent_kv\": true"), "/latent_kv");
  EXPECT_EQ(at("llama-3.1-8b", seq + R"(, "fixed": {"recompute": "full", "offload": ["mlp"]})"),
            "/fixed/offload");
  EXPECT_EQ(at("llama-3.1-8b", R"("workload": {"seq": 8192, "offload_layers": 33})"),
            "/workload/offload_layers");
  EXPECT_EQ(at("llama-3.1-8b", R"("workload": {"seq": 8192, "expert_load": 2})"), "/workload/expert_load");
}

}  // namespace
}  // namespace usp
