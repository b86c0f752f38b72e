// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <vector>

/// A backend of the tests alone, on the host: blocks of rows go to the reference kernel, and whatever it does
/// not take to its fallback.
namespace usp::test {

inline const BackendTraits wrapped_traits = {
    .word = "wrapped",
    .display_name = "Wrapped",
    .summary = "the reference kernel for blocks, without softcap",
    .takes = {.softcap = false, .any_slices = false, .max_slices = 32, .max_blocks = 8},
    .fallback = &cpu_traits};

inline const Backend wrapped{wrapped_traits};

/// Counts the steps that it prepares, by the kernel that computes them.
class WrappedKernel final : public kernels::AttentionKernel {
 public:
  explicit WrappedKernel(kernels::Memory& memory)
      : fallback_(kernels::factory_of(fallback_of(wrapped)).make(memory, false)) {}

  [[nodiscard]] const char* name() const override { return "wrapped"; }
  [[nodiscard]] kernels::Memory& memory() override { return fallback_->memory(); }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttend> prepare(const kernels::AttendArgs& a) override {
    return kernel_of(a.scope).prepare(a);
  }
  [[nodiscard]] std::unique_ptr<kernels::PreparedAttendGrad> prepare(
      const kernels::AttendGradArgs& a) override {
    return kernel_of(a.scope).prepare(a);
  }
  void delta(const kernels::DeltaArgs& a) override { own_->delta(a); }

  int own_steps = 0, left_steps = 0;

 private:
  [[nodiscard]] kernels::AttentionKernel& kernel_of(const kernels::AttendScope& scope) {
    const bool own = scope.use == wrapped;
    ++(own ? own_steps : left_steps);
    return own ? *own_ : *fallback_;
  }
  std::unique_ptr<kernels::AttentionKernel> own_ = kernels::make_reference_kernel(), fallback_;
};

/// The library's factories and its own.
inline const std::vector<kernels::KernelFactory>& factories_with_wrapped() {
  static const std::vector<kernels::KernelFactory> list = [] {
    std::vector<kernels::KernelFactory> all = kernels::kernel_factories();
    all.push_back({wrapped_traits.word, wrapped_traits.on_gpu,
                   [](kernels::Memory& memory, bool) -> std::unique_ptr<kernels::AttentionKernel> {
                     return std::make_unique<WrappedKernel>(memory);
                   }});
    return all;
  }();
  return list;
}

}  // namespace usp::test
