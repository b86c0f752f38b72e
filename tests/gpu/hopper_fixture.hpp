// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/call_stream.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace usp::test {

/// Tests, with or without parameters (`Base` of GoogleTest), on the first GPU; skipped where that has not
/// compute capability 9.0.
template <class Base>
class OnHopper : public Base {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "there is no GPU";
    if (device::device_info(0).compute_major != 9)
      GTEST_SKIP() << "the GPU is none of compute capability 9.0";
    on_.emplace(0);
    stream_.emplace(0);
    memory_ = kernels::make_cuda_memory(*stream_);
  }
  [[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make(Backend backend, bool deterministic) {
    return kernels::factory_of(backend).make(*memory_, deterministic);
  }

  std::optional<device::DeviceScope> on_;
  std::optional<device::CallStream> stream_;
  std::unique_ptr<kernels::Memory> memory_;
};

}  // namespace usp::test
