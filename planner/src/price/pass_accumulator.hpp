// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "early_transfers.hpp"
#include "list_call.hpp"
#include "staging.hpp"
#include "timeline.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace usp {

/// The transfers that start in one tick, as loads of the two kinds of links.
struct TickTransfers {
  struct Send {
    int flight;  ///< ticks from start to due
    double intra_node_s, inter_node_s;
  };
  /// Kernels on what has arrived, so many ticks later.
  struct Arrival {
    int flight;
    double seconds;
  };
  std::vector<Send> sends;
  std::vector<Arrival> arrivals;
  double packing_s = 0, arrived_s = 0;  ///< kernels before the transfers, and on all arrivals
  double gated_s = 0;                   ///< of those that steps of the tick await
  bool has_gates = true;                ///< else all of them come before the steps
  double early_s = 0;                   ///< of transfers that may travel in the tick before; not among sends
  double bytes = 0, comm_s = 0, band = 0;
  bool at_once = true;      ///< all are due in the tick in which they start
  bool priced = false;      ///< the tick is known where links are idle before it, and so after it
  TickPrice with, without;  ///< then with these kernels

  void clear() {
    sends.clear();
    arrivals.clear();
    packing_s = arrived_s = gated_s = early_s = bytes = comm_s = band = 0;
    at_once = has_gates = true;
    priced = false;
  }
};

/// Sums the costs of the transfers and kernels of one pass. Reused over passes: it does not allocate after
/// the first ones.
class PassAccumulator {
 public:
  PassAccumulator(LinkPricer& links, const ExecutionOptions& options)
      : links_(links),
        options_(options),
        staging_band_(links.calibration().kernel.memory_bound(1).band),
        tick_s_(links.calibration().beside(options.transport).tick_s),
        overlapped_(links.calibration().beside(options.transport), links.calibration().network.beside),
        early_(links.calibration().beside(options.transport)) {}

  void start(int ticks) {
    overlapped_.start();
    early_.start();
    serial_.start(ticks);
    compute_ = bytes_ = with_ = without_ = arrived_s_ = 0;
    posts_.clear();
    waits_.clear();
    last_ = nullptr;
    cache_.fill({});
    result_ = {};
  }

  /// A move that starts in the tick whose exchange() comes next. @param staging kernels at its two ends
  void post(const schedule::TransferOp& move, const TransferPattern& pattern, double bytes_per_peer,
            const StagingTimes& staging) {
    const bool travels = bytes_per_peer > 0 && pattern.peers > 0;
    if (!travels && !staging.any()) return;
    Post& post = posts_.emplace_back();
    post.pattern = &pattern;
    post.bytes = travels ? bytes_per_peer : 0;
    post.staging = staging;
    post.flight = move.due - move.start;
    post.pairs = move.pairs;
    post.peers = move.peers;
    post.write_mode = move.write_mode;
    post.gated = move.gated;
    post.early = move.early;
  }

  void work(const Estimate& estimate) {
    compute_ += estimate.seconds;
    result_.band += estimate.band * estimate.seconds;
    result_.extrapolation |= estimate.extrapolation;
  }

  /// The work that follows in this tick is of a list, and awaits a share of its gated transfers.
  void enter(const ListCall& list, double share) {
    if (list.number != list_) {
      if (list.number > 1) work(list.continued);
      list_ = list.number, list_begin_s_ = compute_;
    }
    if (share > 0)
      waits_.push_back({share, list_begin_s_ + (compute_ - list_begin_s_) / list.waves, list_begin_s_});
  }

  /// The work so far in this tick completes a block: a share of what goes home early leaves no sooner.
  void complete(double share) {
    if (share > 0) early_.complete(share, compute_);
  }

  /// What was posted becomes exchanges, made in `out`, or those of the call before where the same was posted.
  /// Moves that share pattern and due date travel in one, when packed.
  TickTransfers& exchange(TickTransfers& out) {
    if (last_ != nullptr && posts_ == last_posts_) {
      posts_.clear();
      return *last_;
    }
    out.clear();
    for (const Post& post : posts_) stage(out, post);
    for (std::size_t i = 0; i < posts_.size();) {
      const Post& first = posts_[i];
      if (first.bytes <= 0) {
        ++i;
        continue;
      }
      // The sends of a hop are posted as one group whatever the exchange does.
      const double rounds = options_.packed || first.peers == schedule::Peers::shift ? 1 : first.pairs;
      double bytes = 0, pack_s = 0;
      do {
        bytes += posts_[i].bytes / rounds;
        pack_s += pack_seconds(posts_[i], rounds);
      } while (++i < posts_.size() && options_.packed && posts_[i].travels_with(first));
      send(out, first, time_of(first, bytes), rounds, pack_s);
      out.bytes += bytes * rounds * first.pattern->peers;
    }
    posts_.swap(last_posts_);
    posts_.clear();
    last_ = &out;
    return out;
  }

