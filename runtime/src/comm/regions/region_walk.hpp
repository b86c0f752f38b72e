// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"

#include <algorithm>
#include <cstring>

namespace usp::comm {

/// Walks a region list in payload order; runs of a region that lie back to back come as one.
class RunCursor {
 public:
  RunCursor() = default;
  RunCursor(const StridedBytes* regions, i64 count) : region_(regions), end_(regions + count) { enter(); }
  [[nodiscard]] bool done() const { return region_ == end_; }
  [[nodiscard]] std::byte* data() const { return run_ + used_; }
  /// Bytes from data() to the end of the run.
  [[nodiscard]] i64 left() const { return run_bytes_ - used_; }
  /// At most left().
  void advance(i64 bytes) {
    used_ += bytes;
    if (used_ == run_bytes_) next_run();
  }

 private:
  void enter() {
    while (region_ != end_ && region_->bytes() == 0) ++region_;
    if (region_ == end_) return;
    run_bytes_ = region_->run_bytes;
    std::copy_n(region_->count, 3, count_);
    std::copy_n(region_->stride, 3, stride_);
    for (int fold = 0; fold < 3 && (count_[2] == 1 || stride_[2] == run_bytes_); ++fold) {
      run_bytes_ *= count_[2];
      count_[2] = count_[1];
      stride_[2] = stride_[1];
      count_[1] = count_[0];
      stride_[1] = stride_[0];
      count_[0] = 1;
    }
    std::fill_n(at_, 3, i64{0});
    used_ = 0;
    run_ = region_->data;
  }

  void next_run() {
    used_ = 0;
    if (++at_[2] < count_[2]) {
      run_ += stride_[2];
      return;
    }
    at_[2] = 0;
    if (++at_[1] == count_[1]) {
      at_[1] = 0;
      if (++at_[0] == count_[0]) {
        ++region_;
        enter();
        return;
      }
    }
    run_ = region_->data + at_[0] * stride_[0] + at_[1] * stride_[1];
  }

  const StridedBytes* region_ = nullptr;
  const StridedBytes* end_ = nullptr;
  std::byte* run_ = nullptr;
  i64 run_bytes_ = 0;
  i64 used_ = 0;
  i64 count_[3] = {1, 1, 1};
  i64 stride_[3] = {0, 0, 0};
  i64 at_[3] = {0, 0, 0};
};

/// Copies one payload from its sender's regions to its receiver's, which may split it differently, in any
/// number of parts.
class PayloadCopy {
 public:
  PayloadCopy() = default;
  PayloadCopy(const Message& from, const Message& to)
      : source_(from.regions, from.region_count), target_(to.regions, to.region_count) {}
  [[nodiscard]] bool done() const { return source_.done() || target_.done(); }
  /// Bytes that went through memcpy so far.
  [[nodiscard]] i64 moved() const { return moved_; }
  /// Copies the next `limit` bytes, or what is left; returns how many.
  i64 advance(i64 limit) {
    const i64 before = moved_;
    while (!done() && limit > 0) {
      const i64 bytes = std::min({source_.left(), target_.left(), limit});
      std::memcpy(target_.data(), source_.data(), static_cast<std::size_t>(bytes));
      source_.advance(bytes);
      target_.advance(bytes);
      moved_ += bytes;
      limit -= bytes;
    }
    return moved_ - before;
  }

 private:
  RunCursor source_;
  RunCursor target_;
  i64 moved_ = 0;
};

}  // namespace usp::comm
