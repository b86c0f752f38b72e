// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/slice.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace usp::schedule {

/// A rectangle of rows with one band: pair (i, j) of view rows is visible iff low <= i - j <= high. Every row
/// and column holds a visible pair, and low and high are reached.
struct BandBlock {
  Range q_rows, k_rows;
  i64 low = 0, high = 0;
  i64 dk_shift = 0;  ///< row of dk minus row of k
  i128 pairs = 0;

  /// Greatest j - i of a visible pair, counted from the block's corner: what cuDNN calls the right bound of
  /// the diagonal band with the alignment TOP_LEFT. Never negative.
  [[nodiscard]] i64 right_bound() const { return q_rows.begin - k_rows.begin - low; }
  /// j > i - left_bound, counted from the corner. At least 1.
  [[nodiscard]] i64 left_bound() const { return high - (q_rows.begin - k_rows.begin) + 1; }
  [[nodiscard]] bool bounds_right() const { return low > q_rows.begin - (k_rows.end - 1); }
  [[nodiscard]] bool bounds_left() const { return high < q_rows.end - 1 - k_rows.begin; }
};

/// The same pairs as a slice whose positions are its rows.
[[nodiscard]] inline Slice slice_of(const BandBlock& b) {
  Slice s;
  s.q_row = s.q_pos = b.q_rows.begin;
  s.q_count = b.q_rows.size();
  s.k_row = s.k_pos = b.k_rows.begin;
  s.k_count = b.k_rows.size();
  s.dk_row = b.k_rows.begin + b.dk_shift;
  s.diff_min = b.low;
  s.diff_max = b.high;
  return s;
}

/// Whether rows or positions of both sides step alike, so that the slice is one block of rows.
[[nodiscard]] inline bool has_equal_strides(const Slice& s) {
  return s.q_step == s.k_step || s.q_count <= 1 || s.k_count <= 1;
}

namespace block_detail {

[[nodiscard]] inline i128 pairs_of(const BandBlock& b) {
  const i64 n = b.q_rows.size(), m = b.k_rows.size(), corner = b.q_rows.begin - b.k_rows.begin;
  return slice_detail::pairs_at_most(n, m, b.high - corner) -
         slice_detail::pairs_at_most(n, m, b.low - corner - 1);
}

/// Expects a trimmed slice whose sides step alike.
[[nodiscard]] inline BandBlock block_of(const Slice& s) {
  const i64 corner = s.q_row - s.k_row;
  const Range band = index_band(s);
  BandBlock b;
  b.q_rows = {s.q_row, s.q_row + s.q_count};
  b.k_rows = {s.k_row, s.k_row + s.k_count};
  b.low = corner + std::max(band.begin, 1 - s.k_count);
  b.high = corner + std::min(band.end - 1, s.q_count - 1);
  b.dk_shift = s.dk_row - s.k_row;
  b.pairs = pairs_of(b);
  return b;
}

/// The least block around two; its pairs are not counted.
[[nodiscard]] inline BandBlock around(const BandBlock& a, const BandBlock& b) {
  BandBlock both = a;
  both.q_rows = {std::min(a.q_rows.begin, b.q_rows.begin), std::max(a.q_rows.end, b.q_rows.end)};
  both.k_rows = {std::min(a.k_rows.begin, b.k_rows.begin), std::max(a.k_rows.end, b.k_rows.end)};
  both.low = std::min(a.low, b.low);
  both.high = std::max(a.high, b.high);
  return both;
}

/// The block that holds the pairs of all and no others.
[[nodiscard]] inline std::optional<BandBlock> joined(const BandBlock* blocks, std::size_t count,
                                                     bool keeps_shift) {
  BandBlock all = blocks[0];
  for (std::size_t i = 1; i < count; ++i) {
    if (keeps_shift && blocks[i].dk_shift != all.dk_shift) return std::nullopt;
    const i128 pairs = all.pairs + blocks[i].pairs;
    all = around(all, blocks[i]);
    all.pairs = pairs;
  }
  if (pairs_of(all) != all.pairs) return std::nullopt;
  return all;
}

inline void join_pairs(std::vector<BandBlock>& blocks, bool keeps_shift, bool of_same_queries) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t j = i + 1; j < blocks.size(); ++j) {
      if (of_same_queries && !(blocks[i].q_rows == blocks[j].q_rows)) continue;
      const BandBlock two[] = {blocks[i], blocks[j]};
      const auto both = joined(two, 2, keeps_shift);
      if (!both) continue;
      blocks[i] = *both;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(j));
      j = i;  // the greater block may fit what the smaller one did not
    }
}

inline void join_all(std::vector<BandBlock>& blocks, bool keeps_shift) {
  // Two of three pieces of a triangle are no block, so all are tried together first.
  if (blocks.size() > 1)
    if (const auto all = joined(blocks.data(), blocks.size(), keeps_shift)) {
      blocks = {*all};
      return;
    }
  // Blocks of the same queries first: each row of the result is then merged once.
  join_pairs(blocks, keeps_shift, true);
  join_pairs(blocks, keeps_shift, false);
}

}  // namespace block_detail

/// Slices as few blocks: a chunk's triangle and the full chunks beside it are one triangle again. Expects
/// that steps are alike in every slice, and that no pair is covered twice. With `keeps_shift`, rows of dk
/// that differ keep blocks apart.
[[nodiscard]] inline std::vector<BandBlock> blocks_of(const std::vector<Slice>& slices, bool keeps_shift) {
  std::vector<BandBlock> blocks;
  for (Slice s : slices)
    if (trim(s)) blocks.push_back(block_detail::block_of(s));
  block_detail::join_all(blocks, keeps_shift);
  return blocks;
}

}  // namespace usp::schedule
