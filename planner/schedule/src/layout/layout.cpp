// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/layout.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/heads.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace usp {
namespace {

void append(std::vector<Run>& row, i64 first, i64 count, i64 step) {
  if (count == 0) return;
  const i64 slot = row.empty() ? 0 : row.back().slot + row.back().count;
  if (!row.empty() && step == 1 && row.back().step == 1 && row.back().first + row.back().count == first)
    row.back().count += count;
  else
    row.push_back({first, count, count == 1 ? 1 : step, slot});
}

/// Causal pairs of the tokens [begin, end) with the tokens before them in their documents.
i128 causal_area(Range tokens, const std::vector<i64>& cu_seqlens) {
  i128 area = 0;
  auto border = std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), tokens.begin);
  for (i64 at = tokens.begin; at < tokens.end && border != cu_seqlens.end(); ++border) {
    const i64 document = *(border - 1), stop = std::min(*border, tokens.end);
    const i64 first = at - document + 1, last = stop - document;
    if (stop > at) area += i128{first + last} * (stop - at) / 2;
    at = std::max(at, stop);
  }
  return area;
}

constexpr i64 chunks_per_row = 4;

/// Longest processing time first: the chunk of greatest area goes to the row of least load that still has
/// room.
std::vector<std::vector<Run>> balanced_rows(i64 tokens, int ring, const std::vector<i64>& cu_seqlens) {
  const auto rows = static_cast<std::size_t>(ring);
  const i64 per_row = std::max<i64>(1, std::min(chunks_per_row, tokens / ring));
  const std::vector<i64> cuts = even_cuts(tokens, per_row * ring);
  std::vector<std::pair<i128, std::size_t>> chunks;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    chunks.emplace_back(-causal_area({cuts[i], cuts[i + 1]}, cu_seqlens), i);
  std::sort(chunks.begin(), chunks.end());
  std::vector<i128> load(rows, 0);
  std::vector<i64> room(rows, per_row);
  std::vector<std::vector<std::size_t>> owned(rows);
  for (const auto& [negative_area, chunk] : chunks) {
    std::size_t best = rows;
    for (std::size_t r = 0; r < rows; ++r)
      if (room[r] > 0 && (best == rows || load[r] < load[best])) best = r;
    load[best] -= negative_area;
    --room[best];
    owned[best].push_back(chunk);
  }
  std::vector<std::vector<Run>> result(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    std::sort(owned[r].begin(), owned[r].end());
    for (std::size_t chunk : owned[r]) append(result[r], cuts[chunk], cuts[chunk + 1] - cuts[chunk], 1);
  }
  return result;
}

}  // namespace

SequenceLayout::SequenceLayout(std::vector<std::vector<Run>> rows, int ulysses)
    : rows_(std::move(rows)), ulysses_(ulysses) {
  for (const auto& row : rows_) {
    sizes_.push_back(row.empty() ? 0 : row.back().slot + row.back().count);
    tokens_ += sizes_.back();
  }
  for (i64 size : sizes_) even_ = even_ && size == sizes_.front() && size % ulysses_ == 0;
}

Range SequenceLayout::home(int r, int u) const {
  const i64 size = row_size(r), share = size / ulysses_, larger = size % ulysses_;
  const i64 begin = u * share + std::min<i64>(u, larger);
  return {begin, begin + share + (u < larger ? 1 : 0)};
}

std::vector<Run> SequenceLayout::tokens_of(int r, Range slots) const {
  std::vector<Run> part;
  for (const Run& run : row(r)) {
    const i64 begin = std::max(slots.begin, run.slot), end = std::min(slots.end, run.slot + run.count);
    if (begin < end)
      part.push_back({run.first + (begin - run.slot) * run.step, end - begin, run.step, begin - slots.begin});
  }
  return part;
}

SequenceLayout make_layout(LayoutKind kind, i64 tokens, int ring, int ulysses,
                           const std::vector<i64>& cu_seqlens) {
  expects(tokens >= 0 && ring >= 1 && ulysses >= 1, "a layout needs at least one rank");
  std::vector<std::vector<Run>> rows(static_cast<std::size_t>(ring));
  const auto at = [&](int r) -> std::vector<Run>& { return rows[static_cast<std::size_t>(r)]; };
  switch (kind) {
    case LayoutKind::contiguous: {
      const std::vector<i64> cuts = even_cuts(tokens, ring);
      for (std::size_t r = 0; r < rows.size(); ++r) append(rows[r], cuts[r], cuts[r + 1] - cuts[r], 1);
      break;
    }
    case LayoutKind::zigzag: {
      const std::vector<i64> cuts = even_cuts(tokens, i64{2} * ring);
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (std::size_t chunk : {r, 2 * rows.size() - 1 - r})
          append(rows[r], cuts[chunk], cuts[chunk + 1] - cuts[chunk], 1);
      break;
    }
    case LayoutKind::striped:
      for (int r = 0; r < ring; ++r) append(at(r), r, (tokens - r + ring - 1) / ring, ring);
      break;
    case LayoutKind::balanced:
      rows = balanced_rows(tokens, ring, cu_seqlens);
      break;
  }
  return {std::move(rows), ulysses};
}

}  // namespace usp
