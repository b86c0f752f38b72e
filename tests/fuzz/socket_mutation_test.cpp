// SPDX-License-Identifier: Apache-2.0
// The parsers of what ranks say to one another against damaged versions of it, with fixed seeds.
#include "mutation.hpp"
#include "socket_seeds.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace usp::fuzz {
namespace {

void expect_survives(const std::vector<std::string>& seeds,
                     const std::function<bool(const std::string&)>& property, int rounds) {
  Random random(20240607);
  for (const std::string& seed : seeds) {
    EXPECT_TRUE(property(seed));
    for (std::size_t length = 0; length < seed.size(); ++length)
      EXPECT_NO_THROW((void)property(seed.substr(0, length))) << length;
    for (int round = 0; round < rounds; ++round)
      EXPECT_NO_THROW((void)property(with_changed_bytes(seed, random))) << round;
  }
}

TEST(SocketMutation, Handshake) {
  expect_survives(handshake_seeds(), socket_handshake, 5000);
}
TEST(SocketMutation, Frames) {
  expect_survives(frame_seeds(), socket_frames, 5000);
}
TEST(SocketMutation, Link) {
  expect_survives(frame_seeds(), socket_link, 2000);
}

}  // namespace
}  // namespace usp::fuzz
