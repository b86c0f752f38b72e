// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/detail/work_profile.hpp"

#include "row_classes.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace usp {
namespace {

/// Sums slices of one query row against some blocks; rows and keys are counted once.
class ShapeSum {
 public:
  void add(const schedule::RowSlice& s) {
    add({s.key_row,
         {s.slice.q_row, s.slice.q_row + s.slice.q_count},
         {s.slice.k_row, s.slice.k_row + s.slice.k_count},
         schedule::area(s.slice)});
  }
  void add(const schedule::RowPart& part) {
    area_ += part.area;
    queries_.push_back(part.queries);
    keys_.push_back(part.keys);
  }
  /// Keys of different blocks never overlap: their unions are taken block by block.
  void end_block() {
    schedule::normalize(keys_);
    shape_.keys += static_cast<double>(schedule::total(keys_));
    keys_.clear();
  }
  [[nodiscard]] BlockShape take() {
    schedule::normalize(queries_);
    shape_.rows = static_cast<double>(schedule::total(queries_));
    queries_.clear();
    shape_.area = static_cast<double>(std::exchange(area_, 0));
    return std::exchange(shape_, {});
  }

 private:
  BlockShape shape_;
  i128 area_ = 0;  ///< exact, so that a full block is found to be full
  schedule::Intervals queries_, keys_;
};

bool dominates(const BlockShape& a, const BlockShape& b) {
  if (a.full() != b.full()) return false;
  return a.rows >= b.rows && a.keys >= b.keys && a.area * b.rows >= b.area * a.rows;
}

void insert(ParetoFront& pareto_front, const BlockShape& shape) {
  if (shape.area == 0) return;
  for (const BlockShape& other : pareto_front)
    if (dominates(other, shape)) return;
  pareto_front.erase(std::remove_if(pareto_front.begin(), pareto_front.end(),
                                    [&](const BlockShape& other) { return dominates(shape, other); }),
                     pareto_front.end());
  pareto_front.push_back(shape);
}

/// How much it takes to describe what a pair of rows has to do.
enum class Described {
  by_difference,  ///< the difference of their numbers: one document, equal even rows, and for zigzag a mask
                  ///< without a window (then only the sign of the difference matters)
  by_class,       ///< that and their sizes: as above with rows that differ by a token
  by_rows,        ///< both numbers
};
Described described(const schedule::TokenMap& geometry) {
  const AttentionPlan& plan = geometry.plan();
  const i64 ring = plan.mesh.ring(), tokens = plan.shape.q_tokens;
  if (geometry.documents().count() != 1 || geometry.documents().shift.front() != 0 ||
      tokens != plan.shape.kv_tokens)
    return Described::by_rows;
  const auto even = [](bool equal) { return equal ? Described::by_difference : Described::by_class; };
  const bool windowless =
      plan.band.diff_max == unbounded && (plan.band.diff_min == 0 || plan.band.diff_min == -unbounded);
  switch (plan.layout) {
    case LayoutKind::contiguous:
      return tokens % ring == 0 || windowless ? even(tokens % ring == 0) : Described::by_rows;
    case LayoutKind::striped:
      return even(tokens % ring == 0);
    case LayoutKind::zigzag:
      return windowless ? even(tokens % (2 * ring) == 0) : Described::by_rows;
    case LayoutKind::balanced:
      break;
  }
  return Described::by_rows;
}

}  // namespace

WorkProfile::WorkProfile(const schedule::TokenMap& geometry) {
  const AttentionPlan& plan = geometry.plan();
  by_delta_.assign(static_cast<std::size_t>(plan.mesh.ring()), -1);
  const bool joined = !plan.method->joins_remote_blocks || plan.band.diff_max == unbounded;
  const Described by = joined ? described(geometry) : Described::by_rows;
  if (by == Described::by_difference)
    by_difference(geometry);
  else if (by == Described::by_class)
    by_class(geometry);
  else
    by_row(geometry);
}

