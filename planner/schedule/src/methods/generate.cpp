// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/generate.hpp"

#include "usp/schedule/gate_phases.hpp"

#include <utility>

namespace usp::schedule {
namespace {

RingOffsets offsets(int begin, int end) {
  return {static_cast<std::int16_t>(begin), static_cast<std::int16_t>(end)};
}

/// The schedule of one plan, tick by tick. Chunk c attends unit k in tick c * units + k + 1; where steps
/// await their blocks themselves, all units in tick c + 1.
class Generator {
 public:
  /// Reads nothing but the key.
  Generator(const ScheduleKey& key, CompactSchedule& out, Binds binds)
      : key_(key),
        mesh_{key.ring_outer, key.ring_inner, 1},
        binds_(binds == Binds::with),
        stages_(out.stages),
        forward_(out.forward),
        backward_(out.backward) {
    out.stages.assign(key.method, mesh_, key.dkv_return);
    ring_ = mesh_.ring();
    units_ = stages_.size();
    chunk_ticks_ = key.gated ? 1 : units_;
    replicated_q_ = key.replicated_q;
    replicated_k_ = key.replicated_k;
    exchanged_ = key.exchanged;
    shared_kv_ = key.shared_kv;
    in_place_ = key.direct && !exchanged_;
  }

  void forward() {
    pass_ = &forward_;
    pass_->clear();
    pass_->ticks = key_.head_chunks * chunk_ticks_ + 2;
    if (binds_) bind_outputs();
    for (int c = 0; c < key_.head_chunks; ++c) {
      entry(c);
      for (int k = 0; k < units_; ++k) {
        route(c, k);
        attend(operations::attend, c, k, BufferSlot::row);
      }
      if (!in_place_) exit(c, Tensor::o, Wire::io);
      if (key_.return_lse) exit(c, Tensor::lse, Wire::accumulator);
    }
    finish();
  }

  void backward() {
    pass_ = &backward_;
    pass_->clear();
    homing_ = units_ > 1 || key_.dkv_return == DkvReturn::cycle ? 1 : 0;
    split_ = key_.split_own_block;
    pass_->ticks = key_.head_chunks * chunk_ticks_ + 2 + homing_;
    if (binds_) bind_gradients();
    for (int c = 0; c < key_.head_chunks; ++c) {
      enter_d_o(c);
      if (!key_.save_exchanged_qkv) entry(c);
      if (key_.delta) {
        pass_->work.push_back(work(operations::delta, c, 0, BufferSlot::row));
        pass_->work.back().offsets = {};
      }
      for (int k = 0; k < units_; ++k) {
        route(c, k);
        const BufferSlot accumulator = accumulator_place(c, k);
        const bool away = accumulator != result_place();
        if (binds_ && away) bind_accumulator(c, k, accumulator);
        attend(operations::attend_grad, c, k, accumulator);
        if (away) return_dkv(c, k, accumulator);
      }
      if (splits(c)) split_own_block(c);
      if (!in_place_) leave_gradients(c);
    }
    finish();
  }

 private:
  [[nodiscard]] int tick_of(int chunk, int unit) const {
    return chunk * chunk_ticks_ + (key_.gated ? 0 : unit) + 1;
  }

  [[nodiscard]] const Stage& stage(int k) const { return stages_[k]; }

  [[nodiscard]] BufferSlot row_or_home() const { return exchanged_ ? BufferSlot::row : BufferSlot::home; }
  [[nodiscard]] BufferSlot kv_place(int k) const { return k == 0 ? row_or_home() : stage(k).slot; }
  [[nodiscard]] BufferSlot d_o_place() const {
    return exchanged_ || replicated_q_ ? BufferSlot::row : BufferSlot::home;
  }
  /// Where o, dq and the own block's dk and dv are computed.
  [[nodiscard]] BufferSlot result_place() const { return in_place_ ? BufferSlot::home : BufferSlot::row; }
  /// Where unit k's dK/dV is summed; two buffers alternate over the whole pass, not within a chunk.
  [[nodiscard]] BufferSlot accumulator_place(int c, int k) const {
    if (k == 0 && key_.dkv_return != DkvReturn::cycle) return result_place();
    if (stage(k).outer_partial) {
      const int number = c * stages_.outer_partials() + stages_.outer_number(k);
      return number % 2 == 0 ? BufferSlot::acc_outer0 : BufferSlot::acc_outer1;
    }
    return tick_of(c, k) % 2 == 1 ? BufferSlot::acc0 : BufferSlot::acc1;
  }

