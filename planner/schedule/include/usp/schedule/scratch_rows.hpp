// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/backend.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/rank_schedule.hpp"

namespace usp::schedule {

[[nodiscard]] constexpr i64 rounded_up(i64 n, i64 step) {
  return (n + step - 1) / step * step;
}

/// Sizes of a step's tensors, for BackendTraits::add_scratch.
class ScratchRows {
 public:
  explicit ScratchRows(const ScratchStep& s) : s_(s) {}

  [[nodiscard]] const AttentionShape& shape() const { return s_.plan.shape; }
  [[nodiscard]] DType io() const { return shape().dtype; }
  [[nodiscard]] i64 query_heads() const { return s_.step.query_heads.size(); }
  [[nodiscard]] i64 kv_heads() const { return s_.step.kv_heads.size(); }
  [[nodiscard]] i64 rows(Tensor tensor) const { return buffer(tensor).rows; }
  [[nodiscard]] DType type(Tensor tensor) const { return buffer(tensor).type; }
  /// Bytes of so many rows, or of those of a tensor, in all batches.
  [[nodiscard]] i64 bytes(i64 row_count, i64 heads, i64 width, DType type) const {
    return shape().batch * row_count * heads * width * usp::bytes_of(type);
  }
  [[nodiscard]] i64 of(Tensor tensor, i64 heads, i64 width, DType type) const {
    return bytes(rows(tensor), heads, width, type);
  }

 private:
  [[nodiscard]] const Buffer& buffer(Tensor tensor) const {
    return s_.schedule.buffers[static_cast<std::size_t>(s_.step[tensor])];
  }
  const ScratchStep& s_;
};

}  // namespace usp::schedule
