// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace usp::cli {

/// While it lives, the first SIGINT or SIGTERM is noted instead of ending the process; a second one ends it.
/// One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  /// From any thread.
  [[nodiscard]] static bool interrupted();

 private:
  struct sigaction before_interrupt_ {};
  struct sigaction before_terminate_ {};
};

}  // namespace usp::cli
