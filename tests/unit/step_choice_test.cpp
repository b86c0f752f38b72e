// SPDX-License-Identifier: Apache-2.0
#include "step_case.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/topology/routes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace usp {
namespace {

// 6 FLOPs per matrix weight and token, and 3 x 2 x 2 per visible pair, head and width; the embedding is read,
// not multiplied.
TEST(StepChoice, MfuCountsTheModelOnce) {
  Step step("llama-3.1-8b", 1);
  const PlanCandidate none = step.price(1, 8, Recompute::none), full = step.price(1, 8);
  const double norms = 65 * 4096, embedding = 128256.0 * 4096;
  const double weights = 8'030'261'248.0 - norms - embedding, tokens = 8 * 8192;
  const double pairs = 8 * 8192.0 * 8193 / 2;
  EXPECT_NEAR(none.model_flops, 6 * weights * tokens + 12 * pairs * 32 * 128 * 32, 1e6);
  EXPECT_DOUBLE_EQ(none.model_flops, full.model_flops);  // nothing that runs again counts
  EXPECT_NEAR(full.flop_s, full.model_flops / full.step_s / 8, 1);
  EXPECT_NEAR(full.mfu, full.flop_s / 989e12, 1e-9);
  EXPECT_GT(none.mfu, full.mfu);
}

/// Layers hold the logits of their model, and the backend that computes them.
TEST(StepChoice, LayersHaveTheLogitsOfTheModel) {
  Step step("gemma-2-27b", 1);
  const PlanResult result = plan_step(step.request);
  const PlanFile plan = make_plan_file(step.request, result.best());
  for (const PlanLayer& layer : plan.layers) {
    EXPECT_EQ(layer.plan.score.softcap, 50);
    EXPECT_DOUBLE_EQ(layer.plan.score.scale, 1.0 / 12);
    EXPECT_EQ(layer.plan.backend, Backend::mma);
  }
  EXPECT_TRUE(std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.find("softcap are computed by mma,") != std::string::npos;
  }));
}

bool says_host(const PlanResult& result) {
  return std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.find("layers have backend cpu: no backend of GPUs takes them there (mma: it is for") == 0;
  });
}

/// Each pass of a layer is priced by the kernels of the backend that its plan names.
TEST(StepChoice, LayersArePricedByTheBackendThatTheyName) {
  Step step("llama-3.1-8b", 1);
  const Calibration measured = calibration_of(step.cluster, "h200_sxm-pair");
  step.request.calibration = &measured;
  const PlanResult result = plan_step(step.request);
  const LayerAttention& layer = result.best().attention.front();
  EXPECT_EQ(layer.plan.backend, Backend::hopper_cudnn);
  EXPECT_EQ(make_plan_file(step.request, result.best()).layers.front().plan.backend, Backend::hopper_cudnn);
  LinkPricer links(step.cluster, measured);
  AttentionPricer pricer(links, layer.plan.shape, Documents::single(8192, 8192), step.request.execution);
  AttentionPlan call = layer.plan;
  const auto priced_by = [&](Backend backend) {
    call.backend = backend;
    return pricer.price(call, result.best().choice.placement);
  };
  const AttentionPrice hopper = priced_by(Backend::hopper), cudnn = priced_by(Backend::cudnn);
  EXPECT_EQ(layer.price.forward.seconds, hopper.forward.seconds);
  EXPECT_EQ(layer.price.backward.seconds, cudnn.backward.seconds);
  EXPECT_NE(hopper.forward.seconds, cudnn.forward.seconds);
  EXPECT_NE(hopper.backward.seconds, cudnn.backward.seconds);

  EXPECT_FALSE(says_host(result));

  step.cluster.specs.front().generation.clear();
  const PlanResult unknown = plan_step(step.request);
  EXPECT_EQ(unknown.best().attention.front().plan.backend, Backend{});
  EXPECT_TRUE(says_host(unknown));
  step.request.library_kernels = true;
  EXPECT_EQ(plan_step(step.request).best().attention.front().plan.backend, Backend{});
}

