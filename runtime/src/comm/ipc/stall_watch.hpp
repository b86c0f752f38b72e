// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shared_flags.hpp"
#include "stream_flags.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/device/device.hpp"
#include "usp/kernels/gate.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace usp::comm {

/// Watches the waits of one rank's streams for flags of peers, which no host call sees: a thread that finds
/// one older than the watchdog time, or a notice of a peer, gives notice too and sets every flag until
/// the end, so that no stream hangs. Results are void from then on, and check() throws. Works during the
/// replay of CUDA graphs too.
class StallWatch {
 public:
  /// `streams` of the rank wait for flags, each for one at a time. `control` and `flags` outlive this.
  StallWatch(Communicator& control, SharedFlags& flags, int device, int streams);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  /// Adds to `operations` the wait of a stream for a flag, which is 0 again after it.
  void await(FlagOperations& operations, int stream, Flag* flag, const Message& message);

  /// Throws the failure after it has been sent to the other ranks.
  void check() {
    if (failed()) raise();
  }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Ends all waits of streams.
  void fail(const CommunicationFault& fault);
  /// Ends waits of kernels, with the failure or as a last resort long after the watch itself.
  [[nodiscard]] kernels::GateWatch of_kernels() const;
  /// While the flags get more room.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }

 private:
  struct Seen {
    bool waits = false;
    std::chrono::steady_clock::time_point since;
  };
  void run();
  void look();
  void fail_locked(const CommunicationFault& fault);
  [[noreturn]] void raise();
  [[nodiscard]] Flag* words() const { return reinterpret_cast<Flag*>(words_.data()); }
  [[nodiscard]] double kernel_limit_s() const { return 2 * options_.watchdog_s + 1; }
  [[nodiscard]] Flag* stop_word() const { return words() + seen_.size(); }
  [[nodiscard]] Flag* fault_word() const { return words() + seen_.size() + 1; }
  [[nodiscard]] Flag name_of(const Message& message);
  [[nodiscard]] Message message_of(Flag name) const;

  Communicator& control_;
  SharedFlags& flags_;
  const CommOptions options_;
  const int rank_;
  device::PinnedBuffer words_;  ///< per stream: what it awaits; then stop and fault of kernels
  std::vector<const char*> operations_;
  std::vector<Seen> seen_;  ///< per stream
  std::mutex mutex_;
  std::condition_variable stops_;
  bool stop_ = false;
  bool told_ = false;  ///< the job knows
  std::atomic<bool> failed_{false};
  CommunicationFault fault_;
  std::thread thread_;
};

}  // namespace usp::comm