  [[nodiscard]] static TokenSelect row(Side of, Endpoint at = Endpoint::target) {
    TokenSelect select;
    select.of = of;
    select.at = at;
    return select;
  }
  [[nodiscard]] static TokenSelect home(Side of, Endpoint at, TokenFilter copies) {
    TokenSelect select = row(of, at);
    select.block = Block::home;
    select.copies = copies;
    return select;
  }
  /// Key tokens of the row `back` from one end's row.
  [[nodiscard]] TokenSelect block_behind(int delta, Endpoint at, RingOffsets needed) const {
    TokenSelect select = row(Side::k, at);
    select.shift = Mesh::back(mesh_.shift_of(delta));
    select.needed = needed;
    return select;
  }
  [[nodiscard]] TokenSelect replicated(TokenSelect select) const {
    select.copies = TokenFilter::replicated;
    return select;
  }
  [[nodiscard]] static TokenSelect partitioned(TokenSelect select) {
    select.copies = TokenFilter::partitioned;
    return select;
  }
  [[nodiscard]] static HeadSelect heads(HeadKind kind, Endpoint at = Endpoint::target, int chunk = -1) {
    return {kind, at, static_cast<std::int16_t>(chunk)};
  }
  [[nodiscard]] RingOffsets everyone() const { return offsets(0, ring_); }

  BufferBinding& bind(int tick, BufferName buffer, const TokenSelect& tokens, HeadSelect select, Fill fill) {
    BufferBinding entry;
    entry.buffer = buffer;
    entry.fill = fill;
    entry.tick = tick;
    entry.tokens = tokens;
    entry.heads = select;
    return pass_->binds.emplace_back(entry);
  }
  void bind_home(Tensor tensor, Side of, Fill fill) {
    const HeadKind kind = of == Side::q ? HeadKind::all_query : HeadKind::all_kv;
    bind(0, {tensor, BufferSlot::home}, home(of, Endpoint::target, TokenFilter::all), heads(kind), fill)
        .with_replicated = true;
  }
  /// The own block's step writes its dk and dv first, and whole.
  [[nodiscard]] bool begins_dkv() const {
    return key_.head_chunks == 1 && !split_ && !key_.direct && key_.dkv_return != DkvReturn::cycle;
  }
  /// What a result begins with, where it is not written at once.
  [[nodiscard]] Fill begin(Fill fill) const { return key_.direct ? Fill::nan : fill; }
  void bind_entry() {
    if (!exchanged_) return;
    bind(0, {Tensor::q, BufferSlot::row}, row(Side::q), heads(HeadKind::query), Fill::nan);
    for (Tensor x : {Tensor::k, Tensor::v})
      bind(0, {x, BufferSlot::row}, row(Side::k), heads(HeadKind::kv), Fill::nan);
  }
  void bind_outputs() {
    bind_entry();
    if (!in_place_) bind(0, {Tensor::o, BufferSlot::row}, row(Side::q), heads(HeadKind::query), Fill::nan);
    bind(0, {Tensor::lse, BufferSlot::row}, row(Side::q), heads(HeadKind::query), Fill::nan);
    bind_home(Tensor::o, Side::q, Fill::nan);
    if (key_.return_lse) bind_home(Tensor::lse, Side::q, Fill::nan);
  }
  void bind_gradients() {
    if (d_o_place() == BufferSlot::row)
      bind(0, {Tensor::d_o, BufferSlot::row}, row(Side::q), heads(HeadKind::query), Fill::zero);
    if (!key_.save_exchanged_qkv) bind_entry();
    if (key_.delta)
      bind(0, {Tensor::delta, BufferSlot::row}, row(Side::q), heads(HeadKind::query), Fill::nan);
    if (!in_place_)
      bind(0, {Tensor::dq, BufferSlot::row}, row(Side::q), heads(HeadKind::query), begin(Fill::zero));
    for (Tensor x : {Tensor::dk, Tensor::dv}) {
      if (!in_place_)
        bind(0, {x, BufferSlot::row}, row(Side::k), heads(HeadKind::kv),
             begins_dkv() ? Fill::nan : begin(Fill::zero));
      bind_home(x, Side::k, shared_kv_ ? Fill::zero : begin(Fill::zero));  // several contributors add up
    }
    bind_home(Tensor::dq, Side::q, begin(Fill::zero));
  }

