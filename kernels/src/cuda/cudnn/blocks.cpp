// SPDX-License-Identifier: Apache-2.0
#include "blocks.hpp"

#include <optional>

namespace usp::cuda::cudnn {
namespace {

/// Slices up to this many are tried against each other; more would not become few blocks.
constexpr i64 most_slices = 32;

[[nodiscard]] i64 pairs_of(const Block& b) {
  const i64 n = b.q_rows.size(), m = b.k_rows.size(), corner = b.q_rows.begin - b.k_rows.begin;
  return slice_detail::pairs_at_most(n, m, b.high - corner) -
         slice_detail::pairs_at_most(n, m, b.low - corner - 1);
}

/// Expects a trimmed slice whose sides step alike.
[[nodiscard]] Block block_of(const Slice& s) {
  const i64 corner = s.q_row - s.k_row;
  const Range band = index_band(s);
  Block b;
  b.q_rows = {s.q_row, s.q_row + s.q_count};
  b.k_rows = {s.k_row, s.k_row + s.k_count};
  b.low = corner + std::max(band.begin, 1 - s.k_count);
  b.high = corner + std::min(band.end - 1, s.q_count - 1);
  b.dk_shift = s.dk_row - s.k_row;
  b.pairs = pairs_of(b);
  return b;
}

/// The block that holds the pairs of both and no others.
[[nodiscard]] std::optional<Block> joined(const Block& a, const Block& b, bool keeps_shift) {
  if (keeps_shift && a.dk_shift != b.dk_shift) return std::nullopt;
  Block both = a;
  both.q_rows = {std::min(a.q_rows.begin, b.q_rows.begin), std::max(a.q_rows.end, b.q_rows.end)};
  both.k_rows = {std::min(a.k_rows.begin, b.k_rows.begin), std::max(a.k_rows.end, b.k_rows.end)};
  both.low = std::min(a.low, b.low);
  both.high = std::max(a.high, b.high);
  both.pairs = a.pairs + b.pairs;
  if (pairs_of(both) != both.pairs) return std::nullopt;
  return both;
}

void join_pairs(std::vector<Block>& blocks, bool keeps_shift, bool of_same_queries) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t j = i + 1; j < blocks.size(); ++j) {
      if (of_same_queries && !(blocks[i].q_rows == blocks[j].q_rows)) continue;
      const auto both = joined(blocks[i], blocks[j], keeps_shift);
      if (!both) continue;
      blocks[i] = *both;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(j));
      j = i;  // the greater block may fit what the smaller one did not
    }
}

void join_all(std::vector<Block>& blocks, bool keeps_shift) {
  // Two of three pieces of a triangle are no block, so all are tried together first.
  if (blocks.size() > 1) {
    Block all = blocks.front();
    bool alike = true;
    for (const Block& b : blocks) {
      alike = alike && (!keeps_shift || b.dk_shift == all.dk_shift);
      all.q_rows = {std::min(all.q_rows.begin, b.q_rows.begin), std::max(all.q_rows.end, b.q_rows.end)};
      all.k_rows = {std::min(all.k_rows.begin, b.k_rows.begin), std::max(all.k_rows.end, b.k_rows.end)};
      all.low = std::min(all.low, b.low);
      all.high = std::max(all.high, b.high);
    }
    all.pairs = 0;
    for (const Block& b : blocks) all.pairs += b.pairs;
    if (alike && pairs_of(all) == all.pairs) {
      blocks = {all};
      return;
    }
  }
  // Blocks of the same queries first: each row of the result is then merged once.
  join_pairs(blocks, keeps_shift, true);
  join_pairs(blocks, keeps_shift, false);
}

}  // namespace

Slice slice_of(const Block& b) {
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

Blocks blocks_of(const Slice* slices, i64 count, bool keeps_shift) {
  Blocks found;
  const auto leave = [&](const char* why) {
    found.blocks.clear();
    found.rest.assign(slices, slices + count);
    found.why = why;
    return found;
  };
  if (count > most_slices) return leave("more slices than cuDNN calls are worth");
  for (i64 i = 0; i < count; ++i) {
    Slice s = slices[i];
    if (s.q_step != s.k_step && s.q_count > 1 && s.k_count > 1) {
      found.rest.push_back(s);
      found.why = "the rows of queries and keys stand at unequal steps";
    } else if (trim(s)) {
      found.blocks.push_back(block_of(s));
    }
  }
  join_all(found.blocks, keeps_shift);
  if (found.blocks.size() > most_blocks) return leave("more blocks than cuDNN calls are worth");
  return found;
}

}  // namespace usp::cuda::cudnn
