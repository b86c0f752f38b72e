// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"

#include <algorithm>
#include <cstring>

namespace usp {

/// Walks the payload of a list of boxes run by run, stopping anywhere inside a run.
class BoxWalk {
 public:
  BoxWalk(const ByteBox* boxes, i64 count) : box_(boxes), end_(boxes + count) { skip_empty(); }

  [[nodiscard]] bool done() const { return box_ == end_; }
  /// What is left of the run at hand.
  [[nodiscard]] std::byte* data() const {
    return box_->data + at_[0] * box_->stride[0] + at_[1] * box_->stride[1] + at_[2] * box_->stride[2] +
           offset_;
  }
  [[nodiscard]] i64 left() const { return box_->run_bytes - offset_; }
  void advance(i64 bytes) {
    offset_ += bytes;
    if (offset_ < box_->run_bytes) return;
    offset_ = 0;
    for (int axis = 2; axis >= 0; --axis) {
      if (++at_[axis] < box_->count[axis]) return;
      at_[axis] = 0;
    }
    ++box_;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (box_ != end_ && box_->bytes() == 0) ++box_;
  }
  const ByteBox* box_;
  const ByteBox* end_;
  i64 at_[3] = {0, 0, 0};
  i64 offset_ = 0;
};

/// Copies one payload into the other, cut as each is; returns the bytes copied (the lesser of the two).
inline i64 copy_boxes(const Message& from, const Message& to) {
  BoxWalk source(from.boxes, from.box_count), target(to.boxes, to.box_count);
  i64 copied = 0;
  while (!source.done() && !target.done()) {
    const i64 bytes = std::min(source.left(), target.left());
    std::memcpy(target.data(), source.data(), static_cast<std::size_t>(bytes));
    source.advance(bytes);
    target.advance(bytes);
    copied += bytes;
  }
  return copied;
}

}  // namespace usp