TEST(StepChoice, AGlobalBatchIsSharedByReplicas) {
  Step step("llama-3.1-8b", 2);
  step.request.global_batch = 12;
  const PlanResult result = plan_step(step.request);
  for (const PlanCandidate& c : result.candidates) {
    ASSERT_TRUE(c.choice.split.has_value());
    EXPECT_EQ(c.choice.split->batch * c.choice.data(), 12);
    EXPECT_EQ(c.choice.split->batch % c.choice.split->microbatches, 0);
    EXPECT_NEAR(c.seconds_per_token, c.step_s / (12.0 * 8192), 1e-12);
  }
  EXPECT_TRUE(std::any_of(result.rejected.begin(), result.rejected.end(), [](const Rejection& r) {
    return r.data == 8 && r.reason.find("does not divide the 12 sequences") != std::string::npos;
  }));
}

TEST(StepChoice, ForwardOnlyAnswersForTheGivenBatch) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.training = false;
  const PlanResult latency = plan_step(step.request);
  EXPECT_EQ(latency.best().choice.data(), 1);
  step.request.objective = Objective::throughput;
  const PlanResult throughput = plan_step(step.request);
  EXPECT_GT(throughput.best().choice.data(), 1);
  EXPECT_LT(latency.best().step_s, throughput.best().step_s);
}

TEST(StepChoice, HostMemoryIsALimitWhereKnown) {
  Step step("llama-3.1-8b", 1);
  step.request.fixed.recompute = Recompute::offload;
  step.request.fixed.tensor = 1;
  step.cluster.nodes.front().host_memory_bytes = {};
  PlanResult result = plan_step(step.request);
  EXPECT_TRUE(std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.find("host_memory_bytes") != std::string::npos;
  }));
  // 32 layers x 8192 tokens x 4096 x 2 B on each of 8 ranks: 2 GiB x 8.
  for (const double bytes : {16.0 * (1 << 30), 15.0 * (1 << 30)}) {
    step.cluster.nodes.front().host_memory_bytes = {bytes, topology::Provenance::preset, "test"};
    step.request.fixed.data = 8;
    const PlanCandidate c = step.price(1, 8, Recompute::offload);
    EXPECT_EQ(c.memory.host_total_bytes, 32LL * 8192 * 4096 * 2);
    EXPECT_EQ(c.fits_host, bytes > 15.5 * (1 << 30));
    EXPECT_EQ(c.fits, c.fits_host);
  }
  try {
    static_cast<void>(plan_step(step.request));
    FAIL();
  } catch (const Infeasible& error) {
    EXPECT_NE(std::string(error.what()).find("host memory"), std::string::npos);
  }
}

// What is kept waits in host memory instead of being computed again: a million tokens on 8 H200. Attention
// runs once more under full recompute, a fifth of the step.
TEST(StepChoice, OffloadOfWhatIsKeptReplacesRecompute) {
  Step step("llama-3.1-8b", 1, "h200");
  step.request.workload.seq = 1 << 20;
  step.request.fixed.ulysses = 8;
  const PlanCandidate best = plan_step(step.request).best();
  EXPECT_TRUE(best.choice.offload.any());
  EXPECT_EQ(seconds(best, "attention recomputed"), 0);
  EXPECT_GT(best.memory.host_total_bytes, 0);
  step.request.fixed.recompute = Recompute::full;
  EXPECT_GT(plan_step(step.request).best().step_s, 1.15 * best.step_s);
  step.request.workload.seq = 1 << 18;
  step.request.fixed.recompute = Recompute::mlp;
  step.request.fixed.offload = Offload{}.with(Kept::input);
  const PlanCandidate inputs = plan_step(step.request).best();
  EXPECT_EQ(inputs.memory.host_total_bytes, 32LL * 32768 * 4096 * 2);
  step.request.workload.offload_layers = 8;
  EXPECT_EQ(plan_step(step.request).best().memory.host_total_bytes, 8LL * 32768 * 4096 * 2);
}

// Host memory that is missing is what the error names, with the plan that fits without what asks for it.
TEST(StepChoice, ShortHostMemoryIsNotBlamedOnDevices) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.seq = 1 << 17;
  step.request.fixed.recompute = Recompute::offload;
  step.request.memory.host_bytes = 0x1p20;
  try {
    static_cast<void>(plan_step(step.request));
    FAIL();
  } catch (const DoesNotFit& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("of host memory on a host of 1.00 MiB (8 ranks x "), std::string::npos) << text;
    EXPECT_EQ(text.find("per device"), std::string::npos) << text;
    EXPECT_EQ(text.find("--nodes"), std::string::npos) << text;
    EXPECT_NE(text.find("drop --recompute: ring "), std::string::npos) << text;
    EXPECT_NE(text.find("(--host-memory)"), std::string::npos) << text;
    EXPECT_GT(error.short_bytes(), 0);
  }
}

