// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace usp::bench {

/// Fills device memory with normal numbers in bf16: parts of one pattern that begin elsewhere each time, so
/// that rows differ.
inline void fill_with_noise(std::byte* memory, i64 bytes, device::StreamHandle stream, unsigned seed) {
  constexpr std::size_t count = 1U << 20;
  static const std::vector<std::uint16_t> pattern = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> numbers(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const float f = normal(random);
      std::uint32_t bits;
      std::memcpy(&bits, &f, sizeof bits);
      numbers[i] = numbers[i + count] = static_cast<std::uint16_t>(bits >> 16);
    }
    return numbers;
  }();
  const auto step = static_cast<i64>(count * sizeof(std::uint16_t));
  std::size_t first = std::size_t{seed} * 700001 % count;
  for (i64 at = 0; at < bytes; at += step, first = (first + 100003) % count)
    device::copy_to_device(memory + at, pattern.data() + first, std::min(step, bytes - at), stream);
}

}  // namespace usp::bench
