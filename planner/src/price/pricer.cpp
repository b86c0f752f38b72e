// SPDX-License-Identifier: Apache-2.0
#include "pricer_state.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/effort.hpp"
#include "usp/schedule/validate.hpp"

#include <algorithm>
#include <tuple>

namespace usp {
namespace {

/// Rows of one even layout: all ring rows and all homes alike.
bool even_rows(LayoutKind layout, i64 tokens, const Mesh& mesh) {
  const i64 ring = mesh.ring();
  switch (layout) {
    case LayoutKind::contiguous:
    case LayoutKind::striped:
      return tokens % (ring * mesh.ulysses) == 0;
    case LayoutKind::zigzag:
      return tokens % (2 * ring) == 0 && tokens / ring % mesh.ulysses == 0;
    case LayoutKind::balanced:
      return false;
  }
  return false;
}

/// Most tokens times heads that a rank sends or receives in an exchange of whole rows: rows of one size are
/// exchanged alike.
i64 max_exchanged(const schedule::TokenMap& geometry, const schedule::TransferOp& move) {
  const Mesh& mesh = geometry.mesh();
  const SequenceLayout& layout = geometry.layout(move.tokens.of);
  i64 most = 0, all_heads = 0;
  std::vector<i64> heads;
  for (int u = 0; u < mesh.ulysses; ++u) {
    heads.push_back(geometry.heads_of(move.heads, u, u).size());
    all_heads += heads.back();
  }
  std::vector<i64> known;  // row sizes; few differ
  for (int r = 0; r < mesh.ring(); ++r) {
    const i64 row = layout.row_size(r);
    if (std::find(known.begin(), known.end(), row) != known.end()) continue;
    known.push_back(row);
    for (int u = 0; u < mesh.ulysses; ++u) {
      const i64 tokens = layout.home(r, u).size(), own = heads[static_cast<std::size_t>(u)];
      most = std::max({most, tokens * (all_heads - own), own * (row - tokens)});
    }
  }
  return most;
}

/// The longest time of a unit of work on any rank; a unit like the one before costs the same.
class WorkTimes {
 public:
  /// @param one_launch the kernel computes a list of blocks at once
  WorkTimes(const KernelTimes& times, const WorkProfile& profile, int ring, bool one_launch)
      : times_(times), profile_(profile), ring_(ring), one_launch_(one_launch) {}

  [[nodiscard]] Estimate of(const schedule::ComputeOp& w, const std::vector<HeadCount>& counts, i64 q_row) {
    const schedule::Operation& operation = *w.operation;
    if (!operation.has_pairs) {
      Estimate longest;
      for (const HeadCount& c : counts) keep_longest(longest, times_.on_rows(operation, c.query, q_row));
      return longest;
    }
    const int front = profile_.front_of(w.offsets);
    const ResultsBefore results{w.offsets.begin == 0, w.overwrites_dkv()};
    if (!is_like(last_, w) || front != front_ || !(results == results_)) time_ = longest(w, counts, front);
    last_ = {&operation, w.chunk, w.part}, front_ = front, results_ = results;
    Estimate time = time_;
    if (is_remote_in_list(w)) time.seconds *= share_of_list(w, counts);
    return time;
  }

 private:
  struct Kind {
    const schedule::Operation* operation = nullptr;
    int chunk = -1;
    HeadPart part = HeadPart::all;
  };
  [[nodiscard]] static bool is_like(const Kind& kind, const schedule::ComputeOp& w) {
    return kind.operation == w.operation && kind.chunk == w.chunk && kind.part == w.part;
  }

  [[nodiscard]] Estimate longest(const schedule::ComputeOp& w, const std::vector<HeadCount>& counts,
                                 int front) const {
    Estimate most;
    for (const HeadCount& c : counts)
      for (const BlockShape& block : profile_.pareto_front(front))
        keep_longest(most,
                     times_.on_pairs(*w.operation, c, block, {w.offsets.begin == 0, w.overwrites_dkv()}));
    return most;
  }