  TransferOp& move(TransferName name, int start, Peers peers, const TokenSelect& tokens, HeadSelect select) {
    TransferOp entry;
    entry.name = name;
    entry.start = entry.due = start;
    entry.peers = peers;
    entry.tokens = tokens;
    entry.heads = select;
    return pass_->transfers.emplace_back(entry);
  }
  static void carry(TransferOp& m, Tensor tensor, BufferSlot from, BufferSlot to) {
    m.pairs = 1;
    m.from[0] = {tensor, from};
    m.to[0] = {tensor, to};
  }
  static void carry_two(TransferOp& m, Tensor a, Tensor b, BufferSlot from, BufferSlot to) {
    carry(m, a, from, to);
    m.pairs = 2;
    m.from[1] = {b, from};
    m.to[1] = {b, to};
  }

  void entry(int c) {
    if (!exchanged_) return;
    const int t = tick_of(c, 0) - 1;
    carry(move(TransferName::qkv_all_to_all, t, Peers::every_ulysses,
               home(Side::q, Endpoint::source, TokenFilter::partitioned),
               heads(HeadKind::query, Endpoint::target, c)),
          Tensor::q, BufferSlot::home, BufferSlot::row);
    if (replicated_q_)
      carry(move(TransferName::qkv_all_to_all, t, Peers::self, replicated(row(Side::q)),
                 heads(HeadKind::query, Endpoint::target, c)),
            Tensor::q, BufferSlot::home, BufferSlot::row);
    TokenSelect keys = home(Side::k, Endpoint::source, TokenFilter::partitioned);
    keys.needed = everyone();
    carry_two(move(TransferName::qkv_all_to_all, t, Peers::every_ulysses, keys,
                   heads(HeadKind::kv_new, Endpoint::target, c)),
              Tensor::k, Tensor::v, BufferSlot::home, BufferSlot::row);
    if (!replicated_k_) return;
    TokenSelect copies = replicated(row(Side::k));
    copies.needed = everyone();
    carry_two(move(TransferName::qkv_all_to_all, t, Peers::self, copies,
                   heads(HeadKind::kv_new, Endpoint::target, c)),
              Tensor::k, Tensor::v, BufferSlot::home, BufferSlot::row);
  }

  void bind_block(int c, int k, int start) {
    const Stage& u = stage(k);
    for (Tensor x : {Tensor::k, Tensor::v}) {
      BufferBinding& b =
          bind(start, {x, u.slot}, block_behind(u.offsets.begin, Endpoint::target, stages_.fed_by(k)),
               heads(HeadKind::kv, Endpoint::target, c), Fill::nan);
      hold_several(b, u);
    }
  }
  void hold_several(BufferBinding& b, const Stage& u) const {
    if (u.offsets.count() == 1) return;
    b.blocks = u.offsets;
    b.apart = key_.gated;
  }