  /// Ends a tick in which `started` start. Most ticks of a ring repeat others: where links are idle before
  /// such a tick and all that starts is due in it, it costs what it did before.
  ///
  /// Where work awaits transfers of the tick, the tick lasts at least from when a share of them has landed
  /// through all work behind that wait: max over waits of share * (seconds of the gated transfers) + work.
  /// In one launch for a list of n blocks a tile walks through all of them, so that only the first of W waves
  /// of tiles meets blocks that are yet to land: behind the arrival of block i lie the (n - i) / W of the
  /// list's work that this wave has left, and all of the other waves. Of a list of R blocks that arrive every
  /// a seconds and take t each the last wait gives R t + (R - 1) (a - t / W). Transfers without gates all
  /// come before the first list that awaits some.
  void tick(int t, TickTransfers& started, std::vector<TickPrice>* ticks, bool show_serial) {
    double compute = std::exchange(compute_, 0), least = 0;
    for (const Wait& wait : waits_)
      least = std::max(least, started.has_gates ? wait.share * started.gated_s + compute - wait.before_s
                                                : started.gated_s + compute - wait.list_begin_s);
    list_ = 0;
    const double work = compute;
    compute += started.packing_s;
    if (compute > 0 && !started.sends.empty()) compute += tick_s_;
    const bool alone =
        started.at_once && started.early_s <= 0 && overlapped_.idle() && serial_.idle(t) && waits_.empty();
    waits_.clear();
    if (!(alone && started.priced && compute == started.with.compute_s)) {
      for (const TickTransfers::Send& send : started.sends) {
        overlapped_.post(t + send.flight, send.intra_node_s, send.inter_node_s);
        serial_.post(t + send.flight, send.intra_node_s, send.inter_node_s);
      }
      const EarlyTransfers::Rest early = early_.rest(started.early_s);
      overlapped_.post(t, early.seconds, 0);
      serial_.post(t, started.early_s, 0);
      started.with = overlapped_.run(t, compute, least);
      started.with.total_s += early.added_s;
      started.without = serial_.run(t, compute);
      started.priced = alone;
    }
    early_.end_tick(started.with, work);
    bytes_ += started.bytes;
    arrived_s_ += started.arrived_s;
    result_.comm_s += started.comm_s;
    result_.band += started.band;
    result_.compute_s += compute;
    with_ += started.with.total_s;
    without_ += started.without.total_s;
    if (ticks != nullptr) show(t, started, *ticks, show_serial);
  }

  [[nodiscard]] PassPrice finish() {
    result_.overlapped = options_.overlap && with_ <= without_;
    // What has arrived is added after the transfers of its tick, with nothing beside it.
    result_.seconds = (result_.overlapped ? with_ : without_) + arrived_s_;
    result_.compute_s += arrived_s_;
    result_.exposed_s = result_.seconds - result_.compute_s;
    result_.wire_bytes = bytes_;
    const double all = result_.compute_s + result_.comm_s;
    result_.band = all > 0 ? result_.band / all : 0;
    return result_;
  }

 private:
  struct Post {
    const TransferPattern* pattern = nullptr;
    double bytes = 0;  ///< per peer
    StagingTimes staging;
    int flight = 0;  ///< ticks from start to due
    std::uint8_t pairs = 1;
    schedule::Peers peers = schedule::Peers::self;
    WriteMode write_mode = WriteMode::overwrite;
    bool gated = false, early = false;
    [[nodiscard]] bool travels_with(const Post& other) const {
      return pattern == other.pattern && peers == other.peers && flight == other.flight &&
             write_mode == other.write_mode && gated == other.gated && early == other.early;
    }
    friend bool operator==(const Post&, const Post&) = default;
  };
  struct Wait {
    double share = 0;
    double before_s = 0;      ///< work of the tick that can precede it
    double list_begin_s = 0;  ///< the same of its list
  };
  struct CachedPrice {
    const TransferPattern* pattern = nullptr;
    schedule::Peers peers = schedule::Peers::self;
    double bytes = -1;
    WriteMode write_mode = WriteMode::overwrite;
    TransferTime time;
  };

