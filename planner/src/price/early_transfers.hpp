// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/planner/pricing.hpp"

#include <algorithm>
#include <vector>

namespace usp {

/// Transfers that may travel in the tick before their own (schedule::TransferOp::early): over links that are
/// idle there, each from when its block is complete.
class EarlyTransfers {
 public:
  explicit EarlyTransfers(const Interference& beside) : beside_(beside) {}

  void start() {
    completing_.clear();
    complete_.clear();
    last_ = {};
  }
  /// So much work into the tick a block is complete; a share of what the next tick starts leaves no sooner.
  void complete(double share, double work_s) { completing_.push_back({share, work_s}); }

  struct Rest {
    double seconds = 0;  ///< yet to be served in the tick of the start
    double added_s = 0;  ///< to the kernels of the tick before, by what flew beside them
  };
  /// Of transfers that the tick after the last one starts, which take links that are theirs `seconds`. Behind
  /// each block's completion come the transfers of that block and of all later ones.
  [[nodiscard]] Rest rest(double seconds) const {
    if (complete_.empty()) return {seconds, 0};
    double left = seconds - (last_.total_s - last_.intra_node_s);
    for (const Completion& c : complete_) left = std::max(left, c.share * seconds - (work_s_ - c.work_s));
    left = std::clamp(left, 0.0, seconds);
    const double flew = last_.intra_node_s;
    return {left, beside_.added_seconds(last_.compute_s, flew + seconds - left) -
                      beside_.added_seconds(last_.compute_s, flew)};
  }
  /// @param work_s of the tick, as complete() counts it
  void end_tick(const TickPrice& tick, double work_s) {
    complete_.swap(completing_);
    completing_.clear();
    last_ = tick, work_s_ = work_s;
  }

 private:
  struct Completion {
    double share = 0;
    double work_s = 0;  ///< of the tick up to it
  };

  const Interference& beside_;
  std::vector<Completion> completing_, complete_;  ///< of this tick, and of the last one
  TickPrice last_;
  double work_s_ = 0;
};

}  // namespace usp
