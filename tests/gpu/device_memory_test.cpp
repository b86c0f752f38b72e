// SPDX-License-Identifier: Apache-2.0
#include "gpu_rank.hpp"

#include "usp/comm/threads.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/kernels/kernel_factory.hpp"
#include "usp/runtime/attention.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

/// Device memory against the plan's word. Skipped without a GPU.
namespace usp::test {
namespace {

/// Tables of tiles, which plans do not count.
constexpr i64 tables_bytes = i64{1} << 20;

[[nodiscard]] AttentionPlan plan_of(Backend backend, int ring, int ulysses, i64 tokens, int kv_heads = 8) {
  AttentionPlan p;
  p.backend = backend;
  p.mesh = {1, ring, ulysses};
  p.shape = {1, tokens, tokens, 32, kv_heads, 128, 128, DType::bf16};
  p.band = {0, unbounded};
  return p;
}

[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make(Backend backend, kernels::Memory& memory) {
  return kernels::factory_of(backend).make(memory, false);
}

/// One step of an operator on tensors of its own.
class Rank {
 public:
  template <class Ranks>  ///< a communicator, or a data plane
  Rank(const AttentionPlan& plan, Ranks& ranks, kernels::Memory& memory)
      : memory_(memory), kernel_(make(plan.backend, memory)), attention_(plan, ranks, *kernel_) {
    attention_.set_batch(Documents::single(plan.shape.q_tokens, plan.shape.kv_tokens));
    const auto rows = static_cast<i64>(attention_.q_tokens().size());
    const auto tensor = [&](int heads) {
      const kernels::View view(nullptr, plan.shape.dtype, 1, rows, {0, heads}, plan.shape.head_dim_qk);
      arenas_.push_back(memory.make_arena());
      arenas_.back()->reserve(view.elements() * 2);
      memory.set_bytes(arenas_.back()->data(), 0, view.elements() * 2);
      views_.push_back(view);
      views_.back().data = arenas_.back()->data();
      bytes_ += view.elements() * 2;
    };
    const int q = plan.shape.query_heads, kv = plan.shape.kv_heads;
    for (const int heads : {q, kv, kv, q, q, q, kv, kv}) tensor(heads);
  }
  void step() {
    const AttentionInputs in{views_[0], views_[1], views_[2]};
    attention_.forward(in, views_[3]);
    attention_.backward(in, views_[4], {views_[5], views_[6], views_[7], nullptr});
    memory_.synchronize();
  }
  [[nodiscard]] i64 planned() const { return bytes_ + attention_.planned_memory_bytes(); }

 private:
  kernels::Memory& memory_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  AttentionOperator attention_;
  std::vector<std::unique_ptr<kernels::Arena>> arenas_;
  std::vector<kernels::View> views_;
  i64 bytes_ = 0;
};

[[nodiscard]] i64 free_bytes() {
  std::size_t free = 0, total = 0;
  device::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<i64>(free);
}

class DeviceMemory : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

/// Memory of every rank after a step of the plan.
void compare_to_plan(const AttentionPlan& plan, bool exact) {
  const std::string name = std::to_string(plan.mesh.ring()) + " x " + std::to_string(plan.mesh.ulysses) +
                           ", " + std::to_string(plan.shape.kv_heads) + " KV heads";
  comm::run_threads(plan.mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& control) {
    GpuRank gpu(control);
    Rank rank(plan, *gpu.data_plane, *gpu.memory);
    rank.step();
    const i64 tables = plan.backend == Backend::cudnn ? 0 : tables_bytes;
    if (exact) {
      EXPECT_GE(gpu.memory->held_bytes(), rank.planned()) << name;
    }
    EXPECT_LE(gpu.memory->held_bytes(), rank.planned() + tables) << name;
    control.barrier();
  });
}

TEST_P(DeviceMemory, IsWhatThePlanForesees) {
  for (const int kv_heads : {32, 8})
    for (const auto& [ring, ulysses] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2),
                                        std::pair(4, 1), std::pair(1, 4)})
      for (const Method method : {Method::ring, Method::all_gather_kv}) {
        AttentionPlan plan = plan_of(GetParam(), ring, ulysses, 4000, kv_heads);
        plan.method = method;
        // hopper takes no memory for dq where heads that share a KV head share tiles of queries.
        compare_to_plan(plan, GetParam() != Backend::hopper || kv_heads == 32);
      }
}

