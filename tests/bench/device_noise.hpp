// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace usp::bench {

/// Fills device memory with normal numbers in bf16: a pattern, rolled by a prime each time so that rows
/// differ.
inline void fill_with_noise(std::byte* memory, i64 bytes, device::StreamHandle stream, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> pattern(1U << 20);
  for (std::uint16_t& x : pattern) {
    const float f = normal(random);
    std::uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    x = static_cast<std::uint16_t>(bits >> 16);
  }
  const auto step = static_cast<i64>(pattern.size() * sizeof(std::uint16_t));
  for (i64 at = 0; at < bytes; at += step) {
    std::rotate(pattern.begin(), pattern.begin() + 100003, pattern.end());
    device::copy_to_device(memory + at, pattern.data(), std::min(step, bytes - at), stream);
  }
}

}  // namespace usp::bench