  /// Brings the blocks of unit k to this rank: due just before they are attended, or awaited by those steps.
  void route(int c, int k) {
    if (k == 0) return;
    const Stage& u = stage(k);
    const bool several = u.offsets.count() > 1;
    const int start = tick_of(c, u.fetched_with), due = tick_of(c, k) - (key_.gated ? 0 : 1);
    if (binds_) bind_block(c, k, start);
    TokenSelect tokens = row(Side::k, Endpoint::source);
    if (several)
      tokens.needed_by = Endpoint::target;
    else
      tokens = block_behind(u.offsets.begin, Endpoint::target, stages_.fed_by(k));
    TransferOp& m = move(TransferName::kv_exchange, start, several ? Peers::every_ring : Peers::shift,
                         partitioned(tokens), heads(HeadKind::kv, Endpoint::target, c));
    m.due = due;
    m.gated = key_.gated;
    carry_two(m, Tensor::k, Tensor::v, kv_place(u.parent), u.slot);
    if (!several)
      m.shift = Mesh::between(mesh_.shift_of(stage(u.parent).offsets.begin), mesh_.shift_of(u.offsets.begin));
    if (!replicated_k_) return;
    for (int d = u.offsets.begin; d < u.offsets.end; ++d) {
      TransferOp& copy = move(TransferName::kv_exchange, start, Peers::self,
                              replicated(block_behind(d, Endpoint::target, offsets(d, d + 1))),
                              heads(HeadKind::kv, Endpoint::target, c));
      copy.due = due;
      copy.gated = key_.gated;
      carry_two(copy, Tensor::k, Tensor::v, BufferSlot::home, u.slot);
    }
  }

  [[nodiscard]] ComputeOp work(const Operation& operation, int c, int k, BufferSlot dkv) const {
    ComputeOp w;
    w.operation = &operation;
    w.q = row_or_home();
    w.kv = kv_place(k);
    w.d_o = d_o_place();
    w.dq = result_place();
    w.o = &operation == &operations::attend ? result_place() : row_or_home();
    // The own block comes first: forward's state begins there.
    w.overwrite =
        &operation == &operations::attend ? k == 0 : key_.direct && &operation == &operations::attend_grad;
    w.dkv = dkv;
    w.chunk = static_cast<std::int16_t>(c);
    w.tick = tick_of(c, k);
    w.offsets = stage(k).offsets;
    return w;
  }
  void attend(const Operation& operation, int c, int k, BufferSlot dkv) {
    ComputeOp w = work(operation, c, k, dkv);
    // Partials are summed in buffers of their own, which begin with this step.
    if (&operation == &operations::attend_grad)
      w.overwrite_dkv = dkv != result_place() || (k == 0 && begins_dkv());
    if (&operation == &operations::attend_grad && k == 0 && splits(c)) w.part = HeadPart::first_half;
    if (!key_.gated) {
      pass_->work.push_back(w);
      return;
    }
    const int phases = &operation == &operations::attend ? key_.gate_phases : 1;
    const RingOffsets blocks = w.offsets;
    int end = blocks_through_phase(ring_, phases, 0);
    w.list = 1;
    for (int d = blocks.begin; d < blocks.end; ++d) {
      while (d >= end) end = blocks_through_phase(ring_, phases, w.list++);
      w.offsets = offsets(d, d + 1);
      pass_->work.push_back(w);
    }
  }
  /// Nothing but the last chunk's partials would travel in the last tick.
  [[nodiscard]] bool splits(int c) const { return split_ && c == key_.head_chunks - 1; }
  void split_own_block(int c) {
    ComputeOp half = work(operations::attend_grad, c, 0, accumulator_place(c, 0));
    half.part = HeadPart::second_half;
    half.tick = tick_of(c, units_ - 1) + homing_;
    pass_->work.push_back(half);
  }

