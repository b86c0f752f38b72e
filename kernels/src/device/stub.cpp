// SPDX-License-Identifier: Apache-2.0
#include "no_cuda.hpp"

#include "usp/device/card.hpp"
#include "usp/device/device.hpp"
#include "usp/device/stream_clock.hpp"

/// Replaces the owners of GPU resources in a build without CUDA.
namespace usp::device {
bool has_cuda() {
  return false;
}
int device_count() {
  return 0;
}
DeviceInfo device_info(int) {
  refuse_without_cuda();
}
CardState card_state(int) {
  refuse_without_cuda();
}
DeviceScope::DeviceScope(int) {
  refuse_without_cuda();
}
DeviceScope::~DeviceScope() {
  static_cast<void>(pushed_);  // set by the constructor of CUDA alone
}
int device_of(StreamRef) {
  refuse_without_cuda();
}
void synchronize(StreamRef) {
  refuse_without_cuda();
}
Stream::Stream(int) {
  refuse_without_cuda();
}
Stream::~Stream() = default;
void Stream::synchronize() const {
  refuse_without_cuda();
}
Event::Event(int, EventUse) {
  refuse_without_cuda();
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
void Event::record(StreamHandle) const {
  refuse_without_cuda();
}
bool Event::reached() const {
  refuse_without_cuda();
}
void Event::synchronize() const {
  refuse_without_cuda();
}
bool is_capturing(StreamHandle) {
  return false;
}
void enable_peer_access(int, int) {
  refuse_without_cuda();
}
void wait_for(StreamHandle, EventHandle) {
  refuse_without_cuda();
}
double seconds_between(const Event&, const Event&) {
  refuse_without_cuda();
}
DeviceBuffer::DeviceBuffer(int, i64) {
  refuse_without_cuda();
}
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept = default;
PinnedBuffer::PinnedBuffer(i64) {
  refuse_without_cuda();
}
PinnedBuffer::~PinnedBuffer() = default;
PinnedBuffer::PinnedBuffer(PinnedBuffer&&) noexcept = default;
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&&) noexcept = default;
NamedRange::NamedRange(const char*) {}
NamedRange::~NamedRange() = default;
void copy_to_device(std::byte*, const void*, i64, StreamHandle) {
  refuse_without_cuda();
}
void copy_to_host(void*, const std::byte*, i64, StreamHandle) {
  refuse_without_cuda();
}
void set_device_bytes(std::byte*, int, i64, StreamHandle) {
  refuse_without_cuda();
}

}  // namespace usp::device
