// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pricer_state.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace usp {

/// Adds up what moves and kernels of one pass cost.
class PassSum {
 public:
  PassSum(LinkPricer& links, const ExecutionOptions& options)
      : links_(links), options_(options), overlapped_(links.calibration().beside(options.transport)) {}

  /// Moves of one tick that share pattern and due date travel in one exchange, when packed.
  void post(const Move& move, const MovePattern& pattern, double bytes_per_peer) {
    if (bytes_per_peer <= 0 || pattern.peers == 0) return;
    // The sends of a hop are posted as one group whatever the exchange does.
    const double rounds = options_.packed || move.peers == Peers::shift ? 1 : move.pairs;
    bytes_ += bytes_per_peer * pattern.peers;
    const double pack_s =
        options_.pack_kernels && move.peers != Peers::shift
            ? 2 * rounds *
                  links_.calibration()
                      .kernel.memory_bound(2 * bytes_per_peer * (pattern.peers + 1) / rounds)
                      .seconds
            : 0;
    if (options_.packed && pending_ && pending_->pattern == &pattern && pending_->peers == move.peers &&
        pending_->due == move.due && pending_->apply == move.apply) {
      pending_->bytes += bytes_per_peer;
      pending_->pack_s += pack_s;
      return;
    }
    flush();
    pending_ = Pending{&pattern, move.peers, move.apply, move.due, bytes_per_peer / rounds, rounds, pack_s};
  }

  void work(const Estimate& estimate) {
    compute_ += estimate.seconds;
    result.band += estimate.band * estimate.seconds;
    result.extrapolation |= estimate.extrapolation;
  }

  void tick(int t, std::vector<TickPrice>* ticks, bool show_serial) {
    flush();
    const double compute = std::exchange(compute_, 0);
    result.compute_s += compute;
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
    double pack_s;  ///< before and after: nothing of the exchange can hide behind its own packing
  };

  struct Known {
    const MovePattern* pattern = nullptr;
    Peers peers = Peers::self;
    double bytes = -1;
    Apply apply = Apply::copy;
    MoveTime time;
  };

  const MoveTime& time_of(const Pending& p) {
    for (const Known& known : known_)
      if (known.pattern == p.pattern && known.bytes == p.bytes && known.apply == p.apply &&
          known.peers == p.peers)
        return known.time;
    Known& fresh = known_[oldest_];
    oldest_ = (oldest_ + 1) % known_.size();
    fresh = {p.pattern, p.peers, p.bytes, p.apply,
             links_.time(*p.pattern, p.peers, p.apply, p.bytes, options_.transport)};
    return fresh.time;
  }

  void flush() {
    if (!pending_) return;
    const Pending& p = *pending_;
    const MoveTime& time = time_of(p);
    const auto with_pack = [&p](double seconds) { return seconds > 0 ? seconds * p.rounds + p.pack_s : 0; };
    const double fast = with_pack(time.fast_s), slow = with_pack(time.slow_s);
    overlapped_.post(p.due, fast, slow);
    serial_.post(p.due, fast, slow);
    const double longest = std::max(fast, slow);
    result.comm_s += longest;
    result.band += time.band * longest;
    result.extrapolation |= time.extrapolation;
    pending_.reset();
  }

  LinkPricer& links_;
  const ExecutionOptions& options_;
  Timeline overlapped_;
  SerialTimeline serial_;
  double compute_ = 0, bytes_ = 0, with_ = 0, without_ = 0;
  std::optional<Pending> pending_;
  std::array<Known, 4> known_;  ///< the few exchanges that the ticks of a pass repeat
  std::size_t oldest_ = 0;
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
