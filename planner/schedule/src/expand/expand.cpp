// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/expand.hpp"

#include "choose_backend.hpp"
#include "join_slices.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/generate.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace usp::schedule {

namespace {

class Expander {
 public:
  Expander(const TokenMap& geometry, const CompactSchedule& compact, int rank, Pass pass, PeerReach reach)
      : geometry_(geometry), plan_(geometry.plan()), compact_(compact.of(pass)), rank_(rank), reach_(reach) {
    out_.rank = rank;
    out_.pass = pass;
    out_.backend = plan_.backend;
    for (auto& row : held_) row.fill(-1);
    bind_inputs(compact);
  }

  RankSchedule run() {
    out_.ticks.resize(static_cast<std::size_t>(compact_.ticks));
    std::size_t bind = 0, move = 0, work = 0;
    for (int t = 0; t < compact_.ticks; ++t) {
      Tick& tick = out_.ticks[static_cast<std::size_t>(t)];
      for (; bind < compact_.binds.size() && compact_.binds[bind].tick == t; ++bind)
        hold(compact_.binds[bind], t);
      tick.posts.begin = size(out_.transfers);
      for (; move < compact_.transfers.size() && compact_.transfers[move].start == t; ++move)
        post(static_cast<int>(move));
      tick.posts.count = size(out_.transfers) - tick.posts.begin;
      tick.steps.begin = size(out_.steps);
      for (; work < compact_.work.size() && compact_.work[work].tick == t; ++work)
        compute(compact_.work[work], t);
      tick.steps.count = size(out_.steps) - tick.steps.begin;
    }
    list_arrivals();
    keep_results();
    keep_landed();
    return std::move(out_);
  }

 private:
  template <class T>
  [[nodiscard]] static std::int32_t size(const std::vector<T>& list) {
    return static_cast<std::int32_t>(list.size());
  }
  [[nodiscard]] BufferId& held(BufferName name) {
    return held_[static_cast<std::size_t>(name.tensor)][static_cast<std::size_t>(name.place)];
  }
  [[nodiscard]] BufferId current(BufferName name) {
    const BufferId id = held(name);
    expects(id >= 0, "a schedule uses a buffer that it never bound");
    return id;
  }
  [[nodiscard]] Buffer& buffer(BufferId id) { return out_.buffers[static_cast<std::size_t>(id)]; }
  void use(BufferId id, int tick) { buffer(id).last = std::max(buffer(id).last, tick); }

  /// What exists before the pass: the caller's tensors and what forward left for backward.
  void bind_inputs(const CompactSchedule& compact) {
    const auto input = [&](Tensor tensor, Side of) {
      BufferBinding home;
      home.buffer = {tensor, BufferSlot::home};
      home.with_replicated = true;
      home.tokens.block = Block::home;
      home.tokens.of = of;
      home.heads.kind = of == Side::q ? HeadKind::all_query : HeadKind::all_kv;
      hold(home, -1);
    };
    input(Tensor::q, Side::q);
    input(Tensor::k, Side::k);
    input(Tensor::v, Side::k);
    if (out_.pass == Pass::forward) return;
    input(Tensor::d_o, Side::q);
    if (!has_row_layout(plan_)) input(Tensor::o, Side::q);
    for (const BufferBinding& bind : compact.forward.binds)
      if (bind.buffer.place != BufferSlot::home && outlives_pass(bind.buffer)) hold(bind, -1);
  }

