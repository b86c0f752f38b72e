// SPDX-License-Identifier: Apache-2.0
#include "pricer_state.hpp"

#include <array>

namespace usp {
namespace {

/// One buffer of a pass, as the compact form binds it.
struct Life {
  BufferName name;
  double bytes = 0;
  int first = 0;
  int last = 0;
};

/// Follows which buffer a name means, tick by tick.
class Lives {
 public:
  Lives() {
    for (auto& row : current_) row.fill(-1);
  }
  void bind(BufferName name, double bytes, int tick) {
    slot(name) = static_cast<int>(lives.size());
    lives.push_back({name, bytes, tick, tick});
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
  return pass == Pass::forward && name.place == BufferSlot::row &&
         (name.tensor == Tensor::o || name.tensor == Tensor::lse || plan.save_exchanged_qkv);
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

LiveBytes peak_of(const std::vector<Life>& lives, const AttentionPlan& plan, Pass pass, int ticks) {
  std::vector<LiveBytes> at(static_cast<std::size_t>(ticks) + 1);
  for (const Life& life : lives) {
    const int last = outlives(plan, pass, life.name) ? ticks : life.last;
    for (int t = life.first; t <= std::min(last, ticks - 1); ++t) {
      LiveBytes& sum = at[static_cast<std::size_t>(t)];
      sum.total += life.bytes;
      if (holds_others_kv(life.name.place)) sum.kv_copies += life.bytes;
    }
  }
  LiveBytes peak;
  for (const LiveBytes& sum : at)
    if (sum.total > peak.total) peak = sum;
  return peak;
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
  Lives lives;
  std::size_t move = 0, work = 0, bind = 0;
  for (int t = 0; t < compact.ticks; ++t) {
    for (; bind < compact.binds.size() && compact.binds[bind].tick == t; ++bind)
      lives.bind(compact.binds[bind].buffer, bytes(compact.binds[bind]), t);
    for (; move < compact.transfers.size() && compact.transfers[move].start == t; ++move)
      for (int i = 0; i < compact.transfers[move].pairs; ++i) {
        lives.use(compact.transfers[move].from[i], compact.transfers[move].due);
        lives.use(compact.transfers[move].to[i], compact.transfers[move].due);
      }
    for (; work < compact.work.size() && compact.work[work].tick == t; ++work)
      use_operands(lives, compact.work[work], t);
  }
  return peak_of(lives.lives, plan, pass, compact.ticks);
}

}  // namespace usp
