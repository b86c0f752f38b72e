// SPDX-License-Identifier: Apache-2.0
#include "runtime_trial.hpp"

#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <mutex>

namespace usp::test {
namespace {

using KernelMaker = std::unique_ptr<AttentionKernel> (*)();

/// Runs a case on threads; fails with its description.
void expect_exact(const RuntimeCase& c, KernelMaker make, double tolerance,
                  const OperatorOptions& options = {}) {
  SCOPED_TRACE(describe(c));
  std::mutex mutex;
  try {
    run_threads(c.plan.mesh.size(), CommOptions{20, i64{1} << 30}, [&](Communicator& comm) {
      const auto kernel = make();
      const TrialErrors e = run_trial(c, comm, *kernel, options);
      const std::lock_guard lock(mutex);
      EXPECT_LE(e.o, tolerance);
      EXPECT_LE(e.lse, tolerance);
      EXPECT_LE(e.dq, tolerance);
      EXPECT_LE(e.dk, tolerance);
      EXPECT_LE(e.dv, tolerance);
      EXPECT_LE(e.d_sink, tolerance);
      EXPECT_EQ(e.bytes, "") << "rank " << comm.rank();
    });
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
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
  sweep(DType::fp64, make_cpu_kernel, 1e-10, 1000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignFp64Reference) {
  sweep(DType::fp64, make_reference_kernel, 1e-10, 5000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignFp32) {
  sweep(DType::fp32, make_cpu_kernel, 1e-5, 9000, 2);
}
TEST(AttentionThreads, EveryMeshOverTheDesignBf16) {
  sweep(DType::bf16, make_cpu_kernel, 1e-2, 13000, 2);
}

}  // namespace
}  // namespace usp::test
