// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/slice.hpp"

#include <string>
#include <vector>

namespace usp::cuda::cudnn {

/// A rectangle of rows with one band: pair (i, j) of view rows is visible iff low <= i - j <= high. Every row
/// and column holds a visible pair, and low and high are reached.
struct Block {
  Range q_rows, k_rows;
  i64 low = 0, high = 0;
  i64 dk_shift = 0;  ///< row of dk minus row of k
  i64 pairs = 0;

  /// Greatest j - i of a visible pair, counted from the block's corner: what cuDNN calls the right bound of
  /// the diagonal band with the alignment TOP_LEFT. Never negative.
  [[nodiscard]] i64 right_bound() const { return q_rows.begin - k_rows.begin - low; }
  /// j > i - left_bound, counted from the corner. At least 1.
  [[nodiscard]] i64 left_bound() const { return high - (q_rows.begin - k_rows.begin) + 1; }
  [[nodiscard]] bool bounds_right() const { return low > q_rows.begin - (k_rows.end - 1); }
  [[nodiscard]] bool bounds_left() const { return high < q_rows.end - 1 - k_rows.begin; }
};

/// The same pairs as a slice whose positions are its rows.
[[nodiscard]] Slice slice_of(const Block& block);

/// Slices that cuDNN can compute, as few blocks: a chunk's triangle and the full chunks beside it are one
/// triangle again. What no block can be stays in `rest`, for `why`.
struct Blocks {
  std::vector<Block> blocks;
  std::vector<Slice> rest;
  std::string why;
};

/// More blocks than this are left to a kernel that takes them in one launch: each would be a plan and a call.
inline constexpr std::size_t most_blocks = 8;

/// Expects that no pair is covered twice. With `keeps_shift`, rows of dk that differ keep blocks apart.
[[nodiscard]] Blocks blocks_of(const Slice* slices, i64 count, bool keeps_shift);

}  // namespace usp::cuda::cudnn
