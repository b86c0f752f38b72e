// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/plan_trace.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/effort.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace usp {
namespace {

constexpr double us = 1e6;
constexpr int kernel_lane = 0;
constexpr std::size_t named_peers = 4;

/// Begin of every tick of a pass, and its end; seconds of the kernels in each.
struct Clock {
  std::vector<double> begin_s, compute_s;
  [[nodiscard]] double end_of(std::int32_t tick) const { return begin_s[static_cast<std::size_t>(tick) + 1]; }
};

Clock clock_of(const std::vector<TickPrice>& ticks, double start_s) {
  Clock clock{{start_s}, {}};
  for (const TickPrice& tick : ticks) {
    clock.begin_s.push_back(clock.begin_s.back() + tick.total_s);
    clock.compute_s.push_back(tick.compute_s);
  }
  return clock;
}

/// Transfers of one move that fly together.
struct Flight {
  std::int32_t move = 0, start = 0, due = 0;
  bool send = false;
  std::vector<int> peers;
  i64 bytes = 0;
};

std::vector<Flight> flights_of(const schedule::RankSchedule& rank) {
  std::vector<Flight> list;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>, std::size_t> known;
  for (const schedule::Transfer& t : rank.transfers) {
    if (t.bytes == 0) continue;  // stays on the rank
    const auto [found, is_new] = known.try_emplace({t.move, t.start, t.due, t.send}, list.size());
    if (is_new) list.push_back({t.move, t.start, t.due, t.send, {}, 0});
    list[found->second].peers.push_back(t.peer);
    list[found->second].bytes += t.bytes;
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Flight& a, const Flight& b) { return a.start < b.start; });
  return list;
}

/// Lanes of a rank in which spans do not overlap.
class Lanes {
 public:
  /// A lane that is free from `begin`; it is taken until `end`.
  int take(double begin, double end) {
    std::size_t lane = 0;
    while (lane < ends_.size() && ends_[lane] > begin + 1e-15) ++lane;
    if (lane == ends_.size()) ends_.push_back(0);
    ends_[lane] = end;
    return static_cast<int>(lane);
  }
  [[nodiscard]] int count() const { return static_cast<int>(ends_.size()); }

 private:
  std::vector<double> ends_;
};

class PlanTrace {
 public:
  explicit PlanTrace(const PlanTraceRequest& request)
      : request_(request),
        file_(*request.plan),
        layer_(layer_at(file_, request.layer)),
        documents_(layer_documents(layer_, request.documents.value_or(file_.documents),
                                   request.documents ? std::vector<i64>{} : file_.kv_documents)),
        geometry_(layer_.plan, documents_),
        ranks_(std::min(request.max_ranks, layer_.plan.mesh.size())) {
    if (request.documents) check_other_batch(file_, layer_, *request.documents);
    if (const std::string reason =
            too_much_to_expand(expansion_effort(layer_.plan, documents_.count(), ranks_), layer_.plan);
        !reason.empty())
      throw Infeasible(reason, {"fewer --trace-ranks"});
    schedule::generate(layer_.plan, geometry_.heads().shared_kv(), compact_);
    price();
  }

