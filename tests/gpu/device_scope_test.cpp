// SPDX-License-Identifier: Apache-2.0
#include "comm/ipc/process_sharing.hpp"

#include "usp/base/error.hpp"
#include "usp/device/device.hpp"
#include "usp/device/driver.cuda.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace usp {
namespace {

constexpr i64 block_bytes = 4096;

/// Runs on a thread of its own, whose default device is 0 and which has no current context yet.
template <class ComputeOp>
void on_fresh_thread(ComputeOp&& work) {
  std::thread(std::forward<ComputeOp>(work)).join();
}

[[nodiscard]] CUcontext current_context() {
  CUcontext now = nullptr;
  device::check_driver(device::driver_call<CUresult (*)(CUcontext*)>("cuCtxGetCurrent")(&now),
                       "cuCtxGetCurrent");
  return now;
}

[[nodiscard]] bool has_context(int device) {
  unsigned flags = 0;
  int active = 0;
  device::check_driver(device::driver_call<CUresult (*)(CUdevice, unsigned*, int*)>(
                           "cuDevicePrimaryCtxGetState")(device, &flags, &active),
                       "cuDevicePrimaryCtxGetState");
  return active != 0;
}

[[nodiscard]] int current_device() {
  int device = -1;
  device::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Work on one device makes no context on another: each takes hundreds of megabytes there. First in this
/// file, so that nothing has used device 0 before.
TEST(DeviceScope, WorkOnOneDeviceTakesNoMemoryOfAnother) {
  if (device::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  on_fresh_thread([] {
    const device::Stream stream(1);
    const device::DeviceBuffer buffer(1, block_bytes);
    const device::Event event(1);
    event.record(stream.get());
    (void)comm::share(buffer, 1);
    stream.synchronize();
    EXPECT_TRUE(has_context(1));
    EXPECT_FALSE(has_context(0));
  });
}

TEST(DeviceScope, LeavesTheThreadAsItFoundIt) {
  if (device::device_count() < 1) GTEST_SKIP() << "needs a GPU";
  const int last = device::device_count() - 1;
  on_fresh_thread([last] {
    {
      const device::DeviceScope outer(last);
      EXPECT_EQ(current_device(), last);
      const CUcontext held = current_context();
      {
        const device::DeviceScope inner(0);
        EXPECT_EQ(current_device(), 0);
      }
      EXPECT_EQ(current_context(), held);
    }
    EXPECT_EQ(current_context(), nullptr);
  });
}

TEST(DeviceScope, RefusesADeviceThatIsNotThere) {
  if (device::device_count() < 1) GTEST_SKIP() << "needs a GPU";
  EXPECT_THROW(const device::DeviceScope scope(device::device_count()), EnvironmentError);
  EXPECT_THROW(const device::DeviceScope scope(-1), EnvironmentError);
}

/// A rank whose card is not the thread's current device exports its arena.
TEST(ProcessSharing, NamesMemoryOfADeviceThatIsNotCurrent) {
  if (device::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  for (int device = 0; device < device::device_count(); ++device) {
    const device::DeviceBuffer buffer(device, block_bytes);
    on_fresh_thread([&] {
      device::check_cuda(cudaSetDevice((device + 1) % device::device_count()), "cudaSetDevice");
      (void)comm::share(buffer, device);
      EXPECT_EQ(current_device(), (device + 1) % device::device_count());
    });
  }
}

}  // namespace
}  // namespace usp
