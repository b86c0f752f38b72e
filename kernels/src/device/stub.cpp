// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/device/device.hpp"
#include "usp/device/stream_clock.hpp"

/// What stands in for GPUs in a build without CUDA.
namespace usp {
namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError(
      "this build has no CUDA support; configure with -DUSP_CUDA=ON on a machine that has nvcc");
}

}  // namespace

bool has_cuda() {
  return false;
}
int device_count() {
  return 0;
}
DeviceInfo device_info(int) {
  refuse();
}
DeviceScope::DeviceScope(int) {
  refuse();
}
DeviceScope::~DeviceScope() = default;
Stream::Stream(int) {
  refuse();
}
Stream::~Stream() = default;
void Stream::synchronize() const {
  refuse();
}
Event::Event(int, EventUse) {
  refuse();
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
void Event::record(StreamHandle) const {
  refuse();
}
bool Event::reached() const {
  refuse();
}
void Event::synchronize() const {
  refuse();
}
void wait_for(StreamHandle, EventHandle) {
  refuse();
}
double seconds_between(const Event&, const Event&) {
  refuse();
}
DeviceBuffer::DeviceBuffer(int, i64) {
  refuse();
}
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept = default;
PinnedBuffer::PinnedBuffer(i64) {
  refuse();
}
PinnedBuffer::~PinnedBuffer() = default;
PinnedBuffer::PinnedBuffer(PinnedBuffer&&) noexcept = default;
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&&) noexcept = default;
NamedRange::NamedRange(const char*) {}
NamedRange::~NamedRange() = default;
void copy_to_device(std::byte*, const void*, i64, StreamHandle) {
  refuse();
}
void copy_to_host(void*, const std::byte*, i64, StreamHandle) {
  refuse();
}
void set_device_bytes(std::byte*, int, i64, StreamHandle) {
  refuse();
}

}  // namespace usp
