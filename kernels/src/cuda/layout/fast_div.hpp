// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define USP_HOST_DEVICE __host__ __device__
#else
#define USP_HOST_DEVICE
#endif

namespace usp::kernels::cuda {

/// Division of a number below 2^31 by one that is known at launch: a product and a shift (Granlund and
/// Montgomery, PLDI'94).
class FastDiv {
 public:
  FastDiv() = default;
  explicit FastDiv(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    magic_ = static_cast<std::uint32_t>(
        (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - divisor) / divisor + 1);
  }
  [[nodiscard]] USP_HOST_DEVICE std::uint32_t divide(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * magic_) >> 32);
    return (high + n) >> shift_;
  }
  /// The remainder; `n` becomes the quotient.
  [[nodiscard]] USP_HOST_DEVICE std::uint32_t split(std::uint32_t& n) const {
    const std::uint32_t quotient = divide(n), remainder = n - quotient * divisor_;
    n = quotient;
    return remainder;
  }

 private:
  std::uint32_t divisor_ = 1, magic_ = 1, shift_ = 0;
};

}  // namespace usp::kernels::cuda
