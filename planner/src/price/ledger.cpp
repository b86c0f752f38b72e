// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/planner/pricing.hpp"

#include <numeric>

namespace usp {
namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/// Adds one move rank by rank: what a rank sends is a product of a token count and a head count, each fixed
/// at one end, so that no pair of ranks is looked at where none has to be.
class MoveLedger {
 public:
  MoveLedger(const schedule::TokenMap& geometry, const schedule::TransferOp& move, Ledger& out)
      : geometry_(geometry),
        mesh_(geometry.mesh()),
        move_(move),
        out_(out),
        weight_(schedule::wire_bytes_per_row_head(geometry.plan(), move)) {}

  void add() {
    switch (move_.peers) {
      case schedule::Peers::self:
        return;
      case schedule::Peers::shift:
        return add_shift();
      case schedule::Peers::every_ulysses:
        return add_exchange();
      case schedule::Peers::every_ring:
        return geometry_.plan().prune ? add_pruned_gather() : add_gather();
      case schedule::Peers::all_ranks:
        return add_world();
    }
  }

 private:
  [[nodiscard]] i64 heads(int source, int target) const {
    return geometry_.heads_of(move_.heads, source, target).size();
  }
  void message(int source, int target, i64 bytes) {
    out_.sent[at(source)] += bytes;
    out_.received[at(target)] += bytes;
  }

  void add_shift() {
    const std::vector<i64>& counts = geometry_.counts_by_row(move_.tokens);
    for (int r = 0; r < mesh_.ring(); ++r) {
      const int to = mesh_.row_at(r, move_.shift);
      if (to == r) continue;
      const int owner = move_.tokens.at == schedule::Endpoint::target ? to : r;
      const i64 tokens = counts[at(mesh_.row_at(owner, move_.tokens.shift))];
      if (tokens == 0) continue;
      for (int u = 0; u < mesh_.ulysses; ++u)
        message(mesh_.rank(r, u), mesh_.rank(to, u),
                tokens * weight_ * heads(mesh_.rank(r, u), mesh_.rank(to, u)));
    }
  }

  void add_exchange() {
    const bool tokens_at_source = move_.tokens.at == schedule::Endpoint::source;
    expects(tokens_at_source != (move_.heads.at == schedule::Endpoint::source),
            "an exchange fixes tokens at one end and heads at the other");
    std::vector<i64> tokens(at(mesh_.ulysses)), counts(at(mesh_.ulysses));
    for (int r = 0; r < mesh_.ring(); ++r) {
      for (int u = 0; u < mesh_.ulysses; ++u) {
        const int p = mesh_.rank(r, u);
        tokens[at(u)] = geometry_.count_of(move_.tokens, p, p);
        counts[at(u)] = heads(p, p);
      }
      const i64 all_tokens = std::accumulate(tokens.begin(), tokens.end(), i64{0});
      const i64 all_heads = std::accumulate(counts.begin(), counts.end(), i64{0});
      for (int u = 0; u < mesh_.ulysses; ++u) {
        const i64 own_tokens = weight_ * tokens[at(u)] * (all_heads - counts[at(u)]);
        const i64 own_heads = weight_ * counts[at(u)] * (all_tokens - tokens[at(u)]);
        out_.sent[at(mesh_.rank(r, u))] += tokens_at_source ? own_tokens : own_heads;
        out_.received[at(mesh_.rank(r, u))] += tokens_at_source ? own_heads : own_tokens;
      }
    }
  }

  /// Every row sends its whole block to all others, or gets it back.
  void add_gather() {
    schedule::TokenSelect whole = move_.tokens;
    whole.needed_by = schedule::Endpoint::none;
    const std::vector<i64>& tokens = geometry_.counts_by_row(whole);
    const i64 all = std::accumulate(tokens.begin(), tokens.end(), i64{0});
    const bool from_owner = move_.tokens.at == schedule::Endpoint::source;
    for (int r = 0; r < mesh_.ring(); ++r)
      for (int u = 0; u < mesh_.ulysses; ++u) {
        const int p = mesh_.rank(r, u);
        const i64 weight = weight_ * heads(p, p);
        const i64 own = weight * tokens[at(r)] * (mesh_.ring() - 1), others = weight * (all - tokens[at(r)]);
        out_.sent[at(p)] += from_owner ? own : others;
        out_.received[at(p)] += from_owner ? others : own;
      }
  }