// Kinds that are fixed leave the modes that keep them; all that is kept is named by what the mode keeps.
TEST(StepChoice, FixedOffloadChoosesAmongModesThatKeepIt) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.seq = 1 << 16;
  step.request.fixed.offload = Offload{}.with(Kept::mlp);
  for (const PlanCandidate& c : plan_step(step.request).candidates)
    EXPECT_TRUE(kept_by(c.choice.recompute).has(Kept::mlp)) << describe(c.choice);
}

// A sliding window over all of a sequence masks nothing: its layers run at the causal rate.
TEST(StepChoice, AWindowOverAllTokensIsNone) {
  Step step("gpt-oss-20b", 1);  // windows of 128 in every second layer
  Choice choice;
  const auto band = [&](i64 seq, std::vector<i64> documents) {
    step.request.workload.seq = seq;
    step.request.workload.documents = std::move(documents);
    for (const LayerKind& kind : step.model.kinds)
      if (kind.window) return attention_plan(step.request, choice, kind).band;
    throw std::logic_error("no window");
  };
  EXPECT_EQ(band(128, {}), (Band{0, unbounded}));
  EXPECT_EQ(band(256, {}), (Band{0, 127}));
  EXPECT_EQ(band(256, {128, 128}), (Band{0, unbounded}));
}

// 8 ranks share the channels of their host: at 8 GB/s for all, what each moves takes 1 GB/s.
TEST(StepChoice, RanksOfAHostShareItsMemory) {
  Step step("llama-3.1-8b", 1, "h200");
  step.request.workload.seq = 1 << 17;
  const double roomy = step.price(1, 8, Recompute::offload).step_s;
  EXPECT_EQ(seconds(step.price(1, 8, Recompute::offload), "offload that shows"), 0);
  step.cluster.nodes.front().host_memory_gb_s = {8, topology::Provenance::preset, "test"};
  const PlanCandidate narrow = step.price(1, 8, Recompute::offload);
  EXPECT_GT(seconds(narrow, "offload that shows"), 0);
  const double moved = 32.0 * 131072 * 4096 * 2 / 1e9;  // seconds each way
  EXPECT_NEAR(narrow.step_s, std::max(roomy, moved) + moved, moved);
}

// Latent attention over a ring: the best of them stands after the executable plans, and first where it is
// asked.
TEST(StepChoice, ARingOfLatentsIsPricedButNeverFirstUnlessAsked) {
  Step step("deepseek-v3", 32);
  step.request.workload.seq = 1 << 17;
  step.request.search_expert = true;
  step.request.fixed.ring = 8;
  step.request.fixed.ulysses = 1;
  const PlanResult all = plan_step(step.request);
  EXPECT_TRUE(all.best().executable());
  ASSERT_FALSE(all.candidates.back().executable());
  EXPECT_TRUE(all.candidates.back().choice.latent_kv);
  step.request.latent_kv = true;
  const PlanResult asked = plan_step(step.request);
  EXPECT_FALSE(asked.best().executable());
  EXPECT_EQ(describe(asked.best().choice), describe(all.candidates.back().choice));
  EXPECT_THROW(static_cast<void>(make_plan_file(step.request, asked.best())), InvalidInput);
  // 576 of 128 x (192 + 128) elements travel, forward and with their gradients.
  Choice heads = asked.best().choice;
  heads.latent_kv = false;
  const PlanCandidate expanded = price_choice(step.request, heads);
  const PlanCandidate latent = price_choice(step.request, asked.best().choice);
  const double share = 576.0 / (128 / heads.tensor() * 320.0);
  EXPECT_NEAR(latent.attention.front().price.forward.wire_bytes,
              share * expanded.attention.front().price.forward.wire_bytes, 1);
  EXPECT_GT(latent.attention.front().price.forward.compute_s,
            expanded.attention.front().price.forward.compute_s);
  Step dense("llama-3.1-8b", 1);
  dense.request.latent_kv = true;
  EXPECT_THROW(static_cast<void>(plan_step(dense.request)), UsageError);
}

