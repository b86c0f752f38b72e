// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/expand.hpp"

#include <algorithm>

namespace usp::schedule {
namespace {

/// Marks the buffers that something fills, moves or computes on. A pruned plan binds some that no step
/// touches.
class Touched {
 public:
  explicit Touched(const RankSchedule& schedule) : touched_(schedule.buffers.size(), false) {
    for (std::size_t i = 0; i < touched_.size(); ++i) touched_[i] = schedule.buffers[i].fill != Fill::nan;
    for (const BufferRegion& region : schedule.regions) mark(region.buffer);
    for (const Transfer& t : schedule.transfers) mark(t.stage);
    for (const Step& step : schedule.steps)
      for (const BufferId id : step.buffers) mark(id);
  }
  [[nodiscard]] bool operator[](std::size_t i) const { return touched_[i]; }

 private:
  void mark(BufferId id) {
    if (id >= 0) touched_[static_cast<std::size_t>(id)] = true;
  }
  std::vector<bool> touched_;
};

/// Marks the buffers that peers copy from or into.
std::vector<bool> reached_buffers(const RankSchedule& schedule) {
  std::vector<bool> reached(schedule.buffers.size(), false);
  for (const Transfer& t : schedule.transfers) {
    if (t.peer == schedule.rank || t.send == t.push) continue;  // the other end names its regions
    if (t.stage >= 0) {
      reached[static_cast<std::size_t>(t.stage)] = true;
      continue;
    }
    for (std::int32_t i = 0; i < t.regions.count; ++i) {
      const BufferRegion& region = schedule.regions[static_cast<std::size_t>(t.regions.begin + i)];
      reached[static_cast<std::size_t>(region.buffer)] = true;
    }
  }
  return reached;
}

/// Bytes of the workspace that buffers hold in one tick: disjoint ranges in ascending order. What touches is
/// one range, so that packed buffers leave few of them.
class Held {
 public:
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }
  /// Expects bytes that nothing holds yet.
  void add(Range range) {
    const auto next = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin,
                                       [](const Range& r, i64 begin) { return r.begin < begin; });
    const bool left = next != ranges_.begin() && (next - 1)->end == range.begin;
    const bool right = next != ranges_.end() && next->begin == range.end;
    if (left && right) {
      (next - 1)->end = next->end;
      ranges_.erase(next);
    } else if (left) {
      (next - 1)->end = range.end;
    } else if (right) {
      next->begin = range.begin;
    } else {
      ranges_.insert(next, range);
    }
  }

 private:
  std::vector<Range> ranges_;
};

/// Where the first gap of so many bytes begins; sorts what is taken.
i64 first_gap(std::vector<Range>& taken, i64 bytes) {
  std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  i64 at = 0;
  for (const Range& range : taken) {
    if (range.begin - at >= bytes) break;
    at = std::max(at, range.end);
  }
  return at;
}

}  // namespace

Workspace pack_workspace(const RankSchedule& schedule, i64 batch, WorkspacePart part) {
  const int ticks = static_cast<int>(schedule.ticks.size());
  const auto& buffers = schedule.buffers;
  Workspace result;
  result.offset.assign(buffers.size(), -1);
  const Touched touched(schedule);
  const std::vector<bool> reached = reached_buffers(schedule);
  const auto wanted = [&](std::size_t i) {
    return part == WorkspacePart::all || reached[i] == (part == WorkspacePart::reached);
  };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].internal(ticks) && touched[i] && wanted(i)) order.push_back(i);
  const auto size_of = [&](std::size_t i) { return align_buffer(bytes_of(buffers[i], batch)); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return size_of(a) > size_of(b); });
  std::vector<Held> held(schedule.ticks.size());
  std::vector<Range> taken;
  for (std::size_t i : order) {
    const auto first = held.begin() + buffers[i].first, end = held.begin() + buffers[i].last + 1;
    taken.clear();
    for (auto tick = first; tick != end; ++tick)
      taken.insert(taken.end(), tick->ranges().begin(), tick->ranges().end());
    const i64 size = size_of(i), at = first_gap(taken, size);
    result.offset[i] = at;
    result.bytes = std::max(result.bytes, at + bytes_of(buffers[i], batch));
    if (size == 0) continue;
    for (auto tick = first; tick != end; ++tick) tick->add({at, at + size});
  }
  return result;
}

}  // namespace usp::schedule