  const TransferTime& time_of(const Post& p, double bytes) {
    for (const CachedPrice& price : cache_)
      if (price.pattern == p.pattern && price.bytes == bytes && price.write_mode == p.write_mode &&
          price.peers == p.peers)
        return price.time;
    CachedPrice& oldest = cache_[oldest_];
    oldest_ = (oldest_ + 1) % cache_.size();
    oldest = {p.pattern, p.peers, bytes, p.write_mode,
              links_.time(*p.pattern, p.peers, p.write_mode, bytes, options_.transport)};
    return oldest.time;
  }

  /// Before and after: nothing of an exchange can hide behind its own packing.
  [[nodiscard]] double pack_seconds(const Post& post, double rounds) const {
    if (!options_.pack_kernels || post.peers == schedule::Peers::shift) return 0;
    const double bytes = 2 * post.bytes * (post.pattern->peers + 1) / rounds;
    return 2 * rounds * links_.calibration().kernel.memory_bound(bytes).seconds;
  }

  void show(int t, const TickTransfers& started, std::vector<TickPrice>& ticks, bool serial) {
    ticks.push_back(serial ? started.without : started.with);
    if (t == 0) due_work_s_.clear();
    for (const TickTransfers::Arrival& arrival : started.arrivals) {
      const auto due = static_cast<std::size_t>(t + arrival.flight);
      if (due_work_s_.size() <= due) due_work_s_.resize(due + 1, 0);
      due_work_s_[due] += arrival.seconds;
    }
    if (due_work_s_.size() <= static_cast<std::size_t>(t)) return;
    ticks.back().compute_s += due_work_s_[static_cast<std::size_t>(t)];
    ticks.back().total_s += due_work_s_[static_cast<std::size_t>(t)];
  }

  void stage(TickTransfers& out, const Post& post) const {
    if (!post.staging.any()) return;
    out.packing_s += post.staging.before_s;
    out.band += staging_band_ * (post.staging.before_s + post.staging.after_s);
    if (post.staging.after_s <= 0) return;
    out.arrived_s += post.staging.after_s;
    if (!out.arrivals.empty() && out.arrivals.back().flight == post.flight)
      out.arrivals.back().seconds += post.staging.after_s;
    else
      out.arrivals.push_back({post.flight, post.staging.after_s});
  }

  /// NCCL has none, neither on one host nor between hosts; ranks on host cores always do.
  [[nodiscard]] bool has_gates(const TransferTime& time) const {
    if (links_.calibration().link_class == host_links) return true;
    return options_.transport == Transport::copy_engine && time.inter_node_s <= 0;
  }

  /// On hosts payload leaves after the call. Whatever has no gates has no call to leave from.
  [[nodiscard]] bool leaves_early(const TransferTime& time) const {
    return has_gates(time) && links_.calibration().link_class != host_links;
  }

  void send(TickTransfers& out, const Post& post, const TransferTime& time, double rounds, double pack_s) {
    const auto with_pack = [&](double seconds) { return seconds > 0 ? seconds * rounds + pack_s : 0; };
    const double intra_node_s = with_pack(time.intra_node_s), inter_node_s = with_pack(time.inter_node_s);
    if (post.early && leaves_early(time))
      out.early_s += intra_node_s;
    else
      out.sends.push_back({post.flight, intra_node_s, inter_node_s});
    out.at_once = out.at_once && post.flight == 0;
    const double longest = std::max(intra_node_s, inter_node_s);
    if (post.gated) {
      out.gated_s += longest;
      out.has_gates = out.has_gates && has_gates(time);
    }
    out.comm_s += longest;
    out.band += time.band * longest;
    result_.extrapolation |= time.extrapolation;
    result_.spans_hosts = result_.spans_hosts || time.inter_node_s > 0;
  }

  LinkPricer& links_;
  const ExecutionOptions& options_;
  double staging_band_, tick_s_;
  Timeline overlapped_;
  SerialTimeline serial_;
  EarlyTransfers early_;
  double compute_ = 0, bytes_ = 0, with_ = 0, without_ = 0;
  double arrived_s_ = 0;            ///< of kernels on arrivals
  std::vector<double> due_work_s_;  ///< the same by tick, where ticks are shown
  std::vector<Post> posts_;         ///< of this tick
  std::vector<Post> last_posts_;    ///< what `last_` was made of
  std::vector<Wait> waits_;         ///< of this tick's work
  int list_ = 0;                    ///< that the work of this tick is in
  double list_begin_s_ = 0;         ///< work of the tick before it
  TickTransfers* last_ = nullptr;
  std::array<CachedPrice, 4> cache_;  ///< the few exchanges that the ticks of a pass repeat
  std::size_t oldest_ = 0;
  PassPrice result_;
};

}  // namespace usp
