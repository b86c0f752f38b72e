// SPDX-License-Identifier: Apache-2.0
#include "gpu_rank.hpp"
#include "runtime_trial.hpp"

#include "usp/comm/threads.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/planner/plan.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

/// Planned attention on GPUs against the fp64 oracle: the design of the CPU suite, on as many GPUs as there
/// are (several ranks share one where there are fewer). Skipped without a GPU.
namespace usp::test {
namespace {

class AttentionGpu : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make(Backend backend, kernels::Memory& memory) {
  return kernels::factory_of(backend).make(memory, false);
}

/// What a GPU kernel takes: widths of whole 16-byte rows.
[[nodiscard]] RuntimeCase with_gpu_widths(RuntimeCase c, Backend backend) {
  AttentionShape& s = c.plan.shape;
  s.head_dim_v = s.head_dim_qk == 8 ? 64 : s.head_dim_qk == 5 ? 24 : 192;
  s.head_dim_qk = s.head_dim_qk == 8 ? 64 : s.head_dim_qk == 5 ? 40 : 128;
  c.plan.backend = backend;
  return c;
}

/// RMS. A few tokens leave gradients that nearly cancel: then the one rounding of o, which delta is made of,
/// is what is left of them.
struct Bounds {
  double out = 1e-2, gradient = 2e-2;
  [[nodiscard]] static Bounds of(const RuntimeCase& c) {
    return c.plan.shape.q_tokens < 16 || c.plan.shape.kv_tokens < 16 ? Bounds{1e-2, 4e-2} : Bounds{};
  }
};

void expect_exact(const RuntimeCase& c, const Bounds& bounds, const ExecutorOptions& options = {}) {
  std::mutex mutex;
  try {
    comm::run_threads(c.plan.mesh.size(), comm::CommOptions{20, i64{1} << 30},
                      [&](comm::Communicator& control) {
                        GpuRank rank(control);
                        const auto kernel = make(c.plan.backend, *rank.memory);
                        const TrialErrors e = run_trial(c, *rank.data_plane, *kernel, options);
                        const std::lock_guard lock(mutex);
                        SCOPED_TRACE(describe(c) + " rank " + std::to_string(control.rank()));
                        EXPECT_LE(e.o, bounds.out);
                        EXPECT_LE(e.lse, bounds.out);
                        EXPECT_LE(e.dq, bounds.gradient);
                        EXPECT_LE(e.dk, bounds.gradient);
                        EXPECT_LE(e.dv, bounds.gradient);
                        EXPECT_LE(e.d_sink, bounds.gradient);
                        EXPECT_EQ(e.rows, "");
                        EXPECT_EQ(e.bytes, "");
                      });
  } catch (const std::exception& e) {
    ADD_FAILURE() << describe(c) << ": " << e.what();
  }
}

void sweep(Backend backend, DType dtype, std::uint64_t seed) {
  const auto rows = pairwise(Factors::levels(), 7);
  static constexpr std::pair<int, int> meshes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4},
                                                   {4, 1}, {3, 2}, {2, 4}, {8, 1}, {1, 8}};
  int failures = 0;
  for (std::size_t i = 0; i < 2 * rows.size(); ++i) {
    const auto [ring, ulysses] = meshes[i % std::size(meshes)];
    const RuntimeCase c =
        with_gpu_widths(make_case(rows[i % rows.size()], ring, ulysses, dtype, seed + i), backend);
    expect_exact(c, Bounds::of(c), {.debug_nan = true});
    if (::testing::Test::HasFailure() && ++failures == 5) return;
  }
}

TEST_P(AttentionGpu, MeshesOverTheDesignBf16) {
  sweep(GetParam(), DType::bf16, 21000);
}
TEST_P(AttentionGpu, MeshesOverTheDesignFp16) {
  sweep(GetParam(), DType::fp16, 25000);
}

