// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace usp::comm {

/// For the life of this object: watches a call that waits for other ranks, that no watchdog can leave. When
/// it lasts longer than `limit_s`, says so in one line and ends this process with exit code 5; its launcher
/// ends the others.
class CallWatch {
 public:
  CallWatch(double limit_s, std::string call);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

 private:
  void watch(double limit_s);

  std::string call_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool returned_ = false;
  std::thread thread_;
};

}  // namespace usp::comm
