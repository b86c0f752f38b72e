// SPDX-License-Identifier: Apache-2.0
// The CPU kernel allocates on the first call of its head dims only: a step of training must not.
#include "attention_cases.hpp"
#include "backends_under_test.hpp"

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

long allocations_of(Trial& trial, kernels::AttentionKernel& kernel) {
  const long before = allocations();
  trial.all(kernel);
  return allocations() - before;
}

TEST(AttentionAllocation, OnlyInTheFirstCall) {
  for (const NamedBackend& backend : backends()) {
    if (backend.name == "reference") continue;
    SCOPED_TRACE(backend.name);
    const auto kernel = backend.make();
    Case first = one_slice("first", rectangle(1, 1), 40);
    Case later = one_slice("later", banded(700, 900, -300, unbounded), 40);
    later.group = 2;
    later.query_heads = {1, 5};
    later.batch = 2;
    later.softcap = 3;
    later.dropout = 0.1;
    const Inputs first_in(first, DType::bf16, DType::bf16), later_in(later, DType::bf16, DType::bf16);
    Trial a(first, first_in), b(later, later_in);
    EXPECT_GT(allocations_of(a, *kernel), 0);
    EXPECT_EQ(allocations_of(b, *kernel), 0);
  }
}

}  // namespace
}  // namespace usp::test
