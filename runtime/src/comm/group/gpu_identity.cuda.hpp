// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "whole_gpus.hpp"

#include "usp/device/check.cuda.hpp"

#include <cstring>

namespace usp::comm {

[[nodiscard]] inline GpuIdentity identity_of(int device) {
  cudaDeviceProp properties;
  device::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  GpuIdentity identity{properties.name, {}};
  static_assert(sizeof identity.uuid == sizeof properties.uuid);
  std::memcpy(identity.uuid.data(), &properties.uuid, sizeof properties.uuid);
  return identity;
}

}  // namespace usp::comm
