// SPDX-License-Identifier: Apache-2.0
#include "kernel_times.hpp"
#include "pass_accumulator.hpp"
#include "pricer_state.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace usp {
namespace {

/// What a step on pairs asks of a kernel.
struct PairsCall {
  HeadCount heads;
  BlockShape block;
  ResultsBefore results;
};

PairsCall call_of(const schedule::RankSchedule& rank, const schedule::Step& step) {
  PairsCall call;
  call.heads = {step.query_heads.size(), step.kv_heads.size()};
  const schedule::ListRef& list = step.slices;
  schedule::Intervals rows, keys;
  for (std::int32_t i = 0; i < list.count; ++i) {
    const schedule::Slice& slice = rank.slices[static_cast<std::size_t>(list.begin + i)];
    call.block.area += static_cast<double>(schedule::area(slice));
    rows.push_back({slice.q_row, slice.q_row + slice.q_count});
    keys.push_back({slice.k_row, slice.k_row + slice.k_count});
  }
  schedule::normalize(rows);
  schedule::normalize(keys);
  call.block.rows = static_cast<double>(schedule::total(rows));
  call.block.keys = static_cast<double>(schedule::total(keys));
  const BufferSlot place = rank.buffers[static_cast<std::size_t>(step[Tensor::k])].name.place;
  call.results = {place == BufferSlot::row || place == BufferSlot::home, step.overwrites_dkv()};
  return call;
}

Estimate time_of(const KernelTimes& times, const schedule::RankSchedule& rank, const schedule::Step& step) {
  const schedule::Operation& operation = *step.operation;
  if (!operation.has_pairs) {
    const schedule::BufferId rows = step.buffers[static_cast<std::size_t>(operation.begin()->tensor)];
    return times.on_rows(operation, step.query_heads.size(),
                         rank.buffers[static_cast<std::size_t>(rows)].rows);
  }
  const PairsCall call = call_of(rank, step);
  return times.on_pairs(operation, call.heads, call.block, call.results);
}

/// Null: schedules may hold work that no plan generates.
[[nodiscard]] const schedule::ComputeOp* generated_work(const schedule::CompactPass& pass,
                                                        std::int32_t number) {
  const auto at = static_cast<std::size_t>(number);
  return at < pass.work.size() ? &pass.work[at] : nullptr;
}

/// Remote blocks of a list take together what they take on the busiest rank: one share of what each takes on
/// the rank that it keeps busiest, as price_pass() has it.
class ListShare {
 public:
  /// @param one_launch the kernel computes a list of blocks at once
  ListShare(const KernelTimes& times, const schedule::CompactPass& pass, bool one_launch)
      : times_(times), pass_(pass), one_launch_(one_launch) {}

  [[nodiscard]] bool is_shared(std::int32_t work) const {
    const schedule::ComputeOp* const w = generated_work(pass_, work);
    return w != nullptr && is_remote_in_list(*w);
  }
  /// All steps of a rank in the tick.
  void add(const schedule::RankSchedule& rank, const schedule::Tick& tick) {
    std::optional<PairsCall> all;
    const schedule::Operation* operation = nullptr;
    for (std::int32_t i = 0; i < tick.steps.count; ++i) {
      const schedule::Step& step = rank.steps[static_cast<std::size_t>(tick.steps.begin + i)];
      if (!is_shared(step.work)) continue;
      const PairsCall call = call_of(rank, step);
      double& most = most_of_block_[step.work];
      most = std::max(most, weight(*step.operation, call));
      operation = step.operation;
      if (!all) {
        all = call;
        continue;
      }
      all->block.rows = std::max(all->block.rows, call.block.rows);
      all->block.keys += call.block.keys;
      all->block.area += call.block.area;
    }
    if (all) most_of_list_ = std::max(most_of_list_, weight(*operation, *all));
  }
  [[nodiscard]] double share() const {
    double blocks = 0;
    for (const auto& [work, most] : most_of_block_) blocks += most;
    return blocks > 0 ? std::min(1.0, most_of_list_ / blocks) : 1;
  }

