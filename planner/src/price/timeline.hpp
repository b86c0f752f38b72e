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
  /// @param inside, network what transfers over the two kinds of links add to attention beside them
  Timeline(const Interference& inside, const Interference& network) : inside_(inside), network_(network) {}

  void start() {
    for (auto& link : flying_) link.clear();
  }

  void post(int due, double intra_node_s, double inter_node_s) {
    if (intra_node_s > 0) flying_[0].push_back({due, intra_node_s});
    if (inter_node_s > 0) flying_[1].push_back({due, inter_node_s});
  }

  /// Nothing flies.
  [[nodiscard]] bool idle() const { return flying_[0].empty() && flying_[1].empty(); }

  /// @param least_s of the tick, whatever the rest says
  TickPrice run(int tick, double compute_s, double least_s) {
    TickPrice price;
    price.compute_s = compute_s;
    const double inside_s = sum(flying_[0], tick, price.intra_node_s);
    const double network_s = sum(flying_[1], tick, price.inter_node_s);
    const double busy =
        compute_s + inside_.added_seconds(compute_s, inside_s) + network_.added_seconds(compute_s, network_s);
    price.total_s = std::max({busy, price.intra_node_s, price.inter_node_s, least_s});
    serve(flying_[0], tick, price.total_s - price.intra_node_s);
    serve(flying_[1], tick, price.total_s - price.inter_node_s);
    return price;
  }

 private:
  struct Flight {
    int due = 0;
    double left_s = 0;
  };

  /// All that flies; what of it is due comes on top of `due_s`.
  [[nodiscard]] static double sum(const std::vector<Flight>& link, int tick, double& due_s) {
    double all = 0;
    for (const Flight& f : link) {
      all += f.left_s;
      if (f.due == tick) due_s += f.left_s;
    }
    return all;
  }
  /// Drops what was due and gives the time left over to the rest, earliest due date first.
  static void serve(std::vector<Flight>& link, int tick, double left) {
    if (link.empty()) return;
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
    std::size_t done = 0;  // the first to be due are served in full
    for (; done < kept && link[done].left_s <= left; ++done) left -= link[done].left_s;
    if (done < kept) link[done].left_s -= left;
    link.erase(link.begin(), link.begin() + static_cast<std::ptrdiff_t>(done));
  }

  const Interference& inside_;
  const Interference& network_;
  std::vector<Flight> flying_[2];
};

/// Transfers and kernels one after another: a tick is its kernels and then what is due in it.
class SerialTimeline {
 public:
  void start(int ticks) { due_.assign(static_cast<std::size_t>(ticks), {}); }

  void post(int due, double intra_node_s, double inter_node_s) {
    Due& at = due_[static_cast<std::size_t>(due)];
    at.intra_node_s += intra_node_s;
    at.inter_node_s += inter_node_s;
  }
  /// Nothing is due in this tick yet.
  [[nodiscard]] bool idle(int tick) const {
    const Due& due = due_[static_cast<std::size_t>(tick)];
    return due.intra_node_s == 0 && due.inter_node_s == 0;
  }
  [[nodiscard]] TickPrice run(int tick, double compute_s) const {
    TickPrice price;
    const Due& due = due_[static_cast<std::size_t>(tick)];
    price.intra_node_s = due.intra_node_s;
    price.inter_node_s = due.inter_node_s;
    price.compute_s = compute_s;
    price.total_s = compute_s + std::max(price.intra_node_s, price.inter_node_s);
    return price;
  }

 private:
  struct Due {
    double intra_node_s = 0, inter_node_s = 0;
  };
  std::vector<Due> due_;  ///< by tick
};

}  // namespace usp
