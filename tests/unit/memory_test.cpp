// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/memory.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/model_config.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace usp {
namespace {

constexpr double gib = 0x1p30;

/// One model and workload with the table they give; fields are changed before `table()`.
struct Case {
  explicit Case(const char* preset) : model(load_model(preset)) {}
  explicit Case(Model m) : model(std::move(m)) {}

  MemoryTable table() {
    count = count_parameters(model);
    input.model = &model;
    input.parameters = &count;
    input.workload = &workload;
    return memory_per_rank(input);
  }

  Model model;
  ParameterCount count;
  Workload workload{.seq = 8192};
  MemoryInput input{.local_tokens = 8192};
};

std::int64_t sum_of(const std::vector<MemoryRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                         [](std::int64_t sum, const MemoryRow& row) { return sum + row.bytes; });
}

TEST(Memory, StatesByZeroStage) {
  const std::int64_t psi = 8'030'261'248;
  Case c("llama-3.1-8b");
  c.input.mesh = {.data = 2, .ring = 2, .ulysses = 4};
  const std::int64_t ranks = 16;
  const auto states = [&](int stage) {
    c.workload.zero_stage = stage;
    const MemoryTable t = c.table();
    return std::vector<std::int64_t>{t.bytes_of(MemoryKind::parameters), t.bytes_of(MemoryKind::gradients),
                                     t.bytes_of(MemoryKind::optimizer)};
  };
  EXPECT_EQ(states(0), (std::vector<std::int64_t>{2 * psi, 2 * psi, 12 * psi}));
  EXPECT_EQ(states(1), (std::vector<std::int64_t>{2 * psi, 2 * psi, 12 * psi / ranks}));
  EXPECT_EQ(states(2), (std::vector<std::int64_t>{2 * psi, 2 * psi / ranks, 12 * psi / ranks}));
  EXPECT_EQ(states(3), (std::vector<std::int64_t>{2 * psi / ranks, 2 * psi / ranks, 12 * psi / ranks}));
  c.workload.fp32_gradients = true;
  EXPECT_EQ(states(3)[1], 4 * psi / ranks);
  // Two gathered layers of the largest unit (the embedding) in bf16, and its fp32 gradient.
  EXPECT_EQ(c.table().bytes_of(MemoryKind::gathered_layer), 128256LL * 4096 * (2 * 2 + 4));
}

TEST(Memory, TensorAndPipelineSplitTheStates) {
  Case c("llama-3.1-405b");
  c.workload.zero_stage = 0;
  c.input.mesh = {.tensor = 8, .pipeline = 6};
  c.workload.batch = c.workload.microbatches = 6;
  const MemoryTable t = c.table();
  const double layer =
      128256.0 * 0 + (16384.0 * 16384 * 2 + 16384.0 * 1024 * 2 + 3 * 16384.0 * 53248) / 8 + 2 * 16384;
  const double ends = 128256.0 * 16384 / 8;
  EXPECT_EQ(t.stage, 0);  // most microbatches in flight
  EXPECT_EQ(t.bytes_of(MemoryKind::parameters), static_cast<std::int64_t>(2 * (21 * layer + ends)));
  EXPECT_EQ(t.bytes_of(MemoryKind::activations), 21LL * 6 * 8192 * 16384 * 2 / 8);
  EXPECT_EQ(t.bytes_of(MemoryKind::logits), 0);
  c.workload.sequence_parallel = false;
  EXPECT_EQ(c.table().bytes_of(MemoryKind::activations), 21LL * 6 * 8192 * 16384 * 2);
}

// 126 layers over 16 stages, as Llama 3 splits them: 7 beside the embedding and beside the head, 8 on the
// stages between, of which the first keeps most microbatches.
TEST(Memory, StagesAtTheEndsHoldALayerLess) {
  Case c("llama-3.1-405b");
  c.workload.zero_stage = 0;
  c.input.mesh = {.tensor = 8, .pipeline = 16};
  c.workload.batch = c.workload.microbatches = 16;
  c.input.loss_tile_tokens = 256;
  const MemoryTable t = c.table();
  EXPECT_EQ(t.stage, 1);
  EXPECT_EQ(t.bytes_of(MemoryKind::activations), 8LL * 15 * 8192 * 16384 * 2 / 8);
  c.input.mesh.pipeline = 125;  // one layer more than stages: one of those between has it
  c.workload.batch = c.workload.microbatches = 125;
  EXPECT_EQ(c.table().stage, 1);
}

