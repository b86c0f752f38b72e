// SPDX-License-Identifier: Apache-2.0
#include "comm/regions/region_cut.hpp"

#include "comm/regions/region_walk.hpp"
#include "communicator_payload.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

std::vector<std::byte> gathered(const std::vector<comm::StridedBytes>& regions) {
  std::vector<std::byte> bytes;
  for (comm::RunCursor cursor(regions.data(), static_cast<i64>(regions.size())); !cursor.done();) {
    bytes.insert(bytes.end(), cursor.data(), cursor.data() + cursor.left());
    cursor.advance(cursor.left());
  }
  return bytes;
}

TEST(CutPayload, PiecesAreThePayloadAtAnyCut) {
  contract::Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const i64 bytes = contract::pick(random, 0, 1500);
    contract::Payload payload(bytes, random);
    payload.fill(1, trial);
    const auto whole = gathered(payload.regions);
    std::vector<std::byte> plain;
    payload.each([&](std::byte& byte, i64) { plain.push_back(byte); });
    ASSERT_EQ(whole, plain);
    const i64 begin = contract::pick(random, 0, bytes);
    const i64 end = contract::pick(random, begin, bytes);
    std::vector<comm::StridedBytes> pieces;
    comm::cut_payload(payload.regions.data(), static_cast<i64>(payload.regions.size()), begin, end, pieces);
    ASSERT_EQ(gathered(pieces), std::vector<std::byte>(plain.begin() + begin, plain.begin() + end));
    ASSERT_LE(pieces.size(), 7 * payload.regions.size());
  }
}

}  // namespace
}  // namespace usp
