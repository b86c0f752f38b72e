// SPDX-License-Identifier: Apache-2.0
// Many forwards in flight on one executor: each backward has the gradients of its own forward, bit for bit
// those of the same call alone, which run_trial holds against the fp64 oracle.
#include "usp/runtime/executor.hpp"

#include "counting_allocator.hpp"
#include "expect_refused.hpp"
#include "runtime_trial.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/errors.hpp"
#include "usp/comm/threads.hpp"
#include "usp/runtime/attention.hpp"
#include "usp/runtime/batch.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace usp::test {
namespace {

[[nodiscard]] RuntimeCase small(int ring, int ulysses, std::uint64_t seed) {
  RuntimeCase c;
  c.plan.mesh = {1, ring, ulysses};
  c.plan.shape = {1, 24, 24, 4, 2, 8, 8, DType::fp32};
  c.plan.band = {0, unbounded};
  c.plan.sink = true;
  c.documents = Documents::packed({0, 5, 17, 24});
  c.seed = seed;
  return c;
}

/// What one rank of a test has: an executor, and batches agreed over the same communicator.
struct Rank {
  Rank(comm::Communicator& c, const Mesh& mesh)
      : comm(c), kernel(kernels::make_cpu_kernel()), executor(c, *kernel), batches(c, mesh) {}
  comm::Communicator& comm;
  std::unique_ptr<kernels::AttentionKernel> kernel;
  Executor executor;
  Batches batches;
};

void on_ranks(const Mesh& mesh, const std::function<void(Rank&)>& body) {
  comm::run_threads(mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
    Rank rank(comm, mesh);
    body(rank);
  });
}

/// One layer's call of one microbatch.
struct Call {
  Call(const RuntimeCase& c, Rank& r)
      : test_case(c),
        rank(r),
        prepared(r.batches.get(c.documents)->prepare(c.plan)),
        saved(r.executor.memory()),
        tensors(c, r.comm, r.executor.memory(), prepared->q_tokens(), prepared->kv_tokens()) {}
  void forward() {
    rank.executor.forward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.lse_view(), saved);
  }
  void backward() {
    rank.executor.backward(prepared, tensors.inputs(), tensors.out_on.view(), tensors.d_out_on.view(),
                           tensors.gradients(), saved);
  }
  /// Bits of the same call alone, within the bounds of the oracle.
  void expect_exact() {
    tensors.fetch();
    const TrialErrors alone = run_trial(test_case, rank.comm, *rank.kernel);
    EXPECT_EQ(alone.rows, "");
    EXPECT_LT(alone.dq, 1e-5);
    EXPECT_EQ(tensors.bits(), alone.bits);
  }
  RuntimeCase test_case;
  Rank& rank;
  std::shared_ptr<const Prepared> prepared;
  SavedState saved;
  TrialTensors tensors;
};

/// 1F1B of two layers with different masks and two microbatches of different documents.
TEST(Executor, BackwardPassesFollowInAnyOrder) {
  for (const bool save_exchanged_qkv : {false, true})
    on_ranks({1, 2, 2}, [&](Rank& rank) {
      std::vector<std::unique_ptr<Call>> calls;
      for (std::uint64_t i = 0; i < 4; ++i) {
        RuntimeCase c = small(2, 2, i);
        c.plan.save_exchanged_qkv = save_exchanged_qkv;
        c.plan.return_lse = true;
        if (i % 2 == 1) c.plan.band = {0, 6};
        if (i >= 2) c.documents = Documents::packed({0, 9, 20});
        if (i >= 2) c.plan.shape.q_tokens = c.plan.shape.kv_tokens = 20;
        calls.push_back(std::make_unique<Call>(c, rank));
      }
      for (const int i : {0, 1, 2}) calls[static_cast<std::size_t>(i)]->forward();
      calls[1]->backward();
      calls[3]->forward();
      for (const int i : {0, 2, 3}) calls[static_cast<std::size_t>(i)]->backward();
      for (const auto& call : calls) call->expect_exact();
    });
}

TEST(Executor, RecomputationUsesTheSavedStateAgain) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    Call a(small(2, 1, 1), rank), b(small(2, 1, 2), rank);
    a.forward();
    b.forward();
    b.backward();
    a.forward();
    a.backward();
    a.expect_exact();
    b.expect_exact();
  });
}

TEST(Executor, LayersShareSchedulesAndWorkspace) {
  on_ranks({1, 2, 2}, [](Rank& rank) {
    constexpr int layers = 80;
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < layers; ++i)
      calls.push_back(std::make_unique<Call>(small(2, 2, static_cast<std::uint64_t>(i % 3)), rank));
    const Prepared& prepared = *calls[0]->prepared;
    i64 saved_bytes = 0;
    for (const auto& call : calls) call->forward();
    for (const auto& call : calls) {
      EXPECT_EQ(call->prepared.get(), &prepared);
      saved_bytes += call->saved.bytes();
    }
    EXPECT_GT(prepared.workspace_bytes(), 0);
    EXPECT_EQ(saved_bytes, layers * prepared.saved_bytes());
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) (*call)->backward();
    EXPECT_LE(rank.executor.workspace_bytes(), prepared.workspace_bytes() + prepared.sums_bytes() + 256);
    calls[7]->expect_exact();
  });
}

