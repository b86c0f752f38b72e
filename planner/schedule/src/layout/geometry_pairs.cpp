// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/geometry.hpp"

#include <algorithm>
#include <tuple>

namespace usp::schedule {

void TokenMap::list_key_runs() {
  if (plan_.layout == LayoutKind::striped) return;
  for (int r = 0; r < layout_k_.ring(); ++r)
    for (const Run& run : layout_k_.row(r)) key_runs_.push_back({r, run});
  std::sort(key_runs_.begin(), key_runs_.end(),
            [](const RowRun& a, const RowRun& b) { return a.run.first < b.run.first; });
}

/// Calls `piece(document, run)` for the runs of query row r, cut at document borders; with `sums`,
/// `whole(first, last, slots)` for stretches of documents [first, last) that lie whole inside a run.
template <class Piece, class Whole>
void TokenMap::walk_row(int r, bool sums, const Piece& piece, const Whole& whole) const {
  const std::vector<i64>& cu = documents().cu_q;
  for (const Run& run : layout_q_.row(r)) {
    const i64 end = run.first + run.count;  // of a run of step 1
    auto border = std::upper_bound(cu.begin(), cu.end(), run.first);
    for (i64 done = 0; done < run.count; ++border) {
      const i64 first = run.first + done * run.step;
      if (*border <= first) continue;
      if (sums && run.step == 1 && *(border - 1) == first && *border <= end) {
        const auto last = std::upper_bound(border, cu.end(), end) - 1;
        whole(static_cast<std::size_t>(border - cu.begin() - 1), static_cast<std::size_t>(last - cu.begin()),
              Range{run.slot + done, run.slot + *last - run.first});
        done = *last - run.first;
        border = last;
        continue;
      }
      const i64 count = std::min(run.count - done, slice_detail::ceil_div(*border - first, run.step));
      piece(static_cast<std::size_t>(border - cu.begin() - 1), Run{first, count, run.step, run.slot + done});
      done += count;
    }
  }
}

/// Calls `each` for the runs of a document's key tokens, cut at its borders; may leave out those of which
/// nothing is in `seen`.
template <class Each>
void TokenMap::visit_keys(Range document, Range seen, const Each& each) const {
  if (plan_.layout == LayoutKind::striped) {
    const i64 ring = mesh().ring(), end = std::min(document.end, document.begin + ring);
    for (i64 token = document.begin; token < end; ++token) {
      const auto row = static_cast<std::int32_t>(token % ring);
      each(RowRun{row,
                  {token, slice_detail::ceil_div(document.end - token, ring), layout_k_.row(row).front().step,
                   token / ring}});
    }
    return;
  }
  auto at = std::upper_bound(key_runs_.begin(), key_runs_.end(), seen.begin,
                             [](i64 token, const RowRun& k) { return token < k.run.first; });
  if (at != key_runs_.begin()) --at;
  for (; at != key_runs_.end() && at->run.first < seen.end; ++at) {
    const Run& run = at->run;
    const i64 begin = std::max(run.first, document.begin),
              end = std::min(run.first + run.count, document.end);
    if (begin < end) each(RowRun{at->ring_row, {begin, end - begin, run.step, run.slot + begin - run.first}});
  }
}

void TokenMap::pair_runs(const Run& q, i64 shift, const RowRun& k, std::vector<RowSlice>& out) const {
  Slice s;
  s.q_row = q.slot, s.q_pos = q.first + shift, s.q_step = q.step, s.q_count = q.count;
  s.k_row = k.run.slot, s.k_pos = k.run.first, s.k_step = k.run.step, s.k_count = k.run.count;
  s.diff_min = plan_.band.diff_min, s.diff_max = plan_.band.diff_max;
  if (trim(s)) out.push_back({k.ring_row, s});
}

void TokenMap::pair_with(const Run& q, i64 shift, const RowRun& k, std::vector<RowSlice>& out) const {
  const i64 first = q.first + shift, last = first + (q.count - 1) * q.step;
  if (last - k.run.first < plan_.band.diff_min) return;
  if (first - (k.run.first + (k.run.count - 1) * k.run.step) > plan_.band.diff_max) return;
  if (q.step == k.run.step || q.count == 1 || k.run.count == 1) return pair_runs(q, shift, k, out);
  // Steps that differ have no diagonal to follow: one query row at a time.
  for (i64 row = 0; row < q.count; ++row)
    pair_runs({q.first + row * q.step, 1, 1, q.slot + row}, shift, k, out);
}

void TokenMap::pair(const Run& q, std::size_t document, std::vector<RowSlice>& out) const {
  const i64 shift = documents().shift[document];
  const i64 first = q.first + shift, last = first + (q.count - 1) * q.step;
  const Range all{documents().cu_k[document], documents().cu_k[document + 1]};
  const Range seen{std::max(all.begin, first - plan_.band.diff_max),
                   std::min(all.end, last - plan_.band.diff_min + 1)};
  if (!seen.empty()) visit_keys(all, seen, [&](const RowRun& k) { pair_with(q, shift, k, out); });
}

const std::vector<RowSlice>& TokenMap::slices_of_row(int r) const {
  if (sliced_row_ == r) return row_slices_;
  row_slices_.clear();
  walk_row(
      r, false, [&](std::size_t document, const Run& q) { pair(q, document, row_slices_); },
      [](std::size_t, std::size_t, Range) {});
  std::stable_sort(row_slices_.begin(), row_slices_.end(),
                   [](const RowSlice& a, const RowSlice& b) { return a.key_row < b.key_row; });
  sliced_row_ = r;
  return row_slices_;
}

void TokenMap::slices_between(int r, int key_row, std::vector<RowSlice>& out) const {
  const auto piece = [&](std::size_t document, const Run& q) {
    const i64 begin = documents().cu_k[document], end = documents().cu_k[document + 1];
    for (const Run& run : layout_k_.row(key_row)) {
      const i64 low = std::clamp<i64>(slice_detail::ceil_div(begin - run.first, run.step), 0, run.count);
      const i64 high = std::clamp<i64>(slice_detail::ceil_div(end - run.first, run.step), low, run.count);
      if (low == high) continue;
      const Run part{run.first + low * run.step, high - low, run.step, run.slot + low};
      pair_with(q, documents().shift[document], {key_row, part}, out);
    }
  };
  walk_row(r, false, piece, [](std::size_t, std::size_t, Range) {});
}

void TokenMap::visit_row(int r, const std::function<void(const RowPart&)>& each) const {
  std::vector<RowSlice> found;
  const auto piece = [&](std::size_t document, const Run& q) {
    found.clear();
    pair(q, document, found);
    for (const RowSlice& s : found)
      each({s.key_row,
            {s.slice.q_row, s.slice.q_row + s.slice.q_count},
            {s.slice.k_row, s.slice.k_row + s.slice.k_count},
            area(s.slice)});
  };
  const auto whole = [&](std::size_t first, std::size_t last, Range slots) {
    each({r, slots, slots, batch_->pairs(first, last)});
  };
  walk_row(r, batch_->sums_documents(), piece, whole);
}

void TokenMap::fill_needs() const {
  if (needs_filled_) return;
  for (int r = 0; r < mesh().ring(); ++r)
    visit_row(r, [&](const RowPart& part) {
      const Need next{part.key_row, offset_between(part.key_row, r), part.keys};
      Need* last = needs_.empty() ? nullptr : &needs_.back();
      if (last != nullptr && last->key_row == next.key_row && last->delta == next.delta &&
          last->slots.begin <= next.slots.begin && next.slots.begin <= last->slots.end)
        last->slots.end = std::max(last->slots.end, next.slots.end);
      else
        needs_.push_back(next);
    });
  std::sort(needs_.begin(), needs_.end(), [](const Need& a, const Need& b) {
    return std::tie(a.key_row, a.delta, a.slots.begin) < std::tie(b.key_row, b.delta, b.slots.begin);
  });
  join_needs();
  list_need_runs();
  needs_filled_ = true;
}

namespace {

/// Where the entries of each key row begin, in a list sorted by key row.
template <class Entry>
void index_rows(const std::vector<Entry>& list, int rows, std::vector<std::size_t>& begin) {
  begin.assign(static_cast<std::size_t>(rows) + 1, 0);
  for (const Entry& entry : list) ++begin[static_cast<std::size_t>(entry.key_row) + 1];
  for (std::size_t r = 1; r < begin.size(); ++r) begin[r] += begin[r - 1];
}

}  // namespace

/// Neighbouring documents touch: what is left per pair of rows is a handful of ranges.
void TokenMap::join_needs() const {
  std::size_t kept = 0;
  for (const Need& next : needs_) {
    Need* last = kept > 0 ? &needs_[kept - 1] : nullptr;
    if (last != nullptr && last->key_row == next.key_row && last->delta == next.delta &&
        next.slots.begin <= last->slots.end)
      last->slots.end = std::max(last->slots.end, next.slots.end);
    else
      needs_[kept++] = next;
  }
  needs_.resize(kept);
  index_rows(needs_, mesh().ring(), need_begin_);
}

/// Most masks show the same keys to many query rows: a union over offsets is one of few runs.
void TokenMap::list_need_runs() const {
  std::vector<std::size_t> before, now;  // runs that reach the offset before this one, and this one, by slot
  std::size_t at = 0;                    // in `before`
  const Need* last = nullptr;
  for (const Need& next : needs_) {
    if (last == nullptr || last->key_row != next.key_row || last->delta != next.delta) {
      before.swap(now);
      if (last == nullptr || last->key_row != next.key_row || last->delta + 1 != next.delta) before.clear();
      now.clear();
      at = 0;
    }
    last = &next;
    while (at < before.size() && need_runs_[before[at]].slots.begin < next.slots.begin) ++at;
    if (at < before.size() && need_runs_[before[at]].slots == next.slots) {
      now.push_back(before[at]);
      ++need_runs_[now.back()].end;
      continue;
    }
    now.push_back(need_runs_.size());
    need_runs_.push_back({next.key_row, next.delta, next.delta + 1, next.slots});
  }
  index_rows(need_runs_, mesh().ring(), need_run_begin_);
}

}  // namespace usp::schedule