  void exit(int c, Tensor tensor, Wire wire) {
    const int t = tick_of(c, units_ - 1) + 1;
    const auto leave = [&](Peers peers, const TokenSelect& tokens) {
      TransferOp& m =
          move(TransferName::out_all_to_all, t, peers, tokens, heads(HeadKind::query, Endpoint::source, c));
      m.wire = wire;
      carry(m, tensor, BufferSlot::row, BufferSlot::home);
    };
    leave(Peers::every_ulysses, home(Side::q, Endpoint::target, TokenFilter::partitioned));
    if (replicated_q_) leave(Peers::all_ranks, replicated(row(Side::q, Endpoint::source)));
  }

  /// The forward exit, mirrored: dO enters row layout. Every copy of a replicated token has a dO of its own;
  /// they add up.
  void enter_d_o(int c) {
    if (d_o_place() == BufferSlot::home) return;
    const int t = tick_of(c, 0) - 1;
    TransferOp& own = move(TransferName::dout_all_to_all, t, Peers::every_ulysses,
                           home(Side::q, Endpoint::source, TokenFilter::partitioned),
                           heads(HeadKind::query, Endpoint::target, c));
    own.write_mode = WriteMode::accumulate;
    carry(own, Tensor::d_o, BufferSlot::home, BufferSlot::row);
    if (!replicated_q_) return;
    TransferOp& copies = move(TransferName::dout_all_to_all, t, Peers::all_ranks, replicated(row(Side::q)),
                              heads(HeadKind::query, Endpoint::target, c));
    copies.write_mode = WriteMode::accumulate;
    carry(copies, Tensor::d_o, BufferSlot::home, BufferSlot::row);
  }

  void bind_accumulator(int c, int k, BufferSlot place) {
    const Stage& u = stage(k);
    for (Tensor x : {Tensor::dk, Tensor::dv}) {
      BufferBinding& b =
          bind(tick_of(c, k), {x, place}, block_behind(u.offsets.begin, Endpoint::target, stages_.summed(k)),
               heads(HeadKind::kv, Endpoint::target, c), Fill::nan);
      b.tokens.also = stages_.onward(k);
      hold_several(b, u);
    }
  }

  TransferOp& partial(TransferName name, int start, Peers peers, const TokenSelect& tokens, int c) {
    TransferOp& m = move(name, start, peers, tokens, heads(HeadKind::kv, Endpoint::source, c));
    m.write_mode = WriteMode::accumulate;
    m.wire = Wire::accumulator;
    m.early = key_.gated && peers != Peers::self;
    return m;
  }

  /// A partial dK/dV computed in tick t can leave in tick t + 1: on along the ring for tokens that a
  /// later rank still adds to, home for the others.
  void return_dkv(int c, int k, BufferSlot place) {
    const Stage& u = stage(k);
    const int t = tick_of(c, k) + 1;
    const RingShift here = mesh_.shift_of(u.offsets.begin);
    RingOffsets later;
    if (stages_.travels(k)) {
      later = stages_.onward(k + 1);
      TokenSelect tokens = partitioned(block_behind(u.offsets.begin, Endpoint::source, stages_.summed(k)));
      tokens.also = later;
      TransferOp& m = partial(TransferName::dkv_ring, t, Peers::shift, tokens, c);
      m.shift = Mesh::between(here, mesh_.shift_of(stage(k + 1).offsets.begin));
      carry_two(m, Tensor::dk, Tensor::dv, place, accumulator_place(c, k + 1));
    }
    if (u.offsets.count() > 1) {
      TokenSelect tokens = partitioned(row(Side::k, Endpoint::target));
      tokens.needed_by = Endpoint::source;
      carry_two(partial(TransferName::dkv_return, t, Peers::every_ring, tokens, c), Tensor::dk, Tensor::dv,
                place, BufferSlot::row);
    } else if (key_.prune || !later.any()) {
      TokenSelect tokens = partitioned(block_behind(u.offsets.begin, Endpoint::source, u.offsets));
      tokens.not_needed = later;
      TransferOp& m = partial(TransferName::dkv_return, t, Peers::shift, tokens, c);
      m.shift = Mesh::back(here);
      m.due = t - 1 + u.home_ticks;
      carry_two(m, Tensor::dk, Tensor::dv, place, BufferSlot::row);
    }
    if (!replicated_k_) return;
    for (int d = u.offsets.begin; d < u.offsets.end; ++d)
      carry_two(partial(TransferName::dkv_return, t, Peers::self,
                        replicated(block_behind(d, Endpoint::source, offsets(d, d + 1))), c),
                Tensor::dk, Tensor::dv, place, BufferSlot::home);
  }

