// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

namespace usp::device {

/// Error of every function that needs CUDA in a build without it.
[[noreturn]] inline void refuse_without_cuda() {
  throw EnvironmentError(
      "this build has no CUDA support; configure with -DUSP_CUDA=ON on a machine that has nvcc");
}

}  // namespace usp::device