 private:
  [[nodiscard]] double weight(const schedule::Operation& operation, const PairsCall& call) const {
    return one_launch_ ? times_.on_pairs(operation, call.heads, call.block, call.results).seconds
                       : call.block.area;
  }

  const KernelTimes& times_;
  const schedule::CompactPass& pass_;
  bool one_launch_;
  std::map<std::int32_t, double> most_of_block_;
  double most_of_list_ = 0;
};

}  // namespace

PassPrice AttentionPricer::price_explicit(const AttentionPlan& plan, const Placement& placement,
                                          const std::vector<schedule::RankSchedule>& ranks,
                                          std::vector<TickPrice>* ticks) {
  const Context context = context_of(plan, placement);
  schedule::CompactSchedule compact;
  schedule::generate(plan, context.split->heads.shared_kv(), compact, schedule::Binds::without);
  const schedule::CompactPass& pass = compact.of(ranks.front().pass);
  LinkPricer::MeshPatterns& patterns = links_.patterns(plan.mesh, placement);
  PassAccumulator sum(links_, options_);
  TickTransfers started;
  sum.start(pass.ticks);
  const Backend computes = computing_backend(plan, ranks.front().pass, context.split->heads);
  const KernelTimes times(links_.calibration(), plan, computes, options_);
  sum.work(times.of_call(ranks.front().pass == Pass::backward));
  // Bytes of every move from the messages themselves.
  std::vector<Ledger> moved(pass.transfers.size());
  for (Ledger& bytes : moved) bytes = {std::vector<i64>(ranks.size(), 0), std::vector<i64>(ranks.size(), 0)};
  for (std::size_t p = 0; p < ranks.size(); ++p)
    for (const schedule::Transfer& t : ranks[p].transfers)
      (t.send ? moved[static_cast<std::size_t>(t.move)].sent
              : moved[static_cast<std::size_t>(t.move)].received)[p] += t.bytes;
  for (int t = 0; t < pass.ticks; ++t) {
    for (std::size_t i = 0; i < pass.transfers.size(); ++i) {
      const schedule::TransferOp& m = pass.transfers[i];
      if (m.start != t || m.peers == schedule::Peers::self) continue;
      const TransferPattern& pattern = links_.pattern(patterns, m.peers, m.shift);
      i64 most = 0;
      for (std::size_t p = 0; p < ranks.size(); ++p)
        most = std::max({most, moved[i].sent[p], moved[i].received[p]});
      const Staging staging =
          staging_of(plan, context.split->heads.shared_kv(), m, options_, pattern.peers > 0);
      const double bytes = static_cast<double>(most) / std::max(1, pattern.peers);
      sum.post(m, pattern, bytes,
               staging_times(links_.calibration().kernel, staging, m, bytes, pattern.peers,
                             staging.copied > 0 ? own_bytes(context, m, pattern) : 0));
    }
    // Lock step: each computation costs its slowest rank.
    std::map<std::int32_t, Estimate> slowest;
    ListShare lists(times, pass, computes->waits_inside);
    for (const schedule::RankSchedule& rank : ranks) {
      const schedule::Tick& tick = rank.ticks[static_cast<std::size_t>(t)];
      for (std::int32_t i = 0; i < tick.steps.count; ++i) {
        const schedule::Step& step = rank.steps[static_cast<std::size_t>(tick.steps.begin + i)];
        keep_longest(slowest[step.work], time_of(times, rank, step));
      }
      lists.add(rank, tick);
    }
    for (auto& [work, time] : slowest) {
      const schedule::ComputeOp* const w = generated_work(pass, work);
      if (w != nullptr && w->list > 0 && time.seconds > 0)
        sum.enter(times.of_list(*w, context.split->distinct_of(w->chunk, w->part), context.largest_block()),
                  share_awaited(*w, plan.mesh));
      if (lists.is_shared(work)) time.seconds *= lists.share();
      sum.work(time);
      if (w != nullptr) sum.complete(share_completed(*w, plan.mesh));
    }
    (void)sum.exchange(started);
    sum.tick(t, started, ticks, !options_.overlap);
  }
  return sum.finish();
}

}  // namespace usp
