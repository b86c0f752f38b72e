// SPDX-License-Identifier: Apache-2.0
#include "cpu_kernel.hpp"

#include "../empty_state.hpp"
#include "../host_step.hpp"
#include "passes.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"

#include <string>

namespace usp::kernels {
namespace cpu {
namespace {

class CpuKernel final : public AttentionKernel {
 public:
  CpuKernel(Isa isa, Memory& memory)
      : name_(std::string("cpu-") + name_of(isa)),
        floats_(tile_ops<float>(isa)),
        doubles_(tile_ops<double>(isa)),
        memory_(memory),
        scratch_(memory) {}

  [[nodiscard]] const char* name() const override { return name_.c_str(); }
  [[nodiscard]] Memory& memory() override { return memory_; }

  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& a) override {
    return prepare_step(a);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& a) override {
    return prepare_step(a);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    if (a.o.type == DType::fp64)
      cpu::delta(doubles_, scratch_, a);
    else
      cpu::delta(floats_, scratch_, a);
  }

 private:
  template <class Args>
  [[nodiscard]] std::unique_ptr<PreparedStep<Args>> prepare_step(const Args& a) {
    check(a);
    if (!a.scope.query_heads.empty()) {
      if (a.q.type == DType::fp64)
        make_room(doubles_, scratch_, a);
      else
        make_room(floats_, scratch_, a);
    }
    return make_host_step(a, [this](const Args& args) { compute(args); });
  }
  template <class Args>
  void compute(const Args& a) {
    if (a.scope.query_heads.empty()) return;
    begin_empty(a);
    if (a.q.type == DType::fp64)
      cpu::compute(doubles_, scratch_, a);
    else
      cpu::compute(floats_, scratch_, a);
  }

  std::string name_;
  const TileOps<float>& floats_;
  const TileOps<double>& doubles_;
  Memory& memory_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_kernel(Isa isa, Memory& memory) {
  return std::make_unique<CpuKernel>(isa, memory);
}

}  // namespace cpu

std::unique_ptr<AttentionKernel> make_cpu_kernel() {
  return make_cpu_kernel(host_memory());
}

std::unique_ptr<AttentionKernel> make_cpu_kernel(Memory& memory) {
  if (memory.device() >= 0)
    throw UsageError(
        "the CPU kernel works in host memory, and was given that of a GPU; see make_host_memory");
  return cpu::make_kernel(cpu::best_isa(), memory);
}

}  // namespace usp::kernels
