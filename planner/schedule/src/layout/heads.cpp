// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/heads.hpp"

#include "usp/base/error.hpp"

#include <algorithm>

namespace usp {
namespace {

/// Chunk borders inside the query heads of one rank: on KV groups where there are enough of them, because a
/// border inside a group sends that KV head once per chunk.
std::vector<i64> chunk_cuts(Range heads, i64 group, int chunks) {
  std::vector<i64> cuts(static_cast<std::size_t>(chunks) + 1, heads.begin);
  cuts.back() = heads.end;
  if (heads.empty()) return cuts;
  const i64 first_group = heads.begin / group;
  const i64 groups = (heads.end - 1) / group + 1 - first_group;
  const bool on_groups = groups >= chunks;
  const std::vector<i64> parts = even_cuts(on_groups ? groups : heads.size(), chunks);
  for (std::size_t c = 1; c < static_cast<std::size_t>(chunks); ++c)
    cuts[c] = on_groups ? std::max(heads.begin, (first_group + parts[c]) * group) : heads.begin + parts[c];
  return cuts;
}

}  // namespace

Heads::Heads(int query, int kv, int ulysses, int chunks)
    : query_(query), kv_(kv), ulysses_(ulysses), chunks_(chunks) {
  expects(query >= 1 && kv >= 1 && query % kv == 0, "kv_heads must divide query_heads");
  expects(ulysses >= 1 && chunks >= 1, "a degree below one");
  const std::vector<i64> cuts = even_cuts(query, ulysses);
  for (std::size_t u = 0; u < static_cast<std::size_t>(ulysses); ++u) {
    const std::vector<i64> inner = chunk_cuts({cuts[u], cuts[u + 1]}, group(), chunks);
    for (std::size_t c = 0; c < static_cast<std::size_t>(chunks); ++c) {
      const Range q{inner[c], inner[c + 1]};
      query_ranges_.push_back(q);
      kv_ranges_.push_back(kv_of_query(q));
    }
  }
  std::vector<int> users(static_cast<std::size_t>(kv), 0);
  for (int u = 0; u < ulysses; ++u) {
    const Range all = kv_of(u);
    for (i64 h = all.begin; h < all.end; ++h) ++users[static_cast<std::size_t>(h)];
    for (int c = 0; c < chunks; ++c)
      even_ = even_ && query_of(u, c).size() == query_of(0, c).size() &&
              kv_new(u, c).size() == kv_new(0, c).size() && kv_of(u, c).size() == kv_of(0, c).size() &&
              kv_last(u, c).size() == kv_last(0, c).size();
  }
  shared_kv_ = std::any_of(users.begin(), users.end(), [](int n) { return n > 1; });
}

Range Heads::query_of(int u, int chunk, HeadPart part) const {
  const Range all = query_of(u, chunk);
  if (part == HeadPart::all) return all;
  const i64 border = chunk_cuts(all, group(), 2)[1];
  return part == HeadPart::first_half ? Range{all.begin, border} : Range{border, all.end};
}

Range Heads::kv_of(int u) const {
  Range all{0, 0};
  for (int c = 0; c < chunks_; ++c) {
    const Range part = kv_of(u, c);
    if (part.empty()) continue;
    all = all.empty() ? part : Range{all.begin, part.end};
  }
  return all;
}

Range Heads::kv_new(int u, int chunk) const {
  const Range part = kv_of(u, chunk);
  if (part.empty()) return {0, 0};
  i64 known = 0;
  for (int c = 0; c < chunk; ++c) known = std::max(known, kv_of(u, c).end);
  const i64 begin = std::max(part.begin, known);
  return {begin, std::max(part.end, begin)};
}

Range Heads::kv_last(int u, int chunk) const {
  const Range part = kv_of(u, chunk);
  if (part.empty()) return {0, 0};
  i64 later = unbounded;
  for (int c = chunk + 1; c < chunks_; ++c)
    if (!kv_of(u, c).empty()) later = std::min(later, kv_of(u, c).begin);
  return {part.begin, std::max(part.begin, std::min(part.end, later))};
}

}  // namespace usp
