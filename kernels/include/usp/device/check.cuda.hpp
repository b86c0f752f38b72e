// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

/// For files that call CUDA themselves.
namespace usp::device {

/// Throws EnvironmentError naming the call and CUDA's reason; clears an error that would stick.
void check_cuda(cudaError_t status, const char* call);
/// After a kernel launch: its configuration errors.
void check_launch(const char* kernel);

}  // namespace usp::device
