// SPDX-License-Identifier: Apache-2.0
#include "usp/kernels/gate.hpp"

#include "usp/kernels/memory.hpp"
#include "usp/kernels/progress.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace usp::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int busy_polls = 32;
constexpr std::chrono::microseconds first_rest{1}, longest_rest{64};

[[nodiscard]] std::uint32_t load(const std::uint32_t* word) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}

[[nodiscard]] GateFault::Reason reason_to_end(const GateWatch& watch, Clock::time_point begin) {
  if (watch.stop != nullptr && load(watch.stop) != 0) return GateFault::Reason::stopped;
  const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return watch.limit_ns > 0 && waited >= watch.limit_ns ? GateFault::Reason::late : GateFault::Reason::none;
}

}  // namespace

bool Memory::await(const Gate& gate, int block, const GateWatch& watch, const Progress& progress) {
  if (gate.flag == nullptr) return true;
  const Clock::time_point begin = Clock::now();
  auto rest = first_rest;
  for (int polls = 0; !has_reached(load(gate.flag), gate.value); ++polls) {
    if (watch.fault != nullptr && load(watch.fault) != 0) return false;
    if (const GateFault fault{reason_to_end(watch, begin), block}; fault.reason != GateFault::Reason::none) {
      std::uint32_t none = 0;
      if (watch.fault != nullptr)
        std::atomic_ref<std::uint32_t>(*watch.fault).compare_exchange_strong(none, fault.word());
      return false;
    }
    progress();
    if (polls < busy_polls) continue;
    std::this_thread::sleep_for(rest);
    rest = std::min(2 * rest, longest_rest);
  }
  return true;
}

void Memory::complete(const Completion& completion, const GateWatch& watch) {
  if (completion.flag == nullptr || (watch.fault != nullptr && load(watch.fault) != 0)) return;
  std::atomic_ref<std::uint32_t>(*completion.flag).store(completion.value, std::memory_order_release);
}

}  // namespace usp::kernels
