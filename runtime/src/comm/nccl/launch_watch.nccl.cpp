// SPDX-License-Identifier: Apache-2.0
#include "launch_watch.hpp"

#include "../failure/faults.hpp"

#include "usp/device/check.cuda.hpp"

#include <utility>

namespace usp::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto look_interval = std::chrono::milliseconds(50);

}  // namespace

LaunchWatch::LaunchWatch(const CommOptions& options, int rank, int device, std::function<void()> come_back)
    : options_(options), rank_(rank), device_(device), come_back_(std::move(come_back)) {
  thread_ = std::thread([this] { run(); });
}

LaunchWatch::~LaunchWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stops_.notify_all();
  thread_.join();
}

std::size_t LaunchWatch::take(bool capturing) {
  const std::lock_guard lock(mutex_);
  std::size_t at = 0;
  while (at < launches_.size() && (launches_[at].open_messages > 0 ||
                                   (launches_[at].watched && (capturing || !launches_[at].done.reached()))))
    ++at;
  if (at == launches_.size()) launches_.emplace_back(device_);
  launches_[at].watched = false;
  return at;
}

void LaunchWatch::started(std::size_t launch, const Message& first) {
  const std::lock_guard lock(mutex_);
  Launch& l = launches_[launch];
  l.watched = true, l.begun = false;
  l.number = count_++;
  l.peer = first.peer, l.tick = first.tick, l.operation = first.operation;
}

void LaunchWatch::run() {
  // Events may be asked for while another thread captures a graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) cudaGetLastError();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!failed() && look()) {
      failed_.store(true, std::memory_order_release);
      lock.unlock();  // the rank's thread may be in a call that ends by this
      come_back_();
      lock.lock();
    }
    stops_.wait_for(lock, look_interval, [&] { return stop_; });
  }
}

/// Launches follow one another: of those that are late the first one holds up the others.
bool LaunchWatch::look() try {
  const auto now = Clock::now();
  const Launch* late = nullptr;
  for (Launch& l : launches_) {
    if (!l.watched) continue;
    if (l.done.reached()) {
      l.watched = false;
    } else if (!l.begun) {
      l.begun = l.ready.reached();
      l.since = now;
    } else if (std::chrono::duration<double>(now - l.since).count() > options_.watchdog_s &&
               (late == nullptr || l.number < late->number)) {
      late = &l;
    }
  }
  if (late == nullptr) return false;
  Message message;
  message.peer = late->peer, message.tick = late->tick, message.operation = late->operation;
  fault_ = late_fault(message, rank_, {late->peer}, options_.watchdog_s, "");
  return true;
} catch (const std::exception& error) {
  fault_ = failure_fault(rank_, error.what());
  return true;
}

}  // namespace usp::comm
