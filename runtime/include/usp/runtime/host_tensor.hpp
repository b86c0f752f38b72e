// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"

#include <cstddef>
#include <vector>

namespace usp {

/// Owns the memory of one tensor [batch][row][head][width], packed; zero when made.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType type, i64 batch, i64 rows, Range heads, i64 width);

  [[nodiscard]] kernels::View view() { return {bytes_.data(), type_, batch_, rows_, heads_, width_}; }
  [[nodiscard]] kernels::ConstView view() const {
    return {bytes_.data(), type_, batch_, rows_, heads_, width_};
  }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

  /// The same values in another type, to nearest even.
  [[nodiscard]] HostTensor as(DType type) const;
  /// A packed copy of any view.
  [[nodiscard]] static HostTensor copy_of(const kernels::ConstView& view);
  /// The rows `tokens` of a tensor whose row t is token t.
  [[nodiscard]] HostTensor rows_of(const std::vector<i64>& tokens) const;

 private:
  std::vector<std::byte> bytes_;
  DType type_ = DType::fp32;
  i64 batch_ = 0, rows_ = 0;
  Range heads_;
  i64 width_ = 0;
};

}  // namespace usp
