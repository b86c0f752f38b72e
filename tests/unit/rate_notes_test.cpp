// SPDX-License-Identifier: Apache-2.0
#include "comm/ipc/peer_rates.hpp"

#include <gtest/gtest.h>

namespace usp::comm {
namespace {

TEST(RateNotes, RangeIsToldOnce) {
  const std::vector<PeerRate> rates{{1, false, 355e9}, {2, false, 372.4e9}};
  EXPECT_EQ(rate_notes(0, rates),
            std::vector<std::string>{"copies from other processes reach rank 0 at 355 to 372 GB/s"});
  EXPECT_TRUE(rate_notes(1, rates).empty());
  EXPECT_TRUE(rate_notes(0, {}).empty());
}

TEST(RateNotes, WayThroughTheHostIsNamed) {
  const std::vector<std::string> notes = rate_notes(2, {{0, false, 37e9}, {1, false, 350e9}});
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("slow path: copies from rank 0 reach rank 2 at 37 GB/s"), std::string::npos)
      << notes[0];
}

TEST(RateNotes, SharedGpuIsNoPathBetweenGpus) {
  EXPECT_TRUE(rate_notes(1, {{0, true, 20e9}}).empty());
}

}  // namespace
}  // namespace usp::comm
