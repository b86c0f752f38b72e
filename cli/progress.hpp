// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include "usp/base/progress.hpp"

#include <chrono>

namespace usp::cli {

/// One line on stderr that tells how far something is: "usp: 12% of 64 points". It appears after a second and
/// goes away with this object; on a terminal only, and neither under --quiet nor under --json.
class ProgressLine : public WorkProgress {
 public:
  explicit ProgressLine(const Invocation& invocation);
  ~ProgressLine() override;
  void reached(std::int64_t done, std::int64_t total, const char* units) override;

 private:
  bool shown_;
  bool written_ = false;
  std::chrono::steady_clock::time_point next_;  ///< nothing is written before
};

/// `work()` while a line tells the progress of `request`.
template <class Request, class Work>
auto with_progress(const Invocation& invocation, Request& request, const Work& work) {
  ProgressLine line(invocation);
  request.progress = &line;
  struct Silence {
    Request& request;
    ~Silence() { request.progress = nullptr; }
  } const silence{request};
  return work();
}

}  // namespace usp::cli
