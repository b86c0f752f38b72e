// SPDX-License-Identifier: Apache-2.0
// Digests of whole tensors: what differs anywhere differs.
#include "usp/base/digest.hpp"

#include <gtest/gtest.h>

#include <set>

namespace usp {
namespace {

[[nodiscard]] std::vector<unsigned char> pattern(std::size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 37 + 11);
  return data;
}

TEST(DigestOfBytes, EveryBitOfEveryByteCounts) {
  for (const std::size_t size : {1U, 7U, 8U, 31U, 32U, 33U, 64U, 100U}) {
    std::vector<unsigned char> data = pattern(size);
    std::set<std::uint64_t> seen{digest_of_bytes(data.data(), size)};
    for (std::size_t byte = 0; byte < size; ++byte)
      for (int bit = 0; bit < 8; ++bit) {
        data[byte] = static_cast<unsigned char>(data[byte] ^ (1 << bit));
        seen.insert(digest_of_bytes(data.data(), size));
        data[byte] = static_cast<unsigned char>(data[byte] ^ (1 << bit));
      }
    EXPECT_EQ(seen.size(), 1 + 8 * size) << size << " bytes";
  }
}

TEST(DigestOfBytes, LengthsAndOrderCount) {
  const std::vector<unsigned char> zeros(100);
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= 100; ++size) seen.insert(digest_of_bytes(zeros.data(), size));
  EXPECT_EQ(seen.size(), 101U);
  // Two words of one lane, and of two lanes, change places.
  for (const std::size_t distance : {8U, 32U}) {
    std::vector<unsigned char> data = pattern(96), swapped = data;
    std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + static_cast<long>(distance));
    EXPECT_NE(digest_of_bytes(data.data(), 96), digest_of_bytes(swapped.data(), 96));
  }
}

TEST(DigestOfBytes, NothingHasADigestWithoutAnAddress) {
  EXPECT_EQ(digest_of_bytes(nullptr, 0), digest_of_bytes("", 0));
}

}  // namespace
}  // namespace usp