  std::string text() {
    double at = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !file_.training) continue;
      const Clock clock = clock_of(ticks_[pass == Pass::forward ? 0 : 1], at);
      for (int rank = 0; rank < ranks_; ++rank) add_rank(rank, pass, clock);
      at = clock.begin_s.back();
    }
    for (int rank = 0; rank < ranks_; ++rank) name_lanes(rank);
    return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events_}}.dump() + "\n";
  }

 private:
  void price() {
    if (request_.cluster != nullptr) {
      LinkPricer links(*request_.cluster, *request_.calibration);
      AttentionPricer pricer(links, layer_.plan.shape, documents_, file_.inputs.execution);
      static_cast<void>(pricer.price(layer_.plan, file_.placement, &ticks_[0], &ticks_[1]));
      return;
    }
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const double seconds = (pass == Pass::forward ? layer_.forward : layer_.backward).seconds;
      const int count = compact_.of(pass).ticks;
      const double each = seconds / std::max(1, count);
      ticks_[pass == Pass::forward ? 0 : 1].assign(static_cast<std::size_t>(count), {each, 0, 0, each});
    }
  }

  void add_rank(int rank, Pass pass, const Clock& clock) {
    const schedule::RankSchedule schedule = schedule::expand(geometry_, compact_, rank, pass);
    add_kernels(rank, pass, clock, schedule);
    for (const Flight& flight : flights_of(schedule)) add_flight(rank, pass, clock, flight);
  }

  void add_kernels(int rank, Pass pass, const Clock& clock, const schedule::RankSchedule& schedule) {
    for (std::size_t t = 0; t < schedule.ticks.size() && t < clock.compute_s.size(); ++t) {
      const schedule::ListRef& list = schedule.ticks[t].steps;
      std::string name;
      double pairs = 0;
      for (std::int32_t i = list.begin; i < list.begin + list.count; ++i) {
        const schedule::Step& step = schedule.steps[static_cast<std::size_t>(i)];
        if (name.find(step.operation->word) == std::string::npos)
          name += (name.empty() ? "" : ", ") + std::string(step.operation->word);
        for (std::int32_t s = 0; s < step.slices.count; ++s)
          pairs += static_cast<double>(
              schedule::area(schedule.slices[static_cast<std::size_t>(step.slices.begin + s)]));
      }
      if (name.empty()) continue;
      span(fmt::format("{} tick {}: {}", word_of(pass), t, name), rank, kernel_lane, clock.begin_s[t],
           clock.begin_s[t] + clock.compute_s[t],
           {{"tick", t}, {"pass", word_of(pass)}, {"pairs_per_head", pairs}});
    }
  }

  void add_flight(int rank, Pass pass, const Clock& clock, const Flight& flight) {
    const double begin = clock.begin_s[static_cast<std::size_t>(flight.start)],
                 end = clock.end_of(flight.due);
    const schedule::TransferOp& move = compact_.of(pass).transfers[static_cast<std::size_t>(flight.move)];
    std::string what(word_of(move.from[0].tensor));
    if (move.pairs > 1) what += fmt::format(", {}", word_of(move.from[1].tensor));
    const int lane = (flight.send ? sends_[rank] : receives_[rank]).take(begin, end);
    const int thread = thread_of(flight.send, lane);
    span(fmt::format("{} {} {} {}", flight.send ? "send" : "receive", what, flight.send ? "to" : "from",
                     peers_text(flight.peers)),
         rank, thread, begin, end,
         {{"transfer", word_of(move.name)},
          {"chunk", move.heads.chunk < 0 ? Json(nullptr) : Json(move.heads.chunk)},
          {"peers", flight.peers},
          {"bytes", flight.bytes},
          {"link", link_text(rank, flight.peers)},
          {"start_tick", flight.start},
          {"due_tick", flight.due}});
    for (const int peer : flight.peers)
      if (peer < ranks_) arrow(rank, peer, pass, flight, thread, flight.send ? begin : end);
  }

  /// One end of an arrow from a send to its receive.
  void arrow(int rank, int peer, Pass pass, const Flight& flight, int thread, double at_s) {
    const int from = flight.send ? rank : peer, to = flight.send ? peer : rank;
    Json event = {{"ph", flight.send ? "s" : "f"},
                  {"cat", "transfer"},
                  {"name", "transfer"},
                  {"id", fmt::format("{}/{}/{}/{}/{}-{}", word_of(pass), flight.move, flight.start,
                                     flight.due, from, to)},
                  {"pid", rank},
                  {"tid", thread},
                  {"ts", at_s * us}};
    if (!flight.send) event["bp"] = "e";
    events_.push_back(std::move(event));
  }

  void span(const std::string& name, int rank, int thread, double begin_s, double end_s, Json args) {
    events_.push_back({{"ph", "X"},
                       {"cat", thread == kernel_lane ? "kernel" : "transfer"},
                       {"name", name},
                       {"pid", rank},
                       {"tid", thread},
                       {"ts", begin_s * us},
                       {"dur", std::max(0.0, end_s - begin_s) * us},
                       {"args", std::move(args)}});
  }

  void name_lanes(int rank) {
    const Mesh& mesh = layer_.plan.mesh;
    name("process_name", rank, 0,
         fmt::format("rank {} (ring {}, ulysses {})", rank, mesh.ring_of(rank), mesh.ulysses_of(rank)));
    name("thread_name", rank, kernel_lane, "kernels");
    for (const bool send : {true, false})
      for (int lane = 0; lane < (send ? sends_[rank] : receives_[rank]).count(); ++lane)
        name("thread_name", rank, thread_of(send, lane),
             fmt::format("{} {}", send ? "send" : "receive", lane + 1));
  }

  void name(const char* what, int rank, int thread, const std::string& text) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", text}}}});
  }

  static int thread_of(bool send, int lane) { return 1 + 2 * lane + (send ? 0 : 1); }

  static std::string peers_text(const std::vector<int>& peers) {
    if (peers.size() <= named_peers) return fmt::format("{}", fmt::join(peers, ", "));
    return fmt::format("{} ranks", peers.size());
  }

  /// "inside" where all peers share the rank's host or NVLink domain, "network" where none does.
  [[nodiscard]] Json link_text(int rank, const std::vector<int>& peers) const {
    if (request_.cluster == nullptr) return nullptr;
    const auto device = [&](int r) -> const topology::Device& {
      return request_.cluster
          ->devices[static_cast<std::size_t>(file_.placement.device_of(layer_.plan.mesh, 0, r))];
    };
    const auto inside = std::count_if(peers.begin(), peers.end(), [&](int peer) {
      const topology::Device &a = device(rank), &b = device(peer);
      return a.node == b.node || (a.nvlink_domain >= 0 && a.nvlink_domain == b.nvlink_domain);
    });
    if (inside == 0) return "network";
    return inside == static_cast<std::ptrdiff_t>(peers.size()) ? "inside" : "both";
  }

  const PlanTraceRequest& request_;
  const PlanFile& file_;
  const PlanLayer& layer_;
  Documents documents_;
  schedule::TokenMap geometry_;
  int ranks_;
  schedule::CompactSchedule compact_;
  std::vector<TickPrice> ticks_[2];
  std::map<int, Lanes> sends_, receives_;
  Json events_ = Json::array();
};

}  // namespace

std::string plan_trace(const PlanTraceRequest& request) {
  return PlanTrace(request).text();
}

}  // namespace usp
