// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <string>

struct CUstream_st;
struct CUevent_st;

/// Owners of what a GPU hands out. Their members need no current device, and leave the calling thread's as it
/// is; free functions that take handles act on the thread's current device: hold a DeviceScope. Needs no CUDA
/// header; without CUDA support every constructor throws EnvironmentError and device_count() is 0.
/// Destructors never throw and are safe after the driver has gone.
namespace usp::device {

/// cudaStream_t and cudaEvent_t: non-owning views.
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

/// This build can talk to GPUs.
[[nodiscard]] bool has_cuda();
/// GPUs that this process sees; 0 without driver, GPU or CUDA support.
[[nodiscard]] int device_count();

struct DeviceInfo {
  int device = 0;
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  i64 memory_bytes = 0;
  i64 shared_bytes_per_block = 0;  ///< greatest, after opting in
};
/// Throws EnvironmentError when there is no such device.
[[nodiscard]] DeviceInfo device_info(int device);

/// Lets GPU `mine` read and write the memory of GPU `other`; nothing where they are one. Throws
/// EnvironmentError where the hardware cannot.
void enable_peer_access(int mine, int other);

/// Makes a device current on the calling thread for a scope; then what was current before, also where that
/// was no device at all. Scopes nest and end in reverse order.
class DeviceScope {
 public:
  /// Throws EnvironmentError when there is no such device.
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool pushed_ = false;
};

/// A stream of another owner. handle null: none is named.
struct StreamRef {
  StreamHandle handle = nullptr;
};
[[nodiscard]] int device_of(StreamRef stream);
/// Blocks the calling thread.
void synchronize(StreamRef stream);

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] StreamHandle get() const { return handle_; }
  [[nodiscard]] int device() const { return device_; }
  /// Blocks the calling thread.
  void synchronize() const;

 private:
  StreamHandle handle_ = nullptr;
  int device_ = 0;
};

/// What an event serves beside ordering.
enum class EventUse : std::uint8_t { order, timing };

class Event {
 public:
  explicit Event(int device, EventUse use = EventUse::order);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept;
  [[nodiscard]] EventHandle get() const { return handle_; }
  [[nodiscard]] int device() const { return device_; }
  /// The point that the stream has reached by now.
  void record(StreamHandle stream) const;
  [[nodiscard]] bool reached() const;
  /// Blocks the calling thread.
  void synchronize() const;

 private:
  EventHandle handle_ = nullptr;
  int device_ = 0;
};

/// What is enqueued on the stream becomes a CUDA graph instead of running.
[[nodiscard]] bool is_capturing(StreamHandle stream);

/// What the stream does next starts after the event's recorded point (of any device of this process).
void wait_for(StreamHandle stream, EventHandle event);
/// Seconds between two recorded timing events; blocks until both are reached.
[[nodiscard]] double seconds_between(const Event& begin, const Event& end);

/// Plain device memory (cudaMalloc), on a boundary of 256 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws EnvironmentError that names the bytes asked for and free.
  DeviceBuffer(int device, i64 bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] i64 bytes() const { return bytes_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  std::byte* data_ = nullptr;
  i64 bytes_ = 0;
  int device_ = 0;
};

/// Page-locked host memory.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(i64 bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] i64 bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  i64 bytes_ = 0;
};

/// Plain copies in stream order; pageable host memory makes them block.
void copy_to_device(std::byte* device, const void* host, i64 bytes, StreamHandle stream);
void copy_to_host(void* host, const std::byte* device, i64 bytes, StreamHandle stream);
void set_device_bytes(std::byte* device, int value, i64 bytes, StreamHandle stream);

}  // namespace usp::device
