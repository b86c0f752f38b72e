// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/mesh.hpp"

#include <array>
#include <vector>

namespace usp {

/// Numbers the kinds of transfers of a pass. Where all ranks and blocks are even, transfers of one kind carry
/// the same bytes to the same peers, so that each kind is priced once; a pass has far fewer kinds than
/// transfers.
class TransferKinds {
 public:
  void number(const schedule::CompactPass& pass, const Mesh& mesh) {
    for (auto& table : last_) table.assign(static_cast<std::size_t>(mesh.ring()), {});
    last_twin_.fill({});
    of_.clear();
    twin_of_.clear();
    for (const schedule::TransferOp& move : pass.transfers) {
      const int row = move.peers == schedule::Peers::shift ? mesh.row_at(0, move.shift) : 0;
      Last& last = last_[static_cast<std::size_t>(move.name)][static_cast<std::size_t>(row)];
      if (last.move == nullptr || !alike(*last.move, move)) last = {&move, add(move)};
      of_.push_back(last.kind);
    }
    group_ticks(pass);
  }
  /// Ticks of one group start the same transfers: as many of the same kinds, as long in flight, applied
  /// alike.
  [[nodiscard]] std::size_t group_of(int tick) const {
    return static_cast<std::size_t>(group_of_[static_cast<std::size_t>(tick)]);
  }
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  /// Past the last move that starts in this tick.
  [[nodiscard]] std::size_t end_of(int tick) const { return end_of_[static_cast<std::size_t>(tick)]; }
  [[nodiscard]] std::size_t of(std::size_t move) const { return static_cast<std::size_t>(of_[move]); }
  /// The first kind that carries as many bytes as this one, wherever to.
  [[nodiscard]] std::size_t twin_of(std::size_t kind) const {
    return static_cast<std::size_t>(twin_of_[kind]);
  }
  [[nodiscard]] std::size_t count() const { return twin_of_.size(); }

 private:
  /// The last move of a name (and shift): nearly every tick repeats it.
  struct Last {
    const schedule::TransferOp* move = nullptr;
    int kind = 0;
  };
  struct TransferRange {
    std::size_t begin = 0, end = 0;
  };
  void group_ticks(const schedule::CompactPass& pass) {
    constexpr std::size_t search_window = 8;  // a ring repeats one tick, a double ring few
    groups_.clear();
    group_of_.clear();
    end_of_.clear();
    TransferRange tick;
    for (int t = 0; t < pass.ticks; ++t) {
      tick.begin = tick.end;
      while (tick.end < pass.transfers.size() && pass.transfers[tick.end].start == t) ++tick.end;
      std::size_t group = groups_.size();
      for (std::size_t i = group; group == groups_.size() && i > 0 && groups_.size() - i < search_window; --i)
        if (start_alike(pass.transfers, groups_[i - 1], tick)) group = i - 1;
      if (group == groups_.size()) groups_.push_back(tick);
      group_of_.push_back(static_cast<int>(group));
      end_of_.push_back(tick.end);
    }
  }
  [[nodiscard]] bool start_alike(const std::vector<schedule::TransferOp>& transfers, TransferRange a,
                                 TransferRange b) const {
    if (a.end - a.begin != b.end - b.begin) return false;
    for (std::size_t i = a.begin, j = b.begin; i < a.end; ++i, ++j)
      if (of_[i] != of_[j] || transfers[i].write_mode != transfers[j].write_mode ||
          transfers[i].due - transfers[i].start != transfers[j].due - transfers[j].start)
        return false;
    return true;
  }
  int add(const schedule::TransferOp& move) {
    const int kind = static_cast<int>(twin_of_.size());
    Last& last = last_twin_[static_cast<std::size_t>(move.name)];
    if (last.move == nullptr || !weigh_alike(*last.move, move)) last = {&move, kind};
    twin_of_.push_back(last.kind);
    return kind;
  }
  static bool alike(const schedule::TransferOp& a, const schedule::TransferOp& b) {
    return a.shift == b.shift && weigh_alike(a, b);
  }
  /// A block that returns to its own row travels nowhere.
  static bool stays(const schedule::TransferOp& move) {
    return move.peers == schedule::Peers::shift && move.shift == decltype(move.shift){};
  }
  static bool weigh_alike(const schedule::TransferOp& a, const schedule::TransferOp& b) {
    return a.peers == b.peers && stays(a) == stays(b) && a.heads.kind == b.heads.kind &&
           a.heads.chunk == b.heads.chunk && a.wire == b.wire && a.pairs == b.pairs &&
           a.from[0].tensor == b.from[0].tensor && a.from[1].tensor == b.from[1].tensor &&
           a.tokens.of == b.tokens.of && a.tokens.block == b.tokens.block &&
           a.tokens.not_needed.any() == b.tokens.not_needed.any();
  }

  static constexpr std::size_t names = static_cast<std::size_t>(schedule::TransferName::dkv_return) + 1;
  std::array<std::vector<Last>, names> last_;
  std::array<Last, names> last_twin_;
  std::vector<int> of_;       ///< by move
  std::vector<int> twin_of_;  ///< by kind
  std::vector<TransferRange> groups_;
  std::vector<int> group_of_;        ///< by tick
  std::vector<std::size_t> end_of_;  ///< by tick
};

}  // namespace usp
