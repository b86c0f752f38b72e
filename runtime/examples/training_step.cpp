// SPDX-License-Identifier: Apache-2.0
// Two layers and two microbatches of packed documents on a ring 2 x ulysses 2 mesh: both forwards run before
// either backward, as a pipeline does. Under `mpirun -n 4` the ranks are its processes, else threads. All
// values are 1, so every output is 1 (a mean of ones), and the value gradients of all ranks sum up to those
// of the outputs. The program checks both and prints them.
#include "usp/comm/mpi.hpp"
#include "usp/comm/threads.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/runtime/batch.hpp"
#include "usp/runtime/executor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <list>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

constexpr int layers = 2;
constexpr usp::i64 tokens = 512;

usp::AttentionPlan make_plan() {
  usp::AttentionPlan plan;
  plan.mesh = {.ring_inner = 2, .ulysses = 2};
  plan.shape = {.q_tokens = tokens,
                .kv_tokens = tokens,
                .query_heads = 8,
                .kv_heads = 2,
                .head_dim_qk = 64,
                .head_dim_v = 64,
                .dtype = usp::DType::fp32};
  plan.band = {0, usp::unbounded};  // causal
  return plan;
}

/// A contiguous fp32 tensor of 64 elements per row and head.
struct Tensor {
  Tensor(usp::i64 rows, usp::i64 heads, float value)
      : values(static_cast<std::size_t>(rows * heads * 64), value),
        view(reinterpret_cast<std::byte*>(values.data()), usp::DType::fp32, 1, rows, {0, heads}, 64) {}
  [[nodiscard]] double sum() const {
    double total = 0;
    for (const float value : values) total += static_cast<double>(value);
    return total;
  }
  std::vector<float> values;
  usp::kernels::View view;
};

/// One layer's call of one microbatch.
struct LayerCall {
  LayerCall(std::shared_ptr<const usp::Prepared> p, usp::kernels::Memory& memory, int layer)
      : prepared(std::move(p)),
        q(q_rows(), 8, 0.5),
        k(kv_rows(), 2, 0.25),
        v(kv_rows(), 2, 1),
        out(q_rows(), 8, 0),
        d_out(q_rows(), 8, 1),
        dq(q_rows(), 8, 0),
        dk(kv_rows(), 2, 0),
        dv(kv_rows(), 2, 0),
        saved(memory),
        inputs{.q = q.view, .k = k.view, .v = v.view, .layer = layer} {}
  ~LayerCall() = default;
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;

  [[nodiscard]] usp::i64 q_rows() const { return static_cast<usp::i64>(prepared->q_tokens().size()); }
  [[nodiscard]] usp::i64 kv_rows() const { return static_cast<usp::i64>(prepared->kv_tokens().size()); }
  void forward(usp::Executor& executor) { executor.forward(prepared, inputs, out.view, {}, saved); }
  void backward(usp::Executor& executor) {
    executor.backward(prepared, inputs, out.view, d_out.view, {dq.view, dk.view, dv.view}, saved);
  }

  std::shared_ptr<const usp::Prepared> prepared;
  Tensor q, k, v, out, d_out, dq, dk, dv;
  usp::SavedState saved;
  usp::AttentionInputs inputs;
};

void train(usp::comm::Communicator& ranks) {
  const usp::AttentionPlan plan = make_plan();
  const auto kernel = usp::kernels::make_cpu_kernel();
  usp::Batches batches(ranks, plan.mesh);
  usp::Executor executor(ranks, *kernel);
  std::list<LayerCall> calls;
  for (const std::vector<usp::i64>& cu_seqlens :
       {std::vector<usp::i64>{0, 100, 350, tokens}, {0, 256, 300, tokens}}) {
    const auto prepared = batches.get(usp::Documents::packed(cu_seqlens))->prepare(plan);
    for (int layer = 0; layer < layers; ++layer)
      calls.emplace_back(prepared, executor.memory(), layer).forward(executor);
  }
  std::for_each(calls.rbegin(), calls.rend(), [&](LayerCall& call) { call.backward(executor); });

  double sums[3] = {};  // out, d_out, dv of all layers, microbatches and ranks
  for (const LayerCall& call : calls)
    sums[0] += call.out.sum(), sums[1] += call.d_out.sum(), sums[2] += call.dv.sum();
  ranks.all_reduce_sum(sums, 3);
  const double expected = static_cast<double>(tokens) * 8 * 64 * static_cast<double>(calls.size());
  if (ranks.rank() == 0) {
    std::printf("sums of out %.0f, d_out %.0f, dv %.0f (expected %.0f)\n", sums[0], sums[1], sums[2],
                expected);
    std::printf("%lld bytes of workspace for all layers, %lld bytes saved per forward in flight\n",
                static_cast<long long>(executor.workspace_bytes()),
                static_cast<long long>(calls.front().saved.bytes()));
  }
  for (const double sum : sums)
    if (!(std::fabs(sum / expected - 1) < 1e-5)) throw std::runtime_error("a sum is not the expected one");
}

}  // namespace

int main() {
  try {
    if (usp::comm::mpi_launched()) return usp::comm::run_mpi({}, train);
    usp::comm::run_threads(4, {}, train);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
