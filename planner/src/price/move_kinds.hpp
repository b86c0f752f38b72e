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
    of_.clear();
    count_ = 0;
    for (const Move& move : pass.moves) {
      const int row = move.peers == Peers::shift ? mesh.row_at(0, move.shift) : 0;
      Last& last = last_[static_cast<std::size_t>(move.name)][static_cast<std::size_t>(row)];
      if (last.move == nullptr || !alike(*last.move, move)) last = {&move, count_++};
      of_.push_back(last.kind);
    }
  }
  [[nodiscard]] std::size_t of(std::size_t move) const { return static_cast<std::size_t>(of_[move]); }
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(count_); }

 private:
  /// The last move of a name and shift: nearly every tick repeats it.
  struct Last {
    const Move* move = nullptr;
    int kind = 0;
  };
  static bool alike(const Move& a, const Move& b) {
    return a.peers == b.peers && a.shift == b.shift && a.heads.kind == b.heads.kind &&
           a.heads.chunk == b.heads.chunk && a.wire == b.wire && a.pairs == b.pairs &&
           a.from[0].tensor == b.from[0].tensor && a.from[1].tensor == b.from[1].tensor &&
           a.tokens.of == b.tokens.of && a.tokens.block == b.tokens.block &&
           a.tokens.not_needed.any() == b.tokens.not_needed.any();
  }

  static constexpr std::size_t names = static_cast<std::size_t>(MoveName::d_home) + 1;
  std::array<std::vector<Last>, names> last_;
  std::vector<int> of_;
  int count_ = 0;
};

}  // namespace usp