int WorkProfile::keep(ParetoFront pareto_front) {
  for (std::size_t i = fronts_.size(); i-- > 0 && i + 4 > fronts_.size();)
    if (fronts_[i] == pareto_front) return static_cast<int>(i);
  fronts_.push_back(std::move(pareto_front));
  return static_cast<int>(fronts_.size()) - 1;
}

void WorkProfile::by_difference(const schedule::TokenMap& geometry) {
  const Mesh& mesh = geometry.mesh();
  const int ring = mesh.ring();
  std::vector<BlockShape> shapes(static_cast<std::size_t>(2 * ring - 1));  // by r - j + ring - 1
  ShapeSum sum;
  for (int r : {ring - 1, 0}) {
    const auto& slices = geometry.slices_of_row(r);
    for (std::size_t i = 0; i < slices.size();) {
      const int j = slices[i].key_row;
      for (; i < slices.size() && slices[i].key_row == j; ++i) sum.add(slices[i]);
      sum.end_block();
      shapes[static_cast<std::size_t>(r - j + ring - 1)] = sum.take();
    }
  }
  for (int x = 1 - ring; x < ring; ++x)
    total_area_ += shapes[static_cast<std::size_t>(x + ring - 1)].area * (ring - std::abs(x));
  for (int d = 0; d < ring; ++d) {
    ParetoFront pareto_front;
    const int outer = d / mesh.ring_inner, inner = d % mesh.ring_inner;
    for (int o : {outer, outer - mesh.ring_outer})
      for (int i : {inner, inner - mesh.ring_inner}) {
        const bool exists = (o >= 0 || outer > 0) && (i >= 0 || inner > 0);
        if (exists)
          insert(pareto_front, shapes[static_cast<std::size_t>(o * mesh.ring_inner + i + ring - 1)]);
      }
    by_delta_[static_cast<std::size_t>(d)] = keep(std::move(pareto_front));
  }
  if (geometry.plan().method->joins_remote_blocks) remote_ = keep(all_remote(shapes, ring));
}

/// All remote blocks of each row at once. Without a window the rows that see something of one block are among
/// those that see something of another, so that their union is the largest.
ParetoFront WorkProfile::all_remote(const std::vector<BlockShape>& shapes, int ring) {
  const auto join = [](BlockShape& sum, const BlockShape& next) {
    sum.rows = std::max(sum.rows, next.rows);
    sum.keys += next.keys;
    sum.area += next.area;
  };
  std::vector<BlockShape> before(static_cast<std::size_t>(ring));  // by number of earlier key rows
  std::vector<BlockShape> after(static_cast<std::size_t>(ring));   // by number of later key rows
  for (int n = 1; n < ring; ++n) {
    const auto i = static_cast<std::size_t>(n);
    before[i] = before[i - 1];
    join(before[i], shapes[static_cast<std::size_t>(ring - 1 + n)]);
    after[i] = after[i - 1];
    join(after[i], shapes[static_cast<std::size_t>(ring - 1 - n)]);
  }
  ParetoFront pareto_front;
  for (int r = 0; r < ring; ++r) {
    BlockShape sum = before[static_cast<std::size_t>(r)];
    join(sum, after[static_cast<std::size_t>(ring - 1 - r)]);
    insert(pareto_front, sum);
  }
  return pareto_front;
}

