// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

namespace usp::device {

/// The stream that the calls of one rank enqueue on: memory, kernels and communicators of the rank hold a
/// reference to it and read it at every use. A call may bring its own; its work then starts after that of the
/// calls before it, on whatever stream they were. One thread at a time.
class CallStream {
 public:
  /// Has a stream of its own, for calls that name none.
  explicit CallStream(int device) : own_(device), current_(own_.get()), call_end_(device) {}
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;
  ~CallStream() = default;

  [[nodiscard]] StreamHandle get() const { return current_; }
  [[nodiscard]] int device() const { return own_.device(); }
  /// Blocks the calling thread until the stream has done all that was enqueued.
  void synchronize() const;
  /// The same for the calls that have ended, whether or not their stream still exists.
  void wait_for_calls() const;

  /// A call begins on `stream`, or on the own one where that names none. Throws UsageError for a stream of
  /// another device; on one that captures, the first operation of another device fails instead. A stream that
  /// captures is not ordered after other streams, nor others after it: who launches its graph orders that.
  void begin_call(StreamRef stream);
  void end_call();

 private:
  Stream own_;
  StreamHandle current_;
  Event call_end_;
  StreamHandle ended_on_ = nullptr;  ///< null: no call has ended
};

}  // namespace usp::device
