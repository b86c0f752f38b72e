// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include "usp/base/progress.hpp"

#include <chrono>

namespace usp::cli {

/// Progress line on stderr: "usp: 12% of 64 points". It appears after a second and
/// goes away with this object; on a terminal only, and neither under --quiet nor under --json.
class ProgressLine : public WorkProgress {
 public:
  explicit ProgressLine(const Invocation& invocation);
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void reached(std::int64_t done, std::int64_t total, const char* units) override;

 private:
  bool shown_;
  bool written_ = false;
  std::chrono::steady_clock::time_point next_;  ///< nothing is written before
};

/// Takes the line away from a request that outlives it.
template <class Request>
class Silenced {
 public:
  explicit Silenced(Request& request) : request_(request) {}
  ~Silenced() { request_.progress = nullptr; }
  Silenced(const Silenced&) = delete;
  Silenced& operator=(const Silenced&) = delete;

 private:
  Request& request_;
};

/// Runs `work()` with a progress line for `request`.
template <class Request, class ComputeOp>
auto with_progress(const Invocation& invocation, Request& request, const ComputeOp& work) {
  ProgressLine line(invocation);
  request.progress = &line;
  const Silenced<Request> silenced(request);
  return work();
}

}  // namespace usp::cli
