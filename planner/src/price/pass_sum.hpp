// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pricer_state.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace usp {

/// Adds up what moves and kernels of one pass cost.
class PassSum {
 public:
  PassSum(LinkPricer& links, const ExecutionOptions& options)
      : links_(links),
        options_(options),
        overlapped_(links.calibration().beside(options.transport), true),
        serial_(links.calibration().beside(options.transport), false) {}

  /// Moves of one tick that share pattern and due date travel in one exchange, when packed.
  void post(const Move& move, const MovePattern& pattern, double bytes_per_peer) {
    if (bytes_per_peer <= 0 || pattern.peers == 0) return;
    // The sends of a hop are posted as one group whatever the exchange does.
    const double rounds = options_.packed || move.peers == Peers::shift ? 1 : move.pairs;
    bytes_ += bytes_per_peer * pattern.peers;
    if (options_.pack_kernels && move.peers != Peers::shift)
      kernels_ +=
          links_.calibration().kernel.memory_bound(2 * bytes_per_peer * (pattern.peers + 1)).seconds * 2;
    if (options_.packed && pending_ && pending_->pattern == &pattern && pending_->due == move.due &&
        pending_->apply == move.apply) {
      pending_->bytes += bytes_per_peer;
      return;
    }
    flush();
    pending_ = Pending{&pattern, move.peers, move.apply, move.due, bytes_per_peer / rounds, rounds};
  }

  void work(const Estimate& estimate) { estimate_ += estimate; }

  void tick(int t, std::vector<TickPrice>* ticks, bool show_serial) {
    flush();
    const double compute = estimate_.seconds + kernels_;
    result.band += estimate_.band * estimate_.seconds;
    result.extrapolation |= estimate_.extrapolation;
    result.compute_s += compute;
    estimate_ = {};
    kernels_ = 0;
    const TickPrice with = overlapped_.run(t, compute), without = serial_.run(t, compute);
    with_ += with.total_s;
    without_ += without.total_s;
    if (ticks != nullptr) ticks->push_back(show_serial ? without : with);
  }

  [[nodiscard]] PassPrice finish() {
    result.overlapped = options_.overlap && with_ <= without_;
    result.seconds = result.overlapped ? with_ : without_;
    result.exposed_s = result.seconds - result.compute_s;
    result.wire_bytes = bytes_;
    const double all = result.compute_s + result.comm_s;
    result.band = all > 0 ? result.band / all : 0;
    return result;
  }

 private:
  struct Pending {
    const MovePattern* pattern;
    Peers peers;
    Apply apply;
    int due;
    double bytes;
    double rounds;
  };

  void flush() {
    if (!pending_) return;
    const Pending& p = *pending_;
    if (p.pattern != last_pattern_ || p.bytes != last_bytes_ || p.apply != last_apply_) {
      last_time_ = links_.time(*p.pattern, p.peers, p.apply, p.bytes, options_.transport);
      last_pattern_ = p.pattern;
      last_bytes_ = p.bytes;
      last_apply_ = p.apply;
    }
    const double fast = last_time_.fast_s * p.rounds, slow = last_time_.slow_s * p.rounds;
    overlapped_.post(p.due, fast, slow);
    serial_.post(p.due, fast, slow);
    const double longest = std::max(fast, slow);
    result.comm_s += longest;
    result.band += last_time_.band * longest;
    result.extrapolation |= last_time_.extrapolation;
    pending_.reset();
  }

  LinkPricer& links_;
  const ExecutionOptions& options_;
  Timeline overlapped_, serial_;
  Estimate estimate_;
  double kernels_ = 0, bytes_ = 0, with_ = 0, without_ = 0;
  std::optional<Pending> pending_;
  const MovePattern* last_pattern_ = nullptr;
  double last_bytes_ = -1;
  Apply last_apply_ = Apply::copy;
  MoveTime last_time_;
  PassPrice result;
};

/// Kernel times of the units of one plan.
class UnitTimes {
 public:
  UnitTimes(const KernelSurface& kernel, const AttentionPlan& plan, const ExecutionOptions& options)
      : kernel_(kernel), plan_(plan), shape_(plan.shape), options_(options) {}

  [[nodiscard]] Estimate attend(const HeadCount& heads, const BlockShape& block, WorkKind kind,
                                bool first) const {
    KernelShape call;
    const auto batch = static_cast<double>(shape_.batch);
    call.query_heads = batch * static_cast<double>(heads.query);
    call.kv_heads = batch * static_cast<double>(heads.kv);
    call.head_dim_qk = shape_.head_dim_qk;
    call.head_dim_v = shape_.head_dim_v;
    call.rows = block.rows;
    call.mean_keys = block.area / block.rows;
    call.key_rows = block.keys;
    call.element_bytes = static_cast<int>(bytes_of(shape_.dtype));
    call.mask = block.full()                      ? KernelShape::Mask::full
                : plan_.band.diff_max < unbounded ? KernelShape::Mask::window
                                                  : KernelShape::Mask::causal;
    const bool backward = kind == WorkKind::attend_grad;
    Estimate time = backward ? kernel_.backward(call) : kernel_.forward(call);
    if (!options_.merge_kernels || first) return time;
    constexpr double bytes_per_element = 10;  // fp32 sum read and written, block read in two bytes
    if (backward)
      time += kernel_.memory_bound(bytes_per_element *
                                   (call.query_heads * block.rows * shape_.head_dim_qk +
                                    call.kv_heads * block.keys * (shape_.head_dim_qk + shape_.head_dim_v)));
    else
      time += kernel_.merge(call.query_heads * block.rows, shape_.head_dim_v,
                            static_cast<int>(bytes_of(shape_.dtype)));
    return time;
  }

  [[nodiscard]] Estimate delta(i64 query_heads, i64 rows) const {
    return kernel_.prepare_backward(static_cast<double>(shape_.batch * query_heads * rows), shape_.head_dim_v,
                                    static_cast<int>(bytes_of(shape_.dtype)));
  }

 private:
  const KernelSurface& kernel_;
  const AttentionPlan& plan_;
  const AttentionShape& shape_;
  const ExecutionOptions& options_;
};

inline void keep_longest(Estimate& longest, const Estimate& other) {
  if (other.seconds > longest.seconds) longest = other;
}

}  // namespace usp
