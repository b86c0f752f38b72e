// SPDX-License-Identifier: Apache-2.0
#include "runtime_trial.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <mutex>

namespace usp::test {
namespace {

using KernelMaker = std::unique_ptr<kernels::AttentionKernel> (*)();

/// Runs a case on threads; fails with its description.
void expect_exact(const RuntimeCase& c, KernelMaker make, double tolerance,
                  const ExecutorOptions& options = {}) {
  std::mutex mutex;
  try {
    comm::run_threads(c.plan.mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
      const auto kernel = make();
      const TrialErrors e = run_trial(c, comm, *kernel, options);
      const std::lock_guard lock(mutex);
      SCOPED_TRACE(describe(c) + " rank " + std::to_string(comm.rank()));
      EXPECT_LE(e.o, tolerance);
      EXPECT_LE(e.lse, tolerance);
      EXPECT_LE(e.dq, tolerance);
      EXPECT_LE(e.dk, tolerance);
      EXPECT_LE(e.dv, tolerance);
      EXPECT_LE(e.d_sink, tolerance);
      EXPECT_EQ(e.rows, "");
      EXPECT_EQ(e.bytes, "");
    });
  } catch (const std::exception& e) {
    ADD_FAILURE() << describe(c) << ": " << e.what();
  }
}

/// Every factorisation of 1..16 ranks with rows of the design, which goes round.
void sweep(DType dtype, KernelMaker make, double tolerance, std::uint64_t seed, int rows_per_mesh) {
  const auto rows = pairwise(Factors::levels(), 7);
  std::size_t next = 0;
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (int ring = 1; ring <= ranks; ++ring) {
      if (ranks % ring != 0) continue;
      for (int n = 0; n < rows_per_mesh; ++n, ++next) {
        expect_exact(make_case(rows[next % rows.size()], ring, ranks / ring, dtype, seed + next), make,
                     tolerance, {.debug_nan = true});
        if (::testing::Test::HasFailure()) return;
      }
    }
  EXPECT_GE(next, rows.size()) << "the design was not run to its end";
}

TEST(AttentionThreads, EveryMeshOverTheDesignFp64) {
  sweep(DType::fp64, kernels::make_cpu_kernel, 1e-10, 1000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignFp64Reference) {
  sweep(DType::fp64, kernels::make_reference_kernel, 1e-10, 5000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignFp32) {
  sweep(DType::fp32, kernels::make_cpu_kernel, 1e-5, 9000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignBf16) {
  sweep(DType::bf16, kernels::make_cpu_kernel, 1e-2, 13000, 2);
}

/// A plan of some size on which layouts, hops and heads all matter.
[[nodiscard]] RuntimeCase medium_case(int ring, int ulysses, DType dtype) {
  RuntimeCase c;
  c.plan.mesh = {1, ring, ulysses};
  c.plan.shape = {2, 96, 96, 8, 4, 32, 32, dtype};
  c.plan.band = {0, unbounded};
  c.documents = Documents::packed({0, 37, 41, 96});
  c.seed = 77;
  return c;
}

[[nodiscard]] std::vector<std::vector<std::byte>> bits_of(const RuntimeCase& c) {
  std::vector<std::vector<std::byte>> bits(static_cast<std::size_t>(c.plan.mesh.size()));
  comm::run_threads(c.plan.mesh.size(), {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    bits[static_cast<std::size_t>(comm.rank())] = run_trial(c, comm, *kernel, {}, false).bits;
  });
  return bits;
}

TEST(AttentionThreads, SamePlanSameBits) {
  const RuntimeCase c = medium_case(3, 2, DType::bf16);
  const auto first = bits_of(c);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(bits_of(c), first) << "run " << i;
}

/// A plan made by hand is refused by field, value and range before it is used.
TEST(AttentionThreads, PlansOutOfRangeAreRefused) {
  const std::function<void(AttentionPlan&)> wrong[] = {
      [](AttentionPlan& p) { p.head_chunks = 40000; }, [](AttentionPlan& p) { p.head_chunks = 5; },
      [](AttentionPlan& p) { p.shape.batch = i64{1} << 40; }, [](AttentionPlan& p) { p.shape.kv_heads = 0; }};
  for (const auto& change : wrong) {
    AttentionPlan plan = medium_case(1, 2, DType::fp32).plan;
    change(plan);
    comm::run_threads(2, {}, [&](comm::Communicator& comm) {
      const auto kernel = kernels::make_cpu_kernel();
      EXPECT_THROW(AttentionOperator(plan, comm, *kernel), InvalidInput);
    });
  }
}

void expect_whole_workspace(const RuntimeCase& c) {
  comm::run_threads(c.plan.mesh.size(), {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    const TrialErrors e = run_trial(c, comm, *kernel, {.measure_workspace = true}, false);
    for (const int pass : {0, 1})
      EXPECT_EQ(e.touched[pass], e.planned[pass])
          << describe(c) << " rank " << comm.rank() << " pass " << pass;
  });
}

constexpr DType every_dtype[] = {DType::bf16, DType::fp16, DType::fp32, DType::fp64};

TEST(AttentionThreads, WorkspaceIsTouchedToItsPlannedEndAndNoFurther) {
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv, Method::double_ring})
    for (const auto& [ring, ulysses] : {std::pair(4, 2), std::pair(1, 4), std::pair(6, 1), std::pair(4, 1)})
      for (const DType dtype : every_dtype) {
        RuntimeCase c = medium_case(ring, ulysses, dtype);
        c.plan.method = method;
        if (method == Method::double_ring && ring % 2 == 0) c.plan.mesh = {ring / 2, 2, ulysses};
        expect_whole_workspace(c);
        c.plan.shape.head_dim_qk = 23, c.plan.shape.head_dim_v = 17;
        c.plan.shape.batch = 1;
        expect_whole_workspace(c);
      }
}

TEST(AttentionThreads, WorkspaceIsTouchedToItsPlannedEndOverTheDesign) {
  const auto rows = pairwise(Factors::levels(), 7);
  std::size_t next = 0;
  for (const DType dtype : every_dtype)
    for (const auto& [ring, ulysses] : {std::pair(1, 3), std::pair(3, 1), std::pair(2, 2), std::pair(4, 1)})
      for (int n = 0; n < 6; ++n, ++next) {
        expect_whole_workspace(make_case(rows[next % rows.size()], ring, ulysses, dtype, 17000 + next));
        if (HasFailure()) return;
      }
}

/// Errors of a long-ish causal call at some ring degree, bf16 in, fp32 carried.
[[nodiscard]] TrialErrors bf16_errors(int ring) {
  RuntimeCase c;
  c.plan.mesh = {1, ring, 1};
  c.plan.shape = {1, 512, 512, 2, 1, 64, 64, DType::bf16};
  c.plan.band = {0, unbounded};
  c.documents = Documents::single(512, 512);
  c.seed = 5;
  TrialErrors e;
  comm::run_threads(ring, {}, [&](comm::Communicator& comm) {
    const auto kernel = kernels::make_cpu_kernel();
    const TrialErrors mine = run_trial(c, comm, *kernel);
    if (comm.rank() == 0) e = mine;
  });
  return e;
}

TEST(AttentionThreads, Bf16ErrorDoesNotGrowWithTheRing) {
  const TrialErrors one = bf16_errors(1), eight = bf16_errors(8);
  EXPECT_LE(eight.o, 1.05 * one.o);
  EXPECT_LE(eight.dq, 1.05 * one.dq);
  EXPECT_LE(eight.dk, 1.05 * one.dk);
  EXPECT_LE(eight.dv, 1.05 * one.dv);
}

}  // namespace
}  // namespace usp::test
