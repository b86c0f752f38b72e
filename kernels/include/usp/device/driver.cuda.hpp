// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <cuda.h>
#include <string>

/// For files that call the CUDA driver, which is found at run time: programs start where there is none.
/// Most calls of the driver act on the calling thread's current context; hold a DeviceScope of the device
/// that owns the pointer or the handle.
namespace usp::device {

/// Throws EnvironmentError naming the call and the driver's error number, then `hint`.
void check_driver(CUresult result, const char* call, const char* hint = "");

/// The driver's function of a name, as CUDA 12.0 defines it. Throws EnvironmentError where the driver lacks
/// it.
template <class Call>
[[nodiscard]] Call driver_call(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPoint");
  if (found != cudaDriverEntryPointSuccess)
    throw EnvironmentError("this driver has no " + std::string(name) + "; update it");
  return reinterpret_cast<Call>(address);
}

}  // namespace usp::device