TEST(Executor, TheCallersMemoryHoldsTheSavedStateAndMayMove) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    Call a(small(2, 1, 1), rank);
    const auto bytes = static_cast<std::size_t>(a.prepared->saved_bytes());
    const auto first = rank.executor.memory().make_arena(), second = rank.executor.memory().make_arena();
    first->reserve(a.prepared->saved_bytes());
    second->reserve(a.prepared->saved_bytes());
    a.saved = SavedState(MemoryRef{first->data(), a.prepared->saved_bytes() - 1});
    expect_refused([&] { a.forward(); }, "this forward saves");
    a.saved = SavedState(MemoryRef{first->data(), a.prepared->saved_bytes()});
    a.forward();
    std::copy_n(first->data(), bytes, second->data());
    std::fill_n(first->data(), bytes, std::byte{0x7e});
    a.saved.move_to({second->data(), a.prepared->saved_bytes()});
    a.backward();
    a.expect_exact();
    EXPECT_THROW(a.saved.move_to({second->data() + 8, 16}), UsageError);
  });
}

/// As a framework runs backward: on a thread of its own, one call at a time.
TEST(Executor, BackwardMayComeFromAnotherThread) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    Call a(small(2, 1, 3), rank);
    a.forward();
    std::thread([&] { a.backward(); }).join();
    a.expect_exact();
  });
}

TEST(Executor, SinksMayHaveAnotherType) {
  on_ranks({1, 2, 2}, [](Rank& rank) {
    Call a(small(2, 2, 4), rank);
    AttentionInputs inputs = a.tensors.inputs();
    std::vector<double> sink{0.5, -0.25, 1, 0.125}, d_sink(4, 0);  // fp32 and bf16 hold the values
    inputs.sink = sink.data();
    AttentionGradients gradients = a.tensors.gradients();
    gradients.d_sink = d_sink.data();
    const auto run = [&] {
      rank.executor.forward(a.prepared, inputs, a.tensors.out_on.view(), a.tensors.lse_view(), a.saved);
      rank.executor.backward(a.prepared, inputs, a.tensors.out_on.view(), a.tensors.d_out_on.view(),
                             gradients, a.saved);
      a.tensors.fetch();
      return a.tensors.bits();
    };
    const std::vector<std::byte> bits = run();
    std::vector<float> sink32(sink.begin(), sink.end()), d_sink32(4, 2);
    inputs.sink = sink32.data(), inputs.sink_type = DType::fp32;
    gradients.d_sink = d_sink32.data(), gradients.d_sink_type = DType::fp32;
    EXPECT_EQ(run(), bits);
    for (std::size_t h = 0; h < 4; ++h)
      EXPECT_EQ(d_sink32[h], static_cast<float>(2.0F + d_sink[h])) << "head " << h;
    gradients.d_sink = sink32.data();
    expect_refused([&] { run(); }, "d_sink overlaps sink");
  });
}

/// The lse of such a row is the sink's logit, rounded: exp of their difference is a weight, not infinite.
TEST(Executor, SinksFarAboveAllScoresTakeAllWeight) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    Call a(small(2, 1, 5), rank);
    AttentionInputs inputs = a.tensors.inputs();
    const std::vector<double> sink{1e38, 1e300, 12345678901, 0.25};  // the second is beyond fp32
    std::vector<double> d_sink(4, 0);
    inputs.sink = sink.data();
    AttentionGradients gradients = a.tensors.gradients();
    gradients.d_sink = d_sink.data();
    rank.executor.forward(a.prepared, inputs, a.tensors.out_on.view(), a.tensors.lse_view(), a.saved);
    rank.executor.backward(a.prepared, inputs, a.tensors.out_on.view(), a.tensors.d_out_on.view(), gradients,
                           a.saved);
    for (const int h : {0, 1, 2}) EXPECT_EQ(d_sink[static_cast<std::size_t>(h)], 0) << "head " << h;
    EXPECT_NE(d_sink[3], 0);
  });
}

TEST(Executor, MisuseIsRefused) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    Call a(small(2, 1, 1), rank);
    RuntimeCase other = small(2, 1, 2);
    other.documents = Documents::packed({0, 24});
    Call b(other, rank);
    expect_refused([&] { a.backward(); }, "holds no forward");
    a.forward();
    b.forward();
    std::swap(a.saved, b.saved);
    expect_refused([&] { a.backward(); }, "another batch or plan");
    std::swap(a.saved, b.saved);
    AttentionInputs inputs = a.tensors.inputs();
    const std::vector<double> sink(4, 0.125);
    inputs.sink = sink.data();
    expect_refused(
        [&] {
          rank.executor.backward(a.prepared, inputs, a.tensors.out_on.view(), a.tensors.d_out_on.view(),
                                 a.tensors.gradients(), a.saved);
        },
        "other sinks");
    a.backward();
    expect_refused([&] { a.backward(); }, "backward has run already");
    const Prepared another_rank(a.test_case.plan, a.test_case.documents, 1 - rank.comm.rank());
    expect_refused(
        [&] {
          rank.executor.forward(std::make_shared<const Prepared>(another_rank), inputs, {}, {}, a.saved);
        },
        "prepared for rank");
    expect_refused([&] { (void)rank.batches.get(a.test_case.documents)->prepare(small(1, 2, 1).plan); },
                   "the batch for ring 2 x ulysses 1");
  });
}