// ZeRO-3 gathers two layers; those of more than 10^9 parameters matrix by matrix.
TEST(Memory, LargeLayersAreGatheredByTheirMatrices) {
  Case c("llama-3.1-405b");
  c.workload.zero_stage = 3;
  c.input.mesh = {.data = 64};
  const std::int64_t head = 128256LL * 16384;  // the largest matrix; a layer has 3.2 x 10^9 parameters
  EXPECT_EQ(c.table().bytes_of(MemoryKind::gathered_layer), head * (2 * 2 + 2));
}

// Megatron-LM's interleaved schedule: stage 0 of p with v chunks keeps 2 (p - 1) + (v - 1) p + 1 chunks of
// L / (p v) layers: for p = 6, v = 7 (10 + 36 + 1) / 7 microbatches of its 21 layers.
TEST(Memory, InterleavedStagesKeepMoreMicrobatches) {
  Case c("llama-3.1-405b");
  c.input.mesh = {.tensor = 8, .pipeline = 6};
  c.workload.batch = c.workload.microbatches = 24;
  c.workload.virtual_stages = 7;
  c.input.loss_tile_tokens = 256;  // else the last stage is the fullest
  EXPECT_NEAR(static_cast<double>(c.table().bytes_of(MemoryKind::activations)),
              21.0 * 47 / 7 * 8192 * 16384 * 2 / 8, 1);
}

TEST(Memory, ExpertsAreSplitBeforeZero) {
  Case c("mixtral-8x7b");
  c.workload.zero_stage = 1;
  c.input.mesh = {.data = 8, .expert = 8};
  const std::int64_t experts = 32LL * 8 * 3 * 4096 * 14336, dense = 46'702'792'704 - experts;
  const MemoryTable t = c.table();
  EXPECT_EQ(t.bytes_of(MemoryKind::parameters), 2 * (dense + experts / 8));
  EXPECT_EQ(t.bytes_of(MemoryKind::optimizer), 12 * (dense + experts) / 8);
  c.input.mesh.expert = 3;
  EXPECT_THROW(static_cast<void>(c.table()), InvalidInput);
}

