// SPDX-License-Identifier: Apache-2.0
#include "pass_kernels.hpp"

#include "usp/kernels/kernel_factory.hpp"

namespace usp::kernels {
namespace {

class PassKernels final : public AttentionKernel {
 public:
  PassKernels(Backend backend, Memory& memory, bool deterministic)
      : word_(backend->word),
        forward_(factory_of(backend.of(Pass::forward)).make(memory, deterministic)),
        backward_(factory_of(backend.of(Pass::backward)).make(memory, deterministic)) {}

  [[nodiscard]] const char* name() const override { return word_.c_str(); }
  [[nodiscard]] std::string library_version() const override {
    std::string version = forward_->library_version();
    return version.empty() ? backward_->library_version() : version;
  }
  [[nodiscard]] Memory& memory() override { return forward_->memory(); }
  [[nodiscard]] std::vector<BackendFallback> fallbacks() const override {
    std::vector<BackendFallback> all = forward_->fallbacks();
    for (const BackendFallback& one : backward_->fallbacks()) all.push_back(one);
    return all;
  }
  [[nodiscard]] bool rounds_results() const override {
    return forward_->rounds_results() && backward_->rounds_results();
  }
  [[nodiscard]] bool wants_o() const override { return backward_->wants_o(); }
  [[nodiscard]] std::unique_ptr<PreparedAttend> prepare(const AttendArgs& args) override {
    return forward_->prepare(args);
  }
  [[nodiscard]] std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& args) override {
    return backward_->prepare(args);
  }
  void delta(const DeltaArgs& args) override { backward_->delta(args); }

 private:
  std::string word_;
  std::unique_ptr<AttentionKernel> forward_, backward_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_pass_kernels(Backend backend, Memory& memory, bool deterministic) {
  return std::make_unique<PassKernels>(backend, memory, deterministic);
}

}  // namespace usp::kernels
