// SPDX-License-Identifier: Apache-2.0
// The CPU kernel allocates when steps are prepared, and scratch for the first of their head dims only.
#include "attention_cases.hpp"
#include "backends_under_test.hpp"
#include "counting_allocator.hpp"

#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long>& allocations() {
  static std::atomic<long> count{0};
  return count;
}

// Out of sight of the compiler, which would pair free() with the operators below.
[[gnu::noinline]] void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations();
  void* memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace usp::test {
namespace {

TEST(AttentionAllocation, NoneInARun) {
  for (const NamedBackend& backend : backends()) {
    if (backend.name == "reference") continue;
    SCOPED_TRACE(backend.name);
    const auto kernel = backend.make();
    Case c = one_slice("later", banded(700, 900, -300, unbounded), 40);
    c.group = 2;
    c.query_heads = {1, 5};
    c.batch = 2;
    c.softcap = 3;
    c.dropout = 0.1;
    const Inputs in(c, DType::bf16, DType::bf16);
    Trial trial(c, in);
    const kernels::AttendArgs attend = trial.attend_args(0, 1);
    const kernels::AttendGradArgs grad = trial.grad_args(0, 1);
    const long before_prepare = allocations();
    const auto prepared = kernel->prepare(attend);
    const auto prepared_grad = kernel->prepare(grad);
    const long before = allocations();
    EXPECT_GT(before, before_prepare);
    for (int run = 0; run < 2; ++run) {
      prepared->run(attend);
      kernel->delta(
          {trial.in.d_o.view(), trial.o.view(), trial.lse.view(), trial.delta.view(), c.query_heads});
      prepared_grad->run(grad);
    }
    EXPECT_EQ(allocations(), before);
  }
}

/// Packed batches that change in every step of training.
TEST(AttentionAllocation, NewBatchesTakeNoMemoryOfTheAllocator) {
  CountingAllocator allocator;
  const auto memory = kernels::make_host_memory(allocator);
  const auto kernel = kernels::make_cpu_kernel(*memory);
  i64 first = 0;
  for (i64 step = 0; step < 20; ++step) {
    Case c = one_slice("packed", rectangle(1, 1), 40);
    c.q_rows = c.k_rows = 128;
    c.slices = {banded(40 + step, 40 + step, 0, unbounded), banded(88 - step, 88 - step, 0, unbounded)};
    c.slices[1].q_row = c.slices[1].k_row = c.slices[1].dk_row = 40 + step;
    const Inputs in(c, DType::bf16, DType::bf16);
    Trial(c, in).all(*kernel);
    if (step == 0) first = allocator.allocations;
  }
  EXPECT_GT(first, 0);
  EXPECT_EQ(allocator.allocations, first);
}

}  // namespace
}  // namespace usp::test
