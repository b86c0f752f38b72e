// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hpp"

#include <atomic>

namespace usp::cli {
namespace {

std::atomic<bool> noted{false};  // a handler reaches no object but one of static storage
static_assert(std::atomic<bool>::is_always_lock_free);

void note_signal(int /*signal*/) {
  noted.store(true, std::memory_order_relaxed);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  noted = false;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, &before_interrupt_);
  ::sigaction(SIGTERM, &action, &before_terminate_);
}

InterruptWatch::~InterruptWatch() {
  ::sigaction(SIGINT, &before_interrupt_, nullptr);
  ::sigaction(SIGTERM, &before_terminate_, nullptr);
}

bool InterruptWatch::interrupted() {
  return noted.load(std::memory_order_relaxed);
}

}  // namespace usp::cli
