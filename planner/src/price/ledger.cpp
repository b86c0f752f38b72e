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
  MoveLedger(const Geometry& geometry, const Move& move, Ledger& out)
      : geometry_(geometry),
        mesh_(geometry.mesh()),
        move_(move),
        out_(out),
        weight_(wire_bytes_per_row_head(geometry.plan(), move)) {}

  void add() {
    switch (move_.peers) {
      case Peers::self:
        return;
      case Peers::shift:
        return add_shift();
      case Peers::every_ulysses:
        return add_exchange();
      case Peers::every_ring:
        return add_gather();
      case Peers::every_world:
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
      const int owner = move_.tokens.at == End::target ? to : r;
      const i64 tokens = counts[at(mesh_.row_at(owner, move_.tokens.shift))];
      if (tokens == 0) continue;
      for (int u = 0; u < mesh_.ulysses; ++u)
        message(mesh_.rank(r, u), mesh_.rank(to, u),
                tokens * weight_ * heads(mesh_.rank(r, u), mesh_.rank(to, u)));
    }
  }

  void add_exchange() {
    const bool tokens_at_source = move_.tokens.at == End::source;
    expects(tokens_at_source != (move_.heads.at == End::source),
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

  void add_gather() {
    for (int x = 0; x < mesh_.ring(); ++x)
      for (int y = 0; y < mesh_.ring(); ++y) {
        if (x == y) continue;
        const i64 tokens = geometry_.count_of(move_.tokens, mesh_.rank(x, 0), mesh_.rank(y, 0));
        for (int u = 0; u < mesh_.ulysses; ++u)
          message(mesh_.rank(x, u), mesh_.rank(y, u),
                  tokens * weight_ * heads(mesh_.rank(x, u), mesh_.rank(y, u)));
      }
  }

  void add_world() {
    const bool from_owner = move_.tokens.at == End::source;
    std::vector<i64> bytes(at(mesh_.size()));
    for (int p = 0; p < mesh_.size(); ++p)
      bytes[at(p)] = weight_ * geometry_.count_of(move_.tokens, p, p) * heads(p, p);
    const i64 all = std::accumulate(bytes.begin(), bytes.end(), i64{0});
    for (int p = 0; p < mesh_.size(); ++p) {
      (from_owner ? out_.sent : out_.received)[at(p)] += bytes[at(p)] * (mesh_.size() - 1);
      (from_owner ? out_.received : out_.sent)[at(p)] += all - bytes[at(p)];
    }
  }

  const Geometry& geometry_;
  const Mesh& mesh_;
  const Move& move_;
  Ledger& out_;
  const i64 weight_;
};

}  // namespace

void add_move(const Geometry& geometry, const Move& move, Ledger& ledger) {
  MoveLedger(geometry, move, ledger).add();
}

Ledger ledger(const Geometry& geometry, const CompactPass& pass) {
  const auto ranks = static_cast<std::size_t>(geometry.mesh().size());
  Ledger result{std::vector<i64>(ranks, 0), std::vector<i64>(ranks, 0)};
  for (const Move& move : pass.moves) add_move(geometry, move, result);
  return result;
}

}  // namespace usp
