// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timeline.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace usp {

/// Adds up what moves and kernels of one pass cost. Made once for many passes, so that it allocates nothing
/// once it is warm.
class PassSum {
 public:
  PassSum(LinkPricer& links, const ExecutionOptions& options)
      : links_(links), options_(options), overlapped_(links.calibration().beside(options.transport)) {}

  void start(int ticks) {
    overlapped_.start();
    serial_.start(ticks);
    compute_ = bytes_ = with_ = without_ = 0;
    posts_.clear();
    last_posts_.clear();
    last_ = {};
    last_idle_ = false;
    known_.fill({});
    result = {};
  }

  /// A move that starts in the current tick.
  void post(const Move& move, const MovePattern& pattern, double bytes_per_peer) {
    if (bytes_per_peer <= 0 || pattern.peers == 0) return;
    posts_.push_back({&pattern, bytes_per_peer, move.due - move.start, move.pairs, move.peers, move.apply});
  }

  void work(const Estimate& estimate) {
    compute_ += estimate.seconds;
    result.band += estimate.band * estimate.seconds;
    result.extrapolation |= estimate.extrapolation;
  }

  /// Ends a tick. Most ticks of a ring repeat the one before: where links are idle before and after it, such
  /// a tick costs what that one did.
  void tick(int t, std::vector<TickPrice>* ticks, bool show_serial) {
    const double compute = std::exchange(compute_, 0);
    const bool idle = overlapped_.idle() && serial_.idle(t);
    if (!(idle && last_idle_ && compute == last_.with.compute_s && posts_ == last_posts_)) {
      last_.bytes = last_.comm_s = last_.band = 0;
      exchange(t);
      last_.with = overlapped_.run(t, compute);
      last_.without = serial_.run(t, compute);
      last_idle_ = idle;
    }
    posts_.swap(last_posts_);
    posts_.clear();
    bytes_ += last_.bytes;
    result.comm_s += last_.comm_s;
    result.band += last_.band;
    result.compute_s += compute;
    with_ += last_.with.total_s;
    without_ += last_.without.total_s;
    if (ticks != nullptr) ticks->push_back(show_serial ? last_.without : last_.with);
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
  struct Post {
    const MovePattern* pattern;
    double bytes;  ///< per peer
    int flight;    ///< ticks from start to due
    std::uint8_t pairs;
    Peers peers;
    Apply apply;
    [[nodiscard]] bool travels_with(const Post& other) const {
      return pattern == other.pattern && peers == other.peers && flight == other.flight &&
             apply == other.apply;
    }
    friend bool operator==(const Post&, const Post&) = default;
  };
  /// What one tick adds.
  struct TickCost {
    TickPrice with, without;
    double bytes = 0, comm_s = 0, band = 0;
  };
  struct Known {
    const MovePattern* pattern = nullptr;
    Peers peers = Peers::self;
    double bytes = -1;
    Apply apply = Apply::copy;
    MoveTime time;
  };

  const MoveTime& time_of(const Post& p, double bytes) {
    for (const Known& known : known_)
      if (known.pattern == p.pattern && known.bytes == bytes && known.apply == p.apply &&
          known.peers == p.peers)
        return known.time;
    Known& fresh = known_[oldest_];
    oldest_ = (oldest_ + 1) % known_.size();
    fresh = {p.pattern, p.peers, bytes, p.apply,
             links_.time(*p.pattern, p.peers, p.apply, bytes, options_.transport)};
    return fresh.time;
  }

  /// Sends off the moves of a tick. Those that share pattern and due date travel in one exchange, when
  /// packed.
  void exchange(int t) {
    for (std::size_t i = 0; i < posts_.size();) {
      const Post& first = posts_[i];
      // The sends of a hop are posted as one group whatever the exchange does.
      const double rounds = options_.packed || first.peers == Peers::shift ? 1 : first.pairs;
      double bytes = 0, pack_s = 0;
      do {
        bytes += posts_[i].bytes / rounds;
        pack_s += pack_seconds(posts_[i], rounds);
      } while (++i < posts_.size() && options_.packed && posts_[i].travels_with(first));
      send(t + first.flight, time_of(first, bytes), rounds, pack_s);
      last_.bytes += bytes * rounds * first.pattern->peers;
    }
  }

  /// Before and after: nothing of an exchange can hide behind its own packing.
  [[nodiscard]] double pack_seconds(const Post& post, double rounds) const {
    if (!options_.pack_kernels || post.peers == Peers::shift) return 0;
    const double bytes = 2 * post.bytes * (post.pattern->peers + 1) / rounds;
    return 2 * rounds * links_.calibration().kernel.memory_bound(bytes).seconds;
  }

  void send(int due, const MoveTime& time, double rounds, double pack_s) {
    const auto with_pack = [&](double seconds) { return seconds > 0 ? seconds * rounds + pack_s : 0; };
    const double fast = with_pack(time.fast_s), slow = with_pack(time.slow_s);
    overlapped_.post(due, fast, slow);
    serial_.post(due, fast, slow);
    const double longest = std::max(fast, slow);
    last_.comm_s += longest;
    last_.band += time.band * longest;
    result.extrapolation |= time.extrapolation;
  }

  LinkPricer& links_;
  const ExecutionOptions& options_;
  Timeline overlapped_;
  SerialTimeline serial_;
  double compute_ = 0, bytes_ = 0, with_ = 0, without_ = 0;
  std::vector<Post> posts_, last_posts_;  ///< of this tick and of the one before
  TickCost last_;
  bool last_idle_ = false;      ///< nothing flew when the last tick that was run began
  std::array<Known, 4> known_;  ///< the few exchanges that the ticks of a pass repeat
  std::size_t oldest_ = 0;
  PassPrice result;
};

/// Query and KV heads of one ulysses rank in one chunk.
struct HeadCount {
  i64 query = 0;
  i64 kv = 0;
  friend bool operator==(const HeadCount& a, const HeadCount& b) {
    return a.query == b.query && a.kv == b.kv;
  }
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