// A published report: 60 layers x 256,000 tokens x 5376 x 2 B of checkpoints are 165.15 GB, 41.29 GB on 4
// ranks.
TEST(Memory, CheckpointsScaleWithLocalTokens) {
  Case c(read_model_config(
      R"({"model_type":"gemma2","hidden_size":5376,"num_hidden_layers":60,"num_attention_heads":32,
      "num_key_value_heads":16,"head_dim":256,"intermediate_size":21504,"vocab_size":262144,"sliding_window":1024})",
      "x"));
  c.workload.seq = c.input.local_tokens = 256'000;
  EXPECT_NEAR(static_cast<double>(c.table().bytes_of(MemoryKind::activations)) / 1e9, 165.15, 0.005);
  c.input.local_tokens /= 4;
  c.input.mesh.ring = 4;
  EXPECT_NEAR(static_cast<double>(c.table().bytes_of(MemoryKind::activations)) / 1e9, 41.29, 0.005);
  c.workload.recompute = Recompute::offload;
  const MemoryTable t = c.table();
  EXPECT_EQ(t.host_total_bytes, 60LL * 64'000 * 5376 * 2);
  EXPECT_EQ(t.bytes_of(MemoryKind::activations), 2LL * 64'000 * 5376 * 2);
}

// Published reports: fp32 logits of 20,000 x 131,072 are 9.77 GiB, of 131,072 x 151,936 74.2 GiB (9.27 on 8
// ranks).
TEST(Memory, LogitsAreCounted) {
  const Workload w{.seq = 1};
  const auto fp32 = [&](std::int64_t tokens, std::int64_t vocab) {
    const LogitsBytes b = logits_bytes(tokens, vocab, w);
    EXPECT_EQ(b.fp32_copy, b.gradient);
    return static_cast<double>(b.fp32_copy) / gib;
  };
  EXPECT_NEAR(fp32(20'000, 131'072), 9.77, 0.005);
  EXPECT_NEAR(fp32(131'072, 151'936), 74.2, 0.05);
  EXPECT_NEAR(fp32(131'072 / 8, 151'936), 9.27, 0.005);
  EXPECT_EQ(logits_bytes(32'768, 131'072, w).total(), 32'768LL * 131'072 * 10);

  Case c("llama-3.1-8b");
  c.input.local_tokens = 32'768;
  EXPECT_EQ(c.table().bytes_of(MemoryKind::logits), 32'768LL * 128'256 * 10);
  c.input.loss_tile_tokens = 2048;
  EXPECT_EQ(c.table().bytes_of(MemoryKind::logits), 2048LL * 128'256 * 10);
  c.input.mesh.tensor = 8;
  EXPECT_EQ(c.table().bytes_of(MemoryKind::logits), 2048LL * 128'256 / 8 * 10);
  c.workload.training = false;
  EXPECT_EQ(c.table().bytes_of(MemoryKind::logits), 2048LL * 128'256 / 8 * 2);
}

TEST(Memory, ActivationsOfALayer) {
  const Model model = load_model("llama-3.1-8b");
  const double h = 4096, f = 14336, q = 32 * 128, kv = 8 * 128;
  EXPECT_DOUBLE_EQ(layer_activations(model, 0, Precision::bf16, 1).total(),
                   2 * (4 * h + 2 * q + 2 * kv + 3 * f) + 4 * 32);
  EXPECT_DOUBLE_EQ(layer_activations(model, 0, Precision::bf16, 8).total(),
                   2 * (4 * h + 2 * q + 2 * kv + 3 * f) / 8 + 4 * 32 / 8);
  EXPECT_DOUBLE_EQ(layer_activations(model, 0, Precision::bf16, 8).gathered, 2 * h);
  EXPECT_DOUBLE_EQ(layer_activations(model, 0, Precision::bf16, 8, {.sequence_parallel = false}).total(),
                   2 * (4 * h + (2 * q + 2 * kv + 3 * f) / 8) + 4 * 32 / 8);
}

TEST(Memory, RecomputeKeepsLess) {
  const double h = 4096, f = 14336, attention = 2 * (2 * 4096 + 2 * 1024) + 4 * 32;
  Case c("llama-3.1-8b");
  const auto bytes = [&](Recompute mode, MemoryKind kind) {
    c.workload.recompute = mode;
    return static_cast<double>(c.table().bytes_of(kind)) / 8192;
  };
  EXPECT_EQ(bytes(Recompute::none, MemoryKind::activations), 32 * (8 * h + attention + 6 * f));
  EXPECT_EQ(bytes(Recompute::selective, MemoryKind::activations), 32 * (8 * h + attention - 4 * 32 + 6 * f));
  EXPECT_EQ(bytes(Recompute::mlp, MemoryKind::activations), 32 * (4 * h + attention));
  // The layer's input, attention's output (as wide) and one lse per head.
  EXPECT_EQ(bytes(Recompute::keep_attention, MemoryKind::activations), 32 * (2 * h + 2 * h + 4 * 32));
  EXPECT_EQ(bytes(Recompute::full, MemoryKind::activations), 32 * 2 * h);
  EXPECT_EQ(bytes(Recompute::full, MemoryKind::live_layer), 6 * h + attention + 6 * f + (4 * h + 6 * f));
  c.workload.recompute_layers = 8;
  EXPECT_EQ(bytes(Recompute::full, MemoryKind::activations), 8 * 2 * h + 24 * (8 * h + attention + 6 * f));
  c.workload.recompute_layers.reset();
  c.input.mlp_tile_tokens = 1024;
  EXPECT_EQ(bytes(Recompute::full, MemoryKind::live_layer),
            6 * h + attention + 6 * f / 8 + (4 * h + 6 * f / 8));
}

TEST(Memory, RowsSumAndCarryWhatIsGiven) {
  Case c("gpt-oss-20b");
  c.input.mesh = {.ring = 2, .ulysses = 4};
  c.input.attention_buffers = {{"second KV buffer", 1000, "double buffering"}};
  c.input.kv_copies = {{"gathered keys", 70, "all ranks"}, {"gathered values", 7, "all ranks"}};
  c.input.communicator_bytes = 12345;
  c.input.communicators = {{"ulysses", 3}, {"data x sequence", 1}};
  c.input.reserve_fraction = 0.05;
  const MemoryTable t = c.table();
  EXPECT_EQ(t.bytes_of(MemoryKind::attention_buffers), 1000);
  EXPECT_EQ(t.bytes_of(MemoryKind::kv_copies), 77);
  EXPECT_EQ(t.bytes_of(MemoryKind::communicators), 4 * 12345);
  EXPECT_EQ(sum_of(t.rows), t.total_bytes);
  EXPECT_EQ(sum_of(t.host_rows), t.host_total_bytes);
  const std::int64_t reserve = t.bytes_of(MemoryKind::reserve);
  EXPECT_NEAR(static_cast<double>(reserve), 0.05 * static_cast<double>(t.total_bytes - reserve), 1);
  for (const auto& row : t.rows) EXPECT_FALSE(row.reason.empty()) << row.name;
}

TEST(Memory, ForwardOnlyHoldsNoTrainingState) {
  Case c("llama-3.1-8b");
  c.workload.training = false;
  c.workload.zero_stage = 0;
  const MemoryTable t = c.table();
  for (const auto kind :
       {MemoryKind::gradients, MemoryKind::optimizer, MemoryKind::activations, MemoryKind::gathered_layer})
    EXPECT_EQ(t.bytes_of(kind), 0);
}

TEST(Memory, WhatItNeedsIsNamed) {
  Case c("llama-3.1-8b");
  c.model.vocab.reset();
  try {
    static_cast<void>(c.table());
    FAIL();
  } catch (const MissingValue& error) {
    EXPECT_EQ(error.key(), "vocab_size");
  }
  Case stages("llama-3.1-8b");
  stages.input.mesh.pipeline = 33;
  EXPECT_THROW(static_cast<void>(stages.table()), InvalidInput);
}

// Kinds of kept tensors wait in host memory, of some layers; two layers' worth is on its way on the device.
TEST(Memory, KeptTensorsWaitInHostMemoryByKind) {
  Case c("llama-3.1-8b");
  const std::int64_t tokens = c.input.local_tokens, input = tokens * 4096 * 2;
  const auto mlp = [&](Offload offload, std::optional<std::int64_t> layers) {
    c.workload.recompute = Recompute::mlp;
    c.workload.offload = offload;
    c.workload.offload_layers = layers;
    return c.table();
  };
  const std::int64_t kept = mlp({}, {}).bytes_of(MemoryKind::activations);
  const MemoryTable some = mlp(Offload{}.with(Kept::input).with(Kept::mlp), 8);
  EXPECT_EQ(some.host_total_bytes, 8 * 2 * input);  // the layer's input and the MLP's
  EXPECT_EQ(some.bytes_of(MemoryKind::activations), kept - 8 * 2 * input + 2 * 2 * input);
  const MemoryTable all = mlp(Offload::everything(), {});
  EXPECT_EQ(all.host_total_bytes, kept);
  EXPECT_EQ(all.bytes_of(MemoryKind::activations), 2 * kept / 32);
  EXPECT_THROW(static_cast<void>(mlp(Offload::everything(), 33)), InvalidInput);
}

// kept_by names the kinds of which the table has bytes.
TEST(Memory, ARecomputedLayerKeepsTheKindsThatItSays) {
  for (const Word<Recompute>& mode : word_list<Recompute>())
    for (const Word<Kept>& kind : word_list<Kept>()) {
      Case c("llama-3.1-8b");
      c.workload.recompute = mode.value == Recompute::offload ? Recompute::full : mode.value;
      c.workload.offload = Offload{}.with(kind.value);
      EXPECT_EQ(c.table().host_total_bytes > 0, kept_by(mode.value).has(kind.value))
          << mode.text << " " << kind.text;
    }
}

// Reasons are for people: searches leave them out, and count the same.
TEST(Memory, ReasonsAreWrittenWhereTheyAreRead) {
  Case c("llama-3.1-8b");
  const MemoryTable told = c.table();
  c.input.reasons = false;
  const MemoryTable silent = c.table();
  ASSERT_EQ(told.rows.size(), silent.rows.size());
  for (std::size_t i = 0; i < told.rows.size(); ++i) {
    EXPECT_EQ(told.rows[i].bytes, silent.rows[i].bytes);
    EXPECT_FALSE(told.rows[i].reason.empty()) << told.rows[i].name;
  }
  EXPECT_EQ(silent.rows.front().reason, "");
}

}  // namespace
}  // namespace usp
