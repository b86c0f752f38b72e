// SPDX-License-Identifier: Apache-2.0
#include "pricer_state.hpp"

#include "usp/base/error.hpp"

#include <array>

namespace usp {
namespace {

/// One buffer of a pass, as the compact form binds it.
struct Life {
  BufferName name;
  double bytes = 0;
  int first = 0;
  int last = 0;
  bool is_wide = false;  ///< of another type than the inputs
};

/// Follows which buffer a name means, tick by tick.
class Lives {
 public:
  Lives() {
    for (auto& row : current_) row.fill(-1);
  }
  void bind(BufferName name, double bytes, int tick, bool is_wide) {
    slot(name) = static_cast<int>(lives.size());
    lives.push_back({name, bytes, tick, tick, is_wide});
  }
  void use(BufferName name, int tick) {
    const int id = slot(name);
    if (id >= 0)
      lives[static_cast<std::size_t>(id)].last = std::max(lives[static_cast<std::size_t>(id)].last, tick);
  }
  std::vector<Life> lives;

 private:
  int& slot(BufferName name) {
    return current_[static_cast<std::size_t>(name.tensor)][static_cast<std::size_t>(name.place)];
  }
  std::array<std::array<int, place_count>, tensor_count> current_{};
};

bool outlives(const AttentionPlan& plan, Pass pass, BufferName name) {
  if (name.place == BufferSlot::home) return true;
  if (pass == Pass::backward || name.place != BufferSlot::row) return false;
  if (name.tensor == Tensor::o) return schedule::has_row_layout(plan);
  return name.tensor == Tensor::lse || plan.save_exchanged_qkv;
}

bool holds_others_kv(BufferSlot place) {
  return place == BufferSlot::ring0 || place == BufferSlot::ring1 || place == BufferSlot::outer0 ||
         place == BufferSlot::outer1 || place == BufferSlot::all;
}

i64 max_head_count(const Heads& heads, schedule::HeadSelect select) {
  if (select.kind == schedule::HeadKind::all_query) return heads.query();
  if (select.kind == schedule::HeadKind::all_kv) return heads.kv();
  const bool query = select.kind == schedule::HeadKind::query;
  i64 most = 0;
  for (int u = 0; u < heads.ulysses(); ++u) {
    const Range range = select.chunk >= 0
                            ? (query ? heads.query_of(u, select.chunk) : heads.kv_of(u, select.chunk))
                            : (query ? heads.query_of(u) : heads.kv_of(u));
    most = std::max(most, range.size());
  }
  return most;
}

void use_operands(Lives& lives, const schedule::ComputeOp& w, int tick) {
  for (const schedule::Operand& operand : *w.operation)
    lives.use({operand.tensor, operand.slot == nullptr ? BufferSlot::row : w.*operand.slot}, tick);
}

/// Sums of a tick.
struct TickBytes {
  double all = 0, kv_copies = 0, workspace = 0, workspace_kv_copies = 0;
};

/// Keeps the fullest ticks.
void add_tick(const TickBytes& tick, LiveBytes& peak) {
  if (tick.all > peak.total) peak.total = tick.all, peak.kv_copies = tick.kv_copies;
  if (tick.workspace > peak.workspace)
    peak.workspace = tick.workspace, peak.workspace_kv_copies = tick.workspace_kv_copies;
}

LiveBytes peak_of(const std::vector<Life>& lives, const AttentionPlan& plan, Pass pass, int ticks) {
  std::vector<TickBytes> at(static_cast<std::size_t>(ticks));
  LiveBytes peak;
  for (const Life& life : lives) {
    const bool outlives_pass = outlives(plan, pass, life.name), stage = life.name.place == BufferSlot::stage;
    const double kv_copies = holds_others_kv(life.name.place) ? life.bytes : 0;
    if (outlives_pass && life.name.place == BufferSlot::home)
      peak.sums += pass == Pass::backward && life.is_wide ? life.bytes : 0;
    else if (outlives_pass)
      peak.saved += life.bytes;
    const int last = outlives_pass ? ticks - 1 : std::min(life.last, ticks - 1);
    for (int t = life.first; t <= last; ++t) {
      TickBytes& sum = at[static_cast<std::size_t>(t)];
      if (!stage) sum.all += life.bytes, sum.kv_copies += kv_copies;
      if (!outlives_pass) sum.workspace += life.bytes, sum.workspace_kv_copies += kv_copies;
    }
  }
  for (const TickBytes& tick : at) add_tick(tick, peak);
  return peak;
}

bool is_home_qkv(BufferName name) {
  return name.place == BufferSlot::home &&
         (name.tensor == Tensor::q || name.tensor == Tensor::k || name.tensor == Tensor::v);
}

bool reads_home_qkv(const schedule::CompactPass& pass) {
  for (const schedule::TransferOp& move : pass.transfers)
    for (int i = 0; i < move.pairs; ++i)
      if (is_home_qkv(move.from[i])) return true;
  for (const schedule::ComputeOp& w : pass.work)
    for (const schedule::Operand& operand : *w.operation)
      if (is_home_qkv({operand.tensor, operand.slot == nullptr ? BufferSlot::row : w.*operand.slot}))
        return true;
  return false;
}

int peers_of(const schedule::TransferOp& move, const Mesh& mesh) {
  switch (move.peers) {
    case schedule::Peers::self:
      return 0;
    case schedule::Peers::shift:
      return move.shift == RingShift{} ? 0 : 1;
    case schedule::Peers::every_ulysses:
      return mesh.ulysses - 1;
    case schedule::Peers::every_ring:
      return mesh.ring() - 1;
    case schedule::Peers::all_ranks:
      return mesh.size() - 1;
  }
  throw InternalError("a transfer has peers of no kind");
}

/// Stages of a transfer at its two ends: messages whose wire type is not the buffers', and arrivals that are
/// added.
int stages_of(const AttentionPlan& plan, const schedule::TransferOp& move, bool shared_kv) {
  const DType wire = schedule::wire_type(plan, move.wire);
  bool from_same = true, to_same = true;
  for (int i = 0; i < move.pairs; ++i) {
    from_same = from_same && schedule::buffer_type(plan, shared_kv, move.from[i]) == wire;
    to_same = to_same && schedule::buffer_type(plan, shared_kv, move.to[i]) == wire;
  }
  return (from_same ? 0 : 1) + (to_same && move.write_mode != WriteMode::accumulate ? 0 : 1);
}

}  // namespace

LiveBytes AttentionPricer::live_bytes(const AttentionPlan& plan, Pass pass) {
  const Context context = context_of(plan, Placement{});
  const Heads& heads = context.split->heads;
  lay_out(plan, heads.shared_kv(), schedule::Binds::with);
  const schedule::CompactPass& compact = schedule_.of(pass);

  // Unpruned sizes bound pruned ones; the explicit schedule of the chosen plan gives the exact workspace.
  const auto rows = [&](const schedule::BufferBinding& bind) {
    const i64 row = bind.tokens.of == schedule::Side::q ? context.q_row : context.k_row;
    if (bind.tokens.block == schedule::Block::home) return (row + plan.mesh.ulysses - 1) / plan.mesh.ulysses;
    return row * std::max(1, bind.blocks.count());
  };
  const auto bytes = [&](const schedule::BufferBinding& bind) {
    return static_cast<double>(plan.shape.batch * rows(bind) * max_head_count(heads, bind.heads) *
                               schedule::width_of(plan.shape, bind.buffer.tensor) *
                               bytes_of(schedule::buffer_type(plan, heads.shared_kv(), bind.buffer)));
  };
  const auto is_wide = [&](const schedule::BufferBinding& bind) {
    return schedule::buffer_type(plan, heads.shared_kv(), bind.buffer) != plan.shape.dtype;
  };
  const auto stage_bytes = [&](const schedule::TransferOp& move) {
    TransferPattern pattern;
    pattern.peers = peers_of(move, plan.mesh);
    const int stages = pattern.peers == 0 ? 0 : stages_of(plan, move, heads.shared_kv());
    return stages == 0 ? 0 : stages * pattern.peers * move_bytes_per_peer(context, move, pattern);
  };
  Lives lives;
  std::size_t move = 0, work = 0, bind = 0;
  for (int t = 0; t < compact.ticks; ++t) {
    for (; bind < compact.binds.size() && compact.binds[bind].tick == t; ++bind)
      lives.bind(compact.binds[bind].buffer, bytes(compact.binds[bind]), t, is_wide(compact.binds[bind]));
    for (; move < compact.transfers.size() && compact.transfers[move].start == t; ++move) {
      const schedule::TransferOp& m = compact.transfers[move];
      for (int i = 0; i < m.pairs; ++i) {
        lives.use(m.from[i], m.due);
        lives.use(m.to[i], m.due);
      }
      const double staged = stage_bytes(m);
      const int first = m.early ? t - 1 : t;
      if (staged > 0)
        lives.lives.push_back({{m.to[0].tensor, BufferSlot::stage}, staged, first, m.due, false});
    }
    for (; work < compact.work.size() && compact.work[work].tick == t; ++work)
      use_operands(lives, compact.work[work], t);
  }
  LiveBytes peak = peak_of(lives.lives, plan, pass, compact.ticks);
  peak.reads_home_qkv = pass == Pass::backward && reads_home_qkv(compact);
  return peak;
}

}  // namespace usp