  /// The forward entry, mirrored: dQ, dK and dV leave row layout.
  void leave_gradients(int c) {
    const int t = tick_of(c, units_ - 1) + 1, of_q = splits(c) ? t + homing_ : t;
    const auto leave = [&](int start, Peers peers, const TokenSelect& tokens, HeadKind kind) -> TransferOp& {
      TransferOp& m =
          move(TransferName::dqkv_all_to_all, start, peers, tokens, heads(kind, Endpoint::source, c));
      const bool alone = kind == HeadKind::query || !shared_kv_;  // one contributor per token and head
      m.write_mode = key_.direct && alone ? WriteMode::overwrite : WriteMode::accumulate;
      return m;
    };
    carry(leave(of_q, Peers::every_ulysses, home(Side::q, Endpoint::target, TokenFilter::partitioned),
                HeadKind::query),
          Tensor::dq, BufferSlot::row, BufferSlot::home);
    if (replicated_q_)
      carry(leave(of_q, Peers::self, replicated(row(Side::q, Endpoint::source)), HeadKind::query), Tensor::dq,
            BufferSlot::row, BufferSlot::home);
    TokenSelect keys = home(Side::k, Endpoint::target, TokenFilter::partitioned);
    if (!key_.direct) keys.needed = everyone();
    TransferOp& kv = leave(t + homing_, Peers::every_ulysses, keys, HeadKind::kv_last);
    if (shared_kv_) kv.wire = Wire::accumulator;
    carry_two(kv, Tensor::dk, Tensor::dv, BufferSlot::row, BufferSlot::home);
    if (!replicated_k_) return;
    TokenSelect copies = replicated(row(Side::k, Endpoint::source));
    copies.needed = everyone();
    carry_two(leave(t + homing_, Peers::self, copies, HeadKind::kv_last), Tensor::dk, Tensor::dv,
              BufferSlot::row, BufferSlot::home);
  }

  /// Puts the lists in order of tick. They are nearly so: insertion moves an entry by a few places.
  void finish() {
    const auto settle = [](auto& list, auto key) {
      for (std::size_t i = 1; i < list.size(); ++i)
        for (std::size_t j = i; j > 0 && key(list[j]) < key(list[j - 1]); --j)
          std::swap(list[j], list[j - 1]);
    };
    settle(pass_->binds, [](const BufferBinding& b) { return b.tick; });
    settle(pass_->transfers, [](const TransferOp& m) { return m.start; });
    settle(pass_->work, [](const ComputeOp& w) { return w.tick; });
  }

  const ScheduleKey& key_;
  const Mesh mesh_;
  const bool binds_;
  const StageGraph& stages_;
  CompactPass& forward_;
  CompactPass& backward_;
  CompactPass* pass_ = nullptr;
  int ring_ = 1;
  int units_ = 1;
  int chunk_ticks_ = 1;  ///< in which a head chunk is attended
  int homing_ = 0;
  bool split_ = false;
  bool exchanged_ = false;  ///< row layout differs from home layout
  bool replicated_q_ = false;
  bool replicated_k_ = false;
  bool shared_kv_ = false;
  bool in_place_ = false;  ///< results are computed in the caller's tensors
};

}  // namespace

void generate(const AttentionPlan& plan, bool shared_kv, CompactSchedule& out, Binds binds) {
  const ScheduleKey key = schedule_key(plan, shared_kv);
  Generator generator(key, out, binds);
  generator.forward();
  generator.backward();
}

}  // namespace usp::schedule
