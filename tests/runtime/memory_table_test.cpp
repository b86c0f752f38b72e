// SPDX-License-Identifier: Apache-2.0
// The plan's memory of attention is what the executor holds: a workspace of one layer, saved state of all.
#include "counting_allocator.hpp"

#include "usp/comm/threads.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/typed_view.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan.hpp"
#include "usp/runtime/batch.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

namespace usp::test {
namespace {

struct Machine {
  topology::Cluster cluster = topology::compose({.source = "dgx-h100", .nodes = 1});
  Calibration calibration = calibration_of(cluster);
};

AttentionPlan attention(int ring, int ulysses, i64 tokens) {
  AttentionPlan plan;
  plan.mesh = {.ring_inner = ring, .ulysses = ulysses};
  plan.shape = {.q_tokens = tokens,
                .kv_tokens = tokens,
                .query_heads = 32,
                .kv_heads = 8,
                .head_dim_qk = 64,
                .head_dim_v = 64,
                .dtype = DType::bf16};
  plan.band = {0, unbounded};
  return plan;
}

/// Expects the bytes that the pricer reads off the compact form to be those of this rank's explicit
/// schedules.
void expect_bytes_of(const Prepared& prepared, AttentionPricer& pricer, const AttentionPlan& plan) {
  const LiveBytes forward = pricer.live_bytes(plan, Pass::forward),
                  backward = pricer.live_bytes(plan, Pass::backward);
  EXPECT_EQ(static_cast<i64>(forward.workspace), prepared.workspace_bytes(Pass::forward));
  EXPECT_EQ(static_cast<i64>(backward.workspace), prepared.workspace_bytes(Pass::backward));
  EXPECT_EQ(static_cast<i64>(forward.saved), prepared.saved_bytes());
  EXPECT_EQ(static_cast<i64>(backward.sums), prepared.sums_bytes());
  EXPECT_EQ(backward.reads_home_qkv, prepared.backward_reads(Tensor::q));
}

TEST(MemoryTable, CompactFormHasTheBytesOfTheExplicitOne) {
  const Machine machine;
  LinkPricer links(machine.cluster, machine.calibration);
  for (const auto& [ring, ulysses] : {std::pair{1, 1}, {4, 1}, {2, 2}, {1, 4}, {2, 4}, {8, 1}})
    for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv})
      for (const DkvReturn dkv_return : {DkvReturn::circulate, DkvReturn::direct})
        for (const bool save_exchanged_qkv : {false, true})
          for (const auto& [backend, head_chunks] : {std::pair{Backend::cpu, 1},
                                                     {Backend::cpu, 2},
                                                     {Backend::mma, 1},
                                                     {Backend::hopper_cudnn, 1}}) {
            AttentionPlan plan = attention(ring, ulysses, 1024);
            plan.backend = backend;
            plan.method = method;
            plan.dkv_return = dkv_return;
            plan.save_exchanged_qkv = save_exchanged_qkv;
            plan.head_chunks = head_chunks;
            SCOPED_TRACE(std::string(word_of(method)) + " " + std::to_string(ring) + " x " +
                         std::to_string(ulysses) + " " + std::string(word_of(backend)));
            AttentionPricer pricer(links, plan.shape, Documents::single(1024, 1024), {});
            expect_bytes_of(Prepared(plan, Documents::single(1024, 1024), 0), pricer, plan);
          }
}

/// What one rank holds for all layers of a step, measured.
struct HeldBytes {
  i64 workspace = 0, saved = 0, home = 0;
};

