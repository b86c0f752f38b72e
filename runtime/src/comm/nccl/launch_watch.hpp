// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"
#include "usp/device/device.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace usp::comm {

/// One group of messages on a stream, which start and end together.
struct Launch {
  explicit Launch(int device) : ready(device), done(device) {}
  device::Event ready, done;  ///< all that comes before it; all of it
  int open_messages = 0;      ///< the rank has yet to wait for

 private:
  friend class LaunchWatch;
  bool watched = false;
  bool begun = false;
  std::uint64_t number = 0;
  std::chrono::steady_clock::time_point since;  ///< begun
  int peer = 0;
  std::int32_t tick = 0;
  const char* operation = "";
};

/// Owns the launches of one rank and watches them: kernels that carry messages wait for a peer without end. A
/// thread that finds one under way for longer than the watchdog time has them come back; results are void
/// from then on, and failed() says why. What a CUDA graph holds is not watched.
class LaunchWatch {
 public:
  /// `come_back` is called once at most, by the watch's thread.
  LaunchWatch(const CommOptions& options, int rank, int device, std::function<void()> come_back);
  ~LaunchWatch();
  LaunchWatch(const LaunchWatch&) = delete;
  LaunchWatch& operator=(const LaunchWatch&) = delete;

  /// A launch that nothing uses; its number stays until no message of it is open. While the stream is
  /// captured no event may be asked for.
  [[nodiscard]] std::size_t take(bool capturing);
  [[nodiscard]] Launch& operator[](std::size_t launch) { return launches_[launch]; }
  /// Both events of a launch have been recorded; `first` is one of its messages.
  void started(std::size_t launch, const Message& first);

  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// After failed().
  [[nodiscard]] const CommunicationFault& fault() const { return fault_; }

 private:
  void run();
  [[nodiscard]] bool look();

  const CommOptions options_;
  const int rank_, device_;
  const std::function<void()> come_back_;
  std::deque<Launch> launches_;
  std::uint64_t count_ = 0;
  std::mutex mutex_;
  std::condition_variable stops_;
  bool stop_ = false;
  std::atomic<bool> failed_{false};
  CommunicationFault fault_;
  std::thread thread_;
};

}  // namespace usp::comm