  /// No rank waits for another between the remote blocks of a list: they take what they take on the busiest
  /// rank, not the sum of what each takes on the rank that it keeps busiest.
  [[nodiscard]] double share_of_list(const schedule::ComputeOp& w, const std::vector<HeadCount>& counts) {
    if (is_like(list_, w)) return share_;
    const auto weight = [&](int begin, int end) {
      const int front = profile_.front_of({static_cast<std::int16_t>(begin), static_cast<std::int16_t>(end)});
      if (one_launch_) return longest(w, counts, front).seconds;
      double pairs = 0;
      for (const BlockShape& block : profile_.pareto_front(front)) pairs = std::max(pairs, block.area);
      return pairs;
    };
    double blocks = 0;
    for (int i = 1; i < ring_; ++i) blocks += weight(i, i + 1);
    list_ = {w.operation, w.chunk, w.part};
    share_ = blocks > 0 ? std::min(1.0, weight(1, ring_) / blocks) : 1;
    return share_;
  }

  const KernelTimes& times_;
  const WorkProfile& profile_;
  int ring_;
  bool one_launch_;
  Kind last_, list_;
  int front_ = -1;
  ResultsBefore results_;
  Estimate time_;
  double share_ = 1;  ///< of list_
};

}  // namespace

AttentionPricer::AttentionPricer(LinkPricer& links, AttentionShape shape, Documents documents,
                                 ExecutionOptions options)
    : AttentionPricer(links, shape, std::make_shared<const Documents>(std::move(documents)), options) {}

AttentionPricer::AttentionPricer(LinkPricer& links, AttentionShape shape,
                                 std::shared_ptr<const Documents> documents, ExecutionOptions options)
    : links_(links),
      shape_(shape),
      documents_(std::move(documents)),
      options_(options),
      shared_(std::make_unique<Shared>(links_, options_)) {}

AttentionPricer::~AttentionPricer() = default;

std::shared_ptr<const schedule::MaskedBatch> AttentionPricer::batch_of(Band band) {
  if (!shared_->batch || !(shared_->band == band)) {
    shared_->batch = std::make_shared<const schedule::MaskedBatch>(documents_, band);
    shared_->band = band;
  }
  return shared_->batch;
}

AttentionPricer::Context AttentionPricer::context_of(const AttentionPlan& plan, const Placement& placement) {
  check_plan_sizes(plan);
  const Mesh& mesh = plan.mesh;
  Context context;
  context.plan = &plan;
  context.placement = &placement;
  auto split = shared_->heads.find({mesh.ulysses, plan.head_chunks});
  if (split == shared_->heads.end())
    split =
        shared_->heads
            .emplace(std::pair(mesh.ulysses, plan.head_chunks),
                     HeadSplit(Heads(shape_.query_heads, shape_.kv_heads, mesh.ulysses, plan.head_chunks)))
            .first;
  context.split = &split->second;

  const bool gathering = plan.method->joins_remote_blocks;
  const auto layout = static_cast<int>(plan.layout);
  const std::tuple profile_key(mesh.ring_outer, mesh.ring_inner, layout, gathering ? 1 : 0,
                               plan.band.diff_min, plan.band.diff_max);
  auto profile = shared_->profiles.find(profile_key);
  if (profile == shared_->profiles.end()) {
    AttentionPlan rows = plan;
    rows.mesh.ulysses = 1;
    rows.head_chunks = 1;
    rows.prune = false;
    rows.replicated_q.clear();
    rows.replicated_k.clear();
    profile =
        shared_->profiles.emplace(profile_key, WorkProfile(schedule::TokenMap(rows, batch_of(plan.band))))
            .first;
  }
  context.profile = &profile->second;

  const bool even = context.split->heads.even() && even_rows(plan.layout, shape_.q_tokens, mesh) &&
                    even_rows(plan.layout, shape_.kv_tokens, mesh) && !plan.prune &&
                    plan.replicated_q.empty() && plan.replicated_k.empty();
  context.q_row = (shape_.q_tokens + mesh.ring() - 1) / mesh.ring();
  context.k_row = (shape_.kv_tokens + mesh.ring() - 1) / mesh.ring();
  if (even) return context;
  const std::tuple key(mesh.ring_outer, mesh.ring_inner, mesh.ulysses, plan.head_chunks, layout, plan.prune,
                       plan.band.diff_min, plan.band.diff_max);
  const std::pair<int, int> size(mesh.ring(), mesh.ulysses);
  if (shared_->geometry_mesh != size) shared_->geometries.clear();  // a search does not come back to it
  shared_->geometry_mesh = size;
  auto geometry = shared_->geometries.find(key);
  const bool replicated = !plan.replicated_q.empty() || !plan.replicated_k.empty();
  if (replicated && geometry != shared_->geometries.end()) {
    shared_->geometries.erase(geometry);  // the key leaves the replicated tokens out
    geometry = shared_->geometries.end();
  }
  if (geometry == shared_->geometries.end())
    geometry = shared_->geometries.emplace(key, schedule::TokenMap(plan, batch_of(plan.band))).first;
  context.geometry = &geometry->second;
  for (int r = 0; r < mesh.ring(); ++r) {
    context.q_row = std::max(context.q_row, context.geometry->layout(schedule::Side::q).row_size(r));
    context.k_row = std::max(context.k_row, context.geometry->layout(schedule::Side::k).row_size(r));
  }
  return context;
}

double AttentionPricer::move_bytes_per_peer(const Context& context, const schedule::TransferOp& move,
                                            const TransferPattern& pattern) {
  const AttentionPlan& plan = *context.plan;
  if (context.geometry == nullptr) {
    if (move.tokens.not_needed.any()) return 0;
    const Heads& heads = context.split->heads;
    i64 count = 0;
    switch (move.heads.kind) {
      case schedule::HeadKind::query:
        count = heads.query_of(0, move.heads.chunk).size();
        break;
      case schedule::HeadKind::kv:
        count = heads.kv_of(0, move.heads.chunk).size();
        break;
      case schedule::HeadKind::kv_new:
        count = heads.kv_new(0, move.heads.chunk).size();
        break;
      case schedule::HeadKind::kv_last:
        count = heads.kv_last(0, move.heads.chunk).size();
        break;
      default:
        throw InternalError("a move carries the heads of one chunk");
    }
    i64 tokens = move.tokens.of == schedule::Side::q ? context.q_row : context.k_row;
    if (move.tokens.block == schedule::Block::home) tokens /= plan.mesh.ulysses;
    return static_cast<double>(tokens * count * schedule::wire_bytes_per_row_head(plan, move));
  }
  if (move.peers == schedule::Peers::shift) {  // one message per rank; heads are the same at both ends
    const std::vector<i64>& tokens = context.geometry->counts_by_row(move.tokens);
    i64 heads = 0;
    for (int u = 0; u < plan.mesh.ulysses; ++u)
      heads = std::max(heads, context.geometry->heads_of(move.heads, u, u).size());
    return static_cast<double>(*std::max_element(tokens.begin(), tokens.end()) * heads *
                               schedule::wire_bytes_per_row_head(plan, move));
  }
  const bool whole = !plan.prune && plan.replicated_q.empty() && plan.replicated_k.empty();
  if (move.peers == schedule::Peers::every_ulysses && whole)
    return static_cast<double>(max_exchanged(*context.geometry, move) *
                               schedule::wire_bytes_per_row_head(plan, move)) /
           std::max(1, pattern.peers);
  const auto ranks = static_cast<std::size_t>(plan.mesh.size());
  Ledger bytes{std::vector<i64>(ranks, 0), std::vector<i64>(ranks, 0)};
  add_move(*context.geometry, move, bytes);
  i64 most = 0;
  for (std::size_t p = 0; p < ranks; ++p) most = std::max({most, bytes.sent[p], bytes.received[p]});
  return static_cast<double>(most) / std::max(1, pattern.peers);
}

/// Of an exchange, what stays on the rank that keeps most. Of a pruned plan a bound.
double AttentionPricer::own_bytes(const Context& context, const schedule::TransferOp& move,
                                  const TransferPattern& pattern) {
  if (context.geometry == nullptr) return move_bytes_per_peer(context, move, pattern);
  const AttentionPlan& plan = *context.plan;
  const auto weight = static_cast<double>(schedule::wire_bytes_per_row_head(plan, move));
  const int ulysses = plan.mesh.ulysses;
  const auto heads_of = [&](int u) {
    const Heads& heads = context.split->heads;
    switch (move.heads.kind) {
      case schedule::HeadKind::query:
        return heads.query_of(u, move.heads.chunk).size();
      case schedule::HeadKind::kv_new:
        return heads.kv_new(u, move.heads.chunk).size();
      case schedule::HeadKind::kv_last:
        return heads.kv_last(u, move.heads.chunk).size();
      default:
        return heads.kv_of(u, move.heads.chunk).size();
    }
  };
  const SequenceLayout& layout = context.geometry->layout(move.tokens.of);
  i64 most = 0;
  for (int r = 0; r < plan.mesh.ring(); ++r)
    for (int u = 0; u < ulysses; ++u) most = std::max(most, layout.home(r, u).size() * heads_of(u));
  return static_cast<double>(most) * weight;
}

void AttentionPricer::weigh(const Context& context, const schedule::TransferOp& move,
                            const TransferPattern& pattern, MoveCost& cost) {
  const Staging staging =
      staging_of(*context.plan, context.split->heads.shared_kv(), move, options_, pattern.peers > 0);
  cost.bytes = pattern.peers > 0 ? move_bytes_per_peer(context, move, pattern) : 0;
  if (latent_ && move.peers == schedule::Peers::shift && move.tokens.of == schedule::Side::k)
    cost.bytes *= latent_->share;
  cost.staging = {};
  if (!staging.any()) return;
  const bool even_exchange = context.geometry == nullptr && pattern.peers > 0;
  cost.staging = staging_times(links_.calibration().kernel, staging, move, cost.bytes, pattern.peers,
                               staging.copied <= 0 ? 0
                               : even_exchange     ? cost.bytes
                                                   : own_bytes(context, move, pattern));
}

PassPrice AttentionPricer::price_pass(const Context& context, Pass which, std::vector<TickPrice>* ticks) {
  const AttentionPlan& plan = *context.plan;
  const schedule::CompactPass& pass = schedule_.of(which);
  const TransferKinds& kinds = shared_->kinds[static_cast<std::size_t>(which)];
  std::vector<MoveCost>& costs = shared_->costs;
  costs.assign(kinds.count(), {});
  if (shared_->exchanges.size() < kinds.groups()) shared_->exchanges.resize(kinds.groups());
  shared_->started.assign(kinds.groups(), nullptr);
  LinkPricer::MeshPatterns& patterns = links_.patterns(plan.mesh, *context.placement);
  PassAccumulator& sum = shared_->sum;
  sum.start(pass.ticks);
  // Rows may be uneven; but where all of a block is sent, every move of a kind has the same greatest message.
  const bool varies = context.geometry != nullptr && plan.prune;
  const Backend computes = context.computes[static_cast<std::size_t>(which)];
  const KernelTimes times(links_.calibration(), plan, computes, options_);
  WorkTimes work_times(times, *context.profile, plan.mesh.ring(), computes->waits_inside);
  sum.work(times.of_call(which == Pass::backward));
  const auto post = [&](std::size_t move) {
    const schedule::TransferOp& m = pass.transfers[move];
    if (m.peers == schedule::Peers::self) return;
    const std::size_t kind = kinds.of(move);
    const TransferPattern*& pattern = costs[kind].pattern;
    if (pattern == nullptr) pattern = &links_.pattern(patterns, m.peers, m.shift);
    MoveCost& cost = costs[kinds.twin_of(kind)];
    if (cost.bytes < 0 || varies) weigh(context, m, *pattern, cost);
    sum.post(m, *pattern, cost.bytes, cost.staging);
  };
  const double expanded_s = !latent_
                                ? 0
                                : static_cast<double>(shape_.batch * context.k_row) *
                                      (which == Pass::forward ? latent_->forward_s : latent_->backward_s);
  std::size_t move = 0, work = 0;
  for (int t = 0; t < pass.ticks; ++t) {
    TickTransfers*& started = shared_->started[kinds.group_of(t)];
    if (started == nullptr || varies) {
      for (; move < kinds.end_of(t); ++move) post(move);
      started = &sum.exchange(shared_->exchanges[kinds.group_of(t)]);
    }
    move = kinds.end_of(t);
    for (; work < pass.work.size() && pass.work[work].tick == t; ++work) {
      const schedule::ComputeOp& w = pass.work[work];
      Estimate time = work_times.of(w, context.split->distinct_of(w.chunk, w.part), context.q_row);
      if (w.operation->has_pairs && w.offsets.begin != 0) time.seconds += expanded_s;
      if (w.list > 0 && time.seconds > 0)
        sum.enter(times.of_list(w, context.split->distinct_of(w.chunk, w.part), context.largest_block()),
                  share_awaited(w, plan.mesh));
      sum.work(time);
      sum.complete(share_completed(w, plan.mesh));
    }
    sum.tick(t, *started, ticks, !options_.overlap);
  }
  return sum.finish();
}

std::string AttentionPricer::too_much_work(const AttentionPlan& plan, const Placement& placement) const {
  return usp::too_much_work(
      effort_of(plan, documents_->count(), links_.sources_followed(plan.mesh, placement)), plan);
}

void AttentionPricer::lay_out(const AttentionPlan& plan, bool shared_kv, schedule::Binds binds) {
  const schedule::ScheduleKey key = schedule::schedule_key(plan, shared_kv);
  if (key == schedule_key_ && (has_binds_ || binds == schedule::Binds::without)) return;
  schedule::generate(plan, shared_kv, schedule_, binds);
  for (const Pass pass : {Pass::forward, Pass::backward})
    shared_->kinds[static_cast<std::size_t>(pass)].number(schedule_.of(pass), plan.mesh);
  schedule_key_ = key;
  has_binds_ = binds == schedule::Binds::with;
}

const schedule::CompactSchedule& AttentionPricer::schedule(const AttentionPlan& plan) {
  lay_out(plan, context_of(plan, Placement{}).split->heads.shared_kv(), schedule::Binds::with);
  return schedule_;
}

AttentionPrice AttentionPricer::price(const AttentionPlan& plan, const Placement& placement,
                                      std::vector<TickPrice>* forward_ticks,
                                      std::vector<TickPrice>* backward_ticks) {
  if (const std::string reason = too_much_work(plan, placement); !reason.empty())
    throw Infeasible(reason, {});
  Context context = context_of(plan, placement);
  for (const Pass pass : {Pass::forward, Pass::backward})
    context.computes[static_cast<std::size_t>(pass)] = computing_backend(plan, pass, context.split->heads);
  lay_out(plan, context.split->heads.shared_kv(), schedule::Binds::without);
  AttentionPrice price;
  price.forward = price_pass(context, Pass::forward, forward_ticks);
  price.backward = price_pass(context, Pass::backward, backward_ticks);
  return price;
}

double AttentionPricer::visible_pairs(const AttentionPlan& plan) {
  return context_of(plan, Placement{}).profile->total_area();
}

}  // namespace usp