  void add_pruned_gather() {
    schedule::Selection selection;
    for (int x = 0; x < mesh_.ring(); ++x)
      for (int y = 0; y < mesh_.ring(); ++y) {
        if (x == y) continue;
        geometry_.tokens_of(move_.tokens, mesh_.rank(x, 0), mesh_.rank(y, 0), selection);
        const i64 tokens = schedule::total(selection.slots);
        if (tokens == 0) continue;
        for (int u = 0; u < mesh_.ulysses; ++u)
          message(mesh_.rank(x, u), mesh_.rank(y, u),
                  tokens * weight_ * heads(mesh_.rank(x, u), mesh_.rank(y, u)));
      }
  }

  void add_world() {
    const bool from_owner = move_.tokens.at == schedule::Endpoint::source;
    std::vector<i64> bytes(at(mesh_.size()));
    for (int p = 0; p < mesh_.size(); ++p)
      bytes[at(p)] = weight_ * geometry_.count_of(move_.tokens, p, p) * heads(p, p);
    const i64 all = std::accumulate(bytes.begin(), bytes.end(), i64{0});
    for (int p = 0; p < mesh_.size(); ++p) {
      (from_owner ? out_.sent : out_.received)[at(p)] += bytes[at(p)] * (mesh_.size() - 1);
      (from_owner ? out_.received : out_.sent)[at(p)] += all - bytes[at(p)];
    }
  }

  const schedule::TokenMap& geometry_;
  const Mesh& mesh_;
  const schedule::TransferOp& move_;
  Ledger& out_;
  const i64 weight_;
};

/// Adds transfers along the ring all at once where blocks are sent whole: those of one size differ only in
/// where their block lies, so what a rank sends is a sum of row sizes, each as often as its offset occurs.
class ShiftSum {
 public:
  explicit ShiftSum(const schedule::TokenMap& geometry) : geometry_(geometry), mesh_(geometry.mesh()) {}

  [[nodiscard]] bool takes(const schedule::TransferOp& move) const {
    return move.peers == schedule::Peers::shift && !geometry_.plan().prune;
  }
  void add(const schedule::TransferOp& move) {
    if (mesh_.row_at(0, move.shift) == 0) return;
    Group& group = group_of(move);
    const int at_own = mesh_.row_at(0, move.tokens.shift);
    const bool target = move.tokens.at == schedule::Endpoint::target;
    const RingShift across = target ? move.shift : Mesh::back(move.shift);
    const int at_other = mesh_.row_at(mesh_.row_at(0, across), move.tokens.shift);
    ++group.sent[at(target ? at_other : at_own)];
    ++group.received[at(target ? at_own : at_other)];
  }
  void finish(Ledger& out) const {
    for (const Group& group : groups_) {
      const std::vector<i64>& sizes = geometry_.counts_by_row(group.move.tokens);
      add_rows(group, rows_at(group.sent, sizes), out.sent);
      add_rows(group, rows_at(group.received, sizes), out.received);
    }
  }

 private:
  struct Group {
    schedule::TransferOp move;        ///< one of them
    std::vector<i64> sent, received;  ///< transfers by offset of their block from the rank's row
  };

  Group& group_of(const schedule::TransferOp& m) {
    const auto alike = [&](const Group& group) {
      const schedule::TransferOp& g = group.move;
      return g.wire == m.wire && g.pairs == m.pairs && g.from[0].tensor == m.from[0].tensor &&
             g.from[1].tensor == m.from[1].tensor && g.heads.kind == m.heads.kind &&
             g.heads.chunk == m.heads.chunk && g.tokens.of == m.tokens.of &&
             g.tokens.copies == m.tokens.copies && g.tokens.not_needed.any() == m.tokens.not_needed.any();
    };
    for (std::size_t i = groups_.size(); i-- > 0;)
      if (alike(groups_[i])) return groups_[i];
    const std::vector<i64> none(at(mesh_.ring()), 0);
    return groups_.emplace_back(Group{m, none, none});
  }