/// Runs `layers` forwards, then their backward passes, twice: the second step allocates nothing.
HeldBytes run_layers(comm::Communicator& ranks, const AttentionPlan& plan, i64 layers) {
  CountingAllocator scratch, saved;
  const auto memory = kernels::make_host_memory(scratch), saved_memory = kernels::make_host_memory(saved);
  const auto kernel = kernels::make_cpu_kernel(*memory);
  Executor executor(ranks, *kernel);
  const AttentionShape& shape = plan.shape;
  const auto prepared = std::make_shared<const Prepared>(
      plan, Documents::single(shape.q_tokens, shape.kv_tokens), ranks.rank());
  const auto rows = static_cast<i64>(prepared->q_tokens().size());
  std::vector<bf16> q(static_cast<std::size_t>(rows * shape.query_heads * shape.head_dim_qk)),
      out = q, d_out = q, dq = q;
  std::vector<bf16> k(static_cast<std::size_t>(rows * shape.kv_heads * shape.head_dim_qk)), v = k, dk = k,
                                                                                            dv = k;
  const auto of = [&](std::vector<bf16>& tensor, i64 heads) {
    return kernels::view_of(tensor.data(), {1, rows, heads, shape.head_dim_qk});
  };
  const AttentionInputs inputs{
      .q = of(q, shape.query_heads), .k = of(k, shape.kv_heads), .v = of(v, shape.kv_heads)};
  std::vector<SavedState> states;
  for (i64 layer = 0; layer < layers; ++layer) states.emplace_back(*saved_memory);
  i64 allocations = 0;
  for (int step = 0; step < 2; ++step) {
    for (SavedState& state : states)
      executor.forward(prepared, inputs, of(out, shape.query_heads), {}, state);
    for (SavedState& state : states)
      executor.backward(prepared, inputs, of(out, shape.query_heads), of(d_out, shape.query_heads),
                        {of(dq, shape.query_heads), of(dk, shape.kv_heads), of(dv, shape.kv_heads)}, state);
    if (step == 0) allocations = scratch.allocations + saved.allocations;
  }
  EXPECT_EQ(scratch.allocations + saved.allocations, allocations);
  EXPECT_GE(scratch.held_bytes, executor.workspace_bytes());
  HeldBytes held{executor.workspace_bytes(), saved.held_bytes, 0};
  held.home = static_cast<i64>(out.size() * sizeof(bf16));  // the output projection reads it
  for (const auto& [tensor, elements] :
       {std::pair{Tensor::q, q.size()}, {Tensor::k, k.size()}, {Tensor::v, v.size()}})
    if (prepared->backward_reads(tensor)) held.home += static_cast<i64>(elements * sizeof(bf16));
  held.home *= layers;
  return held;
}

/// Bytes of attention in the row of saved activations.
double attention_activations(const Model& model, const MemoryTable& table, double tokens) {
  double others = 0;
  for (int layer = 0; layer < static_cast<int>(model.layers); ++layer) {
    const LayerActivations a = layer_activations(model, layer, Precision::bf16, 1);
    others += tokens * (a.total() - a.attention);
  }
  return static_cast<double>(table.bytes_of(MemoryKind::activations)) - others;
}

/// Llama-3.1-8B with 80 layers.
Model eighty_layers() {
  Model model = load_model("llama-3.1-8b");
  model.layers = 80;
  model.kinds.front().layers.resize(80);
  std::iota(model.kinds.front().layers.begin(), model.kinds.front().layers.end(), 0);
  return model;
}

TEST(MemoryTable, WorkspaceOfOneLayerAndSavedStateOfEighty) {
  const Machine machine;
  const Model model = eighty_layers();
  ASSERT_EQ(model.kinds.size(), 1U);
  constexpr i64 tokens = 64;
  for (const auto& [ring, ulysses] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    SCOPED_TRACE(std::to_string(ring) + " x " + std::to_string(ulysses));
    PlanRequest request;
    request.cluster = &machine.cluster;
    request.calibration = &machine.calibration;
    request.model = &model;
    request.library_kernels = true;  // of the backend of the host, which runs here
    request.workload.seq = tokens;
    request.workload.recompute = Recompute::none;
    Choice choice;
    choice.mesh = {.ring_inner = ring, .ulysses = ulysses};
    choice.placement.data = 2;
    choice.recompute = Recompute::none;
    const PlanCandidate candidate = price_choice(request, choice);
    ASSERT_EQ(candidate.attention.size(), 1U);
    const AttentionPlan& plan = candidate.attention.front().plan;
    ASSERT_EQ(plan.backend, Backend::cpu);
    comm::run_threads(plan.mesh.size(), {}, [&](comm::Communicator& ranks) {
      const HeldBytes held = run_layers(ranks, plan, model.layers);
      const MemoryTable& table = candidate.memory;
      EXPECT_EQ(held.workspace,
                table.bytes_of(MemoryKind::attention_buffers) + table.bytes_of(MemoryKind::kv_copies));
      EXPECT_EQ(static_cast<double>(held.saved + held.home),
                attention_activations(model, table, static_cast<double>(tokens) / plan.mesh.size()));
    });
  }
}

}  // namespace
}  // namespace usp::test
