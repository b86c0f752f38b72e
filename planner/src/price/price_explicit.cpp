// SPDX-License-Identifier: Apache-2.0
#include "pass_sum.hpp"
#include "pricer_state.hpp"

namespace usp {
namespace {

struct AttendCall {
  HeadCount heads;
  BlockShape block;
  WorkKind kind = WorkKind::attend;
  bool first = false;  ///< against the own row
};

AttendCall call_of(const RankSchedule& rank, const Step& step) {
  AttendCall call;
  ListRef list;
  BufferId k = 0;
  const auto take = [&](const auto& s, WorkKind kind) {
    call.heads = {s.query_heads.size(), s.kv_heads.size()};
    call.kind = kind;
    list = s.slices;
    k = s.k;
  };
  if (const auto* grad = std::get_if<AttendGrad>(&step))
    take(*grad, WorkKind::attend_grad);
  else
    take(std::get<Attend>(step), WorkKind::attend);
  Intervals rows, keys;
  for (std::int32_t i = 0; i < list.count; ++i) {
    const Slice& slice = rank.slices[static_cast<std::size_t>(list.begin + i)];
    call.block.area += static_cast<double>(area(slice));
    rows.push_back({slice.q_row, slice.q_row + slice.q_count});
    keys.push_back({slice.k_row, slice.k_row + slice.k_count});
  }
  normalize(rows);
  normalize(keys);
  call.block.rows = static_cast<double>(total(rows));
  call.block.keys = static_cast<double>(total(keys));
  const Place place = rank.buffers[static_cast<std::size_t>(k)].name.place;
  call.first = place == Place::row || place == Place::home;
  return call;
}

}  // namespace

PassPrice AttentionPricer::price_explicit(const AttentionPlan& plan, const Placement& placement,
                                          const std::vector<RankSchedule>& ranks,
                                          std::vector<TickPrice>* ticks) {
  const Context context = context_of(plan, placement);
  CompactSchedule compact;
  generate(plan, context.split->heads.shared_kv(), compact, Binds::without);
  const CompactPass& pass = compact.of(ranks.front().pass);
  LinkPricer::MeshPatterns& patterns = links_.patterns(plan.mesh, placement);
  PassSum sum(links_, options_);
  Exchanges started;
  sum.start(pass.ticks);
  const UnitTimes times(links_.calibration().kernel, plan, options_);
  // Bytes of every move from the messages themselves.
  std::vector<Ledger> moved(pass.moves.size());
  for (Ledger& bytes : moved) bytes = {std::vector<i64>(ranks.size(), 0), std::vector<i64>(ranks.size(), 0)};
  for (std::size_t p = 0; p < ranks.size(); ++p)
    for (const Transfer& t : ranks[p].transfers)
      (t.send ? moved[static_cast<std::size_t>(t.move)].sent
              : moved[static_cast<std::size_t>(t.move)].received)[p] += t.bytes;
  for (int t = 0; t < pass.ticks; ++t) {
    for (std::size_t i = 0; i < pass.moves.size(); ++i) {
      const Move& m = pass.moves[i];
      if (m.start != t || m.peers == Peers::self) continue;
      const MovePattern& pattern = links_.pattern(patterns, m.peers, m.shift);
      i64 most = 0;
      for (std::size_t p = 0; p < ranks.size(); ++p)
        most = std::max({most, moved[i].sent[p], moved[i].received[p]});
      sum.post(m, pattern, static_cast<double>(most) / std::max(1, pattern.peers));
    }
    // Lock step: each kind of step costs its slowest rank.
    Estimate slowest_delta, slowest_attend;
    for (const RankSchedule& rank : ranks) {
      const Tick& tick = rank.ticks[static_cast<std::size_t>(t)];
      for (std::int32_t i = 0; i < tick.steps.count; ++i) {
        const Step& step = rank.steps[static_cast<std::size_t>(tick.steps.begin + i)];
        if (const auto* d = std::get_if<DeltaRows>(&step)) {
          keep_longest(slowest_delta, times.delta(d->query_heads.size(),
                                                  rank.buffers[static_cast<std::size_t>(d->delta)].rows));
          continue;
        }
        const AttendCall call = call_of(rank, step);
        keep_longest(slowest_attend, times.attend(call.heads, call.block, call.kind, call.first));
      }
    }
    sum.work(slowest_delta);
    sum.work(slowest_attend);
    (void)sum.exchange(started);
    sum.tick(t, started, ticks, !options_.overlap);
  }
  return sum.finish();
}

}  // namespace usp