  /// By row r: the sum over offsets d of times[d] * sizes[row r + d]. Stretches of equal `times` are taken at
  /// once, from sums along the inner ring.
  [[nodiscard]] std::vector<i64> rows_at(const std::vector<i64>& times, const std::vector<i64>& sizes) const {
    const auto inner = at(mesh_.ring_inner), outer = at(mesh_.ring_outer);
    std::vector<i64> before(outer * (2 * inner + 1), 0);  // by outer row; twice around
    for (std::size_t o = 0; o < outer; ++o)
      for (std::size_t i = 0; i < 2 * inner; ++i) {
        const std::size_t here = o * (2 * inner + 1) + i;
        before[here + 1] = before[here] + sizes[o * inner + i % inner];
      }
    std::vector<i64> sums(outer * inner, 0);
    for (std::size_t begin = 0, end = 0; begin < times.size(); begin = end) {
      const std::size_t lap = begin / inner;
      while (end < (lap + 1) * inner && times[end] == times[begin]) ++end;
      if (times[begin] == 0) continue;
      for (std::size_t o = 0; o < outer; ++o) {
        const i64* along = before.data() + (o + lap) % outer * (2 * inner + 1);
        for (std::size_t i = 0; i < inner; ++i)
          sums[o * inner + i] +=
              times[begin] * (along[i + end - lap * inner] - along[i + begin - lap * inner]);
      }
    }
    return sums;
  }

  void add_rows(const Group& group, const std::vector<i64>& rows, std::vector<i64>& out) const {
    const i64 weight = schedule::wire_bytes_per_row_head(geometry_.plan(), group.move);
    for (int u = 0; u < mesh_.ulysses; ++u) {
      const i64 bytes = weight * geometry_.heads_of(group.move.heads, u, u).size();
      for (int r = 0; r < mesh_.ring(); ++r) out[at(mesh_.rank(r, u))] += bytes * rows[at(r)];
    }
  }

  const schedule::TokenMap& geometry_;
  const Mesh& mesh_;
  std::vector<Group> groups_;
};

Ledger empty_ledger(const schedule::TokenMap& geometry) {
  const std::vector<i64> none(at(geometry.mesh().size()), 0);
  return {none, none};
}

}  // namespace

void add_move(const schedule::TokenMap& geometry, const schedule::TransferOp& move, Ledger& ledger) {
  MoveLedger(geometry, move, ledger).add();
}

std::vector<NamedLedger> ledgers(const schedule::TokenMap& geometry, const schedule::CompactPass& pass) {
  std::vector<NamedLedger> result;
  std::vector<ShiftSum> shifts;
  for (const schedule::TransferOp& move : pass.transfers) {
    std::size_t i = 0;
    while (i < result.size() && result[i].name != move.name) ++i;
    if (i == result.size()) {
      result.push_back({move.name, empty_ledger(geometry)});
      shifts.emplace_back(geometry);
    }
    if (shifts[i].takes(move))
      shifts[i].add(move);
    else
      add_move(geometry, move, result[i].bytes);
  }
  for (std::size_t i = 0; i < result.size(); ++i) shifts[i].finish(result[i].bytes);
  return result;
}

Ledger sum_of(const schedule::TokenMap& geometry, const std::vector<NamedLedger>& parts) {
  Ledger sum = empty_ledger(geometry);
  const auto add = [](std::vector<i64>& to, const std::vector<i64>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  for (const NamedLedger& part : parts) {
    add(sum.sent, part.bytes.sent);
    add(sum.received, part.bytes.received);
  }
  return sum;
}

Ledger ledger(const schedule::TokenMap& geometry, const schedule::CompactPass& pass) {
  return sum_of(geometry, ledgers(geometry, pass));
}

}  // namespace usp
