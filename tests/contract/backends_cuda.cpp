// SPDX-License-Identifier: Apache-2.0
#include "backends_under_test.hpp"
#include "cudnn_kernel.hpp"
#include "device_mirror.hpp"
#include "hopper/hopper_kernel.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/cuda_backends.hpp"

namespace usp::test {
namespace {

void need_gpu() {
  if (device::device_count() == 0) throw EnvironmentError("there is no GPU");
}

std::unique_ptr<kernels::AttentionKernel> mma() {
  need_gpu();
  return on_device([](kernels::Memory& memory) { return kernels::make_mma_kernel(memory); });
}

template <bool deterministic>
std::unique_ptr<kernels::AttentionKernel> hopper() {
  need_gpu();
  return on_device([](kernels::Memory& memory) {
    return kernels::hopper::make_kernel(
        memory, {deterministic}, [&memory] { return from_host(memory, kernels::make_reference_kernel()); });
  });
}

/// What cuDNN does not take goes to the reference, so that a wrong route shows as a wrong number.
std::unique_ptr<kernels::AttentionKernel> cudnn() {
  need_gpu();
  return on_device([](kernels::Memory& memory) {
    return kernels::cudnn::make_kernel(
        memory, {}, [&memory] { return from_host(memory, kernels::make_reference_kernel()); });
  });
}

}  // namespace

const std::vector<NamedBackend>& backends() {
  // P is rounded to the input type before the product with V, and so is dS.
  static const std::vector<NamedBackend> all{
      // dQ is added to by atomics, zeros included; a row with lse = -inf must still have finite queries.
      {"mma",
       mma,
       {DType::bf16, DType::fp16},
       {2e-2, 3e-3, 0, 0},
       true,
       {"CallsProgressBetweenTiles", "RepeatsBitForBit", "BlocksRepeatBitForBit",
        "GradientSkipsRowsThatNothingWasSeenFor"}},
      // It takes o instead of delta, and a row with lse = -inf must still have finite queries.
      {"cudnn",
       cudnn,
       {DType::bf16, DType::fp16},
       {2e-2, 3e-3, 0, 0},
       true,
       // Each block's results are rounded.
       {"CallsProgressBetweenTiles", "RepeatsBitForBit", "BlocksRepeatBitForBit",
        "GradientSkipsRowsThatNothingWasSeenFor", "ErrorDoesNotGrowWithBlocks"}},
      {"hopper",
       hopper<false>,
       {DType::bf16, DType::fp16},
       {2e-2, 3e-3, 0, 0},
       true,
       {"CallsProgressBetweenTiles", "RepeatsBitForBit", "BlocksRepeatBitForBit",
        "GradientSkipsRowsThatNothingWasSeenFor"},
       true},
      {"hopper_deterministic",
       hopper<true>,
       {DType::bf16, DType::fp16},
       {2e-2, 3e-3, 0, 0},
       true,
       {"CallsProgressBetweenTiles", "GradientSkipsRowsThatNothingWasSeenFor"},
       true}};
  return all;
}

}  // namespace usp::test
