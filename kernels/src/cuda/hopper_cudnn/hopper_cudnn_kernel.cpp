// SPDX-License-Identifier: Apache-2.0
#include "../cudnn/cudnn_kernel.hpp"

#include "usp/kernels/cuda_backends.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace usp::kernels {
namespace {

/// Forward by one kernel, backward by another.
class PassKernels final : public AttentionKernel {
 public:
  PassKernels(std::unique_ptr<AttentionKernel> forward, std::unique_ptr<AttentionKernel> backward)
      : forward_(std::move(forward)), backward_(std::move(backward)) {}

  [[nodiscard]] const char* name() const override { return "hopper_cudnn"; }
  [[nodiscard]] std::string library_version() const override { return backward_->library_version(); }
  [[nodiscard]] Memory& memory() override { return forward_->memory(); }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override {
    std::vector<BackendFallback> all = forward_->fallbacks();
    for (const BackendFallback& one : backward_->fallbacks()) all.push_back(one);
    return all;
  }
  [[nodiscard]] bool rounds_results() const override {
    return forward_->rounds_results() && backward_->rounds_results();
  }
  [[nodiscard]] bool waits_inside(Pass pass) const override {
    return (pass == Pass::forward ? forward_ : backward_)->waits_inside(pass);
  }
  [[nodiscard]] bool wants_o() const override { return backward_->wants_o(); }
  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& args) override {
    return forward_->prepare(args);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& args) override {
    return backward_->prepare(args);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendBlocks> prepare_blocks(const AttendBlocks& list) override {
    return forward_->prepare_blocks(list);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGradBlocks> prepare_blocks(
      const AttendGradBlocks& list) override {
    return backward_->prepare_blocks(list);
  }
  void delta(const DeltaArgs& args) override { backward_->delta(args); }

 private:
  std::unique_ptr<AttentionKernel> forward_, backward_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_hopper_cudnn_kernel(Memory& memory, const CudaKernelOptions& options) {
  const auto hopper = [&memory, options] { return make_hopper_kernel(memory, options); };
  return std::make_unique<PassKernels>(hopper(), cudnn::make_kernel(memory, options, hopper));
}

}  // namespace usp::kernels
