// SPDX-License-Identifier: Apache-2.0
#include "call_watch.hpp"

#include "deadline.hpp"

#include "usp/base/error.hpp"
#include "usp/base/line.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace usp::comm {
CallWatch::CallWatch(double limit_s, std::string call) : call_(std::move(call)) {
  if (limit_s < max_limit_s) thread_ = std::thread([this, limit_s] { watch(limit_s); });
}

CallWatch::~CallWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    returned_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CallWatch::watch(double limit_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(limit_s), [this] { return returned_; })) return;
  std::ostringstream text;
  text << "usp: " << call_ << " did not return within " << limit_s
       << " s: it waits for all ranks, and one of them did not start, has stopped or cannot be reached; the "
          "job "
          "ends. See what the others were doing, or allow more time with the watchdog setting";
  print_line(text.str());
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(ExitCode::environment));
}

}  // namespace usp::comm
