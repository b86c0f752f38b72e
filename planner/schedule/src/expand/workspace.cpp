// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/expand.hpp"

#include <algorithm>

namespace usp {
namespace {

/// Marks the buffers that something fills, moves or computes on. A pruned plan binds some that nobody does.
class Touched {
 public:
  explicit Touched(const RankSchedule& schedule) : touched_(schedule.buffers.size(), false) {
    for (std::size_t i = 0; i < touched_.size(); ++i) touched_[i] = schedule.buffers[i].fill != Fill::nan;
    for (const Box& box : schedule.boxes) mark(box.buffer);
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

}  // namespace

Workspace pack_workspace(const RankSchedule& schedule, i64 batch) {
  constexpr i64 alignment = 256;
  const int ticks = static_cast<int>(schedule.ticks.size());
  const auto& buffers = schedule.buffers;
  Workspace result;
  result.offset.assign(buffers.size(), -1);
  const Touched touched(schedule);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].internal(ticks) && touched[i]) order.push_back(i);
  const auto size_of = [&](std::size_t i) {
    return (bytes_of(buffers[i], batch) + alignment - 1) / alignment * alignment;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return size_of(a) > size_of(b); });
  std::vector<std::size_t> placed;
  std::vector<Range> taken;
  for (std::size_t i : order) {
    taken.clear();
    for (std::size_t other : placed)
      if (buffers[other].first <= buffers[i].last && buffers[i].first <= buffers[other].last)
        taken.push_back({result.offset[other], result.offset[other] + size_of(other)});
    std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    i64 at = 0;
    for (const Range& range : taken) {
      if (range.begin - at >= size_of(i)) break;
      at = std::max(at, range.end);
    }
    result.offset[i] = at;
    result.bytes = std::max(result.bytes, at + bytes_of(buffers[i], batch));
    placed.push_back(i);
  }
  return result;
}

}  // namespace usp
