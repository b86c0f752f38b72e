// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include "../state/state.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <cstdint>
#include <utility>

namespace usp::kernels::cudnn {
namespace {

class CudnnKernel final : public AttentionKernel {
 public:
  CudnnKernel(Memory& memory, const CudaKernelOptions& options, cuda::MakeFallback fallback)
      : engine_(memory, options, std::move(fallback)) {}
  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] std::string library_version() const override { return engine_.library_version(); }
  [[nodiscard]] Memory& memory() override { return engine_.memory(); }
  [[nodiscard]] bool rounds_results() const override { return cudnn_traits.rounds_results; }
  [[nodiscard]] bool wants_o() const override { return !cudnn_traits.takes.grad_without_o; }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override {
    return engine_.fallback().counts();
  }
  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope scope(engine_.device());
    return make_forward_step(engine_, a);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope scope(engine_.device());
    return make_backward_step(engine_, a);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope scope(engine_.device());
    cuda::launch_delta(a, memory().stream());
  }

 private:
  Engine engine_;
};

}  // namespace

bool aligned(const ConstView& v) {
  const i64 elements = 16 / bytes_of(v.type);
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.batch_stride % elements == 0 &&
         v.row_stride % elements == 0 && v.head_stride % elements == 0;
}

View heads_of(const View& v, Range heads) {
  View part = v;
  part.data = v.at(0, 0, heads.begin);
  part.heads = heads;
  return part;
}

Engine::Engine(Memory& memory, const CudaKernelOptions& options, cuda::MakeFallback fallback)
    : memory_(memory),
      options_(options),
      fallback_(std::move(fallback)),
      device_(memory.device()),
      compute_major_(device::device_info(device_).compute_major),
      graphs_([this] {
        const device::DeviceScope scope(device_);
        return Graphs();
      }()),
      scratch_(memory) {}

Division Engine::divide(const AttendScope& scope, const schedule::CallTraits& call, bool rows_aligned) const {
  Division division;
  const schedule::KernelTraits& traits = cudnn_traits.takes;
  const bool left_by_plan = scope.use && *scope.use != Backend::cudnn;
  schedule::UnsupportedReason why = schedule::UnsupportedReason::none;
  if (!left_by_plan) {
    why = schedule::unsupported_reason(traits, call);
    if (why == schedule::UnsupportedReason::none && !rows_aligned)
      why = schedule::UnsupportedReason::alignment;
    if (why != schedule::UnsupportedReason::none && scope.use) division.departures.push_back(why);
  }
  if (left_by_plan || why != schedule::UnsupportedReason::none) {
    division.rest.assign(scope.slices, scope.slices + scope.slice_count);
    return division;
  }
  schedule::BlockSplit split =
      schedule::split_into_blocks(traits, scope.slices, scope.slice_count, call.backward);
  for (const schedule::BandBlock& b : split.blocks) division.blocks.push_back({b, nullptr});
  division.rest = std::move(split.rest);
  return division;
}

std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                             cuda::MakeFallback fallback) {
  return std::make_unique<CudnnKernel>(memory, options, std::move(fallback));
}

}  // namespace usp::kernels::cudnn

namespace usp::kernels {

std::unique_ptr<AttentionKernel> make_cudnn_kernel(Memory& memory, const CudaKernelOptions& options) {
  return cudnn::make_kernel(memory, options, [&memory, options] {
    return factory_of(fallback_of(Backend::cudnn)).make(memory, options.deterministic);
  });
}

}  // namespace usp::kernels
