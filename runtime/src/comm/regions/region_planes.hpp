// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"
#include "usp/device/plane_copy.hpp"

#include <algorithm>

namespace usp::comm {

/// Walks a region list in payload order, a stack of equal runs at a time.
class StackCursor {
 public:
  StackCursor(const StridedBytes* regions, i64 count) : next_(regions), end_(regions + count) { enter(); }
  [[nodiscard]] bool done() const { return at_end_; }
  [[nodiscard]] std::byte* data() const { return run_ + used_; }
  /// Bytes to the end of the run that data() is in.
  [[nodiscard]] i64 width() const { return run_bytes_ - used_; }
  /// Whole runs of width() at pitch() from data() on; 1 inside a run.
  [[nodiscard]] i64 height() const { return used_ == 0 ? count_[2] - at_[2] : 1; }
  [[nodiscard]] i64 pitch() const { return stride_[2]; }
  /// At most width() * height().
  void advance(i64 bytes) {
    used_ += bytes;
    const i64 runs = used_ / run_bytes_;
    used_ -= runs * run_bytes_;
    at_[2] += runs;
    if (at_[2] == count_[2]) {
      at_[2] = 0;
      if (++at_[1] == count_[1]) {
        at_[1] = 0;
        if (++at_[0] == count_[0]) return enter();
      }
    }
    run_ = region_.data + at_[0] * stride_[0] + at_[1] * stride_[1] + at_[2] * stride_[2];
  }

 private:
  void enter() {
    while (next_ != end_ && next_->bytes() == 0) ++next_;
    at_end_ = next_ == end_;
    if (at_end_) return;
    region_ = *next_++;
    run_bytes_ = region_.run_bytes;
    std::copy_n(region_.count, 3, count_);
    std::copy_n(region_.stride, 3, stride_);
    // Dimensions of one index vanish; a run that the next one continues grows.
    for (int fold = 0; fold < 3 && (count_[2] == 1 || stride_[2] == run_bytes_); ++fold) {
      run_bytes_ *= count_[2];
      count_[2] = count_[1], stride_[2] = stride_[1];
      count_[1] = count_[0], stride_[1] = stride_[0];
      count_[0] = 1;
    }
    if (count_[1] == 1) count_[1] = count_[0], stride_[1] = stride_[0], count_[0] = 1;
    std::fill_n(at_, 3, i64{0});
    used_ = 0;
    run_ = region_.data;
  }

  const StridedBytes* next_;
  const StridedBytes* end_;
  bool at_end_ = false;
  StridedBytes region_;
  std::byte* run_ = nullptr;
  i64 run_bytes_ = 1;
  i64 used_ = 0;
  i64 count_[3] = {1, 1, 1};
  i64 stride_[3] = {0, 0, 0};
  i64 at_[3] = {0, 0, 0};
};

/// Cuts the move of one payload from its sender's regions to its receiver's into planes, as few as the two
/// cuts allow: a whole region against a whole region is one, however the runs of either are joined. Returns
/// the bytes.
template <class Emit>
i64 for_each_plane(const Message& from, const Message& to, const Emit& emit) {
  StackCursor source(from.regions, from.region_count), target(to.regions, to.region_count);
  i64 moved = 0;
  while (!source.done() && !target.done()) {
    device::Copy2d plane;
    plane.from = source.data();
    plane.to = target.data();
    plane.width = std::min(source.width(), target.width());
    // A longer run is a stack of shorter ones where it is a multiple of them.
    const auto rows = [&](const StackCursor& c) {
      if (c.width() == plane.width) return c.height();
      return c.width() % plane.width == 0 ? c.width() / plane.width : 1;
    };
    const auto pitch = [&](const StackCursor& c) {
      return c.width() == plane.width && c.height() > 1 ? c.pitch() : plane.width;
    };
    plane.height = std::min(rows(source), rows(target));
    plane.from_pitch = pitch(source);
    plane.to_pitch = pitch(target);
    emit(plane);
    const i64 bytes = plane.width * plane.height;
    source.advance(bytes);
    target.advance(bytes);
    moved += bytes;
  }
  return moved;
}

}  // namespace usp::comm
