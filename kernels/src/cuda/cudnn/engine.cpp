// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include "../state/state.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <cstring>

namespace usp::kernels::cudnn {
namespace {

class CudnnKernel final : public AttentionKernel {
 public:
  CudnnKernel(Memory& memory, const CudaKernelOptions& options, MakeFallback fallback)
      : memory_(memory), engine_(memory, options, std::move(fallback)) {}
  [[nodiscard]] const char* name() const override { return "cudnn"; }
  [[nodiscard]] Memory& memory() override { return memory_; }
  [[nodiscard]] bool rounds_results() const override { return true; }
  [[nodiscard]] bool wants_o() const override { return true; }
  void forget() override { engine_.forget(); }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override { return engine_.fallbacks(); }
  void attend(const AttendArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope scope(engine_.device());
    if (!a.scope.query_heads.empty()) engine_.attend(a);
  }
  void delta(const DeltaArgs& a) override {
    check(a);
    const device::DeviceScope scope(engine_.device());
    cuda::launch_delta(a, memory_.stream());
  }
  void attend_grad(const AttendGradArgs& a) override {
    check(a, rounds_results());
    const device::DeviceScope scope(engine_.device());
    if (!a.scope.query_heads.empty()) engine_.attend_grad(a);
  }

 private:
  Memory& memory_;
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

Engine::Engine(Memory& memory, const CudaKernelOptions& options, MakeFallback fallback)
    : memory_(memory),
      options_(options),
      make_fallback_(std::move(fallback)),
      device_(memory.device()),
      compute_major_(device::device_info(device_).compute_major),
      graphs_([this] {
        const device::DeviceScope scope(device_);
        return Graphs();
      }()),
      block_scratch_(memory),
      state_scratch_(memory),
      input_scratch_(memory),
      delta_scratch_(memory),
      workspace_(memory.make_arena()) {}

AttentionKernel& Engine::fallback() {
  if (fallback_ == nullptr) fallback_ = make_fallback_();
  return *fallback_;
}

void Engine::forget() {
  if (fallback_ != nullptr) fallback_->forget();
  kept_.clear();
}

const schedule::Slice* Engine::keep(const std::vector<schedule::Slice>& slices) {
  for (const std::vector<schedule::Slice>& known : kept_)
    if (known.size() == slices.size() &&
        std::memcmp(known.data(), slices.data(), slices.size() * sizeof(schedule::Slice)) == 0)
      return known.data();
  return kept_.emplace_back(slices).data();
}

void Engine::depart(const AttendScope& scope, Pass pass, schedule::UnsupportedReason why) {
  if (scope.use) ++departed_[static_cast<std::size_t>(pass)][static_cast<std::size_t>(why)];
}

std::vector<BackendFallback> Engine::fallbacks() const {
  std::vector<BackendFallback> all;
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (std::size_t why = 0; why < schedule::unsupported_texts.size(); ++why)
      if (const i64 count = departed_[static_cast<std::size_t>(pass)][why]; count > 0)
        all.push_back({pass, static_cast<schedule::UnsupportedReason>(why), count});
  return all;
}

schedule::BlockSplit Engine::split_into_blocks(const AttendScope& scope, const schedule::CallTraits& call,
                                               bool rows_aligned) {
  if (scope.use == Backend::mma)
    return schedule::all_left(scope.slices, scope.slice_count, schedule::UnsupportedReason::none);
  const schedule::KernelTraits& traits = schedule::kernel_traits(Backend::cudnn);
  schedule::UnsupportedReason why = schedule::unsupported_reason(traits, call);
  if (why == schedule::UnsupportedReason::none && !rows_aligned) why = schedule::UnsupportedReason::alignment;
  if (why == schedule::UnsupportedReason::none)
    return usp::schedule::split_into_blocks(traits, scope.slices, scope.slice_count, call.backward);
  depart(scope, call.backward ? Pass::backward : Pass::forward, why);
  return schedule::all_left(scope.slices, scope.slice_count, why);
}

std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                             MakeFallback fallback) {
  return std::make_unique<CudnnKernel>(memory, options, std::move(fallback));
}

}  // namespace usp::kernels::cudnn

namespace usp::kernels {

std::unique_ptr<AttentionKernel> make_cudnn_kernel(Memory& memory, const CudaKernelOptions& options) {
  return cudnn::make_kernel(memory, options, [&memory, options] { return make_mma_kernel(memory, options); });
}

}  // namespace usp::kernels
