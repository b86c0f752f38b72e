// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/step_score.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace usp {
namespace {

constexpr const char* header =
    "id,model,layers,hidden,heads,kv_heads,ffn,vocab,gpus,gpu,gpus_per_node,interconnect,seq,micro_batch,"
    "global_batch,dtype,tp,sp_tp,pp,vpp,cp,cp_method,ep,dp,zero,recompute,offload,kernels,"
    "tokens_per_s_per_gpu,tflops_per_gpu,step_s,peak_memory_gib,notes,printed\n";

StepRun run_of(const std::string& row) {
  return parse_step_table(header + row, "t.csv").front();
}

// A row of llm-foundry's table.
const std::string mpt =
    "mpt-001,MPT-70b,80,8192,64,64,32768,50368,512,h100,8,,2048,8,4096,bf16,1,,1,,1,,,512,3,full,none,"
    "flash attention; GELU MLP,1007,408,,,,\n";

TEST(StepScore, ReadsTheVocabulary) {
  const StepRun run =
      run_of("a-b-7,\"X, \"\"Y\"\"\",2,64,,,256,100,8,h100,,,128,1,8,bf16,1,,1,,1,,,,,none,,,1.5,,,,,\n");
  EXPECT_EQ(run.model, "X, \"Y\"");
  EXPECT_EQ(run.source(), "a-b");
  EXPECT_EQ(run.layers, 2);
  EXPECT_FALSE(run.heads.has_value());
  EXPECT_DOUBLE_EQ(*run.tokens_s, 1.5);
  EXPECT_TRUE(is_step_table(header));
  EXPECT_FALSE(is_step_table("# tokens_per_s_per_gpu\nmachine,world\n"));
}

TEST(StepScore, RefusesWhatIsNoTable) {
  EXPECT_THROW(static_cast<void>(parse_step_table("id,colour\na,b\n", "t.csv")), InvalidInput);
  EXPECT_THROW(static_cast<void>(parse_step_table("id,model\na,b\n", "t.csv")), InvalidInput);
  EXPECT_THROW(static_cast<void>(parse_step_table(header, "t.csv")), InvalidInput);
  EXPECT_THROW(static_cast<void>(run_of("a,b,c\n")), InvalidInput);
  std::string bad = mpt;
  bad.replace(bad.find("8192"), 4, "many");
  EXPECT_THROW(static_cast<void>(run_of(bad)), InvalidInput);
}

TEST(StepScore, RefusesCountsThatNoRunHas) {
  const auto read = [](const std::string& column, const std::string& cell) {
    return parse_step_table("id,model,gpus,gpu,seq,dtype," + column + "\nx,m,8,h100,8192,bf16," + cell + "\n",
                            "t.csv");
  };
  for (const char* column :
       {"heads", "gpus_per_node", "micro_batch", "layers", "tp", "vpp", "tokens_per_s_per_gpu"})
    EXPECT_THROW(static_cast<void>(read(column, "0")), InvalidInput) << column;
  EXPECT_THROW(static_cast<void>(read("zero", "7")), InvalidInput);
  EXPECT_THROW(static_cast<void>(read("layers", "99999999999")), InvalidInput);
  EXPECT_THROW(static_cast<void>(read("seq", "4096")), InvalidInput) << "two columns of one name";
  EXPECT_NO_THROW(static_cast<void>(read("zero", "0")));
}

TEST(StepScore, APredictionDoesNotSeeTheMeasurement) {
  StepRun run = run_of(mpt);
  const StepPrediction first = predict_run(run);
  run.tokens_s = 1;
  run.tflops = 1;
  run.memory_gib = 1;
  const StepPrediction second = predict_run(run);
  EXPECT_TRUE(first.why.empty()) << first.why;
  EXPECT_EQ(first.tokens_s, second.tokens_s);
  EXPECT_EQ(first.band, second.band);
  EXPECT_EQ(first.memory_gib, second.memory_gib);
}

// A rate of FLOPs that counts the recomputed forward and attention in full is 96 B S L h^2 (1 + S/6h +
// V/16Lh) of them; model FLOPs are three quarters of that.
TEST(StepScore, PrintedFlopsBecomeTokensByTheirOwnCount) {
  StepRun run = run_of(mpt);
  run.tokens_s.reset();
  run.tflops = 100;
  const double token = 96.0 * 80 * 8192 * 8192 * (1 + 2048 / (6.0 * 8192) + 50368 / (16.0 * 80 * 8192));
  run.notes = "FLOP count includes the recomputed forward (x4) and full attention";
  EXPECT_NEAR(*predict_run(run).measured_s, 1e14 / token, 1e-6);
  run.notes = "attention in full";
  EXPECT_NEAR(*predict_run(run).measured_s, 1e14 / token / 0.75, 1e-6);
}

// Cross entropy of a framework holds 10 B of each logit of 8 rows of 2,048 tokens and 50,368 words, a fused
// one those of a tile of 2,048 tokens.
TEST(StepScore, LogitsAreWholeUnlessTheLossIsFused) {
  StepRun run = run_of(mpt);
  const double whole = predict_run(run).memory_gib;
  run.kernels = "flash attention; fused cross entropy";
  EXPECT_NEAR(whole - predict_run(run).memory_gib, 7.0 * 2048 * 50368 * 10 / 0x1p30, 0.01);
}

// torchtitan recomputes every second product and prints what its allocator reserved; FlashAttention without a
// version lies between the first two.
TEST(StepScore, WhatFrameworksSayOfTheirRuns) {
  StepRun run = run_of(mpt);
  run.recompute = "selective";
  const StepPrediction allocated = predict_run(run);
  EXPECT_NE(allocated.layout.find("keep_attention"), std::string::npos) << allocated.layout;
  const double unnamed = allocated.tokens_s;
  run.kernels = "flash attention v1 era";
  EXPECT_LT(predict_run(run).tokens_s, unnamed);
  run.kernels = "flash attention 2";
  EXPECT_GT(predict_run(run).tokens_s, unnamed);
  EXPECT_LT(predict_run(run).band, allocated.band);
  const double held = predict_run(run).memory_gib;
  run.origin = "pytorch/torchtitan docs";
  EXPECT_GT(predict_run(run).memory_gib, 1.05 * held);
}

TEST(StepScore, MemoryPrintedAsGbIsConverted) {
  const std::string row = "a-1,X,2,64,,,256,100,8,h100,,,128,1,8,bf16,1,,1,,1,,,,,none,,,1.5,,,40,";
  EXPECT_DOUBLE_EQ(*run_of(row + "SFT; memory printed as GB,\n").memory_gib, 40e9 / 0x1p30);
  EXPECT_DOUBLE_EQ(*run_of(row + "passes at 60 GB; memory of rank 0,\n").memory_gib, 40);
}

TEST(StepScore, FsdpOfAPipelineKeepsWeightsGathered) {
  StepRun run = run_of(mpt);
  run.pipeline = 8;
  run.printed = "zero as printed: 3 (FSDP2)";
  const StepPrediction p = predict_run(run);
  ASSERT_TRUE(p.why.empty()) << p.why;
  EXPECT_NE(p.layout.find("ZeRO-1"), std::string::npos) << p.layout;
  EXPECT_NE(std::find(p.assumed.begin(), p.assumed.end(), "weights gathered once per step"), p.assumed.end());
}

TEST(StepScore, WhatCannotBePricedSaysWhy) {
  StepRun run = run_of(mpt);
  run.dtype = "nvfp4";
  EXPECT_NE(predict_run(run).why.find("nvfp4"), std::string::npos);
  run = run_of(mpt);
  run.layers.reset();
  EXPECT_NE(predict_run(run).why.find("shape"), std::string::npos);
  run = run_of(mpt);
  run.gpu = "abacus";
  EXPECT_NE(predict_run(run).why.find("abacus"), std::string::npos);
}

TEST(StepScore, Fp8ProductsAreFasterButNotGated) {
  StepRun run = run_of(mpt);
  const StepPrediction bf16 = predict_run(run);
  run.dtype = "fp8";
  const StepPrediction fp8 = predict_run(run);
  ASSERT_TRUE(fp8.why.empty()) << fp8.why;
  EXPECT_GT(fp8.tokens_s, 1.2 * bf16.tokens_s);
  EXPECT_LT(fp8.tokens_s, 2 * bf16.tokens_s);
  EXPECT_TRUE(bf16.gated);
  EXPECT_FALSE(fp8.gated);
}

TEST(StepScore, KnownNamesHaveShapes) {
  StepRun run = run_of(mpt);
  run.layers.reset();
  run.vocab.reset();
  for (const char* name : {"Llama 2 70B", "llama_3.1_8b-Instruct", "GPT-3 175B"}) {
    run.model = name;
    EXPECT_TRUE(predict_run(run).why.empty()) << predict_run(run).why;
  }
}

// 40% of 989 TFLOP/s.
TEST(StepScore, AnMfuAloneIsARate) {
  StepRun run = run_of(mpt);
  run.tokens_s.reset();
  run.tflops = 0.4 * 989;
  const double flops = *predict_run(run).measured_s;
  run.tflops.reset();
  run.mfu = 0.4;
  EXPECT_NEAR(*predict_run(run).measured_s, flops, 1e-6 * flops);
}

TEST(StepScore, APowerLimitInTheTableSlowsTheRun) {
  StepRun run = run_of(mpt);
  const double full = predict_run(run).tokens_s;
  run.printed = "h100, 500 W limit";
  EXPECT_LT(predict_run(run).tokens_s, 0.9 * full);
}

// Three sources of two runs each: predicted rates of 100 with bands of 10%.
TEST(StepScore, ASourceIsJudgedByTheOthersAlone) {
  const auto judged = [](double own) {
    StepScore score;
    const double measured[] = {own, own, 90, 90, 80, 80};
    for (int i = 0; i < 6; ++i) {
      StepRun run;
      run.id = std::string(1, static_cast<char>('a' + i / 2)) + "-1";
      StepPrediction p;
      p.tokens_s = 100, p.band = 0.1, p.measured_s = measured[i], p.gated = true;
      score.runs.push_back(run);
      score.predictions.push_back(p);
    }
    judge_left_out(score);
    return score.left_out.front();
  };
  const LeftOutSource a = judged(85);
  EXPECT_NEAR(a.factor, std::sqrt(0.9 * 0.8), 1e-12);
  EXPECT_NEAR(a.widening, std::log(std::sqrt(0.9 / 0.8)) / std::log(1.1), 1e-12);
  EXPECT_NEAR(a.median_error, 1 - std::sqrt(0.72) / 0.85, 1e-12);
  EXPECT_EQ(a.coverage, 1);
  const LeftOutSource far = judged(10);
  EXPECT_EQ(far.factor, a.factor);
  EXPECT_EQ(far.widening, a.widening);
  EXPECT_EQ(far.coverage, 0);
}

// Keeps what is reached on the published table, which was in view when effects and bands were chosen.
TEST(StepScore, PublishedRuns) {
  const std::string file = std::string(USP_TEST_DATA) + "/measurements/training_steps.csv";
  const StepScore score = score_steps(parse_step_table(read_file(file), file), file);
  ASSERT_EQ(score.runs.size(), 571U);
  EXPECT_LE(score.median_over_sources, 0.20);
  EXPECT_EQ(score.infeasible, 0);
  EXPECT_GE(score.gated.rows, 300);
  EXPECT_GE(score.gated.coverage, 0.90);
  EXPECT_LE(score.gated.half_width, 0.30);
  EXPECT_LE(score.gated.memory_error, 0.15);
  EXPECT_LE(score.left_out_median, 0.20);
  // Megatron-LM's tables on A100 (arXiv 2104.04473, 2205.05198), whose kernels are those that are priced.
  const auto median_of = [&](const char* name) {
    const auto at = std::find_if(score.sources.begin(), score.sources.end(),
                                 [&](const StepMetrics& m) { return m.name == name; });
    return at == score.sources.end() ? 1.0 : at->median_error;
  };
  EXPECT_LE(median_of("mgt21"), 0.12);
  EXPECT_LE(median_of("mgt22"), 0.08);
}

}  // namespace
}  // namespace usp
