// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule_cases.hpp"

#include "usp/schedule/expand.hpp"

#include <vector>

/// What the law tests ask of expanded schedules, computed token by token.
namespace usp::test {

constexpr Pass both_passes[] = {Pass::forward, Pass::backward};

/// The explicit schedules of all ranks.
class Expanded {
 public:
  explicit Expanded(const ScheduleCase& c, schedule::PeerReach reach = schedule::PeerReach::all)
      : geometry(c.plan, c.documents) {
    schedule::generate(c.plan, geometry.heads().shared_kv(), compact);
    for (Pass pass : both_passes)
      for (int p = 0; p < c.plan.mesh.size(); ++p)
        list(pass).push_back(schedule::expand(geometry, compact, p, pass, reach));
  }
  [[nodiscard]] const std::vector<schedule::RankSchedule>& of(Pass pass) const {
    return pass == Pass::forward ? forward_ : backward_;
  }
  [[nodiscard]] const schedule::TransferOp& move(Pass pass, const schedule::Transfer& t) const {
    return compact.of(pass).transfers[static_cast<std::size_t>(t.move)];
  }

  schedule::TokenMap geometry;
  schedule::CompactSchedule compact;

 private:
  [[nodiscard]] std::vector<schedule::RankSchedule>& list(Pass pass) {
    return pass == Pass::forward ? forward_ : backward_;
  }
  std::vector<schedule::RankSchedule> forward_, backward_;
};

[[nodiscard]] inline schedule::Side side_of(Tensor t) {
  return t == Tensor::k || t == Tensor::v || t == Tensor::dk || t == Tensor::dv ? schedule::Side::k
                                                                                : schedule::Side::q;
}

/// Global tokens of the slots of a ring row.
[[nodiscard]] inline std::vector<i64> row_tokens(const SequenceLayout& layout, int r, Range slots) {
  std::vector<i64> tokens;
  for (const Run& run : layout.tokens_of(r, slots))
    for (i64 n = 0; n < run.count; ++n) tokens.push_back(run.first + n * run.step);
  return tokens;
}
[[nodiscard]] inline std::vector<i64> row_tokens(const SequenceLayout& layout, int r) {
  return row_tokens(layout, r, {0, layout.row_size(r)});
}

/// Global tokens of the rows of a buffer.
[[nodiscard]] inline std::vector<i64> buffer_tokens(const schedule::TokenMap& geometry,
                                                    const schedule::RankSchedule& schedule,
                                                    const schedule::Buffer& b) {
  std::vector<i64> tokens(static_cast<std::size_t>(b.rows), -1);
  for (std::int32_t i = 0; i < b.pieces.count; ++i) {
    const schedule::Piece& p = schedule.pieces[static_cast<std::size_t>(b.pieces.begin + i)];
    const std::vector<i64> part = row_tokens(geometry.layout(side_of(b.name.tensor)), p.ring_row, p.slots);
    for (std::size_t n = 0; n < part.size(); ++n) tokens[static_cast<std::size_t>(p.row) + n] = part[n];
  }
  return tokens;
}
[[nodiscard]] inline const schedule::Buffer& buffer_of(const schedule::RankSchedule& s,
                                                       schedule::BufferId id) {
  return s.buffers.at(static_cast<std::size_t>(id));
}

/// Calls each(entry, its index in the pool) for a range of a pool.
template <class T, class Each>
void for_each(const std::vector<T>& pool, schedule::ListRef range, const Each& each) {
  for (std::int32_t i = range.begin; i < range.begin + range.count; ++i)
    each(pool.at(static_cast<std::size_t>(i)), i);
}

/// One token and head of one tensor inside a message.
struct Cell {
  Tensor tensor;
  BufferSlot place;
  i64 token, head;
};

/// What a message carries, in its order.
[[nodiscard]] inline std::vector<Cell> cells_of(const schedule::TokenMap& geometry,
                                                const schedule::RankSchedule& s,
                                                const schedule::Transfer& t) {
  std::vector<Cell> cells;
  for_each(s.regions, t.regions, [&](const schedule::BufferRegion& region, std::int32_t) {
    const schedule::Buffer& b = buffer_of(s, region.buffer);
    const std::vector<i64> tokens = buffer_tokens(geometry, s, b);
    for (i64 row = region.rows.begin; row < region.rows.end; ++row)
      for (i64 head = region.heads.begin; head < region.heads.end; ++head)
        cells.push_back({b.name.tensor, b.name.place, tokens.at(static_cast<std::size_t>(row)), head});
  });
  return cells;
}

/// Bytes that each rank sends in one pass.
[[nodiscard]] inline std::vector<i64> sent_bytes(const std::vector<schedule::RankSchedule>& ranks) {
  std::vector<i64> sent;
  for (const schedule::RankSchedule& s : ranks) {
    sent.push_back(0);
    for (const schedule::Transfer& t : s.transfers)
      if (t.send) sent.back() += t.bytes;
  }
  return sent;
}

/// The mask of a plan by its definition, for every pair of global tokens.
class Mask {
 public:
  Mask(const AttentionPlan& plan, const Documents& docs)
      : keys_(static_cast<std::size_t>(plan.shape.kv_tokens)),
        seen_(static_cast<std::size_t>(plan.shape.q_tokens * plan.shape.kv_tokens), 0) {
    for (std::size_t d = 0; d < docs.count(); ++d)
      for (i64 q = docs.cu_q[d]; q < docs.cu_q[d + 1]; ++q)
        for (i64 k = docs.cu_k[d]; k < docs.cu_k[d + 1]; ++k) {
          const i64 diff = q + docs.shift[d] - k;
          seen_[at(q, k)] = diff >= plan.band.diff_min && diff <= plan.band.diff_max ? 1 : 0;
        }
  }
  [[nodiscard]] bool sees(i64 q, i64 k) const { return seen_[at(q, k)] != 0; }
  [[nodiscard]] bool any_sees(const std::vector<i64>& queries, i64 k) const {
    return std::any_of(queries.begin(), queries.end(), [&](i64 q) { return sees(q, k); });
  }

 private:
  [[nodiscard]] std::size_t at(i64 q, i64 k) const {
    return static_cast<std::size_t>(q) * keys_ + static_cast<std::size_t>(k);
  }
  std::size_t keys_;
  std::vector<char> seen_;
};

[[nodiscard]] inline bool contains(const std::vector<Range>& ranges, i64 x) {
  return std::any_of(ranges.begin(), ranges.end(), [x](Range r) { return x >= r.begin && x < r.end; });
}

}  // namespace usp::test
