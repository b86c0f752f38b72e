// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstdint>
#include <vector>

namespace usp {

/// Cut points of n items over k parts whose sizes differ by one at most, larger parts first: k + 1 entries.
[[nodiscard]] inline std::vector<i64> even_cuts(i64 n, i64 k) {
  std::vector<i64> cuts(static_cast<std::size_t>(k) + 1, 0);
  for (i64 i = 0; i < k; ++i)
    cuts[static_cast<std::size_t>(i) + 1] = cuts[static_cast<std::size_t>(i)] + n / k + (i < n % k ? 1 : 0);
  return cuts;
}

/// The heads of a chunk, or half of them, cut on a KV group where there are two.
enum class HeadPart : std::uint8_t { all, first_half, second_half };

/// How query and KV heads spread over the ulysses axis, cut once more into head chunks that are exchanged and
/// attended one after another. Query heads are split to within one; a KV head whose group is torn is held by
/// both ranks.
class Heads {
 public:
  Heads() = default;
  /// Expects query >= 1, kv >= 1, query % kv == 0, 1 <= ulysses, 1 <= chunks.
  Heads(int query, int kv, int ulysses, int chunks);

  [[nodiscard]] int query() const { return query_; }
  [[nodiscard]] int kv() const { return kv_; }
  [[nodiscard]] int chunks() const { return chunks_; }
  [[nodiscard]] int group() const { return query_ / kv_; }
  [[nodiscard]] Range query_of(int u) const { return {query_of(u, 0).begin, query_of(u, chunks_ - 1).end}; }
  [[nodiscard]] Range kv_of(int u) const;
  [[nodiscard]] Range query_of(int u, int chunk) const { return query_ranges_[at(u, chunk)]; }
  [[nodiscard]] Range kv_of(int u, int chunk) const { return kv_ranges_[at(u, chunk)]; }
  [[nodiscard]] Range query_of(int u, int chunk, HeadPart part) const;
  [[nodiscard]] Range kv_of(int u, int chunk, HeadPart part) const {
    return kv_of_query(query_of(u, chunk, part));
  }
  /// KV heads of this chunk that no earlier chunk of the rank has brought.
  [[nodiscard]] Range kv_new(int u, int chunk) const;
  /// KV heads of this chunk that no later chunk of the rank adds to.
  [[nodiscard]] Range kv_last(int u, int chunk) const;
  /// Some KV head is attended on more than one ulysses rank: its dK/dV has several contributors.
  [[nodiscard]] bool shared_kv() const { return shared_kv_; }
  /// Every ulysses rank has the same numbers of query and KV heads in every chunk.
  [[nodiscard]] bool even() const { return even_; }
  [[nodiscard]] int ulysses() const { return ulysses_; }

 private:
  [[nodiscard]] Range kv_of_query(Range query) const {
    return query.empty() ? Range{0, 0} : Range{query.begin / group(), (query.end - 1) / group() + 1};
  }
  [[nodiscard]] std::size_t at(int u, int chunk) const {
    return static_cast<std::size_t>(u) * static_cast<std::size_t>(chunks_) + static_cast<std::size_t>(chunk);
  }
  int query_ = 0;
  int kv_ = 0;
  int ulysses_ = 1;
  int chunks_ = 1;
  bool shared_kv_ = false;
  bool even_ = true;
  std::vector<Range> query_ranges_;
  std::vector<Range> kv_ranges_;
};

}  // namespace usp