TEST_P(DeviceMemory, ProcessTakesWithinFivePercentOfThePlan) {
  device::CallStream stream(0);
  const auto alone = comm::make_serial_communicator();
  {  // a small step loads what any step loads
    const auto memory = kernels::make_cuda_memory(stream);
    Rank(plan_of(GetParam(), 1, 1, 512), *alone, *memory).step();
  }
  const i64 idle = free_bytes();
  const auto memory = kernels::make_cuda_memory(stream);
  Rank rank(plan_of(GetParam(), 1, 1, 49152), *alone, *memory);
  rank.step();
  const auto taken = static_cast<double>(idle - free_bytes()), planned = static_cast<double>(rank.planned());
  ASSERT_GE(planned, static_cast<double>(i64{1} << 30));
  EXPECT_NEAR(taken / planned, 1, 0.05);
  RecordProperty("taken_bytes", std::to_string(taken));
  RecordProperty("planned_bytes", std::to_string(planned));
}

/// Counts what it takes from the device.
class CountingDeviceAllocator final : public kernels::Allocator {
 public:
  std::byte* allocate(i64 bytes, int device, CUstream_st* /*stream*/) override {
    ++allocations;
    const device::DeviceScope scope(device);
    void* memory = nullptr;
    return cudaMalloc(&memory, static_cast<std::size_t>(bytes)) == cudaSuccess
               ? static_cast<std::byte*>(memory)
               : nullptr;
  }
  void release(std::byte* memory, i64 /*bytes*/, int /*device*/, CUstream_st* /*stream*/) noexcept override {
    (void)cudaFree(memory);
  }
  i64 allocations = 0;
};

/// Packed batches that change in every step of training: tables of steps that end serve the next ones.
TEST_P(DeviceMemory, NewBatchesTakeNoneInTheEnd) {
  device::CallStream stream(0);
  CountingDeviceAllocator allocator;
  const auto memory = kernels::make_cuda_memory(stream, allocator);
  const auto kernel = make(GetParam(), *memory);
  const auto alone = comm::make_serial_communicator();
  const AttentionPlan plan = plan_of(GetParam(), 1, 1, 4096);
  AttentionOperator attention(plan, *alone, *kernel);
  std::vector<kernels::View> views;
  std::vector<std::unique_ptr<kernels::Arena>> arenas;
  for (const int heads : {32, 8, 8, 32, 32, 32, 8, 8}) {
    views.emplace_back(nullptr, DType::bf16, 1, 4096, Range{0, heads}, 128);
    arenas.push_back(memory->make_arena());
    arenas.back()->reserve(views.back().elements() * 2);
    memory->set_bytes(arenas.back()->data(), 0, views.back().elements() * 2);
    views.back().data = arenas.back()->data();
  }
  const AttentionInputs in{views[0], views[1], views[2]};
  i64 warm = 0;
  for (i64 step = 0; step < 64; ++step) {
    const i64 moved = 16 * (step % 16);
    attention.set_batch(Documents::packed({0, 64 + moved, 1500, 2900 - moved, 4096}));
    attention.forward(in, views[3]);
    attention.backward(in, views[4], {views[5], views[6], views[7], nullptr});
    if (step == 32) warm = allocator.allocations;
  }
  memory->synchronize();
  EXPECT_GT(warm, 0);
  EXPECT_EQ(allocator.allocations, warm);
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceMemory,
                         testing::Values(Backend::mma, Backend::cudnn, Backend::hopper,
                                         Backend::hopper_cudnn),
                         [](const auto& backend) { return std::string(word_of(backend.param)); });

}  // namespace
}  // namespace usp::test
