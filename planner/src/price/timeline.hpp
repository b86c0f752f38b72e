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
  Timeline(const Interference& interference, bool overlap) : interference_(interference), overlap_(overlap) {}

  void post(int due, double fast_s, double slow_s) {
    if (fast_s > 0) flying_[0].push_back({due, fast_s});
    if (slow_s > 0) flying_[1].push_back({due, slow_s});
  }

  TickPrice run(int tick, double compute_s) {
    TickPrice price;
    price.compute_s = compute_s;
    price.fast_s = due(flying_[0], tick);
    price.slow_s = due(flying_[1], tick);
    const double wait = std::max(price.fast_s, price.slow_s);
    if (!overlap_) {
      price.total_s = compute_s + wait;
      drop_due(tick);
      return price;
    }
    double beside = 0;
    if (compute_s > 0)
      for (const auto& link : flying_)
        for (const Flight& f : link) beside += f.left_s;
    const double busy = compute_s + interference_.added_seconds(compute_s, beside);
    price.total_s = std::max(busy, wait);
    serve(tick, price.total_s);
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
  void drop_due(int tick) {
    for (auto& link : flying_)
      link.erase(std::remove_if(link.begin(), link.end(), [&](const Flight& f) { return f.due <= tick; }),
                 link.end());
  }
  void serve(int tick, double seconds) {
    for (auto& link : flying_) {
      double left = seconds - due(link, tick);
      if (!link.empty() &&
          !std::all_of(link.begin(), link.end(), [&](const Flight& f) { return f.due <= tick; })) {
        std::stable_sort(link.begin(), link.end(),
                         [](const Flight& a, const Flight& b) { return a.due < b.due; });
        for (Flight& f : link) {
          if (f.due <= tick) continue;
          const double served = std::min(left, f.left_s);
          f.left_s -= served;
          left -= served;
        }
      }
    }
    drop_due(tick);
  }

  const Interference& interference_;
  bool overlap_;
  std::vector<Flight> flying_[2];
};

}  // namespace usp