// 8 of 16 hosts' experts: a token goes to each host once, to 16 (1 - (15/16)^8) of them on average.
TEST(StepChoice, ATokenTravelsOncePerHost) {
  Step step("deepseek-v3", 16);
  step.request.workload.seq = 4096;
  step.request.workload.expert = 128;
  const PlanCandidate c = step.price(1, 128, Recompute::none, 1);
  const double hosts = 16 * (1 - std::pow(15.0 / 16, 8));
  const double sent = 4096.0 * 7168 * 2 * hosts * 15 / 16;
  const topology::LinkTable links(step.cluster);
  const double latency = *links.latency(topology::PathKind::network).value;
  const double once = latency + sent / (50e9 * step.calibration.network.exchange.value);
  EXPECT_NEAR(seconds(c, "expert exchange"), 58 * 2 * 2 * once, 1e-6);
  step.request.workload.batch = step.request.workload.microbatches = 2;
  const double shown = seconds(step.price(1, 128, Recompute::none, 1), "expert exchange");
  step.request.expert_overlap = true;
  EXPECT_LT(seconds(step.price(1, 128, Recompute::none, 1), "expert exchange"), 0.9 * shown);
}

TEST(StepChoice, FlagsBesideTheMeshSayWhatTheyCost) {
  Step step("qwen3-30b-a3b", 2);
  step.request.fixed.data = 16;
  step.request.workload.expert = 1;  // as --expert gives it: every rank gathers all experts
  step.request.memory.mlp_tile_tokens = 64;
  step.request.fixed.offload = Offload{};
  const PlanResult result = plan_step(step.request);
  const auto slowdown = [&](const char* flag) {
    for (const FlagCost& cost : result.verdict.flag_costs)
      if (cost.flag == flag) return cost.slowdown;
    return 0.0;
  };
  EXPECT_GT(slowdown("--expert 1"), 0.1);
  EXPECT_GT(slowdown("--mlp-tile 64"), 0.1);
  EXPECT_GE(slowdown("--offload none"), 0);
  step.request.search_expert = true;
  for (const FlagCost& cost : plan_step(step.request).verdict.flag_costs) EXPECT_NE(cost.flag, "--expert 1");
}

TEST(StepChoice, AFixedFlagSaysWhatItCosts) {
  Step step("llama-3.1-8b", 2);
  step.request.workload.seq = 131072;
  step.request.fixed.tensor = 2;
  step.request.fixed.ulysses = 8;
  const PlanResult result = plan_step(step.request);
  const auto& costs = result.verdict.flag_costs;
  const auto of = [&](const char* flag) {
    return std::find_if(costs.begin(), costs.end(), [&](const FlagCost& c) { return c.flag == flag; });
  };
  ASSERT_NE(of("--ulysses 8"), costs.end());
  step.request.fixed.ulysses.reset();
  const PlanResult without = plan_step(step.request);
  EXPECT_NEAR(of("--ulysses 8")->slowdown,
              result.best().seconds_per_token / without.best().seconds_per_token - 1, 1e-9);
  EXPECT_EQ(of("--ulysses 8")->without, describe(without.best().choice));
  EXPECT_TRUE(std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.find("KV heads 8 < tensor 2 x ulysses 8: each is held by 2 ranks") != std::string::npos;
  }));
}

// torchtitan ran 405B on 128 H100 with tensor 8, FSDP 16, batch 2 and full recompute.
TEST(StepChoice, APublishedRunFits) {
  Step step("llama-3.1-405b", 16);
  step.request.workload.batch = 2;
  step.request.memory.device_bytes = 94.0 * (1 << 30);
  EXPECT_TRUE(step.price(8, 16).fits);
  step.request.workload.sequence_parallel = false;
  const PlanCandidate whole = step.price(8, 16);
  EXPECT_EQ(whole.memory.bytes_of(MemoryKind::activations), 126LL * 16384 * 16384 * 2);
  EXPECT_FALSE(whole.fits);
}

TEST(StepChoice, ExpertDegreesDifferAndTheBestIsFound) {
  Step step("deepseek-v3", 32);
  step.request.workload.seq = 16384;
  step.request.search_expert = true;
  const PlanResult found = plan_step(step.request);
  EXPECT_GT(seconds(found.best(), "expert exchange"), 0);
  double last = 0;
  step.request.search_expert = false;
  for (const int expert : {8, 16, 32}) {
    step.request.workload.expert = expert;
    const PlanCandidate best = plan_step(step.request).best();
    EXPECT_NE(best.step_s, last);
    EXPECT_GE(best.seconds_per_token, found.best().seconds_per_token * (1 - 1e-9));
    last = best.step_s;
  }
}

