// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/detail/flops.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/parameters.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

// DeepSpeed-Ulysses (arXiv 2309.14509), tables 2 and 3: sequence, GPUs, milliseconds, TFLOP/s per GPU.
TEST(Flops, ReproduceTheUlyssesTables) {
  const double rows[][4] = {{131072, 64, 32432.1333, 165.526667},
                            {131072, 128, 17052.5143, 157.41},
                            {131072, 256, 9886.7, 136.09},
                            {65536, 64, 9676.76, 161.3626667},
                            {262144, 256, 33486.5, 147.4}};
  for (const auto& [seq, gpus, ms, tflops] : rows) {
    const double flops =
        ulysses_paper_flops({.batch = 8, .seq = seq, .layers = 32, .hidden = 4096, .vocab = 50257});
    EXPECT_NEAR(flops / (ms * 1e-3) / gpus / 1e12 / tflops, 1, 0.003) << seq << " on " << gpus;
  }
}

// A dense model: two FLOPs per matrix weight and token; the norms and the embedding look-up cost none.
TEST(Flops, DenseModelIsTwicePerWeight) {
  const Model model = load_model("llama-3.1-8b");
  const ParameterCount count = count_parameters(model);
  const StepFlops step = step_flops(model, {.seq = 1, .recompute = Recompute::none}, 1);
  EXPECT_DOUBLE_EQ(step.forward, 2.0 * static_cast<double>(*count.total - *count.embedding - count.norms));
  EXPECT_DOUBLE_EQ(step.backward, 2 * step.forward);
  EXPECT_EQ(step.recompute, 0);
}

TEST(Flops, RecomputeLeavesTheLogitsOut) {
  const Model model = load_model("llama-3.1-8b");
  const StepFlops full = step_flops(model, {.seq = 1, .recompute = Recompute::full}, 1000);
  EXPECT_DOUBLE_EQ(full.recompute, full.forward - full.logits);
  const StepFlops selective = step_flops(model, {.seq = 1, .recompute = Recompute::selective}, 1000);
  EXPECT_EQ(selective.recompute, 0);  // core attention alone runs again
  const StepFlops mlp = step_flops(model, {.seq = 1, .recompute = Recompute::mlp}, 1000);
  EXPECT_DOUBLE_EQ(mlp.recompute, mlp.mlp);
  const StepFlops forward = step_flops(model, {.seq = 1, .training = false}, 1000);
  EXPECT_DOUBLE_EQ(forward.total(), forward.forward);
}

// Without the core, 24 B S L h^2 (1 + V/(16 L h)) x 4 of the convention must come from the same shape.
TEST(Flops, AgreeWithTheConventionOutsideTheCore) {
  const Model model = read_model_config(
      R"({"model_type":"gpt2","n_embd":4096,"n_layer":32,"n_head":32,"vocab_size":50257})", "x");
  const StepFlops step = step_flops(model, {.seq = 1, .recompute = Recompute::full}, 1);
  const double layers = 96.0 * 32 * 4096 * 4096;
  EXPECT_DOUBLE_EQ(step.total() - 3 * step.logits, layers);
  EXPECT_DOUBLE_EQ(3 * step.logits, layers * 50257 / (16.0 * 32 * 4096));
  const double core = layers / (6.0 * 4096);  // of a sequence of one token
  EXPECT_DOUBLE_EQ(step.total() + core,
                   ulysses_paper_flops({.batch = 1, .seq = 1, .layers = 32, .hidden = 4096, .vocab = 50257}));
}

TEST(Flops, MixtureCountsActiveExperts) {
  const Model model = load_model("mixtral-8x7b");
  EXPECT_DOUBLE_EQ(layer_flops(model, 0).mlp, 2.0 * (4096.0 * 8 + 2 * 3 * 4096.0 * 14336));
}

TEST(Flops, LinearLayersHaveAStateInsteadOfACore) {
  const Model model = load_model("qwen3.5-27b");
  EXPECT_DOUBLE_EQ(layer_flops(model, 0).linear_core, 6.0 * 48 * 128 * 128);
  EXPECT_EQ(layer_flops(model, 3).linear_core, 0);
  EXPECT_DOUBLE_EQ(layer_flops(model, 3).projections, 2.0 * 5120 * 256 * (48 + 4 + 4 + 24));
}

TEST(Flops, UnknownIsNamed) {
  Model model = load_model("llama-3.1-8b");
  model.vocab.reset();
  EXPECT_THROW(static_cast<void>(step_flops(model, {.seq = 1}, 1)), MissingValue);
  model.dense_intermediate.reset();
  EXPECT_THROW(static_cast<void>(layer_flops(model, 0)), MissingValue);
}

}  // namespace
}  // namespace usp
