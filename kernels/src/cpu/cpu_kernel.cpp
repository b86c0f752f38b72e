// SPDX-License-Identifier: Apache-2.0
#include "cpu_kernel.hpp"

#include "../empty_state.hpp"
#include "passes.hpp"

#include "usp/kernels/backends.hpp"

#include <string>

namespace usp::kernels {
namespace cpu {
namespace {

class CpuKernel final : public AttentionKernel {
 public:
  explicit CpuKernel(Isa isa)
      : name_(std::string("cpu-") + name_of(isa)),
        floats_(tile_ops<float>(isa)),
        doubles_(tile_ops<double>(isa)) {}

  [[nodiscard]] const char* name() const override { return name_.c_str(); }

  void attend(const AttendArgs& a) override {
    check(a);
    if (a.scope.query_heads.empty()) return;
    begin_empty(a);
    if (a.q.type == DType::fp64)
      cpu::attend(doubles_, scratch_, a);
    else
      cpu::attend(floats_, scratch_, a);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    if (a.o.type == DType::fp64)
      cpu::delta(doubles_, scratch_, a);
    else
      cpu::delta(floats_, scratch_, a);
  }
  void attend_grad(const AttendGradArgs& a) override {
    check(a);
    if (a.scope.query_heads.empty()) return;
    begin_empty(a);
    if (a.q.type == DType::fp64)
      cpu::attend_grad(doubles_, scratch_, a);
    else
      cpu::attend_grad(floats_, scratch_, a);
  }

 private:
  std::string name_;
  const TileOps<float>& floats_;
  const TileOps<double>& doubles_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_kernel(Isa isa) {
  return std::make_unique<CpuKernel>(isa);
}

}  // namespace cpu

std::unique_ptr<AttentionKernel> make_cpu_kernel() {
  return cpu::make_kernel(cpu::best_isa());
}

}  // namespace usp::kernels
