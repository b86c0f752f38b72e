// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/planner/pricing.hpp"

#include <algorithm>
#include <vector>

namespace usp {

/// Runs ticks against links that serve what flies, earliest due date first. A tick lasts as long as its
/// kernels or as what is still to be served of the transfers due in it; what the links have left over goes to
/// later due dates. This equals the bound of the schedule's law: end(t) = max over s <= t of start(s) + load
/// with start >= s and due <= t.
class Timeline {
 public:
  explicit Timeline(const Interference& interference) : interference_(interference) {}

  void post(int due, double fast_s, double slow_s) {
    if (fast_s > 0) flying_[0].push_back({due, fast_s});
    if (slow_s > 0) flying_[1].push_back({due, slow_s});
  }

  TickPrice run(int tick, double compute_s) {
    TickPrice price;
    price.compute_s = compute_s;
    price.fast_s = due(flying_[0], tick);
    price.slow_s = due(flying_[1], tick);
    double beside = 0;
    for (const auto& link : flying_)
      for (const Flight& f : link) beside += f.left_s;
    const double busy = compute_s + interference_.added_seconds(compute_s, beside);
    price.total_s = std::max({busy, price.fast_s, price.slow_s});
    serve(flying_[0], tick, price.total_s - price.fast_s);
    serve(flying_[1], tick, price.total_s - price.slow_s);
    return price;
  }

 private:
  struct Flight {
    int due = 0;
    double left_s = 0;
  };

  [[nodiscard]] static double due(const std::vector<Flight>& link, int tick) {
    double sum = 0;
    for (const Flight& f : link)
      if (f.due == tick) sum += f.left_s;
    return sum;
  }
  /// Drops what was due and gives the time left over to the rest, earliest due date first.
  static void serve(std::vector<Flight>& link, int tick, double left) {
    std::size_t kept = 0;
    bool sorted = true;
    for (const Flight& f : link) {
      if (f.due <= tick) continue;
      sorted = sorted && (kept == 0 || link[kept - 1].due <= f.due);
      link[kept++] = f;
    }
    link.resize(kept);
    if (!sorted)
      std::stable_sort(link.begin(), link.end(),
                       [](const Flight& a, const Flight& b) { return a.due < b.due; });
    for (Flight& f : link) {
      const double served = std::min(left, f.left_s);
      f.left_s -= served;
      left -= served;
    }
  }

  const Interference& interference_;
  std::vector<Flight> flying_[2];
};

/// Transfers and kernels one after another: a tick is its kernels and then what is due in it.
class SerialTimeline {
 public:
  void post(int due, double fast_s, double slow_s) {
    const auto at = static_cast<std::size_t>(due);
    if (at >= due_.size()) due_.resize(at + 1);
    due_[at].fast_s += fast_s;
    due_[at].slow_s += slow_s;
  }
  [[nodiscard]] TickPrice run(int tick, double compute_s) const {
    TickPrice price;
    const auto at = static_cast<std::size_t>(tick);
    if (at < due_.size()) price = due_[at];
    price.compute_s = compute_s;
    price.total_s = compute_s + std::max(price.fast_s, price.slow_s);
    return price;
  }

 private:
  std::vector<TickPrice> due_;
};

}  // namespace usp
