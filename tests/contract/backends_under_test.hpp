// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"

#include <memory>
#include <string>
#include <vector>

namespace usp::test {

struct NamedBackend {
  std::string name;
  /// Throws EnvironmentError where the machine lacks what it takes.
  std::unique_ptr<kernels::AttentionKernel> (*make)();
  std::vector<DType> types{DType::bf16, DType::fp16, DType::fp32, DType::fp64};
  /// Relative RMS error by type, in the order of DType.
  double tolerance[4] = {1e-5, 1e-5, 1e-5, 1e-12};
  /// P, dS and blocks of results are rounded to the input type on the way; else nothing is but the state.
  bool rounds_steps = false;
  /// Tests of AttentionContract that do not hold for it.
  std::vector<std::string> refuses{};
  /// Lists of blocks are computed at once, not one block after the other.
  bool joins_blocks = false;
};

/// What a test binary covers: backends_cpu.cpp or backends_cuda.cpp.
[[nodiscard]] const std::vector<NamedBackend>& backends();

}  // namespace usp::test