/// As by_row, with one pair of rows for all pairs of the same difference and classes.
void WorkProfile::by_class(const schedule::TokenMap& geometry) {
  const Mesh& mesh = geometry.mesh();
  const RowClasses classes(geometry.layout(schedule::Side::q));
  std::vector<schedule::RowSlice> slices;
  ShapeSum sum;
  const auto add_pairs = [&](const RowGrid& rows, i64 difference, ParetoFront& pareto_front) {
    for (const Range& a : classes.all())
      for (const Range& b : classes.all()) {
        const i64 begin = std::max(a.begin, b.begin + difference), end = std::min(a.end, b.end + difference);
        const i64 r = rows.first_in(begin, end);
        if (r < 0) continue;
        slices.clear();
        geometry.slices_between(static_cast<int>(r), static_cast<int>(r - difference), slices);
        for (const schedule::RowSlice& s : slices) sum.add(s);
        sum.end_block();
        const BlockShape shape = sum.take();
        total_area_ += shape.area * static_cast<double>(rows.count_in(begin, end));
        insert(pareto_front, shape);
      }
  };
  for (int d = 0; d < mesh.ring(); ++d) {
    ParetoFront pareto_front;
    const i64 outer = d / mesh.ring_inner, inner = d % mesh.ring_inner;
    for (const bool wraps_outer : {false, true})
      for (const bool wraps_inner : {false, true}) {
        const Range o = wraps_outer ? Range{0, outer} : Range{outer, mesh.ring_outer};
        const Range i = wraps_inner ? Range{0, inner} : Range{inner, mesh.ring_inner};
        const i64 difference = (wraps_outer ? outer - mesh.ring_outer : outer) * mesh.ring_inner +
                               (wraps_inner ? inner - mesh.ring_inner : inner);
        add_pairs({o, i, mesh.ring_inner}, difference, pareto_front);
      }
    by_delta_[static_cast<std::size_t>(d)] = keep(std::move(pareto_front));
  }
  if (geometry.plan().method->joins_remote_blocks) gather_by_class(geometry);
}

/// All remote blocks of each row at once. Without a window all blocks of a class on one side of the row are
/// alike, and the rows that see something of one block are among those that see something of another.
void WorkProfile::gather_by_class(const schedule::TokenMap& geometry) {
  const RowClasses classes(geometry.layout(schedule::Side::k));
  std::vector<schedule::RowSlice> slices;
  ParetoFront pareto_front;
  ShapeSum sum;
  for (int r = 0; r < geometry.mesh().ring(); ++r) {
    BlockShape all;
    for (const Range& rows : classes.all())
      for (const Range& side : {Range{rows.begin, std::min<i64>(rows.end, r)},
                                Range{std::max<i64>(rows.begin, r + 1), rows.end}}) {
        if (side.empty()) continue;
        slices.clear();
        geometry.slices_between(r, static_cast<int>(side.begin), slices);
        for (const schedule::RowSlice& s : slices) sum.add(s);
        sum.end_block();
        const BlockShape shape = sum.take();
        all.rows = std::max(all.rows, shape.rows);
        all.keys += shape.keys * static_cast<double>(side.size());
        all.area += shape.area * static_cast<double>(side.size());
      }
    insert(pareto_front, all);
  }
  remote_ = keep(std::move(pareto_front));
}

void WorkProfile::by_row(const schedule::TokenMap& geometry) {
  const Mesh& mesh = geometry.mesh();
  const int ring = mesh.ring();
  std::vector<ParetoFront> fronts(static_cast<std::size_t>(ring));
  ParetoFront remote;
  ShapeSum block, others;
  std::vector<schedule::RowPart> parts;
  for (int r = 0; r < ring; ++r) {
    parts.clear();
    geometry.visit_row(r, [&](const schedule::RowPart& part) { parts.push_back(part); });
    std::stable_sort(parts.begin(), parts.end(), [](const schedule::RowPart& a, const schedule::RowPart& b) {
      return a.key_row < b.key_row;
    });
    for (std::size_t i = 0; i < parts.size();) {
      const int j = parts[i].key_row;
      for (; i < parts.size() && parts[i].key_row == j; ++i) {
        block.add(parts[i]);
        if (j != r) others.add(parts[i]);
      }
      block.end_block();
      others.end_block();
      const BlockShape shape = block.take();
      total_area_ += shape.area;
      // Offset d with row_at(r, -d) == j.
      const int outer = (r / mesh.ring_inner - j / mesh.ring_inner + mesh.ring_outer) % mesh.ring_outer;
      const int inner = (r % mesh.ring_inner - j % mesh.ring_inner + mesh.ring_inner) % mesh.ring_inner;
      insert(fronts[static_cast<std::size_t>(outer * mesh.ring_inner + inner)], shape);
    }
    insert(remote, others.take());
  }
  for (std::size_t d = 0; d < fronts.size(); ++d) by_delta_[d] = keep(std::move(fronts[d]));
  if (geometry.plan().method->joins_remote_blocks) remote_ = keep(std::move(remote));
}

}  // namespace usp
