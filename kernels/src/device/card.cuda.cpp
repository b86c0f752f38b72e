// SPDX-License-Identifier: Apache-2.0
#include "usp/device/card.hpp"

#include "usp/device/check.cuda.hpp"
#include "usp/device/device.hpp"

#include <array>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace usp::device {
namespace {

// The management library's header is no part of the toolkit; what is used of it has kept its form since R515.
using NvmlDevice = struct NvmlDeviceOfDriver*;
constexpr int nvml_success = 0, nvml_clock_sm = 1;
constexpr int nvml_most_links = 18, nvml_remote_switch = 2;

/// Loaded once; null members where the driver lacks a function.
struct Nvml {
  int (*device_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*power_limit_mw)(NvmlDevice, unsigned*) = nullptr;
  int (*max_clock_mhz)(NvmlDevice, int, unsigned*) = nullptr;
  int (*link_state)(NvmlDevice, unsigned, int*) = nullptr;
  int (*link_remote_type)(NvmlDevice, unsigned, int*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*start)() = nullptr;
    find(library, "nvmlInit_v2", start);
    if (start == nullptr || start() != nvml_success) return;
    find(library, "nvmlDeviceGetHandleByPciBusId_v2", device_by_bus_id);
    find(library, "nvmlDeviceGetEnforcedPowerLimit", power_limit_mw);
    find(library, "nvmlDeviceGetMaxClockInfo", max_clock_mhz);
    find(library, "nvmlDeviceGetNvLinkState", link_state);
    find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", link_remote_type);
    find(library, "nvmlSystemGetDriverVersion", driver_version);
  }

 private:
  template <class Call>
  static void find(void* library, const char* name, Call& call) {
    if (library != nullptr) call = reinterpret_cast<Call>(dlsym(library, name));
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

void read_links(NvmlDevice handle, CardState& state) {
  if (nvml().link_state == nullptr) return;
  for (unsigned link = 0; link < nvml_most_links; ++link) {
    int up = 0, remote = -1;
    if (nvml().link_state(handle, link, &up) != nvml_success || up == 0) continue;
    ++state.nvlinks;
    if (nvml().link_remote_type != nullptr && nvml().link_remote_type(handle, link, &remote) == nvml_success)
      state.switched = state.switched || remote == nvml_remote_switch;
  }
}

void read_management(CardState& state) {
  std::array<char, 96> version{};
  if (nvml().driver_version != nullptr &&
      nvml().driver_version(version.data(), static_cast<unsigned>(version.size())) == nvml_success)
    state.driver = version.data();
  NvmlDevice handle = nullptr;
  if (nvml().device_by_bus_id == nullptr ||
      nvml().device_by_bus_id(state.bus_id.c_str(), &handle) != nvml_success)
    return;
  unsigned value = 0;
  if (nvml().power_limit_mw != nullptr && nvml().power_limit_mw(handle, &value) == nvml_success && value > 0)
    state.power_w = value * 1e-3;
  if (nvml().max_clock_mhz != nullptr &&
      nvml().max_clock_mhz(handle, nvml_clock_sm, &value) == nvml_success && value > 0)
    state.clock_hz = value * 1e6;
  read_links(handle, state);
}

/// Empty where the driver does not say.
std::optional<double> attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  return value > 0 ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

CardState card_state(int device) {
  static_cast<void>(device_info(device));  // that there is one
  CardState state;
  std::array<char, 32> bus{};
  check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device),
             "cudaDeviceGetPCIBusId");
  state.bus_id = bus.data();
  if (const auto khz = attribute(cudaDevAttrClockRate, device)) state.clock_hz = *khz * 1e3;
  const auto memory_khz = attribute(cudaDevAttrMemoryClockRate, device);
  const auto bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  constexpr double transfers_per_clock = 2;  // both edges
  if (memory_khz && bits) state.memory_gb_s = transfers_per_clock * *memory_khz * 1e3 * *bits / 8 * 1e-9;
  read_management(state);
  return state;
}

}  // namespace usp::device
