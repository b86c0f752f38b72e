// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/effort.hpp"

#include "usp/schedule/generate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr double max_parts = 1 << 24;
constexpr double max_unions = 1 << 25;
constexpr double max_routes = 1 << 19;
constexpr double max_messages = 1 << 23;
constexpr double max_blocks = 1 << 25;

/// Runs of consecutive tokens of all rows; a striped row is one run per document.
double runs_of(const AttentionPlan& plan, std::size_t documents) {
  const double ring = plan.mesh.ring();
  const double cuts = static_cast<double>(documents) - 1;
  switch (plan.layout) {
    case LayoutKind::contiguous:
      return ring + cuts;
    case LayoutKind::zigzag:
      return 2 * ring + cuts;
    case LayoutKind::balanced:
      return 4 * ring + cuts;
    case LayoutKind::striped:
      break;
  }
  return std::min(static_cast<double>(plan.shape.q_tokens), ring * static_cast<double>(documents));
}

/// Runs of keys that one run of queries sees at most.
double seen_runs(const AttentionPlan& plan, double runs) {
  const double ring = plan.mesh.ring();
  const auto tokens = static_cast<double>(std::max(plan.shape.q_tokens, plan.shape.kv_tokens));
  if (plan.layout == LayoutKind::striped) return std::min(ring, tokens);
  const double window = std::min(static_cast<double>(plan.band.diff_max), tokens);
  // Cuts of a batch of many documents fall into few of them: whole documents are summed.
  return std::min(runs, 2 + (window / tokens) * runs) / (plan.band.diff_min == 0 ? 2 : 1) + 2;
}

/// Distinct displacements along the ring.
double shifts_of(const AttentionPlan& plan) {
  const Mesh& mesh = plan.mesh;
  if (mesh.ring() == 1) return 0;
  const i64 hops = plan.method->displacements(mesh);
  const bool straight_home = plan.dkv_return == DkvReturn::direct || plan.prune;
  return static_cast<double>(hops > 0 && straight_home ? mesh.ring() : hops);
}

double peers_of(const schedule::TransferOp& move, const Mesh& mesh) {
  switch (move.peers) {
    case schedule::Peers::self:
    case schedule::Peers::shift:
      return 1;
    case schedule::Peers::every_ulysses:
      return mesh.ulysses;
    case schedule::Peers::every_ring:
      return mesh.ring() - 1;
    case schedule::Peers::all_ranks:
      break;
  }
  return mesh.size();
}

/// Sends and receives of one rank in both passes.
double messages_of_rank(const AttentionPlan& plan) {
  AttentionPlan chunk = plan;
  const int alike = plan.mesh.ring() > 1 ? plan.head_chunks : 1;  // one row's chunks may be computed in place
  chunk.head_chunks /= alike;
  schedule::CompactSchedule schedule;
  schedule::generate(chunk, false, schedule, schedule::Binds::without);
  double messages = 0;
  for (const schedule::CompactPass* pass : {&schedule.forward, &schedule.backward})
    for (const schedule::TransferOp& move : pass->transfers) messages += 2 * peers_of(move, plan.mesh);
  return alike * messages;
}

/// Pieces that the layout makes of replicated tokens.
double replicated_pieces(const AttentionPlan& plan) {
  double pieces = 0;
  for (const auto* ranges : {&plan.replicated_q, &plan.replicated_k})
    for (const Range& range : *ranges)
      pieces += plan.layout == LayoutKind::striped ? static_cast<double>(range.size()) : 1 + runs_of(plan, 1);
  return pieces;
}

std::string ring_of(const AttentionPlan& plan) {
  return fmt::format("ring {}, {}, {}", plan.mesh.ring(), word_of(plan.method), word_of(plan.layout));
}

std::string count(double value) {
  return std::to_string(static_cast<i64>(value));
}

}  // namespace

Effort effort_of(const AttentionPlan& plan, std::size_t documents, i64 sources) {
  const double ring = plan.mesh.ring();
  const bool windowless = plan.band.diff_max == unbounded;
  Effort effort;
  if (documents > 1 || !windowless || plan.layout == LayoutKind::balanced ||
      plan.shape.q_tokens != plan.shape.kv_tokens) {
    const double cut = plan.layout == LayoutKind::striped
                           ? static_cast<double>(documents)
                           : std::min(static_cast<double>(documents), 4 * ring);
    const double runs = runs_of(plan, static_cast<std::size_t>(cut));
    effort.parts = runs * seen_runs(plan, runs);
  }
  // Whole blocks are looked up too, hop by hop: some four times the work of a joined row.
  if (plan.prune) effort.unions = plan.head_chunks * ring * std::max(4 * ring, effort.parts / 2);
  const double gathered = plan.method->joins_remote_blocks ? ring : 0;
  const double exchanged = plan.mesh.ulysses > 1 ? plan.mesh.ulysses : 0;
  effort.routes = static_cast<double>(sources) * (shifts_of(plan) + gathered + exchanged);
  return effort;
}

std::string too_much_work(const Effort& effort, const AttentionPlan& plan) {
  const std::string ring = ring_of(plan);
  if (effort.parts > max_parts)
    return fmt::format(
        "{}: the mask cuts its rows into some {} blocks, too many to price; a smaller ring has fewer", ring,
        count(effort.parts));
  if (effort.unions > max_unions)
    return fmt::format(
        "{}: the keys that each hop can skip are too much work to find ({} rows of keys); a smaller ring has "
        "less",
        ring, count(effort.unions));
  if (effort.routes > max_routes)
    return fmt::format(
        "{}: {} routes between devices would have to be traced, because its degrees do not fill whole hosts; "
        "a smaller ring, method ring with dKV return circulate, or degrees that hosts hold evenly need few",
        ring, count(effort.routes));
  return "";
}

ExpansionEffort expansion_effort(const AttentionPlan& plan, std::size_t documents, i64 ranks) {
  const auto all = static_cast<double>(ranks), passes = 2.0;
  const bool striped = plan.layout == LayoutKind::striped;
  const std::size_t cut = striped ? documents : 1;
  const double runs = runs_of(plan, cut);
  // Documents that the layout does not cut add a block each.
  const double slices = runs * seen_runs(plan, runs) + (striped ? 0 : static_cast<double>(documents));
  const double pieces = replicated_pieces(plan);
  return {all * messages_of_rank(plan),
          all * (passes * (plan.head_chunks * slices / plan.mesh.ring() + pieces) +
                 (plan.split_own_block ? slices / plan.mesh.ring() : 0))};
}

std::string too_much_to_expand(const ExpansionEffort& effort, const AttentionPlan& plan) {
  if (effort.messages > max_messages)
    return fmt::format(
        "{}, ulysses {}, head chunks {}: the schedules hold some {} sends and receives; the limit is {}",
        ring_of(plan), plan.mesh.ulysses, plan.head_chunks, count(effort.messages), count(max_messages));
  if (effort.blocks > max_blocks)
    return fmt::format(
        "{}: mask and layout cut the rows of the schedules into some {} blocks; the limit is {}",
        ring_of(plan), count(effort.blocks), count(max_blocks));
  return "";
}

}  // namespace usp
