// SPDX-License-Identifier: Apache-2.0
#include "usp/device/device.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <fmt/format.h>

#include <utility>

namespace usp::device {

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call leaves its error for the next one to find
  throw EnvironmentError(
      fmt::format("{} failed: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    throw EnvironmentError(
        fmt::format("kernel {} could not be launched: {}", kernel, cudaGetErrorString(status)));
}

bool has_cuda() {
  return true;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

DeviceInfo device_info(int device) {
  const int count = device_count();
  if (device < 0 || device >= count)
    throw EnvironmentError(fmt::format(
        "there is no GPU {}: this process sees {}; see CUDA_VISIBLE_DEVICES and nvidia-smi", device, count));
  cudaDeviceProp p;
  check_cuda(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  DeviceInfo info;
  info.device = device;
  info.name = p.name;
  info.compute_major = p.major, info.compute_minor = p.minor;
  info.multiprocessors = p.multiProcessorCount;
  info.memory_bytes = static_cast<i64>(p.totalGlobalMem);
  info.shared_bytes_per_block = static_cast<i64>(p.sharedMemPerBlockOptin);
  return info;
}

Stream::Stream(int device) : device_(device) {
  const DeviceScope scope(device);
  check_cuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
}
Stream::~Stream() {
  if (handle_ != nullptr && cudaStreamDestroy(handle_) != cudaSuccess) cudaGetLastError();
}
int device_of(StreamRef stream) {
  int device = 0;
  check_cuda(cudaStreamGetDevice(stream.handle, &device), "cudaStreamGetDevice");
  return device;
}
void synchronize(StreamRef stream) {
  const DeviceScope scope(device_of(stream));
  check_cuda(cudaStreamSynchronize(stream.handle), "cudaStreamSynchronize");
}
void Stream::synchronize() const {
  device::synchronize({handle_});
}

Event::Event(int device, EventUse use) : device_(device) {
  const DeviceScope scope(device);
  unsigned flags = cudaEventDefault;
  if (use != EventUse::timing) flags |= cudaEventDisableTiming;
  check_cuda(cudaEventCreateWithFlags(&handle_, flags), "cudaEventCreate");
}
Event::~Event() {
  if (handle_ != nullptr && cudaEventDestroy(handle_) != cudaSuccess) cudaGetLastError();
}
Event::Event(Event&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), device_(other.device_) {}
void Event::record(StreamHandle stream) const {
  const DeviceScope scope(device_);
  check_cuda(cudaEventRecord(handle_, stream), "cudaEventRecord");
}
bool Event::reached() const {
  const DeviceScope scope(device_);
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}
void Event::synchronize() const {
  const DeviceScope scope(device_);
  check_cuda(cudaEventSynchronize(handle_), "cudaEventSynchronize");
}

bool is_capturing(StreamHandle stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void enable_peer_access(int mine, int other) {
  if (mine == other) return;
  int possible = 0;
  check_cuda(cudaDeviceCanAccessPeer(&possible, mine, other), "cudaDeviceCanAccessPeer");
  if (possible == 0)
    throw EnvironmentError(
        fmt::format("GPU {} cannot reach the memory of GPU {}: copy engines need peer access (see nvidia-smi "
                    "topo -p2p r); use NCCL or other GPUs",
                    mine, other));
  const DeviceScope scope(mine);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check_cuda(status, "cudaDeviceEnablePeerAccess");
}

void wait_for(StreamHandle stream, EventHandle event) {
  check_cuda(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

double seconds_between(const Event& begin, const Event& end) {
  end.synchronize();
  const DeviceScope scope(end.device());
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

void copy_to_device(std::byte* device, const void* host, i64 bytes, StreamHandle stream) {
  check_cuda(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream),
             "a copy to the device");
}
void copy_to_host(void* host, const std::byte* device, i64 bytes, StreamHandle stream) {
  check_cuda(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream),
             "a copy to the host");
}
void set_device_bytes(std::byte* device, int value, i64 bytes, StreamHandle stream) {
  check_cuda(cudaMemsetAsync(device, value, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
}

}  // namespace usp::device
