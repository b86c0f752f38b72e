// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <cstddef>
#include <cstdint>

/// Whether tensors on a GPU hold the same, found there: thousands of runs are compared in seconds.
namespace usp::test {

/// Of two tensors, over all that were compared.
struct Difference {
  std::uint32_t words = 0;  ///< of 32 bits, whose bits differ
  float greatest = 0;       ///< |a - b| of those as floats; infinite where that is no number
};

/// Adds what differs to `*to`, which lies in device memory; in stream order. Bytes are whole words.
void add_difference(Difference* to, const std::byte* a, const std::byte* b, i64 bytes,
                    device::StreamHandle stream);

}  // namespace usp::test