[[nodiscard]] RuntimeCase medium_case(Backend backend, int ring, int ulysses) {
  RuntimeCase c;
  c.plan.backend = backend;
  c.plan.mesh = {1, ring, ulysses};
  c.plan.shape = {2, 300, 300, 8, 4, 128, 128, DType::bf16};
  c.plan.band = {0, unbounded};
  c.documents = Documents::packed({0, 137, 141, 300});
  c.seed = 77;
  return c;
}

TEST_P(AttentionGpu, WorkspaceIsTouchedToItsPlannedEndAndNoFurther) {
  for (const auto& [ring, ulysses] : {std::pair(1, 1), std::pair(2, 2), std::pair(1, 4), std::pair(4, 1)}) {
    const RuntimeCase c = medium_case(GetParam(), ring, ulysses);
    comm::run_threads(c.plan.mesh.size(), {}, [&](comm::Communicator& control) {
      GpuRank rank(control);
      const auto kernel = make(GetParam(), *rank.memory);
      const TrialErrors e = run_trial(c, *rank.data_plane, *kernel, {.measure_workspace = true}, false);
      for (const int pass : {0, 1})
        EXPECT_EQ(e.touched[pass], e.planned[pass]) << describe(c) << " pass " << pass;
    });
  }
}

/// Errors of a causal call at some ring degree.
[[nodiscard]] TrialErrors errors_at(Backend backend, int ring, Method method = Method::ring) {
  RuntimeCase c;
  c.plan.method = method;
  c.plan.backend = backend;
  c.plan.mesh = {1, ring, 1};
  c.plan.shape = {1, 1024, 1024, 2, 1, 64, 64, DType::bf16};
  c.plan.band = {0, unbounded};
  c.documents = Documents::single(1024, 1024);
  c.seed = 5;
  TrialErrors e;
  comm::run_threads(ring, {}, [&](comm::Communicator& control) {
    GpuRank rank(control);
    const auto kernel = make(backend, *rank.memory);
    const TrialErrors mine = run_trial(c, *rank.data_plane, *kernel);
    if (control.rank() == 0) e = mine;
  });
  return e;
}

TEST_P(AttentionGpu, ErrorHardlyGrowsWithTheRing) {
  // A carried fp32 state costs nothing; blocks that come out rounded lose a little against one call.
  const auto most = [](Pass pass) { return GetParam().of(pass)->carries_state ? 1.05 : 1.3; };
  const TrialErrors one = errors_at(GetParam(), 1);
  for (const Method method : {Method::ring, Method::all_gather_kv})
    for (const int ring : {2, 4, 8}) {
      const TrialErrors many = errors_at(GetParam(), ring, method);
      for (const auto member : {&TrialErrors::o, &TrialErrors::dq, &TrialErrors::dk, &TrialErrors::dv})
        EXPECT_LE(many.*member,
                  most(member == &TrialErrors::o ? Pass::forward : Pass::backward) * (one.*member))
            << word_of(method) << ", ring " << ring;
    }
}

/// So small that the kernels of all ranks fit on one GPU together: then gates work there too.
[[nodiscard]] RuntimeCase small_case(Backend backend, int ring, int ulysses) {
  RuntimeCase c = gated_case(ring, ulysses, {1, 600, 600, 4, 2, 64, 64, DType::bf16}, {0, 251, 260, 600});
  c.plan.backend = backend;
  return c;
}

void expect_gated(const RuntimeCase& c, int calls) {
  comm::run_threads(c.plan.mesh.size(), {.watchdog_s = 10}, [&](comm::Communicator& control) {
    GpuRank rank(control, {.gates_on_shared_gpus = true});
    const auto kernel = make(c.plan.backend, *rank.memory);
    for (int call = 0; call < calls; ++call) {
      const TrialErrors e = run_trial(c, *rank.data_plane, *kernel, {}, call == 0);
      SCOPED_TRACE(describe(c) + " rank " + std::to_string(control.rank()));
      EXPECT_LE(std::max({e.o, e.lse}), 1e-2);
      EXPECT_LE(std::max({e.dq, e.dk, e.dv}), 2e-2);
      EXPECT_EQ(e.rows, "");
      EXPECT_EQ(e.bytes, "");
      EXPECT_EQ(e.gated_calls[0], c.plan.head_chunks);
      EXPECT_EQ(e.gated_calls[1], c.plan.head_chunks);
    }
  });
}