  void hold(const BufferBinding& bind, int tick) {
    Buffer b;
    b.name = bind.buffer;
    b.fill = bind.fill;
    b.type = type_of(bind.buffer);
    b.heads = geometry_.heads_of(bind.heads, rank_, rank_);
    b.width = width_of(plan_.shape, bind.buffer.tensor);
    b.first = b.last = tick;
    b.pieces.begin = size(out_.pieces);
    if (bind.with_replicated) {
      for (const Selection& piece : geometry_.replicated_pieces(bind.tokens.of)) add_pieces(b, piece);
      TokenSelect own = bind.tokens;
      own.copies = TokenFilter::partitioned;
      geometry_.tokens_of(own, rank_, rank_, selection_);
      add_pieces(b, selection_);
    } else if (bind.blocks.any()) {
      add_blocks(b, bind);
    } else {
      geometry_.tokens_of(bind.tokens, rank_, rank_, selection_);
      add_pieces(b, selection_);
    }
    b.pieces.count = size(out_.pieces) - b.pieces.begin;
    std::sort(out_.pieces.begin() + b.pieces.begin, out_.pieces.end(), before);
    out_.buffers.push_back(b);
    held(bind.buffer) = size(out_.buffers) - 1;
  }
  [[nodiscard]] static bool before(const Piece& a, const Piece& b) {
    return a.ring_row != b.ring_row ? a.ring_row < b.ring_row : a.slots.begin < b.slots.begin;
  }
  /// Several blocks, apart or as one: then their runs of tokens in ascending order, so that neighbours in the
  /// sequence are neighbours in memory and a kernel meets few long blocks.
  void add_blocks(Buffer& b, const BufferBinding& bind) {
    std::vector<std::pair<i64, Piece>> runs;  // by first token
    for (int d = bind.blocks.begin; d < bind.blocks.end; ++d) {
      TokenSelect block = bind.tokens;
      block.shift = Mesh::back(plan_.mesh.shift_of(d));
      block.needed = {static_cast<std::int16_t>(d), static_cast<std::int16_t>(d + 1)};
      geometry_.tokens_of(block, rank_, rank_, selection_);
      if (bind.apart) {
        add_pieces(b, selection_);
        continue;
      }
      const SequenceLayout& layout = geometry_.layout(block.of);
      for (const Range& slots : selection_.slots)
        for (const Run& run : layout.tokens_of(selection_.ring_row, slots)) {
          const i64 slot = slots.begin + run.slot;
          runs.push_back({run.first, {selection_.ring_row, {slot, slot + run.count}, 0}});
        }
    }
    std::sort(runs.begin(), runs.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    for (auto& [token, piece] : runs) {
      piece.row = b.rows;
      b.rows += piece.slots.size();
      out_.pieces.push_back(piece);
    }
  }
  void add_pieces(Buffer& b, const Selection& tokens) {
    for (const Range& slots : tokens.slots) {
      out_.pieces.push_back({tokens.ring_row, slots, b.rows});
      b.rows += slots.size();
    }
  }

  /// Calls each(part of `slots`, its first row in the buffer) for the pieces that hold the slots of a ring
  /// row.
  template <class Each>
  void locate(BufferId id, int ring_row, Range slots, const Each& each) {
    const ListRef pieces = buffer(id).pieces;
    const auto begin = out_.pieces.begin() + pieces.begin, end = begin + pieces.count;
    auto at = std::upper_bound(begin, end, Piece{ring_row, slots, 0}, before);
    if (at != begin) --at;
    while (!slots.empty()) {
      expects(at != end && at->ring_row == ring_row && at->slots.begin <= slots.begin &&
                  slots.begin < at->slots.end,
              "a schedule names a token that its buffer does not hold");
      const Range part{slots.begin, std::min(slots.end, at->slots.end)};
      each(part, at->row + part.begin - at->slots.begin);
      slots.begin = part.end;
      ++at;
    }
  }

  void post(int index) {
    const TransferOp& move = compact_.transfers[static_cast<std::size_t>(index)];
    geometry_.targets(move, rank_, peers_);
    if (move.gated) sort_by_distance(1);
    for (int peer : peers_) message(move, index, peer, true);
    geometry_.sources(move, rank_, peers_);
    if (move.gated) sort_by_distance(-1);
    for (int peer : peers_) message(move, index, peer, false);
  }
  /// Along the ring, forwards or backwards.
  void sort_by_distance(int direction) {
    const int ring = plan_.mesh.ring(), here = plan_.mesh.ring_of(rank_);
    const auto distance = [&](int peer) {
      return (direction * (plan_.mesh.ring_of(peer) - here) + ring) % ring;
    };
    std::stable_sort(peers_.begin(), peers_.end(), [&](int a, int b) { return distance(a) < distance(b); });
  }

  void message(const TransferOp& move, int index, int peer, bool send) {
    const int source = send ? rank_ : peer, target = send ? peer : rank_;
    const Range heads = geometry_.heads_of(move.heads, source, target);
    if (heads.empty()) return;
    geometry_.tokens_of(move.tokens, source, target, selection_);
    if (selection_.slots.empty()) return;
    Transfer t;
    t.peer = peer;
    t.send = send;
    t.write_mode = move.write_mode;
    t.wire = wire_type(plan_, move.wire);
    t.move = index;
    t.start = move.start;
    t.due = move.due;
    t.gated = move.gated;
    t.early = move.early;
    t.regions.begin = size(out_.regions);
    for (int i = 0; i < move.pairs; ++i) {
      const BufferId id = current(send ? move.from[i] : move.to[i]);
      expects(buffer(id).heads.begin <= heads.begin && heads.end <= buffer(id).heads.end,
              "a schedule names a head that its buffer does not hold");
      use(id, move.due);
      if (!send) land(id, move.due + 1);
      for (const Range& slots : selection_.slots)
        locate(id, selection_.ring_row, slots, [&](Range part, i64 row) {
          add_region(t, {id, {row, row + part.size()}, heads});
        });
    }
    t.regions.count = size(out_.regions) - t.regions.begin;
    if (send && t.early) t.follows = step_before(t);
    if (peer != rank_) {
      t.bytes = total(selection_.slots) * heads.size() * wire_bytes_per_row_head(plan_, move);
      const Route route = route_of(move, t.wire);
      t.push = route.push;
      if (send ? route.packs : route.unpacks) t.stage = stage(t, move);
    }
    out_.transfers.push_back(t);
  }
  /// The step of the tick before a send's start that alone computes all that it carries; -1: none does.
  [[nodiscard]] std::int32_t step_before(const Transfer& t) const {
    const ListRef steps = out_.ticks[static_cast<std::size_t>(t.start - 1)].steps;
    for (std::int32_t i = steps.begin; i < steps.begin + steps.count; ++i) {
      const Step& step = out_.steps[static_cast<std::size_t>(i)];
      const auto computes = [&](const BufferRegion& region) {
        return (region.buffer == step[Tensor::dk] || region.buffer == step[Tensor::dv]) &&
               step.dk_rows.begin <= region.rows.begin && region.rows.end <= step.dk_rows.end;
      };
      const auto regions = out_.regions.begin() + t.regions.begin;
      if (std::all_of(regions, regions + t.regions.count, computes)) return i;
    }
    return -1;
  }
  struct Route {
    bool packs = false;    ///< the sender has a stage
    bool unpacks = false;  ///< the receiver has one
    bool push = false;
  };
  /// Follows from the plan, so that both ends find the same.
  [[nodiscard]] Route route_of(const TransferOp& move, DType wire) const {
    Route route;
    route.unpacks = move.write_mode == WriteMode::accumulate;
    bool source_inside = true, target_inside = true;
    for (int i = 0; i < move.pairs; ++i) {
      route.packs = route.packs || type_of(move.from[i]) != wire;
      route.unpacks = route.unpacks || type_of(move.to[i]) != wire;
      source_inside = source_inside && (!outlives_pass(move.from[i]) || lands(move.from[i]));
      target_inside = target_inside && (!outlives_pass(move.to[i]) || lands(move.to[i]));
    }
    if (reach_ == PeerReach::all) return route;
    source_inside = source_inside || route.packs;
    expects(source_inside || target_inside || route.unpacks, "one end of an exchange lies in the workspace");
    route.push = !source_inside;
    return route;
  }
  [[nodiscard]] DType type_of(BufferName name) const {
    return buffer_type(plan_, geometry_.heads().shared_kv(), name);
  }
  /// The caller's tensors, and what forward leaves for backward.
  [[nodiscard]] bool outlives_pass(BufferName name) const {
    const Tensor x = name.tensor;
    return name.place == BufferSlot::home || saves_exchanged(name) ||
           (name.place == BufferSlot::row && (x == Tensor::lse || (x == Tensor::o && has_row_layout(plan_))));
  }
  [[nodiscard]] bool saves_exchanged(BufferName name) const {
    const Tensor x = name.tensor;
    return plan_.save_exchanged_qkv && name.place == BufferSlot::row &&
           (x == Tensor::q || x == Tensor::k || x == Tensor::v);
  }
  /// What other ranks write, or read as it is, lies in the workspace, which they reach, before it is kept for
  /// backward. Follows from the plan, also on a rank that exchanges nothing.
  [[nodiscard]] bool lands(BufferName name) const {
    if (reach_ == PeerReach::all || out_.pass == Pass::backward || !outlives_pass(name) ||
        name.place == BufferSlot::home)
      return false;
    const bool result = !saves_exchanged(name);
    return std::any_of(compact_.transfers.begin(), compact_.transfers.end(), [&](const TransferOp& move) {
      if (move.peers == Peers::self) return false;
      if (result && wire_type(plan_, move.wire) != type_of(name)) return false;
      const BufferName* const names = result ? move.from : move.to;
      return std::find(names, names + move.pairs, name) != names + move.pairs;
    });
  }
  void add_region(const Transfer& t, const BufferRegion& region) {
    if (size(out_.regions) > t.regions.begin) {
      BufferRegion& last = out_.regions.back();
      if (last.buffer == region.buffer && last.rows.end == region.rows.begin) {
        last.rows.end = region.rows.end;
        return;
      }
    }
    out_.regions.push_back(region);
  }
  BufferId stage(const Transfer& t, const TransferOp& move) {
    Buffer b;
    b.name = {(t.send ? move.from[0] : move.to[0]).tensor, BufferSlot::stage};
    b.type = t.wire;
    b.heads = {0, 1};
    b.rows = 1;
    b.width = t.bytes / usp::bytes_of(t.wire) / plan_.shape.batch;
    b.first = t.early ? t.start - 1 : t.start;
    b.last = t.due;
    out_.buffers.push_back(b);
    return size(out_.buffers) - 1;
  }

  void compute(const ComputeOp& w, int tick) {
    const int u = plan_.mesh.ulysses_of(rank_);
    const Operation& operation = *w.operation;
    Step step;
    step.operation = &operation;
    step.work = static_cast<std::int32_t>(&w - compact_.work.data());
    step.query_heads = geometry_.heads().query_of(u, w.chunk, w.part);
    if (step.query_heads.empty()) return;
    if (operation.has_pairs) {
      step.kv_heads = geometry_.heads().kv_of(u, w.chunk, w.part);
      step.key_rows = rows_of_block(w, Tensor::k);
      step.dk_rows = rows_of_block(w, operation.key_results);
      step.slices = collect_slices(w, step);
      step.overwrite = w.overwrite, step.overwrite_dkv = w.overwrite_dkv;
      if (step.slices.count == 0 && !w.overwrite) {
        if (w.overwrite_dkv && !step.dk_rows.empty())  // by nothing: what others add to, or receive, is zero
          for (const Tensor x : {Tensor::dk, Tensor::dv}) buffer(operand_of(w, x)).fill = Fill::zero;
        return;
      }
      step.backend = choose_backend(plan_, out_.pass, step.query_heads,
                                    out_.slices.data() + step.slices.begin, step.slices.count);
      if (w.list > 0) join_list(step, w.list, operand_of(w, Tensor::k), tick);
    }
    for (const Operand& operand : operation) {
      if (operand.wanted != nullptr && !operand.wanted(plan_)) continue;
      const BufferId id = current({operand.tensor, slot_of(operand, w)});
      step.buffers[static_cast<std::size_t>(operand.tensor)] = id;
      use(id, tick);
      if (operand.tensor == Tensor::o || operand.tensor == Tensor::lse) land(id, tick);
    }
    out_.steps.push_back(step);
    last_list_ = w.list;
  }
  /// Joins a step to the one before, where that is of the same list, and finds what brings its block.
  void join_list(Step& step, int list, BufferId keys, int tick) {
    const Tick& in = out_.ticks[static_cast<std::size_t>(tick)];
    if (list == last_list_ && size(out_.steps) > in.steps.begin) {
      const Step& last = out_.steps.back();
      step.joined = last.is(*step.operation) && last.query_heads == step.query_heads &&
                    last.kv_heads == step.kv_heads && last.backend.use == step.backend.use;
    }
    const auto brings_block = [&](const BufferRegion& region) {
      return region.buffer == keys && region.rows.begin < step.key_rows.end &&
             step.key_rows.begin < region.rows.end;
    };
    step.gates.begin = size(out_.gates);
    for (std::int32_t i = in.posts.begin; i < in.posts.begin + in.posts.count; ++i) {
      const Transfer& t = out_.transfers[static_cast<std::size_t>(i)];
      const auto regions = out_.regions.begin() + t.regions.begin;
      if (t.send || !t.gated || std::none_of(regions, regions + t.regions.count, brings_block)) continue;
      expects(t.due == tick && t.stage < 0, "a step awaits what lands in place in its tick");
      out_.gates.push_back(i);
    }
    step.gates.count = size(out_.gates) - step.gates.begin;
  }
  [[nodiscard]] static BufferSlot slot_of(const Operand& operand, const ComputeOp& w) {
    return operand.slot == nullptr ? BufferSlot::row : w.*operand.slot;
  }
  [[nodiscard]] BufferId operand_of(const ComputeOp& w, Tensor tensor) {
    for (const Operand& operand : *w.operation)
      if (operand.tensor == tensor) return current({tensor, slot_of(operand, w)});
    throw InternalError("an operation on pairs lacks an operand");
  }

  /// Rows of a buffer: all, or those of the one block of several that a step of a list attends to.
  [[nodiscard]] Range rows_of_block(const ComputeOp& w, Tensor tensor) {
    const Buffer& b = buffer(operand_of(w, tensor));
    if (w.list == 0 || w.offsets.begin == 0) return {0, b.rows};
    const int row =
        plan_.mesh.row_at(plan_.mesh.ring_of(rank_), Mesh::back(plan_.mesh.shift_of(w.offsets.begin)));
    const auto end = out_.pieces.begin() + b.pieces.begin + b.pieces.count;
    auto piece = std::lower_bound(out_.pieces.begin() + b.pieces.begin, end, Piece{row, {}, 0}, before);
    Range rows{b.rows, 0};
    i64 count = 0;
    for (; piece != end && piece->ring_row == row; ++piece) {
      rows = {std::min(rows.begin, piece->row), std::max(rows.end, piece->row + piece->slots.size())};
      count += piece->slots.size();
    }
    if (count == 0) return {};
    expects(rows.size() == count, "a block of a list lies in rows of its own");
    return rows;
  }

  /// Slices of the unit's blocks, from slots of the ring rows to rows of the step.
  ListRef collect_slices(const ComputeOp& w, const Step& step) {
    ListRef list{size(out_.slices), 0};
    const int r = plan_.mesh.ring_of(rank_);
    const auto& all = geometry_.slices_of_row(r);
    const BufferId q = operand_of(w, Tensor::q), k = operand_of(w, Tensor::k);
    const BufferId dk = operand_of(w, w.operation->key_results);
    for (int d = w.offsets.begin; d < w.offsets.end; ++d) {
      const int j = plan_.mesh.row_at(r, Mesh::back(plan_.mesh.shift_of(d)));
      auto at = std::lower_bound(all.begin(), all.end(), j,
                                 [](const RowSlice& s, int row) { return s.key_row < row; });
      for (; at != all.end() && at->key_row == j; ++at)
        place_slice(at->slice, {q, k, dk, r, j, step.key_rows.begin, step.dk_rows.begin});
    }
    if (w.offsets.count() > 1) join_slices(out_.slices, static_cast<std::size_t>(list.begin));
    list.count = size(out_.slices) - list.begin;
    return list;
  }
  struct SliceHome {
    BufferId q, k, dk;
    int query_row, key_row;
    i64 first_key, first_dk;  ///< rows of the buffers, from which the slice's count
  };
  void place_slice(const Slice& s, const SliceHome& home) {
    locate(home.q, home.query_row, {s.q_row, s.q_row + s.q_count}, [&](Range queries, i64 q_row) {
      locate(home.k, home.key_row, {s.k_row, s.k_row + s.k_count}, [&](Range keys, i64 k_row) {
        locate(home.dk, home.key_row, keys, [&](Range sums, i64 dk_row) {
          Slice part = s;
          part.q_pos += (queries.begin - s.q_row) * s.q_step;
          part.k_pos += (sums.begin - s.k_row) * s.k_step;
          part.q_row = q_row, part.q_count = queries.size();
          part.k_row = k_row + sums.begin - keys.begin - home.first_key, part.k_count = sums.size();
          part.dk_row = dk_row - home.first_dk;
          if (trim(part)) out_.slices.push_back(part);
        });
      });
    });
  }

  void list_arrivals() {
    std::vector<bool> at_end(out_.transfers.size());
    std::transform(out_.transfers.begin(), out_.transfers.end(), at_end.begin(),
                   [](const Transfer& t) { return !t.send; });
    for (const std::int32_t gate : out_.gates) at_end[static_cast<std::size_t>(gate)] = false;
    std::vector<std::int32_t> receives;
    for (std::int32_t i = 0; i < size(out_.transfers); ++i)
      if (at_end[static_cast<std::size_t>(i)]) receives.push_back(i);
    const auto due = [&](std::int32_t i) { return out_.transfers[static_cast<std::size_t>(i)].due; };
    std::stable_sort(receives.begin(), receives.end(),
                     [&](std::int32_t a, std::int32_t b) { return due(a) < due(b); });
    out_.arrivals = receives;
    for (std::int32_t i = 0; i < size(receives); ++i) {
      ListRef& list =
          out_.ticks[static_cast<std::size_t>(due(receives[static_cast<std::size_t>(i)]))].arrivals;
      if (list.count == 0) list.begin = i;
      ++list.count;
    }
  }

  void keep_results() {
    for (Buffer& b : out_.buffers)
      if (b.first >= 0 && outlives_pass(b.name)) b.last = compact_.ticks;
  }

  /// A buffer that lands is whole once the steps of `tick` have been enqueued.
  void land(BufferId id, int tick) {
    if (lands(buffer(id).name)) landed_[id] = std::max(landed_[id], tick);
  }
  /// What has landed stays in the workspace to the end of the pass, and a copy of it outlives the pass.
  void keep_landed() {
    for (const auto& [id, tick] : landed_) {
      expects(tick < compact_.ticks, "what forward exchanges is computed with");
      Buffer kept = buffer(id);
      kept.first = tick, kept.last = compact_.ticks;
      kept.fill = Fill::nan;
      buffer(id).last = compact_.ticks - 1;
      out_.buffers.push_back(kept);
      out_.keeps.push_back({id, size(out_.buffers) - 1, tick});
    }
    std::stable_sort(out_.keeps.begin(), out_.keeps.end(),
                     [](const Keep& a, const Keep& b) { return a.tick < b.tick; });
  }

  const TokenMap& geometry_;
  const AttentionPlan& plan_;
  const CompactPass& compact_;
  const int rank_;
  const PeerReach reach_;
  RankSchedule out_;
  int last_list_ = 0;                        ///< ComputeOp::list of the last step
  std::map<BufferId, std::int32_t> landed_;  ///< the tick in which it is whole
  std::array<std::array<BufferId, place_count>, tensor_count> held_{};
  Selection selection_;
  std::vector<int> peers_;
};

}  // namespace

RankSchedule expand(const TokenMap& geometry, const CompactSchedule& compact, int rank, Pass pass,
                    PeerReach reach) {
  return Expander(geometry, compact, rank, pass, reach).run();
}

}  // namespace usp::schedule
