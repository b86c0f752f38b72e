// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"

namespace usp {

/// What every stand-in of a build without CUDA says.
[[noreturn]] inline void refuse_without_cuda() {
  throw EnvironmentError(
      "this build has no CUDA support; configure with -DUSP_CUDA=ON on a machine that has nvcc");
}

}  // namespace usp
