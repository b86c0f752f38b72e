// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <vector>

namespace usp {

/// `count` tokens first, first + step, ... in consecutive slots from `slot`.
struct Run {
  i64 first = 0;
  i64 count = 0;
  i64 step = 1;
  i64 slot = 0;
};

/// Where each token of one side lives: a partition of the tokens over ring rows, each row cut once more over
/// the ulysses axis. Slots of a row are in ascending token order: a layout is a partition, never an order. A
/// type, not a convention: kernels, schedules and users ask it.
class SequenceLayout {
 public:
  SequenceLayout() = default;
  /// @param rows     per ring row its runs, ascending, slots consecutive from 0
  SequenceLayout(std::vector<std::vector<Run>> rows, int ulysses);

  [[nodiscard]] int ring() const { return static_cast<int>(rows_.size()); }
  [[nodiscard]] int ulysses() const { return ulysses_; }
  [[nodiscard]] const std::vector<Run>& row(int r) const { return rows_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] i64 row_size(int r) const { return sizes_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] i64 tokens() const { return tokens_; }
  /// Slots of ring row r that live on ulysses rank u between calls.
  [[nodiscard]] Range home(int r, int u) const;
  /// Tokens of a slot range of a row, as runs whose slots count from 0.
  [[nodiscard]] std::vector<Run> tokens_of(int r, Range slots) const;
  /// Every row and every home has the same number of tokens.
  [[nodiscard]] bool even() const { return even_; }

 private:
  std::vector<std::vector<Run>> rows_;
  std::vector<i64> sizes_;
  int ulysses_ = 1;
  i64 tokens_ = 0;
  bool even_ = true;
};

/// Builds the layout of `tokens` tokens over `ring` rows. `cu_seqlens` matters to `balanced` only.
[[nodiscard]] SequenceLayout make_layout(LayoutKind kind, i64 tokens, int ring, int ulysses,
                                         const std::vector<i64>& cu_seqlens);

}  // namespace usp