// Tensor ranks that hold whole experts: the expert group may be as large as data x sequence x tensor.
TEST(StepChoice, WholeExpertsLetExpertGroupsSpanTensorRanks) {
  Step step("qwen3-30b-a3b", 1);
  step.request.workload.expert = 8;
  EXPECT_THROW(static_cast<void>(step.price(2, 4, Recompute::full, 1)), Infeasible);
  step.request.workload.expert_tensor = false;
  const PlanCandidate whole = step.price(2, 4, Recompute::full, 1);
  EXPECT_EQ(seconds(whole, "routed tokens over tensor ranks"), 0);
  EXPECT_GT(seconds(whole, "expert exchange"), 0);
  step.request.workload.expert = 4;
  step.request.workload.expert_tensor = true;
  const PlanCandidate split = step.price(2, 4, Recompute::full, 1);
  EXPECT_GT(seconds(split, "routed tokens over tensor ranks"), 0);
  // 128 experts over 8 ranks, or over 4 ranks and halved by 2.
  EXPECT_EQ(whole.memory.bytes_of(MemoryKind::parameters), split.memory.bytes_of(MemoryKind::parameters));
}

TEST(StepChoice, ABusyExpertRankSetsThePace) {
  Step step("qwen3-30b-a3b", 1);
  step.request.workload.expert = 8;
  const PlanCandidate even = step.price(1, 8, Recompute::none, 1);
  step.request.workload.expert_load = 1.5;
  const PlanCandidate busy = step.price(1, 8, Recompute::none, 1);
  EXPECT_GT(seconds(busy, "expert exchange"), 1.3 * seconds(even, "expert exchange"));
  EXPECT_GT(seconds(busy, "projections, MLP, logits"), seconds(even, "projections, MLP, logits"));
  EXPECT_GT(busy.memory.bytes_of(MemoryKind::activations), even.memory.bytes_of(MemoryKind::activations));
  EXPECT_DOUBLE_EQ(busy.model_flops, even.model_flops);
  step.request.workload.expert = 1;  // all experts on every rank: none is busier
  const double alone = step.price(1, 8, Recompute::none, 3).step_s;
  step.request.workload.expert_load = 1;
  EXPECT_DOUBLE_EQ(step.price(1, 8, Recompute::none, 3).step_s, alone);
}

TEST(StepChoice, TilesAreChosenWhereNothingElseFits) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.seq = 1 << 20;
  step.request.fixed.recompute = Recompute::full;
  step.request.fixed.ulysses = 8;
  step.request.memory.device_bytes = 140.0 * (1 << 30);
  const PlanCandidate roomy = plan_step(step.request).best();
  EXPECT_EQ(roomy.choice.split->mlp_tile_tokens, 0);
  step.request.fixed.zero_stage = roomy.choice.zero_stage;
  step.request.memory.device_bytes = static_cast<double>(roomy.memory.total_bytes) - 1;
  const PlanResult tight = plan_step(step.request);
  EXPECT_EQ(tight.best().choice.split->mlp_tile_tokens, 8192);
  EXPECT_GT(tight.best().step_s, roomy.step_s) << "products of 8192 rows";
  EXPECT_LT(tight.best().step_s, 1.01 * roomy.step_s);
  EXPECT_TRUE(std::any_of(tight.notes.begin(), tight.notes.end(), [](const std::string& note) {
    return note.find("the MLP is assumed tiled") != std::string::npos;
  }));
}

// ZeRO traffic has a band of several times itself, and still is never shorter by more than all of it.
TEST(StepChoice, NoTermShrinksByMoreThanAllOfIt) {
  Step step("deepseek-v3", 32);
  step.request.workload.seq = 1 << 15;
  step.request.search_expert = true;
  for (const std::string& term : plan_step(step.request).verdict.sensitive_terms) {
    const std::size_t percent = term.find('%');
    ASSERT_NE(percent, std::string::npos) << term;
    const double change = std::stod(term.substr(term.rfind(' ', percent) + 1));
    EXPECT_GT(change, 0) << term;
    EXPECT_TRUE(std::isfinite(change)) << term;
    if (term.find("% less than priced") != std::string::npos) {
      EXPECT_LE(change, 100) << term;
    }
  }
}

