// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstdint>
#include <cstring>

/// Scalar bf16 and fp16 on the host, round to nearest even, NaN stays NaN.
namespace usp {

struct bf16 {
  std::uint16_t bits = 0;
};
struct fp16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] inline float to_float(bf16 x) {
  const std::uint32_t bits = std::uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
[[nodiscard]] inline bf16 to_bf16(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

[[nodiscard]] inline float to_float(fp16 x) {
  const std::uint32_t sign = (std::uint32_t{x.bits} & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  std::uint32_t bits = 0;
  float f;
  if (rest >= 0x7c00u) {
    bits = sign | 0x7f800000u | ((rest & 0x3ffu) << 13);
  } else {
    // As a number scaled by 2^-112, which also makes subnormals right.
    bits = rest << 13;
    std::memcpy(&f, &bits, sizeof f);
    f *= 0x1p112f;
    std::memcpy(&bits, &f, sizeof bits);
    bits |= sign;
  }
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
[[nodiscard]] inline fp16 to_fp16(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (bits >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and more: infinity
  if (bits < 0x38800000u) {                                                      // below 2^-14: subnormal
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;  // the lowest mantissa bit is now 2^-24: the addition rounds to nearest even
    std::uint32_t sum;
    std::memcpy(&sum, &magnitude, sizeof sum);
    return {static_cast<std::uint16_t>(sign | (sum - 0x3f000000u))};
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((bits - 0x38000000u) >> 13))};
}

}  // namespace usp
