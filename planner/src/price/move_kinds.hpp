// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/mesh.hpp"

#include <array>
#include <vector>

namespace usp {

/// Numbers the kinds of moves of a pass. Where all ranks and blocks are even, moves of one kind carry the
/// same bytes to the same peers, so that each kind is priced once; a pass has far fewer kinds than moves.
class MoveKinds {
 public:
  void number(const CompactPass& pass, const Mesh& mesh) {
    for (auto& table : last_) table.assign(static_cast<std::size_t>(mesh.ring()), {});
    last_twin_.fill({});
    of_.clear();
    twin_of_.clear();
    for (const Move& move : pass.moves) {
      const int row = move.peers == Peers::shift ? mesh.row_at(0, move.shift) : 0;
      Last& last = last_[static_cast<std::size_t>(move.name)][static_cast<std::size_t>(row)];
      if (last.move == nullptr || !alike(*last.move, move)) last = {&move, add(move)};
      of_.push_back(last.kind);
    }
  }
  [[nodiscard]] std::size_t of(std::size_t move) const { return static_cast<std::size_t>(of_[move]); }
  /// The first kind that carries as many bytes as this one, wherever to.
  [[nodiscard]] std::size_t twin_of(std::size_t kind) const {
    return static_cast<std::size_t>(twin_of_[kind]);
  }
  [[nodiscard]] std::size_t count() const { return twin_of_.size(); }

 private:
  /// The last move of a name (and shift): nearly every tick repeats it.
  struct Last {
    const Move* move = nullptr;
    int kind = 0;
  };
  int add(const Move& move) {
    const int kind = static_cast<int>(twin_of_.size());
    Last& last = last_twin_[static_cast<std::size_t>(move.name)];
    if (last.move == nullptr || !weigh_alike(*last.move, move)) last = {&move, kind};
    twin_of_.push_back(last.kind);
    return kind;
  }
  static bool alike(const Move& a, const Move& b) { return a.shift == b.shift && weigh_alike(a, b); }
  static bool weigh_alike(const Move& a, const Move& b) {
    return a.peers == b.peers && a.heads.kind == b.heads.kind && a.heads.chunk == b.heads.chunk &&
           a.wire == b.wire && a.pairs == b.pairs && a.from[0].tensor == b.from[0].tensor &&
           a.from[1].tensor == b.from[1].tensor && a.tokens.of == b.tokens.of &&
           a.tokens.block == b.tokens.block && a.tokens.not_needed.any() == b.tokens.not_needed.any();
  }

  static constexpr std::size_t names = static_cast<std::size_t>(MoveName::d_home) + 1;
  std::array<std::vector<Last>, names> last_;
  std::array<Last, names> last_twin_;
  std::vector<int> of_;       ///< by move
  std::vector<int> twin_of_;  ///< by kind
};

}  // namespace usp