/// Pushes of the caller's tensors, pulls of exchanged ones, several chunks and blocks.
TEST_P(AttentionGpu, GatedCallsAreExact) {
  expect_gated(small_case(GetParam(), 2, 1), 20);
  expect_gated(small_case(GetParam(), 3, 1), 5);
  RuntimeCase chunks = small_case(GetParam(), 2, 1);
  chunks.plan.head_chunks = 2;
  expect_gated(chunks, 5);
  RuntimeCase exchanged = small_case(GetParam(), 2, 2);
  exchanged.documents = Documents::single(600, 600);
  expect_gated(exchanged, 5);
}

/// Where ranks share a GPU a call does not wait inside: it runs behind the arrival of its blocks.
TEST_P(AttentionGpu, GatedPlansOnSharedGpusRunBehindWaits) {
  const RuntimeCase c = small_case(GetParam(), 2, 1);
  const bool shared = device::device_count() < 2;
  comm::run_threads(2, {.watchdog_s = 10}, [&](comm::Communicator& control) {
    GpuRank rank(control);
    const auto kernel = make(GetParam(), *rank.memory);
    const TrialErrors e = run_trial(c, *rank.data_plane, *kernel);
    EXPECT_LE(std::max({e.o, e.lse}), 1e-2);
    EXPECT_LE(std::max({e.dq, e.dk, e.dv}), 2e-2);
    EXPECT_EQ(e.gated_calls[0], shared ? 0 : 1);
  });
}

/// A peer that never comes to the exchange that a gated call awaits: the others end by the deadline, which
/// names it, and a new mesh in the same process is right.
TEST_P(AttentionGpu, APeerThatDiesUnderAGateIsNamed) {
  const RuntimeCase c = small_case(GetParam(), 2, 1);
  std::mutex mutex;
  comm::CommunicationFault fault;
  EXPECT_THROW(comm::run_threads(2, {.watchdog_s = 1},
                                 [&](comm::Communicator& control) {
                                   GpuRank rank(control, {.gates_on_shared_gpus = true});
                                   const auto kernel = make(GetParam(), *rank.memory);
                                   AttentionOperator op(c.plan, *rank.data_plane, *kernel);
                                   op.set_batch(c.documents);
                                   const TrialTensors t(c, control, *rank.memory, op.q_tokens(),
                                                        op.kv_tokens());
                                   op.forward(t.inputs(), t.out_on.view(), t.lse_view());
                                   rank.stream.synchronize();
                                   control.barrier();
                                   if (control.rank() == 1) {
                                     std::this_thread::sleep_for(std::chrono::seconds(3));
                                     return;
                                   }
                                   try {
                                     op.forward(t.inputs(), t.out_on.view(), t.lse_view());
                                     rank.stream.synchronize();
                                     rank.data_plane->check();
                                   } catch (const comm::CommunicationError& error) {
                                     const std::lock_guard lock(mutex);
                                     fault = error.fault();
                                     throw;
                                   }
                                 }),
               comm::CommunicationError);
  EXPECT_EQ(fault.missing, std::vector<int>{1}) << fault.message;
  EXPECT_EQ(fault.tick, 1) << fault.message;
  expect_gated(c, 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionGpu,
                         testing::Values(Backend::mma, Backend::cudnn, Backend::hopper,
                                         Backend::hopper_cudnn),
                         [](const auto& backend) { return std::string(word_of(backend.param)); });

}  // namespace
}  // namespace usp::test