TEST(Executor, AForkedChildIsRefused) {
  const RuntimeCase c = small(1, 1, 1);
  const auto comm = comm::make_serial_communicator();
  Rank rank(*comm, c.plan.mesh);
  Call a(c, rank);
  a.forward();
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      a.forward();
    } catch (const UsageError& error) {
      code = std::string(error.what()).find("fork") != std::string::npos ? 0 : 2;
    } catch (...) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Batches, AreKeptByDigest) {
  on_ranks({1, 2, 1}, [](Rank& rank) {
    const auto batch_of = [&](i64 border) { return rank.batches.get(Documents::packed({0, border, 24})); };
    const auto first = batch_of(1);
    EXPECT_EQ(batch_of(1), first);
    for (i64 border = 2; border <= Batches::kept; ++border) (void)batch_of(border);
    EXPECT_EQ(batch_of(1), first);
    for (i64 border = 2; border <= Batches::kept + 1; ++border) (void)batch_of(border);
    EXPECT_NE(batch_of(1), first);
  });
}

TEST(Batches, RanksThatDifferAreTold) {
  EXPECT_THROW(on_ranks({1, 2, 1},
                        [](Rank& rank) {
                          (void)rank.batches.get(Documents::packed({0, 3 + rank.comm.rank(), 24}));
                        }),
               comm::DisagreementError);
  EXPECT_THROW(
      on_ranks(
          {1, 2, 1},
          [](Rank& rank) {
            (void)rank.batches.get(Documents::packed({0, 24}), static_cast<std::uint64_t>(rank.comm.rank()));
          }),
      comm::DisagreementError);
}

/// A loader's thread agrees on the batch of the next step over a group of its own while layers run.
TEST(Batches, AreMadeAheadByAnotherThread) {
  const Mesh mesh{1, 2, 1};
  comm::run_threads(2, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
    const auto loader_group = comm.group({0, 1});
    Rank rank(comm, mesh);
    Batches ahead(*loader_group, mesh);
    std::shared_ptr<const Batch> next;
    Call a(small(2, 1, 1), rank);
    RuntimeCase c = small(2, 1, 2);
    c.documents = Documents::packed({0, 11, 24});
    std::thread loader([&] {
      next = ahead.get(c.documents);
      (void)next->prepare(c.plan);
    });
    a.forward();
    a.backward();
    loader.join();
    a.expect_exact();
    Call b(c, rank);
    b.prepared = next->prepare(c.plan);
    b.forward();
    b.backward();
    b.expect_exact();
  });
}

TEST(DropoutSeed, IsTheStepsForLayerZeroAndAnotherForEveryOther) {
  EXPECT_EQ(layer_dropout_seed(42, 0), 42u);
  std::set<std::uint64_t> seeds;
  for (std::int64_t layer = 0; layer < 1000; ++layer) seeds.insert(layer_dropout_seed(42, layer));
  EXPECT_EQ(seeds.size(), 1000u);
}

/// Packed batches that change in every step: an operator's memory serves the next one.
TEST(AttentionOperatorMemory, NewBatchesTakeNoneInTheEnd) {
  CountingAllocator allocator;
  const auto memory = kernels::make_host_memory(allocator);
  const auto kernel = kernels::make_cpu_kernel(*memory);
  const auto alone = comm::make_serial_communicator();
  AttentionPlan plan;
  plan.shape = {1, 64, 64, 4, 2, 8, 8, DType::fp32};
  plan.band = {0, unbounded};
  AttentionOperator attention(plan, *alone, *kernel);
  std::vector<kernels::View> views;
  std::vector<std::unique_ptr<kernels::Arena>> arenas;
  for (const int heads : {4, 2, 2, 4, 4, 4, 2, 2}) {
    views.emplace_back(nullptr, DType::fp32, 1, 64, Range{0, heads}, 8);
    arenas.push_back(memory->make_arena());
    arenas.back()->reserve(views.back().elements() * 4);
    memory->set_bytes(arenas.back()->data(), 0, views.back().elements() * 4);
    views.back().data = arenas.back()->data();
  }
  const AttentionInputs in{views[0], views[1], views[2]};
  i64 warm = 0;
  for (i64 step = 0; step < 40; ++step) {
    attention.set_batch(Documents::packed({0, 5 + step % 8, 30, 64}));
    attention.forward(in, views[3]);
    attention.backward(in, views[4], {views[5], views[6], views[7], nullptr});
    if (step == 16) warm = allocator.allocations;
  }
  EXPECT_GT(warm, 0);
  EXPECT_EQ(allocator.allocations, warm);
}

}  // namespace
}  // namespace usp::test