// A product of few rows reads all weights for them: 64 of them compute less than a tenth of what 8192 do.
TEST(StepChoice, SmallTilesTakeLonger) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.seq = 1 << 17;
  const auto products = [&](i64 mlp, i64 loss) {
    step.request.memory.mlp_tile_tokens = mlp;
    step.request.memory.loss_tile_tokens = loss;
    return seconds(step.price(1, 8, Recompute::none, 3), "projections, MLP, logits");
  };
  const double whole = products(0, 0);
  EXPECT_DOUBLE_EQ(products(1 << 17, 1 << 17), whole) << "all local tokens in one tile";
  EXPECT_LT(products(8192, 2048), 1.02 * whole);
  EXPECT_GT(products(64, 0), 3 * whole);
  EXPECT_GT(products(0, 64), 1.15 * whole);
  EXPECT_GT(products(1, 0), products(64, 0) * 10);
}

// (4 - 1) / 8 of the work for 1F1B; two chunks per rank halve it.
TEST(StepChoice, ChunksShortenTheBubble) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.pipeline = 4;
  step.request.workload.batch = step.request.workload.microbatches = 8;
  const PlanCandidate plain = step.price(1, 2, Recompute::none, 1);
  double work = 0;
  for (const TimeTerm& term : plain.terms) {
    if (term.name == "pipeline bubble") break;
    work += term.seconds;
  }
  EXPECT_NEAR(seconds(plain, "pipeline bubble"), work * 3 / 8, 1e-9);
  step.request.workload.virtual_stages = 2;
  EXPECT_NEAR(seconds(step.price(1, 2, Recompute::none, 1), "pipeline bubble"), work * 3 / 16, 1e-9);
}

// 8.03e9 gradients of 2 B, read and written by each of 4 microbatches, at 88% of 3.35 TB/s.
TEST(StepChoice, MicrobatchesAddGradients) {
  Step step("llama-3.1-8b", 1);
  step.request.workload.batch = 4;
  EXPECT_EQ(seconds(step.price(1, 8, Recompute::full, 1), "gradient accumulation"), 0);
  step.request.workload.microbatches = 4;
  EXPECT_NEAR(seconds(step.price(1, 8, Recompute::full, 1), "gradient accumulation"),
              4 * 2 * 2 * 8'030'261'248.0 / (0.88 * 3.35e12), 1e-6);
  EXPECT_EQ(seconds(step.price(1, 8, Recompute::full, 3), "gradient accumulation"), 0);
}

TEST(StepChoice, WhatIsKeptDecidesWhatRunsAgain) {
  Step step("llama-3.1-8b", 1);
  const auto attention = [&](Recompute r) { return seconds(step.price(1, 8, r), "attention recomputed"); };
  const auto products = [&](Recompute r) { return seconds(step.price(1, 8, r), "the same recomputed"); };
  EXPECT_GT(attention(Recompute::selective), 0);
  EXPECT_EQ(products(Recompute::selective), 0);
  EXPECT_EQ(attention(Recompute::mlp), 0);
  EXPECT_EQ(attention(Recompute::keep_attention), 0);
  EXPECT_GT(products(Recompute::keep_attention), products(Recompute::mlp));
  EXPECT_DOUBLE_EQ(products(Recompute::keep_attention), products(Recompute::full));
  EXPECT_DOUBLE_EQ(attention(Recompute::full), attention(Recompute::selective));
  const double all = products(Recompute::full);
  step.request.workload.recompute_layers = 8;  // of 32
  EXPECT_NEAR(products(Recompute::full), all / 4, 1e-9);
}

TEST(StepChoice, AMeasuredStepRescales) {
  Step step("llama-3.1-8b", 1);
  const PlanCandidate c = step.price(1, 8);
  const MeasuredStep m = measured_step(c, 1.5 * c.step_s);
  EXPECT_DOUBLE_EQ(m.ratio, 1.5);
  EXPECT_FALSE(m.in_band);
  EXPECT_NEAR(m.mfu, c.mfu / 1.5, 1e-12);
  EXPECT_NEAR(m.tokens_s, 8 * 8192 / (1.5 * c.step_s), 1e-6);
  ASSERT_FALSE(m.terms.empty());
  const TermFactor& first = m.terms.front();  // the longest term has to give least
  EXPECT_NEAR(first.factor, 1 + 0.5 * c.step_s / seconds(c, first.name), 1e-9);
  EXPECT_TRUE(measured_step(c, c.step_s).in_band);
}

}  // namespace
}  // namespace usp
